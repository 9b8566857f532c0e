"""What the launcher says of its hosts: what they are, why they wait, how the step ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kr_kfp.spec.diagnose import Diagnosis
from kr_kfp.spec.observe import HostState, Phase
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import Json

__all__ = ["Report", "shape_of", "why_waiting"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How the step ended.

    Args:
        ok: Whether every host ended well.
        attempt: 0-based attempt that decided it.
        outputs: The leader's ``executorOutput`` and ``parameters``; empty on failure.
        lines: The diagnosis, for the log's end and the termination message; empty on success.
        warnings: Sentences for the user.
    """

    ok: bool
    attempt: int
    outputs: Json
    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def why_waiting(states: Sequence[HostState], found: Sequence[Diagnosis]) -> str:
    """Say how many hosts wait, and why the first of them does, with what to do."""
    waiting = [state for state in states if state.phase is Phase.WAITING]
    indexes = {state.index for state in waiting}
    about = [d for d in found if d.host is None or d.host in indexes]
    why = str(about[0]) if about else f"{waiting[0].who}: {waiting[0].reason}"
    return f"{len(waiting)} of {len(states)} hosts wait: {why}"


def shape_of(step: StepSpec) -> str:
    """Say what the hosts are."""
    hosts = f"{step.hosts} host{'s' if step.hosts != 1 else ''}"
    if step.shape is None:
        return f"{hosts} without accelerator"
    chips = f"{step.shape.chips_per_host} {'chips' if step.shape.kind == 'tpu' else 'GPUs'} each"
    topology = f", topology {step.shape.topology}" if step.shape.topology else ""
    head = ", and a head without accelerator" if step.pathways else ""
    return f"{hosts} of {step.shape.name}, {chips}{topology}{head}"
