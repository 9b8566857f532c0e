"""Which processes belong to a pod, and their end. Linux tells through ``/proc``; elsewhere process groups must do.

A container's processes end with its first one, as in a PID namespace. Without one, three things find them: the group
that the container leads, the mark in their environment, and descent from either. What sheds all three is still a
descendant of the supervisor, a child subreaper, and ends with the group at the latest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from kr_kfp.cluster.local_env import POD_UID

__all__ = [
    "Process",
    "above",
    "become_subreaper",
    "descendants",
    "die_with_parent",
    "kill",
    "kill_descendants",
    "kill_marked",
    "pod_processes",
    "reap",
    "start_time",
    "table",
]

_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE = 30.0
"""Seconds to wait for killed processes; one in uninterruptible sleep may not go at all."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process, zombies apart.

    Args:
        pid: Its id.
        parent: Its parent's id.
        group: Id of its process group.
    """

    pid: int
    parent: int
    group: int


def _stat(pid: int) -> list[str] | None:
    """Read ``/proc/<pid>/stat`` from the third field on: state, parent, process group, session (proc(5))."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses and may hold anything.
    return text[text.rindex(")") + 2 :].split()


def start_time(pid: int) -> str:
    """Give when a process started, as text to compare; empty if it is gone or a zombie, ``0`` where unknown."""
    if _LINUX:
        fields = _stat(pid)
        return fields[19] if fields and fields[0] not in "ZX" else ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "0"


def table() -> dict[int, Process]:
    """List all processes by id; empty without ``/proc``."""
    found = {}
    for pid in _pids():
        fields = _stat(pid)
        if fields and fields[0] not in "ZX":
            found[pid] = Process(pid, int(fields[1]), int(fields[2]))
    return found


def _pids() -> Iterator[int]:
    if _LINUX:
        with os.scandir("/proc") as entries:
            yield from (int(entry.name) for entry in entries if entry.name.isdigit())


def descendants(processes: Mapping[int, Process], roots: Collection[int]) -> set[int]:
    """Give the ids of all processes below some, these left out."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found - set(roots)


def pod_processes(processes: Mapping[int, Process], *, ancestor: int, uid: str, group: int) -> set[int]:
    """Find the living processes of a pod.

    Args:
        processes: What :func:`table` gave.
        ancestor: Id of the supervisor, which all of them are below.
        uid: The pod's UID, their mark.
        group: Id of the container's first process, which leads a process group.
    """
    below = descendants(processes, [ancestor])
    seeds = {pid for pid in below if processes[pid].group == group or _mark(pid) == uid}
    return seeds | descendants(processes, seeds)


def _mark(pid: int) -> str:
    """Give the UID of the pod whose mark a process carries; empty if it carries none that can be read."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    name = POD_UID.encode() + b"="
    entry = next((part for part in environment.split(b"\0") if part.startswith(name)), b"")
    return entry[len(name) :].decode("utf-8", "replace")


def kill(pids: Collection[int]) -> None:
    """Send SIGKILL; who is gone is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_descendants(ancestor: int) -> None:
    """Kill everything below a process and wait until it is gone. For the guard, which has nothing else to do."""
    _kill_until_gone(lambda: descendants(table(), [ancestor]))


def kill_marked(uids: Collection[str]) -> None:
    """Kill every process that carries the mark of one of these pods and wait until all are gone."""
    if uids:
        _kill_until_gone(lambda: {pid for pid in _pids() if _mark(pid) in uids and start_time(pid)} - {os.getpid()})


def _kill_until_gone(find: Callable[[], set[int]]) -> None:
    end = time.monotonic() + _PATIENCE
    while pids := find():
        kill(pids)
        reap()
        if time.monotonic() > end:
            return
        time.sleep(0.005)


def reap() -> list[tuple[int, int]]:
    """Collect all children that ended.

    Returns:
        Their ids and wait statuses.
    """
    ended = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            ended.append((pid, status))
    return ended


def _memory(pid: int) -> int:
    """Give the bytes of a process that cannot be dropped, memory shared with others in parts; 0 if it is gone.

    The kernel charges a container for its anonymous and shared pages, each once, hence the proportional values.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    sizes = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    if "Pss_Anon" not in sizes:  # Before Linux 5.4.
        return sizes.get("Pss", 0) * 1024
    return (sizes["Pss_Anon"] + sizes.get("Pss_Shmem", 0)) * 1024


def above(limit: float, pids: Iterable[int]) -> dict[int, int]:
    """Give the memory of each process, in bytes, if all of them together have more than a limit; else nothing.

    They are read one after the other, so pages that come to be shared meanwhile, as after a fork, count twice. A real
    excess is still there when they are read again.
    """
    mine, sizes = list(pids), dict[int, int]()
    for measure in (_resident, _memory, _memory):
        sizes = {pid: measure(pid) for pid in mine}
        if sum(sizes.values()) <= limit:
            return {}
    return sizes


def _resident(pid: int) -> int:
    """Give the resident bytes of a process, which is quick and never less than :func:`_memory`; 0 if it is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def become_subreaper() -> None:
    """Become the parent of all descendants whose own parents end (prctl(2))."""
    _prctl()(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int) -> Callable[[], None]:
    """Prepare a function for a forked child: have this signal sent to it when its parent, the caller, dies."""
    parent, prctl = os.getpid(), _prctl()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os.kill(os.getpid(), number)

    return ask


def _prctl() -> Callable[[int, int], object]:
    """Give Linux's prctl; elsewhere a function that does nothing."""
    if not _LINUX:
        return lambda _option, _value: None
    import ctypes

    call, zero = ctypes.CDLL(None).prctl, ctypes.c_ulong(0)
    return lambda option, value: call(option, ctypes.c_ulong(value), zero, zero, zero)
