"""Where a training pod may run: node selectors and tolerations, the same for both targets."""

from __future__ import annotations

from typing import Any

from kr_kfp.spec.accelerators import selectors
from kr_kfp.spec.step import StepSpec

__all__ = ["SPOT_KEY", "placement", "tolerations"]

SPOT_KEY = "cloud.google.com/gke-spot"
"""Label and taint of GKE's spot nodes."""


def placement(step: StepSpec) -> dict[str, str]:
    """Give the node selector (``spec.nodeSelector``)."""
    chosen = dict(selectors(step.shape)) if step.shape else {}
    if step.spot:
        chosen[SPOT_KEY] = "true"
    return chosen


def tolerations(step: StepSpec) -> list[dict[str, Any]]:
    """Give the tolerations (``spec.tolerations``)."""
    chosen: list[dict[str, Any]] = []
    if step.shape:
        # GKE adds this itself to pods that request the resource; other clusters taint their nodes alike.
        chosen.append({"key": step.shape.resource, "operator": "Exists", "effect": "NoSchedule"})
    if step.spot:
        chosen.append({"key": SPOT_KEY, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    return chosen
