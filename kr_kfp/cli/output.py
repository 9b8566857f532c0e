"""What commands print: JSON for programs, rich for terminals, plain text for everything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console", "emit", "json_option", "table"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def console(*, stderr: bool = False) -> Console:
    """Give a console for standard output or error; without colour where that is not a terminal.

    It breaks no lines, so that what is copied from it is what was printed, and takes ``:name:`` for what it is.
    """
    file = sys.stderr if stderr else sys.stdout
    plain = not file.isatty()
    return Console(
        file=file,
        soft_wrap=True,
        highlight=False,
        markup=False,
        emoji=False,
        force_terminal=False if plain else None,
        no_color=plain or None,
    )


def emit(value: Any, as_json: bool, show: Callable[[Console], None]) -> None:
    """Print ``value`` as JSON, or what ``show`` makes of it for people."""
    if as_json:
        click.echo(json.dumps(value, indent=2, default=str))
    else:
        show(console())


def table(target: Console, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table: aligned on a terminal, tab-separated with a header elsewhere."""
    if not target.is_terminal:
        # Not through rich, which would make spaces of tabs.
        click.echo("\t".join(columns))
        for row in rows:
            click.echo("\t".join(str(cell) for cell in row))
        return
    drawn = Table(title=title or None, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        # A name that does not fit goes on in the next line; half a name would be of no use.
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(str(cell)) for cell in row))
    target.print(drawn, soft_wrap=False)
