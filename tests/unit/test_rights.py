"""Which RBAC objects give an account its rights."""

from __future__ import annotations

from typing import Any

import pytest

from kr_kfp.cluster import kube_access, kube_lease
from kr_kfp.spec.rights import LEASES, NODES, RULES, Account, granted, is_ours, rights

RUNNER = Account(namespace="kubeflow", name="pipeline-runner")
EDITOR = Account(namespace="ada", name="default-editor")


def titles(*accounts: Account, **more: bool) -> list[str]:
    """Name what is built."""
    return [
        " ".join(filter(None, (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])))
        for o in rights(accounts, **more)
    ]


def test_an_account_gets_a_role_and_a_binding() -> None:
    """One account needs two objects, in its namespace, both with the label."""
    role, binding = rights([RUNNER])
    assert titles(RUNNER) == ["Role kubeflow kr-kfp", "RoleBinding kubeflow kr-kfp:pipeline-runner"]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "kr-kfp"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pipeline-runner", "namespace": "kubeflow"}]
    assert [o["metadata"]["labels"] for o in (role, binding)] == [{"app.kubernetes.io/managed-by": "kr-kfp"}] * 2


def test_the_role_has_exactly_these_rules() -> None:
    """A launcher gets what it needs and nothing else."""
    rules = [(r.group, ",".join(r.resources), ",".join(r.verbs), ",".join(r.names)) for r in RULES]
    assert rules == [
        ("leaderworkerset.x-k8s.io", "leaderworkersets", "create,get,list,watch,patch,delete", ""),
        ("", "pods", "get,list,watch,delete", ""),
        ("", "pods/log", "get,list", ""),
        ("", "events", "get,list,watch", ""),
        ("apps", "statefulsets", "get,list", ""),
        ("argoproj.io", "workflows", "get,list", ""),
        ("", "configmaps", "get", "kfp-launcher"),
    ]
    assert [(r.group, r.resources, r.verbs) for r in LEASES] == [
        ("coordination.k8s.io", ("leases",), ("create", "get", "patch"))
    ]
    assert [(r.group, r.resources, r.verbs) for r in NODES] == [("", ("nodes",), ("get",))]


def test_what_the_launcher_checks_is_granted() -> None:
    """Every right without which a launcher refuses to begin is in the role."""
    given = {(rule.group, name, verb) for rule in RULES for name in rule.resources for verb in rule.verbs}
    needed = {(right.resource.group, right.plural, right.verb) for right in kube_access.RIGHTS}
    assert needed - given == set()
    assert (kube_lease.LEASES.group, kube_lease.LEASES.plural) == (LEASES[0].group, LEASES[0].resources[0])


def test_profiles_share_nothing_but_the_cluster_role() -> None:
    """Each namespace has roles and bindings of its own; nodes take one ClusterRole with a binding for each account."""
    assert titles(RUNNER, EDITOR, EDITOR, leases=True, nodes=True) == [
        "Role kubeflow kr-kfp",
        "Role kubeflow kr-kfp-leases",
        "RoleBinding kubeflow kr-kfp:pipeline-runner",
        "RoleBinding kubeflow kr-kfp-leases:pipeline-runner",
        "Role ada kr-kfp",
        "Role ada kr-kfp-leases",
        "RoleBinding ada kr-kfp:default-editor",
        "RoleBinding ada kr-kfp-leases:default-editor",
        "ClusterRole kr-kfp-nodes",
        "ClusterRoleBinding kr-kfp-nodes:kubeflow:pipeline-runner",
        "ClusterRoleBinding kr-kfp-nodes:ada:default-editor",
    ]


def test_two_accounts_of_a_namespace_share_its_role() -> None:
    """A second account of a namespace adds a binding only."""
    other = Account(namespace="kubeflow", name="other")
    assert titles(RUNNER, other) == [
        "Role kubeflow kr-kfp",
        "RoleBinding kubeflow kr-kfp:pipeline-runner",
        "RoleBinding kubeflow kr-kfp:other",
    ]


def test_an_account_is_a_user_in_groups() -> None:
    """The API server knows an account as a user and puts it into three groups."""
    assert EDITOR.user == "system:serviceaccount:ada:default-editor"
    assert EDITOR.groups == ("system:serviceaccounts", "system:serviceaccounts:ada", "system:authenticated")


def test_granted_names_resources() -> None:
    """What the message about a missing right asks for is everything that an installation gives."""
    assert sorted(granted()) == [
        "configmaps", "events", "leaderworkersets", "leases", "nodes", "pods", "pods/log", "statefulsets", "workflows"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("kr-kfp", True),
        ("kr-kfp-leases", True),
        ("kr-kfp:pipeline-runner", True),
        ("kr-kfp-nodes:a:b", True),
        ("kr-kfp-more", False),
        ("lws-manager-role", False),
    ],
)
def test_our_names(name: str, expected: bool) -> None:
    """Objects of rights are known by their names."""
    manifest: dict[str, Any] = {"metadata": {"name": name}}
    assert is_ours(manifest) is expected
