"""Every family of the table of accelerators in every layout: the golden matrix.

Facts come from ``tests/data/accelerators.csv`` alone, so that what is built is held against the table and not against
kr_kfp's own reading of it. ``tests/unit/test_matrix.py`` asserts them; the cluster tests can send each manifest to a real
API server (:func:`manifests`).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kr_kfp.spec.declare import declare
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.step import Pathways, StepSpec

__all__ = ["LAUNCH", "PATHWAYS", "ROWS", "Case", "Row", "cases", "manifests", "name_of", "representatives", "step_of"]

Json = dict[str, Any]

PATHWAYS = Pathways(scratch="gs://bucket/tmp", version="20260423-jax_0.10.0", images="registry.test/pathways")

LAUNCH = Launch(
    name="train-0123456789",
    run="run-1",
    task="train",
    identity="run-1/train",
    holder="uid",
    payload=("payload",),
    checkpoint_dir="gs://bucket/checkpoints",
    init=("sh", "-c", "provide"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Args:
        family: Such as ``v5p`` or ``h100``.
        kind: ``tpu`` or ``gpu``.
        label: GKE's label of the accelerator.
        machines: Machine types that carry it.
        per_host: Chips or GPUs of a host.
        topology: Chips per dimension; empty for GPU.
        chips: Chips of the slice; for GPU those of a host.
        hosts: Hosts of the slice.
        pathways: Pathways instance type; empty where there is none.
        arm: Whether the hosts are Arm machines.
    """

    family: str
    kind: str
    label: str
    machines: tuple[str, ...]
    per_host: int
    topology: str
    chips: int
    hosts: int
    pathways: str
    arm: bool

    @property
    def id(self) -> str:
        """Name it for test ids."""
        return f"{self.family}-{self.topology or self.per_host}-{self.machines[0]}"


def _rows() -> Iterator[Row]:
    with (Path(__file__).parent / "data" / "accelerators.csv").open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            yield Row(
                family=row["family"],
                kind=row["kind"],
                label=row["gke_accelerator_label"],
                machines=tuple(row["machine_type"].split("|")),
                per_host=int(row["chips_per_host"]),
                topology="" if row["topology"] == "N/A" else row["topology"],
                chips=int(row["chips"]),
                hosts=int(row["hosts"]),
                pathways=row["pathways_instance_type"],
                arm=row["notes"].startswith("ARM64"),
            )


ROWS = tuple(_rows())


def name_of(row: Row) -> str:
    """Name a row by GKE's words: label, topology or count, and its machine if it has just one."""
    machine = f"@{row.machines[0]}" if len(row.machines) == 1 else ""
    return f"{row.label}:{row.topology or row.per_host}{machine}"


def step_of(**given: Any) -> StepSpec:
    """Declare a step."""
    step, problems = declare(given, name="train", image="python:3.12")
    assert step is not None, problems
    return step


@dataclass(frozen=True, slots=True)
class Case:
    """One row in one layout.

    Args:
        row: The row.
        layout: ``pod``, ``group-of-one``, ``hosts``, ``slices``, ``pathways`` or ``pathways-slices``.
        slices: TPU slices.
        hosts: Hosts with accelerators in all.
        given: The arguments of the declaration.
    """

    row: Row
    layout: str
    slices: int
    hosts: int
    given: Json

    @property
    def id(self) -> str:
        """Name it for test ids."""
        return f"{self.row.id}-{self.layout}"

    def step(self) -> StepSpec:
        """Declare the step."""
        return step_of(**self.given)

    def manifest(self) -> Json:
        """Build the LeaderWorkerSet; a pod has none."""
        return build(self.step(), LAUNCH)


def cases(row: Row) -> Iterator[Case]:
    """Give every layout that a row has."""
    base: Json = {"accelerator": name_of(row)}
    if row.hosts == 1:
        yield Case(row, "pod", 1, 1, base)
        yield Case(row, "group-of-one", 1, 1, {**base, "backend": "lws"})
    if row.kind == "gpu":
        yield Case(row, "hosts", 1, 2, {**base, "hosts": 2})
        return
    if row.hosts > 1:
        yield Case(row, "hosts", 1, row.hosts, base)
    several = row.hosts > 1 and row.family != "v3"
    if several:
        yield Case(row, "slices", 2, 2 * row.hosts, {**base, "slices": 2})
    if row.pathways:
        single = {**base, "backend": "pathways", "pathways": PATHWAYS}
        yield Case(row, "pathways", 1, row.hosts, single)
        if several:
            elastic = replace(PATHWAYS, elastic_slices=1)
            yield Case(row, "pathways-slices", 2, 2 * row.hosts, {**single, "slices": 2, "pathways": elastic})


def representatives() -> list[Row]:
    """Give two rows of each family: its smallest on one host, and its smallest on several."""
    found: dict[tuple[str, bool], Row] = {}
    for row in sorted(ROWS, key=lambda each: each.chips):
        found.setdefault((row.family, row.hosts > 1), row)
        # The Pathways layouts want a machine that has them.
        if row.pathways and not found[row.family, row.hosts > 1].pathways:
            found[row.family, row.hosts > 1] = row
    return list(found.values())


def manifests() -> dict[str, Json]:
    """Give the manifest of each representative in each layout that is a group, by name."""
    return {case.id: case.manifest() for row in representatives() for case in cases(row) if case.layout != "pod"}
