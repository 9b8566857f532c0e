"""Nodes of the cluster as if they were in other node pools, for one test: labels, taints and accelerators of theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.cluster.rest import Json, Rest

GKE = "cloud.google.com/"
"""Prefix of GKE's labels of nodes."""

POOL = f"{GKE}gke-nodepool"

MACHINE = "node.kubernetes.io/instance-type"
"""Label of a node's machine type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """What a test has changed about nodes, and what was there before."""

    rest: Rest
    before: dict[str, tuple[dict[str, str], Json]] = field(default_factory=dict)
    """By node: its labels of GKE's and its machine, and the amounts of resources that were changed."""

    def make(
        self,
        name: str,
        nodes: Sequence[str],
        *,
        labels: Mapping[str, str],
        resource: str,
        amount: int,
        taint: bool = True,
    ) -> None:
        """Put nodes into a pool.

        Args:
            name: The pool's.
            nodes: Their names.
            labels: The only ones of GKE's that they have besides the pool's, and their machine.
            resource: The accelerator that they offer, such as ``nvidia.com/gpu``.
            amount: How many of it.
            taint: Whether they have the accelerator's taint, as GKE's have.
        """
        for node in nodes:
            found = self.rest.get("nodes", None, node)
            had = {key: value for key, value in found["metadata"]["labels"].items() if _is_changed(key)}
            self.before.setdefault(node, (had, {resource: found["status"]["capacity"].get(resource)}))
            taints = [{"key": resource, "value": "present", "effect": "NoSchedule"}] if taint else None
            self._set(node, {POOL: name, **labels}, {resource: str(amount)}, taints)

    def slices(self, *names: str, taint: bool = True) -> None:
        """Make of nodes 1 to 4 two pools of two hosts with four chips: two slices v5p 2x2x2."""
        labels = {f"{GKE}gke-tpu-accelerator": "tpu-v5p-slice", f"{GKE}gke-tpu-topology": "2x2x2"}
        for number, name in enumerate(names):
            nodes = [f"node-{2 * number + 1}", f"node-{2 * number + 2}"]
            self.make(name, nodes, labels=labels, resource="google.com/tpu", amount=4, taint=taint)

    def of(self, node: str) -> str:
        """Name the pool of a node."""
        return str(self.rest.get("nodes", None, node)["metadata"]["labels"].get(POOL, ""))

    def restore(self) -> None:
        """Give all nodes back what they had."""
        while self.before:
            node, (labels, amounts) = self.before.popitem()
            self._set(node, labels, amounts, None)

    def _set(self, node: str, labels: Mapping[str, str], amounts: Json, taints: list[Json] | None) -> None:
        now = self.rest.get("nodes", None, node)["metadata"]["labels"]
        none = dict.fromkeys(key for key in now if _is_changed(key))
        self.rest.patch("nodes", None, node, {"metadata": {"labels": none | dict(labels)}, "spec": {"taints": taints}})
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        self.rest.patch("nodes", None, node, status, part="/status")


def _is_changed(label: str) -> bool:
    return label.startswith(GKE) or label == MACHINE
