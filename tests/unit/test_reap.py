"""Which groups are left over."""

from __future__ import annotations

from typing import Any

import pytest

from kr_kfp.names import HOLDER_ANNOTATION, IDENTITY_ANNOTATION
from kr_kfp.spec.reap import Finding, Holder, changed, describe, holder_of, is_ours, judge, run_of, workflow_of

Json = dict[str, Any]

OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "retrain-x", "uid": "w1"}
POD = Holder(kind="pod", name="p1")
LEASE = Holder(kind="lease", name="kr-kfp-1")


def group(*owners: Json, holder: str = "p1", **metadata: Any) -> Json:
    annotations = {IDENTITY_ANNOTATION: "r1/retrain-x(0).train(0)", HOLDER_ANNOTATION: holder}
    return {"metadata": {"name": "train-1", "annotations": annotations, "ownerReferences": list(owners), **metadata}}


def workflow(phase: str = "Running", *, label: str = "", name: str = "retrain-x") -> Json:
    labels = {"workflows.argoproj.io/completed": label} if label else {}
    return {"metadata": {"name": name, "labels": labels}, "status": {"phase": phase}}


def alive(holder: Holder) -> Holder:
    return Holder(kind=holder.kind, name=holder.name, lives=True)


@pytest.mark.parametrize(
    ("made", "holder", "workflows", "expected"),
    [
        (group(OWNER), POD, [workflow()], (False, "its run goes on (Workflow retrain-x)")),
        (group(OWNER), POD, [workflow("")], (False, "its run goes on (Workflow retrain-x)")),
        (group(OWNER), POD, [workflow("Running", label="false")], (False, "its run goes on (Workflow retrain-x)")),
        (group(OWNER), POD, [workflow("Failed")], (True, "its run has ended (Workflow retrain-x: Failed)")),
        (group(OWNER), POD, [workflow("Succeeded")], (True, "its run has ended (Workflow retrain-x: Succeeded)")),
        (group(OWNER), POD, [workflow("", label="true")], (True, "its run has ended (Workflow retrain-x: completed)")),
        (group(OWNER), alive(POD), [workflow("Failed")], (False, "its launcher is at work")),
        (group(OWNER), POD, [], (True, "its run r1 is gone (Workflow retrain-x)")),
        (group(OWNER), alive(POD), [], (False, "its launcher is at work")),
        (group(), POD, [], (True, "its run r1 is gone")),
        (group(), POD, [workflow("Error"), workflow(name="again")], (False, "its run goes on (Workflow again)")),
        (group(), alive(POD), [], (False, "its launcher is at work")),
        (group(), LEASE, [], (True, "its launcher's Lease kr-kfp-1 has expired")),
        (group(), alive(LEASE), [], (False, "its launcher's Lease kr-kfp-1 has not expired")),
        (group(OWNER), alive(LEASE), [], (False, "its launcher's Lease kr-kfp-1 has not expired")),
        (group(OWNER), LEASE, [], (True, "its run r1 is gone (Workflow retrain-x)")),
        (group(deletionTimestamp="2026-01-01T00:00:00Z"), POD, [], (False, "is being deleted already")),
        (
            group({"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j1"}),
            POD,
            [],
            (False, "belongs to Job j, with which it goes"),
        ),
    ],
)  # fmt: skip
def test_verdicts(made: Json, holder: Holder, workflows: list[Json], expected: tuple[bool, str]) -> None:
    """A group goes if its run ended or is gone and no launcher is at work on it."""
    assert judge(made, holder, workflows) == expected


def test_what_a_group_says_of_itself() -> None:
    """Run, owner and holder are read from annotations and owner references."""
    made = group(OWNER)
    assert run_of(made) == "r1"
    assert workflow_of(made) == OWNER
    assert workflow_of(group()) is None
    assert holder_of(made, "lease:") == POD
    assert holder_of(group(holder="lease:kr-kfp-1"), "lease:") == LEASE


@pytest.mark.parametrize("missing", [IDENTITY_ANNOTATION, HOLDER_ANNOTATION])
def test_only_groups_of_launchers_count(missing: str) -> None:
    """A LeaderWorkerSet without one of a launcher's annotations is somebody else's."""
    made = group()
    assert is_ours(made)
    del made["metadata"]["annotations"][missing]
    assert not is_ours(made)


def test_the_last_change_leaves_the_status_out() -> None:
    """What LeaderWorkerSet's controller writes into the status does not make a group younger."""
    entries = [
        {"time": "1970-01-01T00:01:00Z"},
        {"time": "1970-01-01T00:02:00Z"},
        {"time": "1970-01-01T00:09:00Z", "subresource": "status"},
    ]
    assert changed(group(creationTimestamp="1970-01-01T00:00:30Z", managedFields=entries)) == 120.0
    assert changed(group(creationTimestamp="1970-01-01T00:00:30Z")) == 30.0


@pytest.mark.parametrize(
    ("finding", "would", "line"),
    [
        (Finding(namespace="ml", name="a-1", what="deleted", why="w"), False, "ml/a-1: deleted (w)"),
        (Finding(namespace="ml", name="a-1", what="deleted", why="w"), True, "ml/a-1: would be deleted (w)"),
        (Finding(namespace="ml", name="a-1", what="kept", why="w"), True, "ml/a-1: kept (w)"),
        (Finding(namespace="ml", name="", what="failed", why="w"), False, "ml: failed (w)"),
        (Finding(namespace="", name="", what="failed", why="w"), False, "all namespaces: failed (w)"),
    ],
)
def test_lines(finding: Finding, would: bool, line: str) -> None:
    """A finding is one line: where, what, why."""
    assert describe(finding, would=would) == line
