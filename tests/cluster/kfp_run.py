"""What stands around the pods of one KFP run: its Workflow, and the account that they run as with KFP's own rights.

The Workflow is a custom resource of Argo's group, version and kind with no controller behind it: it owns, is deleted,
and says that it is complete; nothing else of it matters to a step.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from tests.cluster.rest import Json, Rest
from tests.cluster.space import Space

ACCOUNT = "pipeline-runner"
"""The account of executor pods in a single-user KFP."""

KFP_RULES: tuple[Json, ...] = (
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods", "pods/exec", "pods/log", "services"], "verbs": ["*"]},
    {
        "apiGroups": ["argoproj.io"],
        "resources": ["workflows"],
        "verbs": ["get", "list", "watch", "update", "patch"],
    },
    {"apiGroups": ["apps", "extensions"], "resources": ["deployments", "replicasets"], "verbs": ["*"]},
)
"""What KFP's own manifests allow that account (pipeline-runner-role), as far as it could touch a step."""

WORKFLOWS = {
    "metadata": {"name": "workflows.argoproj.io"},
    "spec": {
        "group": "argoproj.io",
        "names": {"kind": "Workflow", "listKind": "WorkflowList", "plural": "workflows", "singular": "workflow"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                },
            }
        ],
    },
}
"""The stand-in for Argo's custom resource definition: its fields are not checked."""


def install_workflows(rest: Rest) -> None:
    """Define Workflows in the cluster, unless they are."""
    if rest.find("customresourcedefinitions", None, "workflows.argoproj.io") is None:
        rest.create("customresourcedefinitions", None, WORKFLOWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KfpRun:
    """A run in a namespace."""

    space: Space
    id: str
    """KFP's run id."""
    workflow: str
    """Name of its Workflow."""
    uid: str
    """UID of its Workflow."""
    root: str
    """URI below which the run's outputs lie: <pipeline root>/<pipeline>/<run id>."""

    @classmethod
    def create(cls, space: Space, *, root: str = "s3://bucket/artifacts", pipeline: str = "retrain") -> KfpRun:
        """Make the Workflow of a new run, and the account if the namespace has none."""
        if space.read("serviceaccounts", ACCOUNT) is None:
            space.create_object("serviceaccounts", {"metadata": {"name": ACCOUNT}})
            allow(space, ACCOUNT, KFP_RULES)
        run, workflow = str(uuid.uuid4()), f"{pipeline}-{secrets.token_hex(3)[:5]}"
        made = space.create_object(
            "workflows",
            {
                "apiVersion": "argoproj.io/v1alpha1",
                "kind": "Workflow",
                "metadata": {"name": workflow, "labels": {"pipeline/runid": run}},
                "spec": {},
            },
        )
        root = f"{root}/{pipeline}/{run}"
        return cls(space=space, id=run, workflow=workflow, uid=made["metadata"]["uid"], root=root)

    def finish(self, phase: str = "Failed") -> None:
        """Say that the run is over, as Argo does."""
        labels = {"workflows.argoproj.io/completed": "true", "workflows.argoproj.io/phase": phase}
        self.space.patch("workflows", self.workflow, {"metadata": {"labels": labels}, "status": {"phase": phase}})

    def delete(self) -> None:
        """Delete the run: the garbage collector takes what the Workflow owns."""
        self.space.delete("workflows", self.workflow, propagationPolicy="Background")


def allow(space: Space, name: str, rules: Sequence[Json], *, account: str = ACCOUNT) -> None:
    """Give an account rights in the namespace, by a Role and a RoleBinding of this name."""
    group = "rbac.authorization.k8s.io"
    space.create_object("roles", {"metadata": {"name": name}, "rules": list(rules)})
    space.create_object(
        "rolebindings",
        {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": space.name}],
        },
    )
