"""What to say about an accelerator that is not in the table: what is wrong, and which names to write instead."""

from __future__ import annotations

import difflib
from math import prod

from kr_kfp.errors import Problem
from kr_kfp.spec.accelerators_index import Entry, index

__all__ = ["unknown"]

_DIGITS = 9  # Beyond that every number is larger than the largest slice; Python refuses to read 4,301 of them.


def unknown(given: str, stem: str, machine: str | None, path: str) -> Problem:
    """Describe the problem.

    Args:
        given: What the user wrote, as Python would show it.
        stem: The name in small letters, without machine.
        machine: The machine behind ``@``; None if there was none.
        path: The argument's name.
    """
    known = index().stems.get(stem, ())
    if known and machine is not None:
        return Problem(path, f"{stem!r} does not exist on machine {machine!r}.", _other_machine(known, machine))
    if known:
        # Rows that must be asked for by machine: legacy, unverified, or provisioned on request only.
        options = ", ".join(f"{stem}@{name}" for entry in known for name in entry.machines)
        why = "; ".join(known[0].notes[:1]) or "there are several"
        return Problem(path, f"{given} is taken only with its machine: {why}.", f"Use one of: {options}.")
    chips = index().kinetic.get(stem)
    if chips is not None:
        fix = f"Google has no such name; kinetic, which counts chips, means {chips.shape.name!r}. Write that."
        return Problem(path, f"{given} is not an accelerator.", fix)
    close = _near(stem) or difflib.get_close_matches(stem, index().plain, n=3, cutoff=0.6)
    hint = f"Did you mean {', '.join(close)}? " if close else ""
    return Problem(path, f"{given} is not a known accelerator.", f"{hint}List all with: kr-kfp accelerators list.")


def _other_machine(known: tuple[Entry, ...], machine: str) -> str:
    machines = ", ".join(sorted({name for entry in known for name in entry.machines}))
    family, kind = known[0].shape.family, known[0].shape.kind
    rows = [entry for entry in index().entries if kind == "gpu" and entry.shape.family == family]
    there = ", ".join(entry.shape.name for entry in rows if machine in entry.machines)
    return f"Use one of: {machines}." + (f" On {machine} it is {there}." if there else "")


def _near(stem: str) -> list[str]:
    """Give the sizes of a family that are nearest to the one asked for, the smaller first; none if it is no family."""
    word = max((word for word in index().words if stem == word or stem.startswith(_marked(word))), key=len, default="")
    if not word:
        return []
    family, size = index().words[word], stem[len(word) + 1 :]
    # The word matters: who writes v5e does not mean the legacy device that GKE calls v5-lite.
    rows = [
        entry
        for entry in index().entries
        if entry.shape.family == family and any(name.startswith(_marked(word)) for name in entry.plain)
    ]
    sides = size.split("x")
    if not all(side.isascii() and side.isdigit() for side in sides):
        return [entry.shape.name for entry in rows[:4]]
    numbers = sorted(int(side[:_DIGITS]) for side in sides)
    if len(numbers) > 1 and rows[0].shape.topology:
        return _near_topology(rows, word, numbers)
    same = [entry for entry in rows if entry.count == numbers[0]]
    nearest = sorted(rows, key=lambda entry: abs(entry.count - numbers[0]))[:3]
    return [entry.shape.name for entry in same or sorted(nearest, key=lambda entry: entry.count)]


def _near_topology(rows: list[Entry], word: str, numbers: list[int]) -> list[str]:
    """Give the same sides in GKE's order, or else the topologies with the nearest number of chips."""
    sides = {entry.shape.topology: sorted(map(int, entry.shape.topology.split("x"))) for entry in rows}
    same = [topology for topology in sides if sides[topology] == numbers]
    nearest = sorted(sides, key=lambda topology: abs(prod(sides[topology]) - prod(numbers)))[:3]
    return [f"{word}:{topology}" for topology in same or sorted(nearest, key=lambda topology: prod(sides[topology]))]


def _marked(word: str) -> tuple[str, ...]:
    return tuple(f"{word}{mark}" for mark in ":-x")
