"""Where a training pod may run: node selectors and tolerations, the same for both targets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kr_kfp.spec.accelerators import ARCH_KEY, selectors
from kr_kfp.spec.step import Shape, StepSpec

__all__ = ["SPOT_KEY", "placement", "runner_placement", "runner_tolerations", "shape_tolerations", "tolerations"]

SPOT_KEY = "cloud.google.com/gke-spot"
"""Label and taint of GKE's spot nodes."""


def placement(step: StepSpec) -> dict[str, str]:
    """Give the node selector (``spec.nodeSelector``)."""
    chosen = dict(selectors(step.shape)) if step.shape else {}
    if step.spot:
        chosen[SPOT_KEY] = "true"
    return chosen


def runner_placement(step: StepSpec, task: Mapping[str, str]) -> dict[str, str]:
    """Give the node selector of the pods in which the function runs.

    Args:
        step: The step.
        task: The node selector that was set on the task. It is about accelerators (a reservation, a zone), so that
            Pathways' head, which has none, takes its own selector instead.
    """
    if step.pathways is not None:
        return dict(step.pathways.head_selector)
    return {**task, **placement(step)}


def runner_tolerations(step: StepSpec) -> list[dict[str, Any]]:
    """Give the tolerations of the pods in which the function runs: Pathways' head stays off accelerators and spot."""
    return [] if step.pathways is not None else tolerations(step)


def tolerations(step: StepSpec) -> list[dict[str, Any]]:
    """Give the tolerations (``spec.tolerations``) of hosts with the step's accelerator."""
    chosen = shape_tolerations(step.shape) if step.shape else []
    if step.spot:
        chosen.append({"key": SPOT_KEY, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    return chosen


def shape_tolerations(shape: Shape) -> list[dict[str, Any]]:
    """Give the tolerations that an accelerator's nodes ask for."""
    # GKE adds this itself to pods that request the resource; other clusters taint their nodes alike.
    chosen: list[dict[str, Any]] = [{"key": shape.resource, "operator": "Exists", "effect": "NoSchedule"}]
    if shape.arch:
        chosen.append({"key": ARCH_KEY, "operator": "Equal", "value": shape.arch, "effect": "NoSchedule"})
    return chosen
