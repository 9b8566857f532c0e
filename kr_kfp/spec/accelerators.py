"""Accelerator names -> :class:`kr_kfp.spec.step.Shape`: one registry, every public convention, no guessing.

A bare ``vN-K`` is Google's name. For v3, v4, v5p and tpu7x it counts TensorCores, two per chip (Cloud TPU, xpk,
axlearn and maxtext agree); kinetic counts chips there, so that one string means slices of different size. kr_kfp takes
Google's reading and shows the resolved topology; ``v5p:2x2x4`` is free of doubt.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from kr_kfp.errors import KrKfpError, Problem
from kr_kfp.spec.accelerators_data import FAMILIES, SOURCES
from kr_kfp.spec.accelerators_index import Entry, index, normalise
from kr_kfp.spec.step import Gpu, Shape, Tpu

__all__ = [
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
    text = _text(accelerator)
    found = _find(text)
    if found is not None:
        return found
    raise UnknownAcceleratorError(_unknown(accelerator, text, path))


def _text(accelerator: str | Tpu | Gpu) -> str:
    if isinstance(accelerator, Tpu):
        machine = f"@{accelerator.machine}" if accelerator.machine else ""
        return normalise(f"{accelerator.family}:{accelerator.topology}{machine}")
    if isinstance(accelerator, Gpu):
        return normalise(f"{accelerator.kind}x{accelerator.per_host}")
    return normalise(accelerator.strip())


def _find(text: str) -> Shape | None:
    stem, mark, machine = text.partition("@")
    if not mark:
        entry = index().plain.get(text)
        return entry.shape if entry else None
    for entry in index().stems.get(stem, ()):
        if machine in entry.machines:
            return entry.on(machine)
    return None


def _unknown(accelerator: str | Tpu | Gpu, text: str, path: str) -> Problem:
    stem, mark, machine = text.partition("@")
    known = index().stems.get(stem, ())
    if mark and known:
        machines = sorted({m for entry in known for m in entry.machines})
        return Problem(path, f"{stem!r} does not exist on machine {machine!r}.", f"Use one of: {', '.join(machines)}.")
    if not mark and known:
        # Label and topology alone would leave the machine open.
        options = ", ".join(f"{stem}@{m}" for entry in known for m in entry.machines)
        return Problem(path, f"{accelerator!r} leaves the machine open.", f"Use one of: {options}.")
    chips = index().kinetic.get(stem)
    if chips is not None:
        fix = f"Google has no such name; kinetic, which counts chips, means {chips.shape.name!r}. Write that."
        return Problem(path, f"{accelerator!r} is not an accelerator.", fix)
    family = index().words.get(stem.partition(":")[0].rpartition("-")[0] or stem) or index().words.get(
        stem.partition(":")[0]
    )
    close = _near(family, stem) or difflib.get_close_matches(stem, index().plain, n=3, cutoff=0.6)
    hint = f"Did you mean {', '.join(close)}? " if close else ""
    return Problem(
        path, f"{accelerator!r} is not a known accelerator.", f"{hint}List all with: kr-kfp accelerators list."
    )


def _near(family: str | None, stem: str) -> list[str]:
    """Give the sizes of a family that are nearest to the one asked for, the smaller first."""
    count = stem.rpartition("-")[2]
    rows = [entry for entry in index().entries if entry.shape.family == family and entry.plain]
    if count.isdigit():
        rows.sort(key=lambda entry: abs(entry.count - int(count)))
        rows = sorted(rows[:3], key=lambda entry: entry.count)
    return [entry.shape.name for entry in rows[:4]]


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
    found = dict.fromkeys(name for name in (shape.name, *entry.plain, *named) if _find(name) == shape)
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
    return chosen


def explain(name: str) -> Explanation:
    """Show how each naming convention reads a name, and what kr_kfp takes."""
    text = normalise(name.strip())
    taken = _find(text)
    entry = _entry(taken) if taken else None
    kinetic = index().kinetic.get(text)
    counted = entry if entry and text.rpartition("-")[2] == str(entry.count) else None
    topology = entry if entry and entry.shape.topology and entry.shape.topology in text else None
    gpu = entry if entry and entry.shape.kind == "gpu" else None
    readings: list[Reading] = [
        ("Google's name (Cloud TPU, xpk, axlearn, maxtext)", _shape(counted), _cores(counted)),
        ("kinetic's name (counts chips)", _shape(kinetic), _chips(kinetic)),
        ("topology", _shape(topology), "family and topology, free of doubt" if topology else ""),
        ("GPU", _shape(gpu), f"{gpu.count} on each host" if gpu else ""),
    ]
    return Explanation(name=name, taken=taken, readings=tuple(readings), notes=entry.notes if entry else ())


def _shape(entry: Entry | None) -> Shape | None:
    return entry.shape if entry else None


def _cores(entry: Entry | None) -> str:
    if entry is None:
        return ""
    per_chip = FAMILIES[entry.shape.family].cores_per_chip
    cores = "TensorCore" if per_chip == 1 else "TensorCores"
    return f"{entry.count} TensorCores, {per_chip} {cores} a chip"


def _chips(entry: Entry | None) -> str:
    return f"{entry.shape.chips} chips" if entry else ""
