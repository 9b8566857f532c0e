"""What a launcher's account may do, as RBAC objects (``rbac.authorization.k8s.io/v1``). Pure.

KFP starts the pods of a run under ``pipeline-runner`` in its own namespace, in multi-user Kubeflow under each
profile's ``default-editor``. Neither may make LeaderWorkerSets by KFP's own roles. What belongs together is a role of
its own (``kr-kfp``, ``kr-kfp-leases``, ``kr-kfp-nodes``) with a binding for each account, so that giving rights to one
account never changes another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kr_kfp.names import MANAGED_BY_LABEL

__all__ = [
    "EDITOR",
    "LEASES",
    "MANAGER",
    "NAMESPACE",
    "NODES",
    "REAPER",
    "RULES",
    "RUNNER",
    "Account",
    "Rule",
    "binding",
    "granted",
    "is_ours",
    "rights",
    "role",
]

Json = dict[str, Any]

MANAGER = "kr-kfp"
"""Name of the roles, value of ``app.kubernetes.io/managed-by``, and the field manager of server-side apply."""

REAPER = "kr-kfp-reaper"
"""Name of the reaper's objects: account, role, CronJob (:mod:`kr_kfp.spec.reaper`)."""

NAMESPACE, RUNNER = "kubeflow", "pipeline-runner"
"""Where a single-user KFP runs, and its account there (kubeflow/pipelines ``manifests/kustomize``)."""

EDITOR = "default-editor"
"""The account of a profile's namespace (kubeflow/kubeflow ``components/profile-controller``)."""

_RBAC = "rbac.authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A service account.

    Args:
        namespace: Its namespace, in which its runs are.
        name: Its name.
    """

    namespace: str
    name: str

    @property
    def user(self) -> str:
        """The user that the API server takes it for."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that the API server puts it into (Kubernetes, "Authenticating", service account tokens)."""
        return ("system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a role.

    Args:
        group: API group; empty for the core.
        resources: Plural names, with a subresource as in ``pods/log``.
        verbs: What may be done.
        names: Only with objects of these names; empty is all.
        without: What happens without it; empty if no step can run.
    """

    group: str = ""
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()
    without: str = ""

    def to_json(self) -> Json:
        """Give the rule as in a Role's ``rules``."""
        names = {"resourceNames": list(self.names)} if self.names else {}
        return {"apiGroups": [self.group], "resources": list(self.resources), **names, "verbs": list(self.verbs)}


RULES = (
    Rule(
        group="leaderworkerset.x-k8s.io",
        resources=("leaderworkersets",),
        verbs=("create", "get", "list", "watch", "patch", "delete"),
    ),
    Rule(resources=("pods",), verbs=("get", "list", "watch", "delete")),
    Rule(resources=("pods/log",), verbs=("get", "list"), without="the hosts' logs are not shown"),
    # The launcher watches them: a list alone would show only what happened before it.
    Rule(resources=("events",), verbs=("get", "list", "watch"), without="why pods are not made is not told"),
    Rule(
        group="apps",
        resources=("statefulsets",),
        verbs=("get", "list"),
        without="what belongs to a group is told by its pods alone",
    ),
    Rule(
        group="argoproj.io",
        resources=("workflows",),
        verbs=("get", "list"),
        without="groups of ended runs cannot be told from others",
    ),
    Rule(
        resources=("configmaps",),
        verbs=("get",),
        names=("kfp-launcher",),
        without="KFP's default object store is taken, whatever is configured",
    ),
)
"""What every launcher needs, in the namespace of its runs."""

LEASES = (
    Rule(
        group="coordination.k8s.io",
        resources=("leases",),
        verbs=("create", "get", "patch"),
        without="launchers outside of KFP pods do not start",
    ),
)
"""For launchers outside of KFP pods (Vertex AI, ``cluster="kubeconfig"``), whose life a Lease stands for."""

NODES = (
    Rule(
        resources=("nodes",),
        verbs=("get",),
        without="that a node is lost is concluded from its pods, about a minute later",
    ),
)
"""Nodes belong to no namespace, so that this takes a ClusterRole."""


def granted() -> frozenset[str]:
    """Give the resources that the roles are about, in the authorizer's words."""
    return frozenset(name for rule in (*RULES, *LEASES, *NODES) for name in rule.resources)


def rights(accounts: Iterable[Account], *, leases: bool = False, nodes: bool = False) -> tuple[Json, ...]:
    """Build the objects that give accounts their rights.

    Args:
        accounts: Who gets them; each in its own namespace.
        leases: With the rights for launchers outside of KFP pods.
        nodes: With the right to read nodes.

    Returns:
        Roles before the bindings that name them, in the order of the accounts; no object twice.
    """
    accounts = tuple(dict.fromkeys(accounts))
    roles = {MANAGER: RULES, **({f"{MANAGER}-leases": LEASES} if leases else {})}
    made = []
    for namespace in dict.fromkeys(account.namespace for account in accounts):
        made += [role(name, rules, namespace) for name, rules in roles.items()]
        made += [
            binding(name, account, f"{name}:{account.name}", namespace)
            for account in accounts
            if account.namespace == namespace
            for name in roles
        ]
    if nodes:
        name = f"{MANAGER}-nodes"
        made.append(role(name, NODES))
        made += [binding(name, a, f"{name}:{a.namespace}:{a.name}") for a in accounts]
    return tuple(made)


def role(name: str, rules: Iterable[Rule], namespace: str = "") -> Json:
    """Build a Role, or a ClusterRole where there is no namespace."""
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": _metadata(name, namespace),
        "rules": [rule.to_json() for rule in rules],
    }


def binding(role: str, account: Account, name: str, namespace: str = "") -> Json:
    """Build the binding of an account to a role, a ClusterRoleBinding where there is no namespace."""
    scope = "" if namespace else "Cluster"
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{scope}RoleBinding",
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": _RBAC, "kind": f"{scope}Role", "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
    }


def _metadata(name: str, namespace: str) -> Json:
    where = {"namespace": namespace} if namespace else {}
    return {"name": name, **where, "labels": {MANAGED_BY_LABEL: MANAGER}}


def is_ours(manifest: Mapping[str, Any]) -> bool:
    """Tell whether an object is one of those that :func:`rights` or the reaper builds, by its name."""
    name = str(manifest["metadata"]["name"])
    return name.partition(":")[0] in {MANAGER, f"{MANAGER}-leases", f"{MANAGER}-nodes", REAPER}
