"""Nodes against the steps of a pipeline: is there a place for every host? Pure.

Labels and taints are GKE's (``cloud.google.com/gke-...``), as the steps select them. Hosts of one TPU slice share a
node pool alone (exclusive topology), so that a slice needs a pool with as many nodes as it has hosts. What runs on the
nodes now is not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kr_kfp.spec.facts import ADMINISTRATOR, Facts, Finding, Unknown
from kr_kfp.spec.leaderworkerset import NODE_POOL
from kr_kfp.spec.placement import placement, tolerations
from kr_kfp.spec.quantities import quantity
from kr_kfp.spec.step import Shape, StepSpec

__all__ = ["check_nodes"]

Node = Mapping[str, Any]


def check_nodes(facts: Facts, steps: Sequence[StepSpec]) -> Iterator[Finding]:
    """Say for each step with an accelerator whether nodes have it."""
    wanted = [step for step in steps if step.shape]
    if steps and not wanted:
        yield Finding("nodes", "pass", "no step needs an accelerator")
    if not wanted:
        return
    if isinstance(facts.nodes, Unknown):
        yield Finding("nodes", "warn", f"nodes are not known: {facts.nodes.why}", ADMINISTRATOR)
        return
    for step in wanted:
        yield _step(step, facts.nodes, may_grow=facts.autoscaled is True)


def _step(step: StepSpec, nodes: Sequence[Node], *, may_grow: bool) -> Finding:
    shape = step.shape
    if shape is None:
        msg = "only steps with an accelerator are looked at"
        raise ValueError(msg)
    problem = _problem(step, shape, nodes)
    needs = f"step {step.name} needs {_words(step, shape)}"
    if not problem:
        return Finding("nodes", "pass", f"{needs}: there are nodes for it")
    fix = _fix(step, shape)
    if may_grow:
        return Finding(
            "nodes", "warn", f"{needs}: {problem} (now; the cluster is autoscaled)", f"If no pool scales to it: {fix}"
        )
    return Finding("nodes", "fail", f"{needs}: {problem}", fix)


def _words(step: StepSpec, shape: Shape) -> str:
    slices = f"{step.slices} slices of " if step.slices > 1 else ""
    machine = f" on {shape.machine}" if shape.select_machine and shape.machine else ""
    spot = ", spot" if step.spot else ""
    hosts = _count(step.hosts, "host")
    if shape.kind == "tpu":
        return f"{slices}{shape.label} {shape.topology}{machine} ({hosts} with {shape.chips_per_host} chips each{spot})"
    return f"{shape.label}{machine} ({hosts} with {_count(shape.chips_per_host, 'GPU')} each{spot})"


def _problem(step: StepSpec, shape: Shape, nodes: Sequence[Node]) -> str:
    """Say what is missing; empty if nothing is."""
    selector = placement(step)
    labelled = [node for node in nodes if selector.items() <= _labels(node).items()]
    if not labelled:
        return f"no node has it{_similar(nodes, selector)}"
    equipped = [node for node in labelled if _offers(node, shape.resource) >= shape.chips_per_host]
    if not equipped:
        most = max(_offers(node, shape.resource) for node in labelled)
        have = "1 node has" if len(labelled) == 1 else f"{len(labelled)} nodes have"
        return f"{have} the labels, but offer at most {most:g} {shape.resource}"
    usable = [node for node in equipped if not _unusable(node, step)]
    if len(usable) < step.hosts and len(usable) < len(equipped):
        reasons = sorted({reason for node in equipped if (reason := _unusable(node, step))})
        return f"{len(usable)} of {_count(len(equipped), 'node')} with it can be used ({', '.join(reasons)})"
    if len(usable) < step.hosts:
        return f"only {_count(len(usable), 'node')} with it"
    return _pools(step, usable) if shape.kind == "tpu" and step.hosts > 1 else ""


def _pools(step: StepSpec, usable: Sequence[Node]) -> str:
    """Look for a node pool of its own for every slice."""
    sizes = Counter(_labels(node).get(NODE_POOL, "") for node in usable)
    outside = sizes.pop("", 0)
    if outside == len(usable):
        return f"no node with it has the label {NODE_POOL}, by which a slice gets its own pool"
    need = step.hosts_per_slice
    enough = sum(size >= need for size in sizes.values())
    if enough >= step.slices:
        return ""
    known = ", ".join(f"{pool} has {size}" for pool, size in sorted(sizes.items()))
    if step.slices > 1:
        return f"{enough} of {step.slices} node pools with {need} such nodes ({known})"
    return f"no node pool has {need} such nodes ({known})"


def _unusable(node: Node, step: StepSpec) -> str:
    """Say why the scheduler would not take a node; empty if it would."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    if not any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions):
        return "not ready"
    spec = node.get("spec") or {}
    if spec.get("unschedulable"):
        return "cordoned"
    for taint in spec.get("taints") or ():
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(
            _tolerates(t, taint) for t in tolerations(step)
        ):
            return f"taint {taint.get('key')}"
    return ""


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Compare as the scheduler does (``k8s.io/api/core/v1``, Toleration.ToleratesTaint)."""
    if toleration.get("effect") not in (None, "", taint.get("effect")) or toleration.get("key") != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == (taint.get("value") or "")


def _similar(nodes: Sequence[Node], selector: Mapping[str, str]) -> str:
    """Name what nodes have in its place."""
    keys = [key for key in selector if key != "cloud.google.com/gke-spot"]
    found = Counter(
        " ".join(_labels(node).get(key, "-") for key in keys) for node in nodes if keys and keys[0] in _labels(node)
    )
    if not found:
        return f" (no node has the label {keys[0]})"
    known = ", ".join(f"{name} on {_count(number, 'node')}" for name, number in sorted(found.items()))
    return f" (there is {known})"


def _fix(step: StepSpec, shape: Shape) -> str:
    """Name the pool to make (Google Cloud, ``gcloud container node-pools create``)."""
    machine = f" --machine-type={shape.machine}" if shape.machine else ""
    spot = " --spot" if step.spot else ""
    if shape.kind == "gpu":
        labels = " and ".join(f"{key}={value}" for key, value in placement(step).items())
        return f"Add nodes with {labels}, or choose another accelerator"
    topology = f" --tpu-topology={shape.topology}" if step.hosts_per_slice > 1 else ""
    each = f"{step.slices} node pools" if step.slices > 1 else "a node pool"
    command = f"gcloud container node-pools create{machine}{topology} --num-nodes={step.hosts_per_slice}{spot}"
    return f"Make {each} ({command}) or choose another accelerator"


def _labels(node: Node) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _offers(node: Node, resource: str) -> float:
    return quantity(((node.get("status") or {}).get("allocatable") or {}).get(resource, 0))


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
