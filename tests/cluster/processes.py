"""Processes that outlive the Python that started them, told apart from later ones that got the same number."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


def wait_for(what: str, probe: Callable[[], bool], *, seconds: float = 180.0, hint: str = "") -> None:
    """Ask until the answer is yes.

    Raises:
        TimeoutError: It was not, for so long; with what was waited for and the hint.
    """
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            msg = f"gave up after {seconds:.0f} s: {what}. {hint}".rstrip()
            raise TimeoutError(msg)
        time.sleep(0.05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process by its number on this machine and the moment of its start, which no later one shares."""

    pid: int
    started: int
    """Clock ticks since boot, field 22 of /proc/<pid>/stat (proc(5))."""

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """Find the process that has this number now; one that ended and waits to be collected is none."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The command, in parentheses, may hold blanks and parentheses itself.
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in {"Z", "X"} else cls(pid=pid, started=int(fields[18]))

    @classmethod
    def read(cls, path: Path) -> Process | None:
        """Find the process that was recorded in a file, if it still runs."""
        try:
            pid, started = map(int, path.read_text(encoding="utf-8").split())
        except (FileNotFoundError, ValueError):
            return None
        recorded = cls(pid=pid, started=started)
        return recorded if recorded.alive() else None

    def record(self, path: Path) -> None:
        """Write number and start to a file."""
        path.write_text(f"{self.pid} {self.started}\n", encoding="utf-8")

    def alive(self) -> bool:
        """Say whether this very process runs."""
        return Process.find(self.pid) == self

    def collect(self) -> None:
        """Let the kernel forget the process, which has ended, if this one started it."""
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            return

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if not self.alive():
            return
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def end(self, *, grace: float = 5.0) -> None:
        """Ask the process to end, kill it after the grace, in seconds, and wait until it is gone."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        self.signal(signal.SIGKILL)
        wait_for(f"end of process {self.pid}", lambda: not self.alive(), seconds=60)


def spawn(command: Sequence[str | Path], log: Path, env: Mapping[str, str]) -> Process:
    """Start a process that outlives this one, in a session of its own, printing to a file.

    Not by subprocess, which warns of every process that its owner has not waited for.
    """
    words = [str(word) for word in command]
    program = shutil.which(words[0]) or words[0]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(program, words, dict(env), file_actions=actions, setsid=True)
    # Its start can be read until it is waited for, however soon it ends.
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return Process(pid=pid, started=int(stat.rpartition(")")[2].split()[19]))


def children(pid: int) -> list[int]:
    """List the processes that a process started and that have not been collected."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
