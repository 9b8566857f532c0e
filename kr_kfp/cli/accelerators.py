"""``kr-kfp accelerators``: list, search, explain."""

from __future__ import annotations

from dataclasses import asdict

import click
from rich.console import Console

from kr_kfp.cli.output import emit, json_option, table
from kr_kfp.spec import accelerators as registry
from kr_kfp.spec.step import Shape

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
        shape.machine,
        shape.label,
    )


def _show(found: tuple[Shape, ...], as_json: bool) -> None:
    emit(
        [asdict(shape) for shape in found],
        as_json,
        lambda target: table(target, _COLUMNS, map(_row, found), f"{len(found)} shapes"),
    )


@accelerators.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """List every shape that kr_kfp knows."""
    _show(registry.shapes(), as_json)


@accelerators.command()
@click.argument("text")
@json_option
def search(text: str, as_json: bool) -> None:
    """List the shapes whose name, family, topology, machine or label holds TEXT."""
    found = registry.shapes(text)
    if not found:
        msg = f"no shape holds {text!r}; see: kr-kfp accelerators list"
        raise click.UsageError(msg)
    _show(found, as_json)


@accelerators.command()
@click.argument("name")
@json_option
def explain(name: str, as_json: bool) -> None:
    """Say how each naming convention reads NAME, and what kr_kfp takes."""
    explanation = registry.explain(name)
    value = asdict(explanation)
    value["selectors"] = registry.selectors(explanation.taken) if explanation.taken else None

    def show(target: Console) -> None:
        for convention, shape, why in explanation.readings:
            meaning = _words(shape) if shape else "no such shape"
            target.print(f"{convention}: {meaning}" + (f" ({why})" if why else ""), markup=False)
        if explanation.taken:
            shape = explanation.taken
            target.print(f"kr_kfp takes: {_words(shape)}", markup=False, style="bold")
            target.print(f"  machine {shape.machine}, {shape.devices_per_host} JAX devices a host", markup=False)
            for key, text in registry.selectors(shape).items():
                target.print(f"  node selector {key}={text}", markup=False)
            target.print("  also called: " + ", ".join(registry.names(shape)), markup=False)
            target.print("  sources: " + ", ".join(registry.sources(shape)), markup=False)
        for note in explanation.notes:
            target.print(f"  note: {note}", markup=False)

    emit(value, as_json, show)
    if explanation.taken is None:
        raise SystemExit(2)


def _words(shape: Shape) -> str:
    hosts = f"{shape.hosts} host{'s' if shape.hosts != 1 else ''}"
    if shape.kind == "gpu":
        return f"{shape.chips_per_host} {shape.family} GPUs a host"
    return f"{shape.family} {shape.topology}: {shape.chips} chips on {hosts}, {shape.chips_per_host} chips a host"
