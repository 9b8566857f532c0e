"""``kr-kfp render``: the plan of a pipeline, printed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click
import yaml
from rich.console import Console

from kr_kfp.authoring.plan import StepPlan, plan
from kr_kfp.cli.output import emit, json_option
from kr_kfp.cli.target import TargetError, find

__all__ = ["render"]


@click.command(short_help="Show what a pipeline or step would run where, and why.")
@click.argument("target")
@click.option("--step", "only", help="Only the step of this name.")
@click.option("--manifest/--no-manifest", default=True, show_default=True, help="Print what would be created.")
@json_option
def render(target: str, only: str | None, manifest: bool, as_json: bool) -> None:
    """Show what TARGET (FILE.py[:NAME], FILE.yaml or package.module[:NAME]) would run where, and why.

    Prints topology, hosts, chips and node selectors of each step, and the objects with all env that would be created.
    """
    steps = plan(find(target))
    if only is not None:
        names = ", ".join(step.name for step in steps) or "none"
        steps = tuple(step for step in steps if step.name == only)
        if not steps:
            msg = f"{target} has no step {only!r}; it has: {names}"
            raise TargetError(msg)
    value = [asdict(step) for step in steps]
    if not manifest:
        for step in value:
            del step["manifest"]

    def show(out: Console) -> None:
        for step in steps:
            _show(step, out, manifest)

    emit(_plain(value), as_json, show)


def _show(step: StepPlan, out: Console, manifest: bool) -> None:
    out.print(f"step {step.name}", style="bold")
    for words in step.words:
        out.print(f"  {words}")
    whose = "workers' node selector" if step.step and step.step.backend == "pathways" else "node selector"
    for key, text in step.selectors.items():
        out.print(f"  {whose} {key}={text}")
    if manifest:
        text = yaml.dump(_plain(step.manifest), sort_keys=False, allow_unicode=True, width=100)
        out.print("  ---")
        for line in text.splitlines():
            out.print(f"  {line}")
    out.print()


def _plain(value: Any) -> Any:
    """Give values that YAML writes plainly: tuples as lists."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
