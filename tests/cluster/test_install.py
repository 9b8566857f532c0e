"""``kr-kfp install``, ``doctor`` and ``uninstall`` on a real cluster: what the API server makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kr_kfp.cli.main import cli
from kr_kfp.spec.rights import LEASES, NODES, RULES, Rule
from tests.cluster.cluster import Cluster
from tests.cluster.processes import wait_for
from tests.cluster.rest import ApiError, Json
from tests.cluster.space import Space

ACCOUNT = "pipeline-runner"

STEPS = """
from kfp import dsl
import kr_kfp


@kr_kfp.component(accelerator="v5litepod-16", framework="none")
def fits(n: int) -> int:
    return n


@kr_kfp.component(accelerator="v6e-16", framework="none")
def missing(n: int) -> int:
    return n


@dsl.pipeline
def both():
    fits(n=1)
    missing(n=1)
"""


class Command:
    """``kr-kfp`` for one namespace, as administrator."""

    def __init__(self, space: Space) -> None:
        self.space = space

    def run(self, *words: str, code: int = 0) -> Any:
        """Run a command with --json, and give what it prints."""
        done = CliRunner().invoke(cli, [*words, "--namespace", self.space.name, "--json"])
        assert done.exit_code == code, (done.output, done.exception)
        return json.loads(done.stdout)

    def changes(self, *words: str) -> list[tuple[str, str, str]]:
        """Run ``install`` or ``uninstall``, and give what happened to each object."""
        found = self.run(*words)["changes"]
        return [(change["kind"], change["name"].replace(self.space.name, "here"), change["what"]) for change in found]

    def doctor(self, *words: str, check: str) -> list[tuple[str, str]]:
        """Run the doctor, and give the findings of one check, as a set of states and messages."""
        done = CliRunner().invoke(cli, ["doctor", *words, "--namespace", self.space.name, "--json"])
        return [(f["state"], f["message"]) for f in json.loads(done.stdout) if f["check"] == check]


@pytest.fixture(name="command")
def command_here(cluster: Cluster, space: Space, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    """Give the command for a namespace with KFP's account in it; what it made on the cluster is gone afterwards."""
    monkeypatch.setenv("KUBECONFIG", str(cluster.places.kubeconfig))
    space.create_object("serviceaccounts", {"metadata": {"name": ACCOUNT}})
    command = Command(space)
    try:
        yield command
    finally:
        command.run("uninstall")


def may(space: Space, verb: str, resource: str, *, group: str = "", name: str = "", here: bool = True) -> bool:
    """Ask the authorizer about the account, as ``kubectl auth can-i --as`` does."""
    plural, _, sub = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": sub, "name": name}
    if here:
        attributes["namespace"] = space.name
    account = f"system:serviceaccount:{space.name}"
    subject = {"user": f"{account}:{ACCOUNT}", "groups": ["system:serviceaccounts", "system:authenticated"]}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    body = {**review, "spec": {**subject, "resourceAttributes": attributes}}
    with space.rest.open("POST", "apis/authorization.k8s.io/v1/subjectaccessreviews", body) as answer:
        allowed: bool = json.load(answer)["status"]["allowed"]
    return allowed


def held(space: Space, rules: tuple[Rule, ...], *, here: bool = True) -> set[bool]:
    """Give the authorizer's answers for all verbs of some rules."""
    return {
        may(space, verb, resource, group=rule.group, name=(*rule.names, "")[0], here=here)
        for rule in rules
        for resource in rule.resources
        for verb in rule.verbs
    }


def until_held(space: Space, rules: tuple[Rule, ...], expected: bool, *, here: bool = True) -> None:
    """Wait until the authorizer has taken in what was changed: it knows roles by watching them."""
    wait_for(f"rights to be {expected}", lambda: held(space, rules, here=here) == {expected}, seconds=30)


def test_install_gives_the_rights_and_uninstall_takes_them(command: Command, space: Space) -> None:
    """Every verb of every rule is granted afterwards and nothing beside them; a second run changes nothing."""
    expected = [
        ("Role", "kr-kfp"),
        ("Role", "kr-kfp-leases"),
        ("RoleBinding", "kr-kfp:pipeline-runner"),
        ("RoleBinding", "kr-kfp-leases:pipeline-runner"),
        ("ClusterRole", "kr-kfp-nodes"),
        ("ClusterRoleBinding", "kr-kfp-nodes:here:pipeline-runner"),
    ]
    everything = ("install", "--nodes", "--leases")
    assert held(space, (*RULES, *LEASES)) == {False}
    assert command.changes(*everything, "--dry-run") == [(*object_, "created") for object_ in expected]
    assert space.items("roles") == []
    assert command.changes(*everything) == [(*object_, "created") for object_ in expected]
    versions = [role["metadata"]["resourceVersion"] for role in space.items("roles")]
    assert command.changes(*everything) == [(*object_, "unchanged") for object_ in expected]
    assert [role["metadata"]["resourceVersion"] for role in space.items("roles")] == versions
    until_held(space, (*RULES, *LEASES), True)
    until_held(space, NODES, True, here=False)
    beside = [("create", "pods"), ("get", "secrets"), ("get", "configmaps"), ("create", "pods/exec"), ("patch", "pods")]
    assert [may(space, verb, resource) for verb, resource in beside] == [False] * 5
    assert not may(space, "list", "nodes", here=False)
    assert not may(space, "create", "leaderworkersets", group="leaderworkerset.x-k8s.io", here=False)
    space.create_object("roles", {"metadata": {"name": "theirs", "labels": {"app.kubernetes.io/managed-by": "kr-kfp"}}})
    assert {what for _, _, what in command.changes("uninstall")} == {"deleted"}
    assert [role["metadata"]["name"] for role in space.items("roles")] == ["theirs"]
    until_held(space, (*RULES, *LEASES), False)
    assert command.changes("uninstall") == []


