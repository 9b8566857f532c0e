"""Logs of training containers: read whole, or followed from the first start to its end over any number of breaks.

The API server gives the log of a container's current start, or of the one before (``previous``). Which of them an
answer came from it does not say; the number of restarts in the pod's status does, with up to a second of delay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from kr_kfp.cluster.api import Manifest
from kr_kfp.cluster.kube_cursor import Cursor, StrangeLogError
from kr_kfp.cluster.kube_errors import Target
from kr_kfp.cluster.kube_group import PODS
from kr_kfp.cluster.kube_http import Api, Stream, backoff
from kr_kfp.cluster.kube_watch import Wait
from kr_kfp.errors import ClusterError, ForbiddenError, KrKfpError, NotFoundError
from kr_kfp.spec.pod import CONTAINER

__all__ = ["LogReader", "Start", "first_start"]

_IDLE = 3600.0
"""Seconds without a byte after which a followed log is asked for again: training may have nothing to say for long."""

_LAG = 2.5
"""Seconds by which a pod's status may be behind its container (the kubelet looks about once a second)."""

_STEP = 0.1

_LONG = 60.0
"""Seconds after which an answer that ended counts as a good one."""

_PATIENCE = 20.0
"""Seconds for which reading a log is tried again: a pod's node may be away, and the launcher waits."""


_Then = Literal["over", "again", "later"]


@dataclass(frozen=True, slots=True)
class Start:
    """What the status tells of a container's first start.

    Args:
        begun: Whether there was one.
        ended: Whether it is over.
        restarts: How often the container was started again.
    """

    begun: bool
    ended: bool
    restarts: int


def first_start(pod: Manifest) -> Start:
    """Read the first start of the training container from a pod's status."""
    status: dict[str, Any] = pod.get("status") or {}
    found: dict[str, Any] = {}
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER:
            found = container
    state, restarts = found.get("state") or {}, int(found.get("restartCount") or 0)
    over = bool(restarts or state.get("terminated"))
    return Start(begun=over or bool(state.get("running")), ended=over, restarts=restarts)


