"""What bench/cluster.py measures with: reports of hosts, watches, processes, the API server's audit log.

All times are Unix seconds of this machine, which the pods share.
"""

from __future__ import annotations

import json
import os
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.cluster.groups import LWS, is_running
from tests.cluster.rest import Seen

LOOK = 0.02
"""Seconds between two looks at a process."""

TICKS = os.sysconf("SC_CLK_TCK")


class Recorder(socketserver.ThreadingTCPServer):
    """Takes what user code says of itself: ``<pod> start|end <its own clock>`` lines, one connection each."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, host: str) -> None:
        super().__init__((host, 0), _Line)
        self.said: list[tuple[str, str, float]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """Host and port, for pods."""
        host, port = self.server_address[:2]
        return f"{host!s}:{port}"

    def starts(self, group: str) -> dict[str, int]:
        """Count how often user code started, by pod."""
        return Counter(pod for pod, what, _ in self.said if what == "start" and pod.startswith(f"{group}-"))

    def end(self, group: str) -> float:
        """Give when the last host had done its work for the first time."""
        first: dict[str, float] = {}
        for pod, what, at in self.said:
            if what == "end" and pod.startswith(f"{group}-"):
                first.setdefault(pod, at)
        return max(first.values())

    def forget(self, group: str) -> None:
        """Forget a group, whose name comes again."""
        self.said = [entry for entry in self.said if not entry[0].startswith(f"{group}-")]


class _Line(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        pod, what, at = self.rfile.readline().decode().split()
        self.server.said.append((pod, what, float(at)))  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A group's life as watches saw it."""

    name: str
    accepted: float
    running: float
    """When the last of its hosts was seen to run for the first time."""
    deleting: float
    """When its deletion was asked for."""
    gone: float
    """When it and all of its pods were gone."""


def life(groups: Iterable[Seen], pods: Iterable[Seen]) -> Life:
    """Read a group's life from all that two watches have seen."""
    ahead = time.time() - time.monotonic()
    groups = list(groups)
    name = next(seen.name for seen in groups)
    own = [seen for seen in pods if seen.object["metadata"].get("labels", {}).get(f"{LWS}/name") == name]
    ended = [seen for seen in groups if seen.type == "DELETED" or "deletionTimestamp" in seen.object["metadata"]]
    ran: dict[str, float] = {}
    for seen in own:
        if is_running(seen.object):
            ran.setdefault(seen.name, seen.at)
    return Life(
        name=name,
        accepted=groups[0].at + ahead,
        running=max(ran.values()) + ahead,
        deleting=ended[0].at + ahead,
        gone=max(seen.at for seen in (*ended, *own) if seen.type == "DELETED") + ahead,
    )


@dataclass(slots=True)
class Meter:
    """Looks at processes until they have ended.

    Args:
        find: Gives the numbers of those that live now.
    """

    find: Callable[[], Iterable[int]]
    started: float = 0.0
    """Start of the first one."""
    ended: float = 0.0
    """When none lived any more."""
    rss_mb: float = 0.0
    """Most resident memory of all together, in 10^6 bytes."""
    _cpu: dict[int, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def cpu_s(self) -> float:
        """Processor seconds of all together."""
        return sum(self._cpu.values())

    def start(self) -> Meter:
        """Begin to look."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def wait(self, seconds: float) -> None:
        """Wait until all have ended."""
        if self._thread is not None:
            self._thread.join(seconds)
        if not self.ended:
            msg = f"a launcher runs after {seconds:.0f} s"
            raise TimeoutError(msg)

    def _run(self) -> None:
        while not self._stop.wait(LOOK):
            found = [usage for pid in self.find() if (usage := self._look(pid)) is not None]
            if found:
                self.rss_mb = max(self.rss_mb, sum(found))
            elif self.started:
                self.ended = time.time()
                return

    def _look(self, pid: int) -> float | None:
        """Give a process's resident memory; None if it has ended."""
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if stat[0] not in "ZX":
                begun = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(stat[19]) / TICKS
                self.started = min(self.started or begun, begun)
                # Own time, and that of children that were waited for (proc(5), fields 14 to 17).
                self._cpu[pid] = sum(map(int, stat[11:15])) / TICKS
                return int(stat[21]) * os.sysconf("SC_PAGESIZE") / 1e6
        return None


def of_pod(cgroup: Path, uid: str) -> Callable[[], list[int]]:
    """Find the shell and the Pythons of a pod: the step's command; all else in it stands for Argo's and KFP's programs.

    Args:
        cgroup: That of all nodes.
        uid: The pod's UID.
    """

    def find() -> list[int]:
        folders = [path for path in cgroup.glob(f"*/kubepods/*/pod{uid}/*") if path.is_dir()]
        pids = []
        for folder in folders:
            with suppress(OSError):
                pids += [int(pid) for pid in (folder / "cgroup.procs").read_text(encoding="utf-8").split()]
        return [pid for pid in pids if _program(pid).startswith(("python", "sh", "dash"))]

    return find


def _program(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name.removesuffix(" (deleted)")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that the API server has served."""

    at: float
    verb: str
    uri: str

    @property
    def lasts(self) -> float:
        """For how long a watch was asked for, in seconds; the server's own mean choice if it was left to it.

        That is between --min-request-timeout, 1800, and its double.
        """
        return float(parse_qs(urlsplit(self.uri).query).get("timeoutSeconds", ["2700"])[0])


def requests(log: Path, user: str, since: float = 0.0) -> list[Request]:
    """Read from an audit log what an account has asked for; each request once."""
    found: dict[str, Request] = {}
    with log.open(encoding="utf-8") as lines:
        for line in lines:
            if user not in line:
                continue
            entry: dict[str, Any] = json.loads(line)
            at = datetime.fromisoformat(entry["requestReceivedTimestamp"]).timestamp()
            if entry["user"]["username"] == user and at >= since:
                found[entry["auditID"]] = Request(at=at, verb=entry["verb"], uri=entry["requestURI"])
    return sorted(found.values(), key=lambda request: request.at)


def per_hour(made: Iterable[Request], begin: float, end: float) -> float:
    """Give the requests of a job that is quiet for an hour.

    Args:
        made: All of its requests from start to end.
        begin: Of the quiet time.
        end: Of the quiet time.

    Returns:
        Those before and after the quiet time as they are, those in it scaled to an hour, and for each watch that
        stayed open all the time how often it is opened in an hour.
    """
    made = list(made)
    inside = [request for request in made if begin <= request.at < end]
    again = {urlsplit(request.uri).path for request in inside if request.verb == "watch"}
    open_ = {urlsplit(request.uri).path: request for request in made if request.verb == "watch" and request.at < begin}
    reopened = sum(3600 / request.lasts for path, request in open_.items() if path not in again)
    return len(made) - len(inside) + len(inside) * 3600 / (end - begin) + reopened
