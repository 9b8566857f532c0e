"""What the doctor makes of what is known of a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.doctor import examine
from kr_kfp.spec.facts import Answer, Facts, Finding, Unknown
from kr_kfp.spec.release import RELEASE
from kr_kfp.spec.rights import NODES, RULES, Account

Json = dict[str, Any]

RUNNER = Account(namespace="kubeflow", name="pipeline-runner")
INSTALL = f"kr-kfp install --lws manifests.yaml, with the file of {RELEASE}"
LOOK = "Look at the controller: kubectl --namespace lws-system get pods"
SERVICE = {"service": {"namespace": "lws-system", "name": "hooks"}, "caBundle": "Y2E="}


def hook(name: str, group: str, resource: str, client: Json) -> Json:
    """Build one webhook."""
    rule = {"apiGroups": [group], "resources": [resource]}
    return {"name": name, "clientConfig": client, "rules": [rule]}


def hooks(client: Json = SERVICE) -> tuple[Json, ...]:
    """Build LeaderWorkerSet's configuration, and somebody else's for pods."""
    ours = [
        hook("group", "leaderworkerset.x-k8s.io", "leaderworkersets", client),
        hook("pod", "", "pods", client),
    ]
    return ({"webhooks": ours}, {"webhooks": [hook("other", "", "pods", {"service": {}})]})


def answers(*refused: str) -> tuple[Answer, ...]:
    """Answer for every right; those refused are named ``verb resource``."""
    return tuple(
        Answer(rule, resource, verb, f"{verb} {resource}" not in refused)
        for rule in (*RULES, *NODES)
        for resource in rule.resources
        for verb in rule.verbs
    )


WELL = Facts(
    account=RUNNER,
    kubernetes="v1.36.3",
    served=("leaderworkerset.x-k8s.io/v1",),
    lacking=(),
    workflows=("argoproj.io/v1alpha1",),
    kfp="2.17.0",
    hooks=hooks(),
    ready={"lws-system/hooks": 2},
    trial="",
    accounts=("default", "pipeline-runner"),
    rights=answers(),
    quotas=(),
    limits=(),
    config=None,
    nodes=(),
    autoscaled=False,
)


def bad(facts: Facts) -> list[tuple[str, str, str, str]]:
    """Give the lines that are not pass."""
    return [(f.check, f.state, f.message, f.fix) for f in examine(facts) if f.state != "pass"]


def test_a_cluster_that_is_well() -> None:
    """Every line is pass and none has a fix; rights stand verb by verb."""
    found = examine(WELL)
    assert {(f.state, f.fix) for f in found} == {("pass", "")}
    assert [f.message for f in found if f.check != "rights"] == [
        "Kubernetes v1.36.3",
        "leaderworkerset.x-k8s.io/v1 is served, with all fields that a step needs",
        "argoproj.io/v1alpha1 is served",
        "KFP 2.17.0",
        "service lws-system/hooks: 2 ready",
        "a group was accepted in a dry run",
        "there is a service account pipeline-runner of namespace kubeflow",
        "namespace kubeflow has no quota",
    ]
    assert [f.message for f in found if f.check == "rights"][5:7] == [
        "pipeline-runner may delete leaderworkersets",
        "pipeline-runner may get pods",
    ]
    assert Finding("rights", "pass", "pipeline-runner may get configmaps kfp-launcher") in found


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param(
            {"served": ()},
            ("leaderworkerset", "fail", "the cluster does not serve leaderworkerset.x-k8s.io/v1", INSTALL),
            id="no LeaderWorkerSet",
        ),
        pytest.param(
            {"served": ("leaderworkerset.x-k8s.io/v1alpha1",)},
            (
                "leaderworkerset",
                "fail",
                "the cluster does not serve leaderworkerset.x-k8s.io/v1; only leaderworkerset.x-k8s.io/v1alpha1",
                INSTALL,
            ),
            id="another version",
        ),
        pytest.param(
            {"lacking": ("restartPolicy None", "subGroupPolicyType")},
            (
                "leaderworkerset",
                "fail",
                "leaderworkerset.x-k8s.io/v1 is served, but is too old: it has no restartPolicy None, subGroupPolicyType",
                f"Take 0.7.0 or newer, such as: {INSTALL}",
            ),
            id="too old",
        ),
        pytest.param(
            {"workflows": ()},
            (
                "pipelines",
                "warn",
                "the cluster serves no argoproj.io: Kubeflow Pipelines is not installed here",
                "Install it, unless steps are started from outside (cluster=)",
            ),
            id="no Argo",
        ),
        pytest.param(
            {"kfp": "v2.14.3"},
            (
                "pipelines",
                "warn",
                "KFP v2.14.3 does not take a task's settings to the hosts",
                "Update KFP to 2.15 or newer, or declare steps with passthrough=False",
            ),
            id="old KFP",
        ),
        pytest.param(
            {"kfp": "main"},
            (
                "pipelines",
                "warn",
                "the version of KFP is not known: its image is tagged 'main'",
                "It has to be 2.15 or newer",
            ),
            id="KFP of no version",
        ),
        pytest.param(
            {"hooks": ()},
            (
                "webhooks",
                "fail",
                "LeaderWorkerSet has no webhook for its groups and pods",
                f"Install LeaderWorkerSet completely: {INSTALL}",
            ),
            id="no webhooks",
        ),
        pytest.param(
            {"hooks": ({"webhooks": hooks()[0]["webhooks"][:1]},)},
            (
                "webhooks",
                "fail",
                "LeaderWorkerSet has no webhook for pods, so that hosts would not get their variables",
                f"Install LeaderWorkerSet completely: {INSTALL}",
            ),
            id="no webhook for pods",
        ),
        pytest.param(
            {"hooks": hooks({"service": SERVICE["service"]})},
            ("webhooks", "fail", "without a certificate (caBundle): group, pod", LOOK),
            id="no certificate",
        ),
        pytest.param(
            {"ready": {"lws-system/hooks": 0}},
            ("webhooks", "fail", "service lws-system/hooks has no pod that is ready", LOOK),
            id="no controller",
        ),
        pytest.param(
            {"trial": "failed calling webhook"},
            ("webhooks", "fail", "a group was refused in a dry run: failed calling webhook", LOOK),
            id="a group is refused",
        ),
        pytest.param(
            {"accounts": ("default", "default-editor")},
            (
                "account",
                "fail",
                "there is no service account pipeline-runner of namespace kubeflow",
                "Give --service-account default-editor",
            ),
            id="another account",
        ),
        pytest.param(
            {"accounts": ("default",)},
            (
                "account",
                "fail",
                "there is no service account pipeline-runner of namespace kubeflow",
                "Give the --namespace of the runs: kubeflow in single-user KFP, else a profile's with --service-account default-editor",
            ),
            id="no account",
        ),
        pytest.param(
            {"rights": answers("delete leaderworkersets")},
            ("rights", "fail", "pipeline-runner may not delete leaderworkersets", "kr-kfp install"),
            id="a right that is needed",
        ),
        pytest.param(
            {"rights": answers("watch events")},
            (
                "rights",
                "warn",
                "pipeline-runner may not watch events; without it why pods are not made is not told",
                "kr-kfp install",
            ),
            id="a right that can be missed",
        ),
        pytest.param(
            {"rights": answers("get nodes")},
            (
                "rights",
                "warn",
                "pipeline-runner may not get nodes; without it that a node is lost is concluded from its pods, about a minute later",
                "kr-kfp install --nodes",
            ),
            id="nodes",
        ),
    ],
)
def test_each_fault_is_one_line_with_its_fix(changes: Json, expected: tuple[str, str, str, str]) -> None:
    """One thing that is wrong makes one line that is not pass, and all others stay."""
    assert bad(replace(WELL, **changes)) == [expected]


@pytest.mark.parametrize(
    ("account", "fix"),
    [
        (Account(namespace="ml", name="pipeline-runner"), "kr-kfp install --namespace ml"),
        (Account(namespace="kubeflow", name="runner"), "kr-kfp install --service-account runner"),
        (Account(namespace="ml", name="runner"), "kr-kfp install --namespace ml --service-account runner"),
        (Account(namespace="ada", name="default-editor"), "kr-kfp install --profile ada"),
    ],
)
def test_the_fix_is_a_command_for_this_account(account: Account, fix: str) -> None:
    """The command gives the rights to the account that lacks them."""
    facts = replace(WELL, account=account, accounts=(account.name,), rights=answers("get pods"))
    assert [line[3] for line in bad(facts)] == [fix]


def test_what_is_not_known_is_a_warning() -> None:
    """A fact that could not be had never counts as well, and never fails."""
    unknown = Unknown("ada may not list it")
    names = ("kubernetes", "served", "lacking", "workflows", "kfp", "hooks", "trial", "accounts", "rights", "quotas")
    for name in names:
        changes: Json = {name: unknown}
        lines = bad(replace(WELL, **changes))
        assert [line[1] for line in lines] == ["warn"], name
        assert "ada may not list it" in lines[0][2]
        assert lines[0][3], name
    lines = bad(replace(WELL, ready={"lws-system/hooks": unknown}))
    assert [line[:2] for line in lines] == [("webhooks", "warn")]


def test_webhooks_of_what_is_not_there_are_not_looked_at() -> None:
    """Without LeaderWorkerSet its webhooks are no second fault."""
    assert [line[0] for line in bad(replace(WELL, served=(), hooks=(), trial=Unknown("no")))] == ["leaderworkerset"]
