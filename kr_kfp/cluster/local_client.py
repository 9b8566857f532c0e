"""The other side of the supervisor's socket: start one, ask it, clear up after one that was killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import site
import socket
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from kr_kfp.cluster.api import Manifest
from kr_kfp.cluster.local_places import Place, clear, hold, is_held, remove
from kr_kfp.cluster.local_processes import kill_marked
from kr_kfp.errors import ClusterError, ConflictError, NotFoundError, UnavailableError

__all__ = ["PATIENCE", "RETRY", "ask", "clear_dead", "clear_others", "connect", "start"]

PATIENCE = 30.0
"""Seconds that a supervisor has to answer, to come up, or to be gone."""

RETRY = 0.02

_KEEP = 86_400.0
"""Seconds for which the folder of a group whose supervisor was killed is kept, for its logs."""

_SUPERVISOR = "kr_kfp.cluster.supervisor"

_ERRORS = {404: NotFoundError, 409: ConflictError}


def ask(place: Place, request: dict[str, Any]) -> Any:
    """Make one request.

    A supervisor that is just coming up or going down does not answer; that is waited out.

    Returns:
        The value of the answer.

    Raises:
        NotFoundError: If there is no such group.
        ConflictError: If somebody changed it first.
        UnavailableError: If its supervisor does not answer.
    """
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with connect(place) as connection:
                connection.sendall(json.dumps(request).encode() + b"\n")
                line = connection.makefile("rb").readline()
        except TimeoutError:
            line = b""
            end = 0.0
        except (FileNotFoundError, ConnectionError, BlockingIOError):
            line = b""
        if line.endswith(b"\n"):
            return _value(json.loads(line))
        if not is_held(place):
            msg = f"there is no group {place.name}"
            raise NotFoundError(msg, status=404, reason="NotFound")
        if time.monotonic() > end:
            msg = f"the supervisor of group {place.name} does not answer; see {place.log}"
            raise UnavailableError(msg, status=503, reason="ServiceUnavailable")
        time.sleep(RETRY)


def connect(place: Place) -> socket.socket:
    """Connect to the supervisor of a group.

    Raises:
        OSError: If there is none that listens.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(os.fspath(place.socket))
    except OSError:
        connection.close()
        raise
    return connection


def _value(answer: dict[str, Any]) -> Any:
    error = answer.get("error")
    if error:
        kind = _ERRORS.get(error["status"], ClusterError)
        raise kind(error["message"], status=error["status"], reason=error["reason"])
    return answer["value"]


def clear_dead(place: Place) -> None:
    """Clear up after a group whose lock one holds: its supervisor and its guard were killed, or the machine was."""
    _kill_dead(place)
    clear(place)


def clear_others(root: Path) -> None:
    """Kill what still runs of any group whose supervisor and guard were killed; remove its folder after a day."""
    for place in (Place(folder) for folder in root.iterdir()):
        try:
            old = time.time() - place.lock.stat().st_mtime > _KEEP
        except OSError:
            continue  # Not a group's folder, or gone.
        lock_fd = hold(place)
        if lock_fd is not None:
            _kill_dead(place)
            if old:
                remove(place)
            os.close(lock_fd)


def _kill_dead(place: Place) -> None:
    notes = list(place.pods.glob("*/uid"))
    kill_marked({note.read_text(encoding="ascii") for note in notes} - {""})
    for note in notes:
        note.unlink()


def start(place: Place, lock_fd: int, manifest: Manifest, orphan_seconds: float) -> Manifest:
    """Start the supervisor of a group whose lock one holds, and wait until it answers.

    Returns:
        The group's manifest as the supervisor keeps it.

    Raises:
        UnavailableError: If it does not come up.
    """
    env = _launcher_env()
    order = {"manifest": manifest, "env": env, "orphan_seconds": orphan_seconds}
    ready, theirs = os.pipe()
    try:
        with place.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", _SUPERVISOR, os.fspath(place.folder), str(lock_fd), str(theirs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env=env,
                start_new_session=True,
                pass_fds=(lock_fd, theirs),
            )
    except OSError:
        os.close(ready)
        raise
    finally:
        os.close(theirs)
    with os.fdopen(ready, "rb") as answer, process:
        # If it ends before it has read all, the answer stays away, and its log says why.
        with contextlib.suppress(BrokenPipeError):
            process.communicate(json.dumps(order).encode())
        line = answer.readline() if select.select([answer], [], [], PATIENCE)[0] else b""
    if not line.endswith(b"\n"):
        msg = f"the supervisor of group {place.name} did not start: {_end_of(place.log)}"
        raise UnavailableError(msg, status=503, reason="ServiceUnavailable")
    made: Manifest = json.loads(line)
    return made


def _end_of(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace").strip()[-2000:] or "it said nothing"
    except OSError as problem:
        return str(problem)


def _launcher_env() -> dict[str, str]:
    """Give this process's environment, made fit for processes that run in other folders.

    Relative entries of PYTHONPATH become absolute, and kr_kfp's own folder is added if this process found it by its
    working folder or the like and not where packages are installed.
    """
    paths = [os.fspath(Path(part).absolute()) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    own = os.fspath(Path(__file__).resolve().parents[2])
    installed = {*site.getsitepackages(), site.getusersitepackages(), sysconfig.get_path("purelib")}
    if own not in {os.path.realpath(folder) for folder in (*installed, *paths)}:
        paths.append(own)
    return {**os.environ, **({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})}
