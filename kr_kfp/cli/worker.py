"""Runs one pipeline or component with kfp.local in a process of its own, for ``kr-kfp run``.

Called as ``python -m kr_kfp.cli.worker REQUEST RESULT``: both are JSON files. Standard input is a pipe that the caller
holds open as long as it lives.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click
from kfp import dsl, local

from kr_kfp.cli.target import find
from kr_kfp.wire import ExitCode

__all__ = ["main"]


def main(request: str, result: str) -> int:
    """Run what the request names and write its outputs.

    Returns:
        0, 1 if a task failed, 2 if the target cannot be run like this, 75 if it was interrupted.
    """
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    stop = _Stop()
    _end_with_the_caller()
    try:
        target = find(asked["target"])
        local.init(
            runner=local.SubprocessRunner(use_venv=asked["use_venv"]),
            pipeline_root=asked["root"],
            raise_on_error=True,
        )
        task = target(**asked["arguments"])
    except click.ClickException as problem:
        problem.show(sys.stdout)
        return ExitCode.USAGE
    except (NotImplementedError, TypeError, ValueError) as problem:
        # What KFP refuses to run on one machine, and arguments that it does not take; nothing has run.
        print(f"Error: {problem}")
        return ExitCode.USAGE
    except RuntimeError as problem:
        # KFP's own word for a task that failed; the task's log above says why.
        print(problem)
        return ExitCode.STOPPED if stop.asked else ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.STOPPED
    outputs = {name: _plain(value) for name, value in task.outputs.items()}
    Path(result).write_text(json.dumps(outputs), encoding="utf-8")
    return ExitCode.OK


class _Stop:
    """Ends the run in good order: a task that got the signal too cleans up and ends first, and no other one starts.

    Leaving at once would close the pipe that the task's launcher writes to, and nobody would wait for its group.
    """

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)
        sys.addaudithook(self._refuse)

    def _ask(self, number: int, frame: object) -> None:
        del number, frame
        self.asked = True
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            raise KeyboardInterrupt from None

    def _refuse(self, event: str, arguments: object) -> None:
        del arguments
        if self.asked and event == "subprocess.Popen":
            raise KeyboardInterrupt


def _end_with_the_caller() -> None:
    """Stop the run when its caller is gone without a word (SIGKILL): nobody would see it, or end its hosts."""
    # Steps are not to read from the pipe, nor to find that it never ends.
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    # What is printed from then on reaches nobody, and must not keep tasks from ending in good order.
    sys.stdout = io.TextIOWrapper(_Output(1, null), encoding="utf-8", line_buffering=True)

    def watch() -> None:
        os.read(pipe, 1)
        os.killpg(os.getpgrp(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


class _Output(io.BufferedIOBase):
    """Writes to a file descriptor, and to another one as soon as nobody reads the first."""

    def __init__(self, descriptor: int, spare: int) -> None:
        self.descriptor, self.spare = descriptor, spare

    def writable(self) -> bool:
        """Say that it can be written to."""
        return True

    def write(self, data: Any) -> int:
        """Write all of it."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.descriptor, left) :]
            except BrokenPipeError:
                os.dup2(self.spare, self.descriptor)
        return len(data)


def _plain(value: Any) -> Any:
    if isinstance(value, dsl.Artifact):
        return {"type": value.schema_title, "uri": value.uri, "metadata": value.metadata}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
