"""Which groups nobody needs any more: their run has ended or is gone, or their launcher's Lease expired. Pure.

A launcher deletes its own group, and deleting a run collects what the run owns. What is left over is the group of a
run that ended without its launcher (killed with its node, say, while the run was terminated), of one whose Workflow
went without the group's knowledge, and of a launcher outside of a KFP pod that died.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kr_kfp.names import HOLDER_ANNOTATION, IDENTITY_ANNOTATION
from kr_kfp.spec.observe import unix

__all__ = [
    "WORKFLOW",
    "Finding",
    "Holder",
    "changed",
    "describe",
    "holder_of",
    "is_ours",
    "judge",
    "run_of",
    "workflow_of",
]

Json = Mapping[str, Any]

WORKFLOW = ("argoproj.io", "Workflow")
"""API group and kind of what owns the group of a KFP step."""

_COMPLETED = "workflows.argoproj.io/completed"
"""Label that Argo's controller sets to ``true`` on a Workflow that has ended (argo-workflows ``workflow/common``)."""

_ENDED = ("Succeeded", "Failed", "Error")
"""Phases of a Workflow that has ended (argo-workflows ``pkg/apis/workflow/v1alpha1``, WorkflowPhase)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The launcher that holds a group.

    Args:
        kind: ``pod`` in a KFP run, ``lease`` outside of one.
        name: The pod's UID or the Lease's name; empty if the group names none.
        lives: Whether it may still be at work.
    """

    kind: Literal["pod", "lease"]
    name: str
    lives: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What becomes of a group, or would become of it.

    Args:
        namespace: Its namespace.
        name: Its name; empty where groups could not be listed.
        what: ``deleted``, ``kept``, or ``failed``: it could not be looked at or deleted.
        why: Why.
    """

    namespace: str
    name: str
    what: Literal["deleted", "kept", "failed"]
    why: str


def is_ours(group: Json) -> bool:
    """Tell whether a launcher made a LeaderWorkerSet: labels may have been copied, both annotations hardly."""
    annotations = group["metadata"].get("annotations") or {}
    return IDENTITY_ANNOTATION in annotations and HOLDER_ANNOTATION in annotations


def holder_of(group: Json, lease_prefix: str) -> Holder:
    """Read who holds a group; whether it lives is for others to find out."""
    said = str((group["metadata"].get("annotations") or {}).get(HOLDER_ANNOTATION) or "")
    if said.startswith(lease_prefix):
        return Holder(kind="lease", name=said.removeprefix(lease_prefix))
    return Holder(kind="pod", name=said)


def run_of(group: Json) -> str:
    """Give KFP's id of the run that a group belongs to."""
    return str((group["metadata"].get("annotations") or {}).get(IDENTITY_ANNOTATION) or "").partition("/")[0]


def workflow_of(group: Json) -> Json | None:
    """Give the owner reference to a Workflow; None if there is none."""
    return next((owner for owner in _owners(group) if _is_workflow(owner)), None)


def changed(group: Json) -> float:
    """Give when somebody last changed a group apart from its status, in Unix seconds (``metadata.managedFields``)."""
    metadata = group["metadata"]
    entries = [entry for entry in metadata.get("managedFields") or () if not entry.get("subresource")]
    return max(unix(metadata.get("creationTimestamp")), *(unix(entry.get("time")) for entry in entries), 0.0)


def judge(group: Json, holder: Holder, workflows: Sequence[Json]) -> tuple[bool, str]:
    """Decide whether a group is to go.

    Args:
        group: The LeaderWorkerSet.
        holder: Its launcher.
        workflows: Those of its run that exist; none for a launcher outside of a KFP run.

    Returns:
        Whether it goes, and why or why not.
    """
    if group["metadata"].get("deletionTimestamp"):
        return False, "is being deleted already"
    other = next((owner for owner in _owners(group) if not _is_workflow(owner)), None)
    if other is not None:
        return False, f"belongs to {other['kind']} {other['name']}, with which it goes"
    running = [workflow for workflow in workflows if not _has_ended(workflow)]
    if running:
        return False, f"its run goes on (Workflow {running[0]['metadata']['name']})"
    if holder.lives:
        return (
            False,
            "its launcher is at work"
            if holder.kind == "pod"
            else f"its launcher's Lease {holder.name} has not expired",
        )
    return True, _why_gone(group, holder, workflows)


def _why_gone(group: Json, holder: Holder, workflows: Sequence[Json]) -> str:
    if workflows:
        return f"its run has ended (Workflow {workflows[0]['metadata']['name']}: {_phase(workflows[0])})"
    owner = workflow_of(group)
    if holder.kind == "lease" and owner is None:
        return f"its launcher's Lease {holder.name} has expired"
    return f"its run {run_of(group)} is gone" + (f" (Workflow {owner['name']})" if owner else "")


def _owners(group: Json) -> Sequence[Json]:
    return group["metadata"].get("ownerReferences") or ()


def _is_workflow(owner: Json) -> bool:
    return (str(owner["apiVersion"]).partition("/")[0], owner["kind"]) == WORKFLOW


def _has_ended(workflow: Json) -> bool:
    return (workflow["metadata"].get("labels") or {}).get(_COMPLETED) == "true" or _phase(workflow) in _ENDED


def _phase(workflow: Json) -> str:
    return str((workflow.get("status") or {}).get("phase") or "completed")


def describe(finding: Finding, *, would: bool = False) -> str:
    """Tell a finding in a line.

    Args:
        finding: The finding.
        would: Nothing was done.
    """
    place = "/".join(filter(None, (finding.namespace, finding.name))) or "all namespaces"
    word = f"would be {finding.what}" if would and finding.what == "deleted" else finding.what
    return f"{place}: {word} ({finding.why})"
