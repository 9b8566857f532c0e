"""``kr-kfp accelerators``: list, search, explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import click
from rich.console import Console

from kr_kfp.cli.output import emit, json_option, table
from kr_kfp.cli.target import TargetError
from kr_kfp.spec import accelerators as registry
from kr_kfp.spec.placement import shape_tolerations
from kr_kfp.spec.step import Shape
from kr_kfp.wire import ExitCode

__all__ = ["accelerators"]

_COLUMNS = ("name", "family", "topology", "hosts", "chips", "chips/host", "machine", "label")


@click.group()
def accelerators() -> None:
    """List, search and explain accelerator names."""


def _row(shape: Shape) -> tuple[object, ...]:
    return (
        shape.name,
        shape.family,
        shape.topology or "-",
        shape.hosts,
        shape.chips,
        shape.chips_per_host,
        shape.machine or "-",
        shape.label,
    )


def _show(found: tuple[Shape, ...], as_json: bool) -> None:
    emit(
        [asdict(shape) for shape in found],
        as_json,
        lambda target: table(target, _COLUMNS, map(_row, found), f"{len(found)} shape{'s' if len(found) > 1 else ''}"),
    )


@accelerators.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List every shape that kr_kfp knows."""
    _show(registry.shapes(), as_json)


@accelerators.command(short_help="List the shapes that a text occurs in.")
@click.argument("text")
@json_option
def search(text: str, as_json: bool) -> None:
    """List the shapes whose name, family, topology, machine or label holds TEXT."""
    found = registry.shapes(text)
    if not found:
        msg = f"no shape holds {text!r}; see: kr-kfp accelerators list"
        raise TargetError(msg)
    _show(found, as_json)


@accelerators.command(short_help="Say how each naming convention reads a name.")
@click.argument("name")
@json_option
def explain(name: str, as_json: bool) -> None:
    """Say how each naming convention reads NAME, and what kr_kfp takes.

    Exits with 2 if kr_kfp takes no such name.
    """
    explanation = registry.explain(name)
    taken = explanation.taken
    problem = None if taken else _problem(name)
    value = {
        "name": name,
        "taken": asdict(taken) if taken else None,
        "problem": problem,
        "readings": [
            {"convention": convention, "shape": asdict(shape), "why": why}
            for convention, shape, why in explanation.readings
            if shape
        ],
        "selectors": registry.selectors(taken) if taken else {},
        "tolerations": shape_tolerations(taken) if taken else [],
        "names": registry.names(taken) if taken else (),
        "sources": registry.sources(taken) if taken else (),
        "notes": explanation.notes,
    }

    def show(target: Console) -> None:
        for convention, shape, why in explanation.readings:
            # A convention that knows no such name has nothing to say; a GPU's reason repeats its shape.
            if shape:
                target.print(f"{convention}: {_words(shape)}" + (f" ({why})" if why and shape.kind == "tpu" else ""))
        if taken:
            _show_taken(taken, explanation.notes, target)
        else:
            target.print(f"kr_kfp takes no such name: {problem}", style="bold")

    emit(value, as_json, show)
    if taken is None:
        raise SystemExit(ExitCode.USAGE)


def _show_taken(shape: Shape, notes: Sequence[str], target: Console) -> None:
    devices = f"{shape.devices_per_host} JAX device{'s' if shape.devices_per_host > 1 else ''} a host"
    target.print(f"kr_kfp takes: {_words(shape)}", style="bold")
    target.print(f"  machine {shape.machine or 'of any type that carries it'}, {devices}")
    for key, text in registry.selectors(shape).items():
        target.print(f"  node selector {key}={text}")
    for toleration in shape_tolerations(shape):
        value = f"={toleration['value']}" if "value" in toleration else ""
        target.print(f"  toleration {toleration['key']}{value}:{toleration['effect']}")
    pathways = f"{shape.pathways_type}:{shape.topology}" if shape.pathways_type else "no instance type"
    if shape.kind == "tpu":
        target.print(f"  Pathways {pathways}")
    target.print(f"  Vertex AI {shape.vertex_machine or 'not there'}")
    target.print("  names: " + ", ".join(registry.names(shape)))
    for note in notes:
        target.print(f"  note: {note}")
    for source in registry.sources(shape):
        target.print(f"  source: {source}")


def _problem(name: str) -> str:
    """Say why a name is unknown, and what to write instead."""
    try:
        registry.resolve(name)
    except registry.UnknownAcceleratorError as problem:
        return f"{problem.problem.message} {problem.problem.fix}".strip()
    return ""


def _words(shape: Shape) -> str:
    if shape.kind == "gpu":
        return f"{shape.chips_per_host} {shape.family} GPU{'s' if shape.chips_per_host > 1 else ''} a host"
    chips = f"{shape.chips} chip{'s' if shape.chips > 1 else ''}"
    if shape.hosts == 1:
        return f"{shape.family} {shape.topology}: {chips} on 1 host"
    return f"{shape.family} {shape.topology}: {chips} on {shape.hosts} hosts, {shape.chips_per_host} chips a host"
