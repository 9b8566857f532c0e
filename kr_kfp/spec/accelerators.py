"""Accelerator names -> :class:`kr_kfp.spec.step.Shape`: one registry, every public convention, no guessing.

A bare ``vN-K`` is Google's name. For v3, v4, v5p and tpu7x it counts TensorCores, two per chip (Cloud TPU, xpk,
axlearn and maxtext agree); kinetic counts chips there, so that one string means slices of different size. kr_kfp takes
Google's reading and shows the resolved topology; ``v5p:2x2x4`` is free of doubt.
"""

from __future__ import annotations

from dataclasses import dataclass

from kr_kfp.errors import KrKfpError, Problem
from kr_kfp.spec.accelerators_data import FAMILIES, SOURCES
from kr_kfp.spec.accelerators_index import Entry, index, normalise
from kr_kfp.spec.accelerators_unknown import unknown
from kr_kfp.spec.step import Gpu, Shape, Tpu

__all__ = [
    "ARCH_KEY",
    "Explanation",
    "Reading",
    "UnknownAcceleratorError",
    "explain",
    "names",
    "notes",
    "resolve",
    "selectors",
    "shapes",
    "sources",
]

ARCH_KEY = "kubernetes.io/arch"
"""Label of every node, and the taint that GKE gives its Arm nodes (google.container.v1 TaintConfig: ARM by default)."""

Reading = tuple[str, "Shape | None", str]
"""A naming convention, the shape that it reads (None if it has no such name), and why."""


class UnknownAcceleratorError(KrKfpError):
    """No accelerator has this name.

    Attributes:
        problem: What is wrong and what to write instead.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """How a name is read.

    Args:
        name: The name as it was given.
        taken: What kr_kfp takes; None if it is unknown to it.
        readings: Each convention's reading.
        notes: Facts about the shape taken.
    """

    name: str
    taken: Shape | None
    readings: tuple[Reading, ...]
    notes: tuple[str, ...]


def resolve(accelerator: str | Tpu | Gpu, *, path: str = "accelerator") -> Shape:
    """Resolve what a user wrote.

    Args:
        accelerator: Such as ``v5litepod-16``, ``v5p:2x2x4``, ``v5e:2x4@ct5lp-hightpu-8t``, ``h100x8``,
            ``nvidia-h100-80gb:8``, ``Tpu("v5e", "4x4")`` or ``Gpu("h100", 8)``; case does not matter.
        path: Argument's name in the error.

    Raises:
        UnknownAcceleratorError: If there is none of this name. There is no fallback.
    """
    wrong = _wrong_value(accelerator, path)
    if wrong is not None:
        raise UnknownAcceleratorError(wrong)
    stem, machine = _parts(accelerator)
    found = _lookup(stem, machine)
    if found is None:
        raise UnknownAcceleratorError(unknown(repr(accelerator), stem, machine, path))
    return found


def _wrong_value(accelerator: object, path: str) -> Problem | None:
    """Find what no lookup can: a value of another type, or a GPU's name in ``Tpu`` and the other way round."""
    if isinstance(accelerator, str):
        return None
    if not isinstance(accelerator, Tpu | Gpu):
        message = f"{accelerator!r} is no accelerator but {type(accelerator).__name__}."
        return Problem(path, message, "Use a name such as 'v5litepod-16', Tpu(...) or Gpu(...).")
    made, word = ("tpu", accelerator.family) if isinstance(accelerator, Tpu) else ("gpu", accelerator.kind)
    if isinstance(accelerator, Gpu) and (type(accelerator.per_host) is not int or accelerator.per_host < 1):
        return Problem(path, f"{accelerator!r}: per_host is not a number of GPUs.", "Use a whole number from 1 on.")
    family = index().words.get(normalise(str(word)))
    if family is not None and FAMILIES[family].kind != made:
        use = {"tpu": "Gpu(kind, per_host=...)", "gpu": "Tpu(family, topology=...)"}[made]
        return Problem(path, f"{accelerator!r}: {word!r} is no {made.upper()}.", f"Use {use}.")
    return None


def _parts(accelerator: str | Tpu | Gpu) -> tuple[str, str | None]:
    """Part a name from the machine behind ``@``; None if no machine is named."""
    if isinstance(accelerator, Tpu):
        machine = normalise(str(accelerator.machine)) if accelerator.machine is not None else None
        return normalise(f"{accelerator.family}:{accelerator.topology}"), machine
    if isinstance(accelerator, Gpu):
        return normalise(f"{accelerator.kind}x{accelerator.per_host}"), None
    stem, mark, machine = normalise(accelerator.strip()).partition("@")
    return stem, machine if mark else None


