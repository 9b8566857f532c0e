"""Nodes against steps: labels, chips, taints, node pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.doctor_nodes import check_nodes
from kr_kfp.spec.facts import Finding, Unknown
from kr_kfp.spec.quantities import quantity
from kr_kfp.spec.step import StepSpec
from tests.unit.test_doctor import WELL

Json = dict[str, Any]

NEEDS = "step train needs tpu-v5-lite-podslice 4x4 (4 hosts with 4 chips each)"
MAKE = "gcloud container node-pools create --machine-type=ct5lp-hightpu-4t --tpu-topology=4x4 --num-nodes=4"
FIX = f"Make a node pool ({MAKE}) or choose another accelerator"


def node(
    pool: str = "a",
    *,
    topology: str = "4x4",
    chips: str = "4",
    ready: str = "True",
    cordoned: bool = False,
    taint: str = "",
    spot: bool = False,
) -> Json:
    """Build a TPU node as GKE labels it."""
    known = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": topology,
    }
    place = {"cloud.google.com/gke-nodepool": pool} if pool else {}
    spec: Json = {"unschedulable": True} if cordoned else {}
    if taint:
        key, _, effect = taint.partition(":")
        spec["taints"] = [{"key": key, "value": "present", "effect": effect}]
    return {
        "metadata": {"labels": {**known, **place, **({"cloud.google.com/gke-spot": "true"} if spot else {})}},
        "spec": spec,
        "status": {
            "allocatable": {"google.com/tpu": chips, "cpu": "2"},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def step(slices: int = 1, *, spot: bool = False) -> StepSpec:
    """Build a step on v5e 4x4."""
    shape = resolve("v5litepod-16")
    return StepSpec(name="train", backend="lws", shape=shape, hosts=4 * slices, slices=slices, spot=spot)


def lines(nodes: list[Json], *steps: StepSpec, autoscaled: bool = False) -> list[Finding]:
    """Check steps, one on v5e 4x4 by default."""
    return list(check_nodes(replace(WELL, nodes=tuple(nodes), autoscaled=autoscaled), steps or (step(),)))


def problem(nodes: list[Json], *steps: StepSpec) -> str:
    """Give what is wrong with the one step."""
    (found,) = lines(nodes, *steps)
    assert found.state == "fail"
    return found.message.partition("each): ")[2] or found.message.partition("each, spot): ")[2]


def test_a_pool_of_the_right_size() -> None:
    """Four nodes in one pool are a place for four hosts; GKE's own taint does not matter."""
    nodes = [node(taint="google.com/tpu:NoSchedule") for _ in range(4)]
    assert lines(nodes) == [Finding("nodes", "pass", f"{NEEDS}: there are nodes for it")]


def test_no_node_has_it() -> None:
    """The line names what the step needs, what there is in its place, and how to make it."""
    message = f"{NEEDS}: no node has it (there is tpu-v5-lite-podslice 2x4 on 2 nodes)"
    assert lines([node(topology="2x4"), node(topology="2x4")]) == [Finding("nodes", "fail", message, FIX)]
    message = f"{NEEDS}: no node has it (no node has the label cloud.google.com/gke-tpu-accelerator)"
    assert lines([{"metadata": {}}]) == [Finding("nodes", "fail", message, FIX)]


def test_an_autoscaled_cluster_may_still_get_it() -> None:
    """Where pools grow from nothing, no node now is a warning."""
    (found,) = lines([], autoscaled=True)
    assert found.state == "warn"
    assert found.message.endswith("(now; the cluster is autoscaled)")
    assert found.fix == f"If no pool scales to it: {FIX}"


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(chips="0")] * 4, "4 nodes have the labels, but offer at most 0 google.com/tpu"),
        ([node(chips="1")], "1 node has the labels, but offer at most 1 google.com/tpu"),
        ([node()] * 3, "only 3 nodes with it"),
        ([node()] * 3 + [node(ready="Unknown")], "3 of 4 nodes with it can be used (not ready)"),
        ([node()] * 3 + [node(cordoned=True)], "3 of 4 nodes with it can be used (cordoned)"),
        ([node(taint="team:NoSchedule")] * 4, "0 of 4 nodes with it can be used (taint team)"),
        ([node("a")] * 2 + [node("b")] * 3, "no node pool has 4 such nodes (a has 2, b has 3)"),
        (
            [node("")] * 4,
            "no node with it has the label cloud.google.com/gke-nodepool, by which a slice gets its own pool",
        ),
    ],
)
def test_nodes_that_do_not_do(nodes: list[Json], expected: str) -> None:
    """Labels alone do not make a place."""
    assert problem(nodes) == expected


def test_a_soft_taint_keeps_nobody_away() -> None:
    """PreferNoSchedule is a wish."""
    assert [found.state for found in lines([node(taint="team:PreferNoSchedule")] * 4)] == ["pass"]


def test_every_slice_needs_a_pool() -> None:
    """Two slices of four hosts need two pools of four; eight nodes in one do not do."""
    assert problem([node("a")] * 8, step(2)) == "1 of 2 node pools with 4 such nodes (a has 8)"
    assert [found.state for found in lines([node("a")] * 4 + [node("b")] * 4, step(2))] == ["pass"]


def test_spot_is_a_label_too() -> None:
    """A step on spot capacity is for spot nodes alone."""
    assert problem([node()] * 4, step(spot=True)) == "no node has it (there is tpu-v5-lite-podslice 4x4 on 4 nodes)"
    tainted = [node(taint="cloud.google.com/gke-spot:NoSchedule", spot=True)] * 4
    assert problem(tainted, step(spot=True)) == "0 of 4 nodes with it can be used (taint cloud.google.com/gke-spot)"
    assert [found.state for found in lines([node(spot=True)] * 4, step(spot=True))] == ["pass"]


def test_gpus_need_no_pool_of_their_own() -> None:
    """Hosts with GPUs may be anywhere."""
    gpu = StepSpec(name="tune", backend="lws", shape=resolve("h100x8"), hosts=2)
    assert gpu.shape is not None
    labels = {"cloud.google.com/gke-accelerator": gpu.shape.label}
    if gpu.shape.select_machine:
        labels["node.kubernetes.io/instance-type"] = gpu.shape.machine
    status = {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    one = {"metadata": {"labels": labels}, "status": status}
    assert [found.state for found in lines([one, one], gpu)] == ["pass"]
    (found,) = lines([one], gpu)
    assert found.message.endswith(": only 1 node with it")
    assert found.fix == (
        f"Add nodes with {' and '.join(f'{k}={v}' for k, v in labels.items())}, or choose another accelerator"
    )


def test_steps_without_accelerator() -> None:
    """They run anywhere; without steps there is nothing to say."""
    assert lines([], StepSpec(name="cpu")) == [Finding("nodes", "pass", "no step needs an accelerator")]
    assert list(check_nodes(WELL, ())) == []


def test_nodes_that_may_not_be_listed() -> None:
    """That is a warning, not a fault."""
    (found,) = check_nodes(replace(WELL, nodes=Unknown("ada may not list nodes")), (step(),))
    assert (found.state, found.message) == ("warn", "nodes are not known: ada may not list nodes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", 4.0), (4, 4.0), ("500m", 0.5), ("2Gi", 2.0**31), ("1k", 1000.0), ("1e3", 1000.0), ("", 0.0), ("x", 0.0)],
)
def test_quantities(text: object, expected: float) -> None:
    """Suffixes are decimal, binary, or none."""
    assert quantity(text) == expected
