"""What commands print: JSON for programs, rich for terminals, plain text for everything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.table import Table

__all__ = ["console", "emit", "json_option", "table"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def console() -> Console:
    """Give a console for standard output; without colour and wrapping where that is not a terminal."""
    plain = not sys.stdout.isatty()
    return Console(file=sys.stdout, soft_wrap=plain, highlight=False, no_color=plain or None)


def emit(value: Any, as_json: bool, show: Callable[[Console], None]) -> None:
    """Print ``value`` as JSON, or what ``show`` makes of it for people."""
    if as_json:
        click.echo(json.dumps(value, indent=2, default=str))
    else:
        show(console())


def table(target: Console, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table: ruled on a terminal, tab-separated with a header elsewhere."""
    if not target.is_terminal:
        target.print("\t".join(columns), markup=False)
        for row in rows:
            target.print("\t".join(str(cell) for cell in row), markup=False)
        return
    drawn = Table(*columns, title=title or None, title_justify="left", header_style="bold")
    for row in rows:
        drawn.add_row(*(str(cell) for cell in row))
    target.print(drawn)
