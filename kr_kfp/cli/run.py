"""``kr-kfp run``: a pipeline or one step on this machine, with progress."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from kr_kfp.cli.output import console, emit, json_option, table
from kr_kfp.cli.target import arguments_of, find
from kr_kfp.wire import ExitCode

__all__ = ["LocalRun", "run", "run_local"]

_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_BEGINS = re.compile(r"Executing task '([^']+)'")
_ENDS = re.compile(r"Task '([^']+)' finished with status (\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """How a local run ended.

    Args:
        exit_code: 0 if it succeeded.
        outputs: Outputs of the pipeline or step, artifacts as ``type``, ``uri`` and ``metadata``.
        seconds: Wall time.
        root: Folder of all outputs.
    """

    exit_code: int
    outputs: Mapping[str, Any]
    seconds: float
    root: str


@dataclass(slots=True)
class _Progress:
    """State of the tasks, read from kfp.local's own lines."""

    tasks: dict[str, tuple[str, float, float]] = field(default_factory=dict)

    def see(self, line: str, now: float) -> None:
        if found := _BEGINS.search(line):
            self.tasks[found[1]] = ("running", now, 0.0)
        elif found := _ENDS.search(line):
            begun = self.tasks.get(found[1], ("", now, 0.0))[1]
            self.tasks[found[1]] = ("done" if found[2] == "SUCCESS" else "failed", begun, now)

    def draw(self, now: float) -> Table:
        colours = {"running": "yellow", "done": "green", "failed": "red"}
        drawn = Table.grid(padding=(0, 2))
        for name, (state, begun, ended) in self.tasks.items():
            drawn.add_row(f"[{colours[state]}]{state}[/]", name, f"{(ended or now) - begun:.0f} s")
        return drawn


def run_local(
    target: str, arguments: Mapping[str, Any], *, root: str | Path, use_venv: bool = False, quiet: bool = False
) -> LocalRun:
    """Run a target with kfp.local in a process of its own, its log going to standard output.

    Args:
        target: ``FILE.py[:NAME]`` or ``package.module[:NAME]``.
        arguments: The target's arguments.
        root: Folder of all outputs.
        use_venv: Whether each step gets an empty venv and installs its packages; else it uses this Python.
        quiet: Whether the log goes to standard error instead.
    """
    place = Path(root).absolute()
    place.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kr-kfp-run-") as folder:
        request, result = Path(folder, "request.json"), Path(folder, "result.json")
        asked = {"target": target, "arguments": dict(arguments), "root": str(place), "use_venv": use_venv}
        request.write_text(json.dumps(asked), encoding="utf-8")
        code = _stream([sys.executable, "-m", "kr_kfp.cli.worker", str(request), str(result)], quiet)
        outputs = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
    seconds = time.monotonic() - begun
    return LocalRun(exit_code=code, outputs=outputs, seconds=seconds, root=str(place))


def _stream(command: Sequence[str], quiet: bool) -> int:
    """Run the worker and pass its lines on, with the tasks' state below them on a terminal."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env) as process:
        lines = _lines(process)
        out = Console(stderr=True, soft_wrap=True, highlight=False) if quiet else console()
        try:
            if out.is_terminal:
                _follow(lines, out)
            else:
                for line in lines:
                    print(_ESCAPES.sub("", line), file=sys.stderr if quiet else sys.stdout, flush=True)
        except KeyboardInterrupt:
            # The terminal sent it to the worker and the launcher too; the launcher deletes its group first.
            for line in lines:
                print(line)
            process.wait()
            return ExitCode.STOPPED
    return process.returncode


def _follow(lines: Iterator[str], out: Console) -> None:
    progress = _Progress()
    with Live(console=out, refresh_per_second=4, get_renderable=lambda: progress.draw(time.monotonic())) as live:
        for line in lines:
            progress.see(_ESCAPES.sub("", line), time.monotonic())
            live.console.print(_ESCAPES.sub("", line), markup=False, soft_wrap=True)


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    if process.stdout is not None:
        for raw in process.stdout:
            yield raw.decode("utf-8", "replace").rstrip("\n")


@click.command()
@click.argument("target")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--root", default="local_outputs", show_default=True, help="Folder of all outputs.")
@click.option("--venv/--no-venv", default=False, show_default=True, help="Give each step an empty venv, as KFP does.")
@json_option
def run(target: str, arguments: tuple[str, ...], root: str, venv: bool, as_json: bool) -> None:
    """Run TARGET (FILE.py[:NAME] or package.module[:NAME]) on this machine.

    Steps on many hosts run on the local cluster: every host a process, CPU devices in place of chips. With --json the
    log goes to standard error.
    """
    values = arguments_of(find(target), arguments)
    done = run_local(target, values, root=root, use_venv=venv, quiet=as_json)
    report = {"exit_code": done.exit_code, "seconds": done.seconds, "root": done.root, "outputs": done.outputs}

    def show(out: Console) -> None:
        word = "succeeded" if done.exit_code == 0 else "failed"
        out.print(f"{target} {word} after {done.seconds:.1f} s; outputs are in {done.root}", markup=False)
        if done.outputs:
            table(out, ("output", "value"), [(k, _short(v)) for k, v in done.outputs.items()])

    emit(report, as_json, show)
    raise SystemExit(done.exit_code and (done.exit_code if done.exit_code == ExitCode.STOPPED else ExitCode.FAILED))


def _short(value: Any) -> str:
    if isinstance(value, dict) and "uri" in value:
        return f"{value['type']} at {value['uri']}"
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
