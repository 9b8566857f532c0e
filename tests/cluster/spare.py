"""Nodes that one test adds, to lose or to fill, and that are gone after it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import NODES
from tests.cluster.node import Node, tpu_node


@dataclass(frozen=True, slots=True, kw_only=True)
class Spare:
    """The nodes that a test has added."""

    cluster: Cluster
    names: list[str] = field(default_factory=list)

    def add(self, pool: str, *, topology: str = "2x4") -> Node:
        """Add a node with four chips to a pool, which no other test knows."""
        number = next(number for number in range(NODES) if f"node-{number}" not in self.cluster.nodes)
        node = self.cluster.add_node(tpu_node(number, pool=pool, topology=topology))
        self.names.append(node.spec.name)
        return node

    def remove(self) -> None:
        """Take the added nodes away."""
        while self.names:
            self.cluster.remove_node(self.names.pop())
