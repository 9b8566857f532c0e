"""The accelerator table unrolled: one entry per row, and every name that leads to it.

Built on first use and kept (about two thousand names, a few milliseconds). Three sorts of names exist, and no name of
one sort leads to two rows:

- ``plain``: accepted as it stands;
- ``stems``: accepted with ``@machine`` behind it, where label and topology exist on several machines;
- ``kinetic``: kinetic's names, which count chips. They are read by ``explain`` and by error messages only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import prod

from kr_kfp.spec.accelerators_data import BLOCKS, FAMILIES, Block
from kr_kfp.spec.step import Shape

__all__ = ["Entry", "Index", "index", "normalise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row of the table.

    Args:
        shape: What it resolves to without ``@machine``, or with it where the row needs it.
        machines: All GKE machine types that carry it.
        count: What Google's name counts: TensorCores of the slice, or GPUs of a host.
        plain: Names accepted as they stand, the canonical one first; empty if the machine must be named.
        stems: Names accepted with ``@machine`` behind them.
        kinetic: Names in kinetic.
        sources: Codes of the sources.
        notes: Short facts.
    """

    shape: Shape
    machines: tuple[str, ...]
    count: int
    plain: tuple[str, ...]
    stems: tuple[str, ...]
    kinetic: tuple[str, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...]

    def on(self, machine: str) -> Shape:
        """Return the shape with its machine named; a machine that a person named is always selected."""
        if self.shape.select_machine and self.shape.machine == machine:
            return self.shape
        return replace(self.shape, name=f"{self.shape.name}@{machine}", machine=machine, select_machine=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """All rows and all names.

    Args:
        entries: All rows, families in the order of the data, then by size.
        plain: Name to row.
        stems: Name to the rows it can mean once the machine is named.
        kinetic: Name in kinetic to row.
        words: Every word for a family, GKE's labels included, to the family.
    """

    entries: tuple[Entry, ...]
    plain: dict[str, Entry]
    stems: dict[str, tuple[Entry, ...]]
    kinetic: dict[str, Entry]
    words: dict[str, str]


def normalise(name: str) -> str:
    """Fold case, and ``_`` to ``-``, so that Vertex AI's ``NVIDIA_H100_80GB`` is GKE's label."""
    return name.lower().replace("_", "-")


def _size_names(block: Block, words: tuple[str, ...], topology: str, count: int) -> tuple[str, ...]:
    """Names of one row under the given words. ``count`` is the cores of a slice, or the GPUs of a host."""
    if FAMILIES[block.family].kind == "gpu":
        bare = words if count == 1 else ()
        return tuple(f"{word}{mark}{count}" for word in words for mark in "x:") + bare
    counted = tuple(f"{word}-{count}" for word in words if block.counted and word in FAMILIES[block.family].words)
    return counted + tuple(f"{word}{mark}{topology}" for word in words for mark in ":-")


def _odd_names(block: Block) -> tuple[str, ...]:
    xpk = FAMILIES[block.family].xpk
    names = (block.odd, f"{xpk}-{block.per_host}" if xpk and "XPK" in block.sources else "")
    return tuple(name for name in names if name)


def _words(block: Block) -> tuple[str, ...]:
    return (*FAMILIES[block.family].words, *(block.words or ()), block.label)


def _unique(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _needs_machine(block: Block, topology: str, rivals: tuple[Block, ...]) -> bool:
    """Tell whether the selector must name the machine: label and topology (GPU: label) exist on another one too.

    Args:
        block: The row's block.
        topology: The row's topology; empty for GPU.
        rivals: All blocks with the same label and topology, the row's own included.
    """
    if block.pinned or block.words == ():
        return True
    others = [rival for rival in rivals if rival.machines != block.machines]
    if not topology and (" " in block.machines or any(other.per_host == block.per_host for other in others)):
        # Several machines carry this number of GPUs (N1 with T4, g2 with one L4): each of them will do.
        return False
    return bool(others)


def _notes(block: Block, kinetic: tuple[str, ...], facts: dict[str, str]) -> tuple[str, ...]:
    notes = tuple(note.format_map(facts) if "{" in note else note for note in block.notes)
    if kinetic and FAMILIES[block.family].cores_per_chip > 1:
        notes += (f"kinetic counts chips and calls it {kinetic[0]}",)
    return notes


def _entry(block: Block, topology: str, rivals: tuple[Block, ...]) -> Entry:
    family = FAMILIES[block.family]
    chips = prod(int(side) for side in topology.split("x")) if topology else block.per_host
    count = chips * family.cores_per_chip or chips
    machines = tuple(block.machines.split())
    machine = machines[0] if len(machines) == 1 else ""
    words = _unique(_words(block))
    plain = _size_names(block, words if block.words is None else block.words, topology, count) + _odd_names(block)
    facts = {"family": block.family, "machine": machine, "topology": topology, "cores": str(count)}
    kinetic = tuple(f"{word}-{chips}" for word in family.words) if block.kinetic else ()
    stem = f"{block.family}:{topology}" if topology else f"{block.family}x{count}"
    shape = Shape(
        name=f"{stem}@{machine}" if block.words == () else plain[0],
        kind=family.kind,
        family=block.family,
        topology=topology,
        chips=chips,
        hosts=chips // block.per_host,
        chips_per_host=block.per_host,
        devices_per_host=block.per_host * family.devices_per_chip,
        resource="google.com/tpu" if family.kind == "tpu" else "nvidia.com/gpu",
        label=block.label,
        machine=machine,
        select_machine=_needs_machine(block, topology, rivals),
        pathways_type=block.pathways,
        vertex_machine=block.vertex.format_map(facts),
        arch=family.arch,
    )
    return Entry(
        shape=shape,
        machines=machines,
        count=count,
        plain=plain,
        stems=_unique(plain + _size_names(block, words, topology, count)),
        kinetic=kinetic,
        sources=tuple(block.sources.split("|")),
        notes=_notes(block, kinetic, facts),
    )


def _put(names: dict[str, Entry], name: str, entry: Entry) -> None:
    if name in names:
        msg = f"accelerator table: {name!r} names both {names[name].shape.name} and {entry.shape.name}"
        raise ValueError(msg)
    names[name] = entry


@cache
def index() -> Index:
    """Build the index once."""
    order = {family: place for place, family in enumerate(FAMILIES)}
    pairs = [(block, topology) for block in BLOCKS for topology in block.topologies.split() or [""]]
    sharing: dict[tuple[str, str], list[Block]] = {}
    for block, topology in pairs:
        sharing.setdefault((block.label, topology), []).append(block)
    rows = [_entry(block, topology, tuple(sharing[block.label, topology])) for block, topology in pairs]
    rows.sort(key=lambda entry: (order[entry.shape.family], entry.shape.chips))
    plain: dict[str, Entry] = {}
    kinetic: dict[str, Entry] = {}
    stems: dict[str, list[Entry]] = {}
    for entry in rows:
        for name in entry.plain:
            _put(plain, name, entry)
        for name in entry.kinetic:
            _put(kinetic, name, entry)
        for name in entry.stems:
            stems.setdefault(name, []).append(entry)
    return Index(
        entries=tuple(rows),
        plain=plain,
        stems={name: tuple(found) for name, found in stems.items()},
        kinetic=kinetic,
        words={word: block.family for block in BLOCKS for word in _words(block)},
    )