class LogReader:
    """Reads logs.

    Args:
        api: The API server.
        namespace: The pods' namespace.
        latest: Gives a pod as it is now; None if it is gone.
        wait: How to wait.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        *,
        latest: Callable[[Manifest], Manifest | None],
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._api, self._namespace, self._latest, self._wait = api, namespace, latest, wait
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._open: dict[Stream, str] = {}
        self._gone: set[str] = set()
        self._warned = False

    def close(self) -> None:
        """End all logs that are followed."""
        self._closed.set()
        with self._lock:
            for stream in self._open:
                stream.close()

    def pod_gone(self, uid: str) -> None:
        """End what is still followed of a pod that is gone: it would be the log of another one of its name.

        Its own log has ended by itself by then, or does in a moment.
        """
        with self._lock:
            self._gone.add(uid)
            streams = [stream for stream, of in self._open.items() if of == uid]
        for stream in streams:
            timer = threading.Timer(_LAG, stream.close)
            timer.daemon = True
            timer.start()

    def read(self, pod: Manifest, *, previous: bool, tail_bytes: int | None) -> bytes:
        """Read the log of the current start, or of the one before; nothing if there is none (any more).

        Raises:
            ForbiddenError: If the right is missing.
            UnavailableError: If the pod's node does not answer.
        """
        query: dict[str, Any] = {"container": CONTAINER, "previous": previous}
        if tail_bytes is not None:
            query["tailLines"] = tail_bytes  # A line has a byte at least; the API can limit only from the start.
        name = pod["metadata"]["name"]
        try:
            if self._latest(pod) is None:
                return b""
            path = PODS.path(self._namespace, name, "log")
            target = self._target(name)
            log: bytes = self._api.request(
                "GET", path, target, query=query, patience=_PATIENCE, read=lambda body, _: bytes(body)
            )
        except ClusterError as problem:
            if problem.status in (400, 404):  # Not started yet, or no start before it.
                return b""
            raise
        return log if tail_bytes is None else log[max(0, len(log) - tail_bytes) :]

    def _target(self, name: str) -> Target:
        return Target(verb="get", resource="pods/log", namespace=self._namespace, name=name)

    def follow(self, pod: Manifest) -> Iterator[bytes]:
        """Give the log of the first start as it is written, until that start has ended or the pod is gone."""
        cursor, failures, had_all = Cursor(), 0, False
        while (start := self._next_start(pod, cursor, had_all=had_all)) is not None:
            began, got = time.monotonic(), False
            try:
                for new in self._answer(pod, cursor, start):
                    got = True
                    yield new
                had_all = True
                then = self._after_end(pod, start)
            except StrangeLogError:
                then = self._after_strange(pod, start, cursor)
            except KrKfpError as problem:
                then = "over" if self._is_over(problem, start) else "later"
            if then == "over":
                return
            if then == "later":
                failures = 1 if got or time.monotonic() - began > _LONG else failures + 1
                self._wait(self._closed, backoff(failures, self._api.chance()))

    def _next_start(self, pod: Manifest, cursor: Cursor, *, had_all: bool) -> Start | None:
        """Wait until there is something to read; None if there is not (any more)."""
        start = self._begun(pod)
        if start is None or self._closed.is_set() or start.restarts > 1:
            return None  # The kubelet keeps the log of the latest start and of the one before, no older.
        if start.ended and not start.restarts and cursor.empty:
            if had_all:
                return None
            # Between two starts it cannot be told which of them "current" means; most often it is a short while.
            self._waits_until(pod, lambda now: now.restarts > 0)
            return self._state(pod)
        return start

    def _after_end(self, pod: Manifest, start: Start) -> _Then:
        """Say what to do when the server has ended an answer."""
        if start.ended or self._state(pod).ended:
            return "over"  # The kubelet ends the log with its container.
        # If the status says so in a moment, that was why, and what was written last is made sure of.
        return "again" if self._waits_until(pod, lambda now: now.ended) else "later"

    def _after_strange(self, pod: Manifest, start: Start, cursor: Cursor) -> _Then:
        """Say what to do with another log than was expected."""
        # Of the second start already, which the status is about to tell; or rotated.
        if start.restarts or not self._waits_until(pod, lambda now: now.restarts > 0):
            cursor.forget()
        return "later"

    def _is_over(self, problem: KrKfpError, start: Start) -> bool:
        """Tell whether a failure ends the log; others pass."""
        if isinstance(problem, ForbiddenError):
            if not self._warned:
                self._warned = True
                self._api.warn(f"{problem}; logs of hosts are not shown")
            return True
        if isinstance(problem, NotFoundError):
            return True
        # 400 is "waiting to start", or that there is no start before this one (any more).
        return bool(start.restarts) and isinstance(problem, ClusterError) and problem.status == 400

    def _answer(self, pod: Manifest, cursor: Cursor, start: Start) -> Iterator[bytes]:
        """Give what one answer has that is new."""
        name = pod["metadata"]["name"]
        query = {
            "container": CONTAINER,
            "follow": not start.ended,
            "previous": start.restarts > 0,
            "timestamps": True,
            "sinceTime": cursor.since,
        }
        cursor.begin()
        path = PODS.path(self._namespace, name, "log")
        stream = self._api.stream(path, self._target(name), query=query, idle=_IDLE)
        with self._lock:
            uid = pod["metadata"]["uid"]
            self._open[stream] = uid
            # Asked for before the pod was known to be gone, and opened after it: nobody else would end it.
            useless = uid in self._gone
        if useless or self._closed.is_set():
            stream.close()
        try:
            for data in stream:
                new = cursor.feed(data)
                if new:
                    yield new
        finally:
            with self._lock:
                del self._open[stream]

    def _begun(self, pod: Manifest) -> Start | None:
        """Wait until the container was started; None if the pod is gone before."""
        tries = 0
        while True:
            now = self._latest(pod)
            if now is None:
                return None
            start = first_start(now)
            if start.begun:
                return start
            tries += 1
            if self._wait(self._closed, min(5.0, 0.2 * tries)):
                return None

    def _state(self, pod: Manifest) -> Start:
        now = self._latest(pod)
        return Start(begun=True, ended=True, restarts=2) if now is None else first_start(now)

    def _waits_until(self, pod: Manifest, is_so: Callable[[Start], bool]) -> bool:
        """Tell whether the status says so within its usual delay."""
        for _ in range(int(_LAG / _STEP)):
            if is_so(self._state(pod)):
                return True
            if self._wait(self._closed, _STEP):
                return True
        return False