def _lookup(stem: str, machine: str | None) -> Shape | None:
    if machine is None:
        entry = index().plain.get(stem)
        return entry.shape if entry else None
    for entry in index().stems.get(stem, ()):
        if machine in entry.machines:
            return entry.on(machine)
    return None


def _entry(shape: Shape) -> Entry:
    for entry in index().entries:
        same = entry.shape
        if (same.family, same.topology, same.chips_per_host, same.label) == (
            shape.family,
            shape.topology,
            shape.chips_per_host,
            shape.label,
        ) and (not shape.machine or shape.machine in entry.machines):
            return entry
    raise UnknownAcceleratorError(Problem("shape", f"{shape.name!r} is not in the registry."))


def shapes(search: str = "") -> tuple[Shape, ...]:
    """List all shapes, family by family, or those in whose names, topology, machine or label ``search`` occurs."""
    word = normalise(search.strip())
    return tuple(
        entry.shape
        for entry in index().entries
        if any(word in text for text in (*entry.stems, entry.shape.topology, *entry.machines, entry.shape.label))
    )


def names(shape: Shape) -> tuple[str, ...]:
    """List every name that resolves to this shape, the canonical one first."""
    entry = _entry(shape)
    named = (f"{stem}@{shape.machine}" for stem in entry.stems) if shape.machine else ()
    found = dict.fromkeys(name for name in (shape.name, *entry.plain, *named) if _lookup(*_parts(name)) == shape)
    return tuple(found)


def sources(shape: Shape) -> tuple[str, ...]:
    """Give the sources of this row, each with its project, version and file."""
    return tuple(SOURCES[code] for code in _entry(shape).sources)


def notes(shape: Shape) -> tuple[str, ...]:
    """Give short facts about this row."""
    return _entry(shape).notes


def selectors(shape: Shape) -> dict[str, str]:
    """Give the node selector of hosts with this accelerator.

    The machine type is named where label and topology exist on several machines (the 2x4 of v5e and v6e), and where a
    person named it.
    """
    if shape.kind == "tpu":
        chosen = {
            "cloud.google.com/gke-tpu-accelerator": shape.label,
            "cloud.google.com/gke-tpu-topology": shape.topology,
        }
    else:
        chosen = {"cloud.google.com/gke-accelerator": shape.label}
    if shape.select_machine and shape.machine:
        chosen["node.kubernetes.io/instance-type"] = shape.machine
    if shape.arch:
        chosen[ARCH_KEY] = shape.arch
    return chosen


def explain(name: str) -> Explanation:
    """Show how each naming convention reads a name, and what kr_kfp takes."""
    stem, machine = _parts(name)
    taken = _lookup(stem, machine)
    entry = _entry(taken) if taken else None
    google, topology, gpu = _taken_as(stem, entry)
    kinetic = index().kinetic.get(stem) if machine is None else None
    readings: tuple[Reading, ...] = (
        ("Google's name (Cloud TPU, xpk, axlearn, maxtext)", taken if google else None, google),
        ("kinetic's name (counts chips)", kinetic.shape if kinetic else None, _chips(kinetic)),
        ("topology", taken if topology else None, topology),
        ("GPU", taken if gpu else None, gpu),
    )
    return Explanation(name=name, taken=taken, readings=readings, notes=entry.notes if entry else ())


def _taken_as(stem: str, entry: Entry | None) -> tuple[str, str, str]:
    """Say why a name is taken: as Google's name, as a topology or as a GPU. One of the three is not empty."""
    if entry is None:
        return "", "", ""
    if entry.shape.kind == "gpu":
        return "", "", f"{entry.count} on each host"
    if stem.endswith((f":{entry.shape.topology}", f"-{entry.shape.topology}")):
        return "", _topology(stem, entry), ""
    return _cores(stem, entry), "", ""


def _topology(stem: str, entry: Entry) -> str:
    # Of one label, since only those share a node selector: v5e's legacy label has its own.
    label = entry.shape.label
    rivals = [rival for rival in index().stems[stem] if rival is not entry and rival.shape.label == label]
    others = [machine for rival in rivals for machine in rival.machines]
    if others:
        return f"on {entry.shape.machine}; {stem}@machine chooses another: {', '.join(others)}"
    return "family and topology, free of doubt"


def _cores(stem: str, entry: Entry) -> str:
    if not stem.endswith(f"-{entry.count}"):
        return "a name of its own in axlearn"
    per_chip = FAMILIES[entry.shape.family].cores_per_chip
    total, each = (f"{count} TensorCore{'s' if count > 1 else ''}" for count in (entry.count, per_chip))
    return f"{total}, {each} a chip"


def _chips(entry: Entry | None) -> str:
    return f"{entry.shape.chips} chip{'s' if entry.shape.chips > 1 else ''}" if entry else ""
