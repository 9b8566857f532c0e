"""Start the user's processes of one host and see how they end. Standard library only.

Each process leads a process group of its own and gets the write end of a pipe (``KR_KFP_EVENTS``): the executor tells
there, one JSON line each, what it alone can know (``started``, ``exception``, ``returned``, ``done``, ``exit``,
``setup``). Waiting
is by SIGCHLD and that pipe; nothing is polled.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from kr_kfp.spec.peers import tells_of_a_peer
from kr_kfp.wire import ErrorInfo

__all__ = ["EVENTS_ENV", "Ended", "Process", "run"]

EVENTS_ENV = "KR_KFP_EVENTS"
"""File descriptor of the pipe that the executor writes its events to."""

LINGER = 2.0
"""Seconds that a process may live on after it told its own end."""

_PEER_LINGER = 5.0
"""Seconds that other processes of a host may live on after one of them failed."""


@dataclass(slots=True, kw_only=True)
class Process:
    """One user process.

    Args:
        rank: 0-based index on this host.
        command: Program and arguments.
        env: Its whole environment.
        cwd: Its working directory; None for the runner's own.
    """

    rank: int
    command: Sequence[str]
    env: Mapping[str, str]
    pid: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    code: int | None = None
    ended: float = 0.0
    kill_at: float | None = None
    cut: bool = False
    _pipe: int = -1
    _buffer: bytes = b""

    def start(self) -> None:
        """Start the process at the head of a process group of its own.

        Raises:
            OSError: If the program cannot be started.
        """
        self._pipe, theirs = os.pipe()
        os.set_inheritable(theirs, True)  # noqa: FBT003 - positional only
        os.set_blocking(self._pipe, False)
        try:
            self.pid = os.posix_spawnp(
                self.command[0], list(self.command), {**self.env, EVENTS_ENV: str(theirs)}, setpgroup=0
            )
        finally:
            os.close(theirs)

    def fileno(self) -> int:
        """Give the pipe to wait on; -1 when it is closed."""
        return self._pipe

    def read_events(self) -> None:
        """Take in what the executor has told so far."""
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, 65536)
            except BlockingIOError:
                return
            if not data:
                os.close(self._pipe)
                self._pipe = -1
                return
            *lines, self._buffer = (self._buffer + data).split(b"\n")
            for line in lines:
                # A line that is no JSON is not the executor's; user code may have written to the inherited pipe.
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        self.events.append(event)

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and all its descendants that stayed in its group."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM to the Python process of user code, by the pid it told.

        KFP's command is a shell around it, which would die of the signal first and take the rest with it.
        """
        told = self.event("started")
        if told is None:
            self.signal_group(signal.SIGTERM)
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(int(told["pid"]), signal.SIGTERM)

    def event(self, name: str) -> dict[str, Any] | None:
        """Give the first event of this name; None if there is none."""
        return next((e for e in self.events if e.get("event") == name), None)

    @property
    def failed(self) -> bool:
        """Whether the process has ended without having told that it was done."""
        return self.code is not None and self.event("done") is None

    @property
    def error(self) -> ErrorInfo | None:
        """The exception that the executor told of."""
        event = self.event("exception")
        return ErrorInfo(**event["error"]) if event else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How all processes of a host ended.

    Args:
        first: The process that failed first by its own doing; process 0 if none failed.
        terminated_at: When SIGTERM came from outside, in Unix seconds; 0 if it did not.
    """

    first: Process
    terminated_at: float


class _Signals:
    """Wakes the wait on SIGCHLD and SIGTERM, and remembers SIGTERM."""

    def __init__(self) -> None:
        self.terminated_at = 0.0
        self.wake, write = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._child)
        signal.signal(signal.SIGTERM, self._terminate)

    def _child(self, _number: int, _frame: FrameType | None) -> None:
        pass

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.terminated_at = self.terminated_at or time.time()

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self.wake, 4096):
                pass


def run(processes: Sequence[Process]) -> Ended:
    """Start the processes, forward SIGTERM to them, and wait until all have ended.

    When one fails, the others get five seconds; one that lives on two seconds after it told its own end is killed.

    Raises:
        OSError: If a program cannot be started; those already started are killed first.
    """
    signals = _Signals()
    try:
        for process in processes:
            process.start()
    except OSError:
        for process in processes:
            process.signal_group(signal.SIGKILL)
        raise
    forwarded = False
    while any(p.code is None for p in processes):
        if signals.terminated_at and not forwarded:
            forwarded = True
            for process in processes:
                process.terminate()
        _wait(processes, signals)
        _reap(processes)
        _schedule_kills(processes)
    return Ended(first=_first(processes), terminated_at=signals.terminated_at)


def _first(processes: Sequence[Process]) -> Process:
    """Give the process that tells how the host fared: the first to fail, of those that did not only lose a peer.

    What kills a process gives no time, and its peers have raised a millisecond later, before its end is seen.
    """
    failed = sorted((p for p in processes if p.failed), key=_failure_time)
    own = [p for p in failed if not p.cut and not (p.error and tells_of_a_peer(p.error))]
    return [*own, *failed, processes[0]][0]


def _failure_time(process: Process) -> float:
    told = process.event("exception") or process.event("setup") or process.event("exit")
    return float(told["time"]) if told else process.ended


def _wait(processes: Sequence[Process], signals: _Signals) -> None:
    due = [p.kill_at for p in processes if p.kill_at is not None and p.code is None]
    timeout = max(0.0, min(due) - time.monotonic()) if due else None
    pipes = [p.fileno() for p in processes if p.fileno() >= 0]
    select.select([signals.wake, *pipes], [], [], timeout)
    signals.drain()
    for process in processes:
        process.read_events()
        if process.kill_at is not None and process.code is None and time.monotonic() >= process.kill_at:
            process.cut = True
            process.signal_group(signal.SIGKILL)


def _reap(processes: Sequence[Process]) -> None:
    """Collect every child that ended; as process 1 of a container the runner inherits strangers too."""
    by_pid = {p.pid: p for p in processes}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            process = by_pid.get(pid)
            if process is not None:
                process.ended = time.time()
                process.code = os.waitstatus_to_exitcode(status)
                process.read_events()
                process.signal_group(signal.SIGKILL)


def _schedule_kills(processes: Sequence[Process]) -> None:
    now = time.monotonic()
    for process in processes:
        over = any(e.get("event") in ("done", "exception", "exit", "setup") for e in process.events)
        if process.code is None and process.kill_at is None and over:
            process.kill_at = now + LINGER
    if any(p.failed for p in processes):
        for process in processes:
            if process.code is None and process.kill_at is None:
                process.kill_at = now + _PEER_LINGER
