"""``kr-kfp run``: a pipeline or one step on this machine, with progress."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kr_kfp.cli.output import console, emit, json_option, table
from kr_kfp.cli.target import TargetError, arguments_of, find
from kr_kfp.wire import ExitCode

__all__ = ["LocalRun", "run", "run_local"]

# Colours and everything else that a terminal would obey: CSI and OSC sequences (ECMA-48).
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\-_])")
_BEGINS = re.compile(r"Executing task '([^']+)'")
_ENDS = re.compile(r"Task '([^']+)' finished with status (\w+)")
_COLOURS = {"running": "yellow", "done": "green", "failed": "red", "stopped": "red", "stopping": "yellow"}
_ENDINGS = {ExitCode.OK: "succeeded", ExitCode.STOPPED: "was stopped", ExitCode.USAGE: "could not be run"}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRun:
    """How a local run ended.

    Args:
        exit_code: 0 if it succeeded, 1 if it failed, 2 if it cannot be run like this, 75 if a signal stopped it.
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
    """State of the tasks, read from kfp.local's own lines.

    Args:
        signals: Signals that came so far; a task that ends after one was stopped.
    """

    signals: Sequence[int]
    tasks: dict[str, tuple[str, float, float]] = field(default_factory=dict)

    def see(self, line: str, now: float) -> None:
        if found := _BEGINS.search(line):
            self.tasks[found[1]] = ("running", now, 0.0)
        elif found := _ENDS.search(line):
            begun = self.tasks.get(found[1], ("", now, 0.0))[1]
            self.tasks[found[1]] = ("done" if found[2] == "SUCCESS" else self._unhappy(), begun, now)

    def end(self, now: float) -> None:
        """Say how the tasks ended that have not said so themselves."""
        for name, (state, begun, _) in self.tasks.items():
            if state == "running":
                self.tasks[name] = (self._unhappy(), begun, now)

    def draw(self, now: float) -> Table:
        drawn = Table.grid(padding=(0, 2))
        for name, (seen, begun, ended) in self.tasks.items():
            state = "stopping" if self.signals and seen == "running" else seen
            drawn.add_row(Text(state, style=_COLOURS[state]), Text(name), f"{(ended or now) - begun:.0f} s")
        return drawn

    def _unhappy(self) -> str:
        return "stopped" if self.signals else "failed"


def run_local(
    target: str, arguments: Mapping[str, Any], *, root: str | Path, use_venv: bool = False, quiet: bool = False
) -> LocalRun:
    """Run a target with kfp.local in a process of its own, its log going to standard output.

    Args:
        target: ``FILE.py[:NAME]``, ``FILE.yaml`` or ``package.module[:NAME]``.
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
    out = console(stderr=quiet)
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    signals = _Signals()
    # A process group of its own: a signal reaches it once, whoever sent it, and through us only.
    with (
        signals.taken(),
        subprocess.Popen(
            command,
            # Never written to: its end tells the worker that this process is gone.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            process_group=0,
        ) as process,
    ):
        signals.pass_on(process.pid)
        if out.is_terminal:
            _follow(_lines(process), out, signals.came)
        else:
            for line in _lines(process):
                print(line, file=out.file, flush=True)
        code = process.wait()
    if signals.came:
        return ExitCode.STOPPED
    return code if code in (ExitCode.OK, ExitCode.USAGE) else ExitCode.FAILED


@dataclass(slots=True)
class _Signals:
    """Signals that came, in order; each is passed on to a process group as soon as there is one."""

    came: list[int] = field(default_factory=list)
    group: int = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take the signals that end a program, in the main thread; Python lets no other one."""
        mine = _SIGNALS if threading.current_thread() is threading.main_thread() else ()
        # What is ignored stays ignored: nohup means it.
        heard = [number for number in mine if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._take) for number in heard}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def pass_on(self, group: int) -> None:
        """Name the group, and pass on what came before."""
        self.group = group
        for number in self.came:
            self._send(number)

    def _take(self, number: int, frame: object) -> None:
        del frame
        self.came.append(number)
        self._send(number)

    def _send(self, number: int) -> None:
        if self.group:
            with suppress(ProcessLookupError):
                # The end of a terminal is a request to stop like any other.
                os.killpg(self.group, signal.SIGTERM if number == signal.SIGHUP else number)


def _follow(lines: Iterator[str], out: Console, signals: Sequence[int]) -> None:
    progress = _Progress(signals)
    with Live(console=out, refresh_per_second=4, get_renderable=lambda: progress.draw(time.monotonic())):
        for line in lines:
            progress.see(line, time.monotonic())
            out.print(line)
        progress.end(time.monotonic())


def _lines(process: subprocess.Popen[bytes]) -> Iterator[str]:
    if process.stdout is not None:
        for raw in process.stdout:
            yield _ESCAPES.sub("", raw.decode("utf-8", "replace").rstrip("\r\n"))


@click.command(short_help="Run a pipeline or step on this machine.")
@click.argument("target")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--root", default="local_outputs", show_default=True, help="Folder of all outputs.")
@click.option("--venv/--no-venv", default=False, show_default=True, help="Give each step an empty venv, as KFP does.")
@json_option
def run(target: str, arguments: tuple[str, ...], root: str, venv: bool, as_json: bool) -> None:
    """Run TARGET (FILE.py[:NAME], FILE.yaml or package.module[:NAME]) on this machine.

    Values of inputs that are not text are JSON: epochs=3 rate=0.1 resume=true sizes='[1, 2]'.

    Steps on many hosts run on the local cluster: every host a process, CPU devices in place of chips. With --json the
    log goes to standard error.
    """
    values = arguments_of(find(target), arguments)
    try:
        done = run_local(target, values, root=root, use_venv=venv, quiet=as_json)
    except OSError as problem:
        msg = f"--root {root}: {problem.strerror}"
        raise TargetError(msg) from problem
    report = {"exit_code": done.exit_code, "seconds": done.seconds, "root": done.root, "outputs": done.outputs}

    def show(out: Console) -> None:
        word = _ENDINGS.get(done.exit_code, "failed")
        out.print(f"{target} {word} after {done.seconds:.1f} s; outputs are in {done.root}")
        if done.outputs:
            table(out, ("output", "value"), [(k, _short(v)) for k, v in done.outputs.items()])

    emit(report, as_json, show)
    raise SystemExit(done.exit_code)


def _short(value: Any) -> str:
    if isinstance(value, dict) and "uri" in value:
        return f"{value['type']} at {value['uri']}"
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
