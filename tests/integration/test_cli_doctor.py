"""``kr-kfp doctor`` against an API server for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kr_kfp.cli.main import cli
from tests.admin_server import AdminServer, kubeconfig

Json = dict[str, Any]

STEP = """
import kr_kfp


@kr_kfp.component(accelerator="v5litepod-16", framework="none")
def train(n: int) -> int:
    return n
"""

HOOKS: Json = {
    "metadata": {"name": "lws"},
    "webhooks": [
        {
            "name": name,
            "clientConfig": {"caBundle": "Y2E=", "service": {"namespace": "lws-system", "name": "hooks"}},
            "rules": [{"apiGroups": [group], "resources": [resource]}],
        }
        for name, group, resource in (("g", "leaderworkerset.x-k8s.io", "leaderworkersets"), ("p", "", "pods"))
    ],
}


@pytest.fixture(name="server")
def healthy_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminServer]:
    """Serve a cluster on which everything is well."""
    server = AdminServer()
    try:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(server, tmp_path)))
        server.put("serviceaccounts", {"metadata": {"name": "pipeline-runner"}}, "kubeflow")
        secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "data": {"accesskey": "YQ==", "secretkey": "Yg=="}}
        server.put("secrets", secret, "kubeflow")
        server.put("mutatingwebhookconfigurations", HOOKS, "")
        endpoints = [{"conditions": {"ready": True}}, {"conditions": {}}, {"conditions": {"ready": False}}]
        labels = {"kubernetes.io/service-name": "hooks"}
        server.put(
            "endpointslices", {"metadata": {"name": "hooks-1", "labels": labels}, "endpoints": endpoints}, "lws-system"
        )
        image = {"containers": [{"image": "mirror/kfp-api-server:2.17.0"}]}
        api = {"metadata": {"name": "ml-pipeline"}, "spec": {"template": {"spec": image}}}
        server.put("deployments", api, "kubeflow")
        yield server
    finally:
        server.close()


def invoke(*words: str) -> Result:
    """Run the doctor in this process."""
    return CliRunner().invoke(cli, ["doctor", *words])


def findings(*words: str, code: int = 0) -> list[Json]:
    """Give its findings."""
    done = invoke(*words, "--json")
    assert done.exit_code == code, (done.output, done.exception)
    found: list[Json] = json.loads(done.stdout)
    return found


def other(*words: str, code: int = 0) -> list[tuple[str, str]]:
    """Give check and message of the findings that are not pass."""
    return [(f["check"], f["message"]) for f in findings(*words, code=code) if f["state"] != "pass"]


def test_a_cluster_that_is_well(server: AdminServer) -> None:
    """Every line is pass, the exit code 0, and nothing was changed."""
    done = invoke()
    assert done.exit_code == 0, done.output
    shown = done.stdout.splitlines()
    assert shown[:5] == [
        "pass  kubernetes: Kubernetes v1.36.3",
        "pass  leaderworkerset: leaderworkerset.x-k8s.io/v1 is served, with all fields that a step needs",
        "pass  pipelines: argoproj.io/v1alpha1 is served",
        "pass  pipelines: KFP 2.17.0",
        "pass  webhooks: service lws-system/hooks: 2 ready",
    ]
    assert shown[-2:] == [
        "pass  store: Secret mlpipeline-minio-artifact has accesskey, secretkey",
        "31 pass, 0 warn, 0 fail",
    ]
    writes = [r for r in server.requests if r.method != "GET" and "reviews" not in r.path]
    assert [(r.kind, r.query["dryRun"]) for r in writes] == [("create leaderworkersets", "All")]


def test_a_fault_has_exit_code_1_and_a_fix(server: AdminServer) -> None:
    """The line says what to do about it."""
    server.remove("secrets", "mlpipeline-minio-artifact", "kubeflow")
    done = invoke()
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-3:] == [
        "fail  store: there is no Secret mlpipeline-minio-artifact, from which hosts get their credentials",
        "      Fix: Make it in namespace kubeflow, or name another one in ConfigMap kfp-launcher",
        "30 pass, 0 warn, 1 fail",
    ]


def test_json_is_a_list_of_findings(server: AdminServer) -> None:
    """Each has check, state, message and fix."""
    assert findings()[0] == {"check": "kubernetes", "state": "pass", "message": "Kubernetes v1.36.3", "fix": ""}


def test_rights_are_those_of_the_account(server: AdminServer) -> None:
    """They are asked for in its name, with its groups, in its namespace and for the one ConfigMap."""
    server.refused = {"delete pods", "get nodes"}
    assert [message for check, message in other(code=1) if check == "rights"] == [
        "pipeline-runner may not delete pods",
        "pipeline-runner may not get nodes; without it that a node is lost is concluded from its pods, about a minute later",
    ]
    asked = [r.body["spec"] for r in server.of("create subjectaccessreviews")]
    assert {spec["user"] for spec in asked} == {"system:serviceaccount:kubeflow:pipeline-runner"}
    assert asked[0]["groups"] == ["system:serviceaccounts", "system:serviceaccounts:kubeflow", "system:authenticated"]
    attributes = [spec["resourceAttributes"] for spec in asked]
    assert {"verb": "get", "group": "", "resource": "nodes"} in attributes
    assert {"verb": "get", "group": "", "resource": "pods", "namespace": "kubeflow", "subresource": "log"} in attributes
    assert {
        "verb": "get",
        "group": "",
        "resource": "configmaps",
        "namespace": "kubeflow",
        "name": "kfp-launcher",
    } in attributes


def test_rights_are_asked_for_in_the_accounts_name(server: AdminServer) -> None:
    """Who may not ask about others may be able to take their place."""
    server.forbidden = {"create subjectaccessreviews"}
    assert other() == []
    named = [r.headers.get("Impersonate-User") for r in server.of("create selfsubjectaccessreviews")]
    assert set(named[1:]) == {"system:serviceaccount:kubeflow:pipeline-runner"}
    server.forbidden |= {"impersonate users"}
    assert other() == [
        (
            "rights",
            "the rights of system:serviceaccount:kubeflow:pipeline-runner are not known: the account that is logged in "
            "may neither create subjectaccessreviews nor impersonate that one",
        )
    ]


def test_an_account_asks_for_itself(server: AdminServer) -> None:
    """In a pod of the account no other right is needed."""
    server.user = "system:serviceaccount:kubeflow:pipeline-runner"
    server.forbidden = {"create subjectaccessreviews", "impersonate users"}
    assert other() == []


def test_what_may_not_be_looked_at_is_a_warning(server: AdminServer) -> None:
    """Every refusal is one warning; a right that is missing for certain stays a fault."""
    server.forbidden = {
        "get deployments",
        "list mutatingwebhookconfigurations",
        "list serviceaccounts",
        "list resourcequotas",
        "get configmaps",
        "get secrets",
    }
    server.refused = {"create leaderworkersets"}
    found = other(code=1)
    assert [check for check, _ in found] == [
        "pipelines",
        "webhooks",
        "webhooks",
        "account",
        "rights",
        "quota",
        "store",
    ]
    assert found[2][1] == (
        "no group was tried: the account that is logged in may not create leaderworkersets in namespace kubeflow"
    )
    assert found[5][1] == "quotas are not known: admin may not list resourcequotas in namespace kubeflow"


def test_webhooks_are_tried(server: AdminServer) -> None:
    """What a webhook says of a group is what a step would meet."""
    from tests.kube_server import Fault

    server.fail("create leaderworkersets", Fault(status=400, reason="Invalid", message="webhook says no"))
    assert other(code=1) == [
        (
            "webhooks",
            "a group was refused in a dry run: create leaderworkersets in namespace kubeflow: webhook says no",
        )
    ]


def test_a_pipeline_is_compared_with_the_nodes(server: AdminServer, tmp_path: Path) -> None:
    """A step for which there is no node is a fault; with an autoscaler it is a warning."""
    file = tmp_path / "doctored.py"
    file.write_text(STEP, encoding="utf-8")
    message = (
        "step train needs tpu-v5-lite-podslice 4x4 (4 hosts with 4 chips each): no node has it "
        "(no node has the label cloud.google.com/gke-tpu-accelerator)"
    )
    assert other(str(file), code=1) == [("nodes", message)]
    server.put("configmaps", {"metadata": {"name": "cluster-autoscaler-status"}}, "kube-system")
    assert other(str(file)) == [("nodes", f"{message} (now; the cluster is autoscaled)")]


def test_another_namespace_and_account(server: AdminServer) -> None:
    """What is looked at follows the options."""
    server.put("serviceaccounts", {"metadata": {"name": "default-editor"}}, "ada")
    server.put("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "8"}}}, "ada")
    found = other("--namespace", "ada", "--service-account", "default-editor", code=1)
    assert [check for check, _ in found] == ["quota", "store"]


def test_a_server_that_does_not_answer(server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be said then: one error that says so."""
    monkeypatch.setattr("kr_kfp.cli.connect._PATIENCE", 0.0)
    server.close()
    done = invoke()
    assert str(done.exception).startswith("get /version: the API server does not answer: ")