def test_a_role_that_was_changed_is_put_right(command: Command, space: Space) -> None:
    """The difference is shown without being made, then made."""
    command.changes("install")
    space.patch("roles", "kr-kfp", {"rules": []})
    (role, binding) = command.run("install", "--diff")["changes"]
    assert (role["what"], binding["what"]) == ("changed", "unchanged")
    assert "\n-rules: null\n" in role["diff"]
    assert "\n+  - leaderworkersets\n" in role["diff"]
    assert (space.read("roles", "kr-kfp") or {})["rules"] is None
    assert command.changes("install")[0] == ("Role", "kr-kfp", "changed")
    until_held(space, RULES, True)


def test_doctor_tells_every_right(command: Command) -> None:
    """Before the installation rights are missing one by one, after it none is."""
    count = sum(len(rule.resources) * len(rule.verbs) for rule in (*RULES, *NODES))
    before = command.doctor(check="rights")
    assert len(before) == count
    assert {state for state, _ in before} == {"fail", "warn"}
    assert ("fail", "pipeline-runner may not create leaderworkersets") in before
    command.changes("install", "--nodes")
    until_held(command.space, RULES, True)
    until_held(command.space, NODES, True, here=False)
    after = command.doctor(check="rights")
    assert [state for state, _ in after] == ["pass"] * count
    assert command.doctor(check="account") == [
        ("pass", f"there is a service account pipeline-runner of namespace {command.space.name}")
    ]


def test_doctor_tries_leaderworkerset(command: Command, space: Space) -> None:
    """The served version has all fields, and its webhooks accept a group that is never made."""
    served = "leaderworkerset.x-k8s.io/v1 is served, with all fields that a step needs"
    assert command.doctor(check="leaderworkerset") == [("pass", served)]
    assert command.doctor(check="webhooks") == [("pass", "a group was accepted in a dry run")]
    assert space.items("leaderworkersets") == []


def test_doctor_compares_a_pipeline_with_the_nodes(command: Command, tmp_path: Path) -> None:
    """A slice that the cluster has is found, one that it has not is named with what there is."""
    file = tmp_path / "doctored_steps.py"
    file.write_text(STEPS, encoding="utf-8")
    fits, (state, message) = command.doctor(f"{file}:both", check="nodes")
    assert fits == (
        "pass",
        "step fits needs tpu-v5-lite-podslice 4x4 (4 hosts with 4 chips each): there are nodes for it",
    )
    # Tests that run beside this one may have added nodes of their own.
    needs, _, there_is = message.partition(" (there is ")
    assert (state, needs) == (
        "fail",
        "step missing needs tpu-v6e-slice 4x4 (4 hosts with 4 chips each): no node has it",
    )
    assert "tpu-v5-lite-podslice 4x4 on 4 nodes" in there_is


def test_doctor_knows_when_a_quota_refuses_pods(command: Command, space: Space) -> None:
    """What the doctor says of quota and LimitRange is what the API server does to a pod without requests."""
    pod: Json = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    space.create_object(
        "resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {"cpu": "1", "limits.memory": "1Gi"}}}
    )
    assert command.doctor(check="quota") == [
        (
            "fail",
            "quota q counts cpu, limits.memory, and no LimitRange gives defaults: "
            "launcher and training pods without requests are refused",
        )
    ]
    with pytest.raises(ApiError) as refused:
        space.create_object("pods", pod)
    assert "must specify cpu for: main; limits.memory for: main" in refused.value.message
    # The server itself derives defaults from the largest amounts that are allowed.
    limit = {"type": "Container", "max": {"cpu": "500m", "memory": "64Mi"}}
    space.create_object("limitranges", {"metadata": {"name": "l"}, "spec": {"limits": [limit]}})
    assert command.doctor(check="quota") == [("pass", "quota q: pods without requests are not refused")]
    space.create_object("pods", pod)
