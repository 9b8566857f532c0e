"""A server's process: started, waited for, and ended with whoever started it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["ServerError", "free_port", "start", "stop", "wait_for_port"]


class ServerError(Exception):
    """A server did not start, or answered what it should not; the message has the end of its log."""


def free_port() -> int:
    """Give a TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, pipes: bool = False
) -> subprocess.Popen[str]:
    """Start a server that dies with this process, also where that is killed.

    Args:
        command: Program and arguments.
        log: File for its standard error, and output unless that is a pipe.
        env: Its environment; None for this process's own.
        pipes: Whether its standard input and output are pipes to this process.
    """
    dying = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
    with log.open("a", encoding="utf-8") as file:
        return subprocess.Popen(
            [*dying, *command],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else file,
            stderr=file,
            env=env,
            text=True,
            start_new_session=True,  # a Ctrl-C is for the tests: they end their servers themselves
        )


def stop(process: subprocess.Popen[str]) -> None:
    """End a server and wait until it is gone."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe:
            pipe.close()


def wait_for_port(
    process: subprocess.Popen[str], port: int, *, log: Path, seconds: float = 120, host: str = "127.0.0.1"
) -> None:
    """Wait until a server listens.

    Raises:
        ServerError: If it ended, or does not listen in time.
    """
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    said = log.read_text(encoding="utf-8")[-2000:]
    msg = f"{process.args!r} does not listen at port {port} (exit code {process.poll()}):\n{said}"
    raise ServerError(msg)
