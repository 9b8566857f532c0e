"""``kr-kfp compile``."""

from __future__ import annotations

from pathlib import Path

import click

from kr_kfp.cli.output import emit, json_option
from kr_kfp.cli.target import find

__all__ = ["compile_command"]


@click.command("compile")
@click.argument("target")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Where to write; beside the file by default.")
@json_option
def compile_command(target: str, output: str | None, as_json: bool) -> None:
    """Compile TARGET (FILE.py[:NAME] or package.module[:NAME]) to KFP's YAML."""
    from kfp import compiler

    component = find(target)
    place = Path(output or f"{component.name.replace(' ', '-').lower()}.yaml")
    place.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(component, str(place))
    size = place.stat().st_size
    value = {"name": component.name, "file": str(place), "bytes": size}
    emit(value, as_json, lambda out: out.print(f"{component.name}: {place} ({size:,} bytes)", markup=False))
