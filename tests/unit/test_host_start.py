"""The first moments of a host's container, before anything of kr_kfp is there to handle signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.pod import LIBRARY
from kr_kfp.wire import OUTCOME_FILE
from tests.cluster.processes import children
from tests.local_kit import until
from tests.unit.test_leaderworkerset import CPU, LAUNCH, container

_SLOW = """
import signal
print("importing", flush=True)
signal.pause()
"""

PROCESS_1 = pytest.mark.parametrize(
    "first", [False, pytest.param(True, marks=pytest.mark.skipif(os.getuid() != 0, reason="root"))]
)
"""Also as the first process of a PID namespace, for which the kernel drops signals without a handler."""


@PROCESS_1
def test_sigterm_ends_a_host_that_is_still_starting(first: bool, tmp_path: Path) -> None:
    """SIGTERM while kr_kfp is imported ends the container at once, also as its process 1, where it is else dropped."""
    _fake_library(tmp_path)
    with _started(tmp_path, first=first) as (process, pid):
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        os.kill(pid(), signal.SIGTERM)
        assert process.wait(timeout=60) == 143


@PROCESS_1
def test_a_host_that_has_run_holds_until_sigterm(first: bool, tmp_path: Path) -> None:
    """The second start prints the outcome alone, does not come to Python, and ends well at SIGTERM."""
    _fake_library(tmp_path)
    (tmp_path / OUTCOME_FILE).write_text(LINE, encoding="utf-8")
    with _started(tmp_path, first=first) as (process, pid):
        assert process.stdout is not None
        assert process.stdout.readline() == LINE
        until(lambda: "sleep\n" in map(_name, children(pid())), "what the shell waits for, after its traps", 60)
        os.kill(pid(), signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        _clear(process)
        assert process.stdout.read() == ""


def test_without_sleep_python_holds(tmp_path: Path) -> None:
    """An image whose shell finds no ``sleep`` gets to Python's own hold, not into a loop."""
    _fake_library(tmp_path)
    (tmp_path / OUTCOME_FILE).write_text(LINE, encoding="utf-8")
    with _started(tmp_path, path=_only(tmp_path, "cat")) as (process, pid):
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [LINE, "importing\n"]
        os.kill(pid(), signal.SIGTERM)
        assert process.wait(timeout=60) == 143


def test_image_without_python(tmp_path: Path) -> None:
    """The exit code is the shell's for a program that is not there (127), which the launcher's verdict knows."""
    with _started(tmp_path, path=_only(tmp_path, "cat"), python="python3") as (process, _):
        assert process.wait(timeout=60) == 127


LINE = "kr-kfp-outcome: packed\n"


def _only(folder: Path, *names: str) -> str:
    """Give a PATH on which there are these programs alone."""
    programs = folder / "bin"
    programs.mkdir()
    for name in names:
        (programs / name).symlink_to(shutil.which(name) or "")
    return str(programs)


def _fake_library(folder: Path) -> None:
    """Put a kr_kfp into the folder whose runner says so and does nothing else."""
    package = folder / "kr_kfp" / "runtime"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_SLOW, encoding="utf-8")


@contextmanager
def _started(
    folder: Path, *, first: bool = False, path: str = os.environ["PATH"], python: str = sys.executable
) -> Iterator[tuple[subprocess.Popen[str], Callable[[], int]]]:
    """Start a host's container command; give the process, and a call for the number of the container's first."""
    shell, *words = container(build(CPU, LAUNCH))["command"]
    assert (shell, words[2]) == ("sh", "python3")
    assert LIBRARY in words[4]
    words[2], words[4] = python, words[4].replace(LIBRARY, str(folder))
    command = [shutil.which("sh") or "", *words]
    if first:
        command = [shutil.which("unshare") or "", "--pid", "--fork", "--kill-child", *command]
    env = {**os.environ, "KR_KFP_WORK": str(folder), "PATH": path}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, process_group=0) as process:
        try:
            yield process, lambda: children(process.pid)[0] if first else process.pid
        finally:
            _clear(process)


def _clear(process: subprocess.Popen[str]) -> None:
    """Kill what is left, as the end of a container does."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _name(pid: int) -> str:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii")
    return ""
