"""``kr-kfp compile``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kr_kfp.cli.output import emit, json_option
from kr_kfp.cli.target import TargetError, find

__all__ = ["compile_command"]


@click.command("compile", short_help="Compile a pipeline or step to KFP's YAML.")
@click.argument("target")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="Where to write; NAME.yaml in the current folder by default.",
)
@json_option
def compile_command(target: str, output: str | None, as_json: bool) -> None:
    """Compile TARGET (FILE.py[:NAME] or package.module[:NAME]) to KFP's YAML."""
    from kfp import compiler

    if output is not None and not output.endswith(".yaml"):
        msg = f"--output {output}: KFP writes only files that end in .yaml"
        raise TargetError(msg)
    component = find(target)
    place = Path(output or f"{re.sub(r'[^a-z0-9_]+', '-', component.name.lower())}.yaml")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        compiler.Compiler().compile(component, str(place))
    except OSError as problem:
        msg = f"cannot write {place}: {problem.strerror}"
        raise TargetError(msg) from problem
    size = place.stat().st_size
    value = {"name": component.name, "file": str(place), "bytes": size}
    emit(value, as_json, lambda out: out.print(f"{component.name}: {place} ({size:,} bytes)"))
