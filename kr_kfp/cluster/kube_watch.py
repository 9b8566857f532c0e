"""Watching: one list, then changes from its version on, for as long as it takes.

A watch is a long answer that ends often: the server closes it when its time is over, load balancers sooner, and
versions that it continues from are forgotten (410). Only the last of these needs a new list; what was deleted
meanwhile is told from the difference. A quiet watch costs one request per :data:`LASTS`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kr_kfp.cluster.api import Manifest
from kr_kfp.cluster.kube_errors import Target, error_from, is_expired
from kr_kfp.cluster.kube_http import Api, Resource, Stream, backoff
from kr_kfp.errors import ClusterError, ForbiddenError, KrKfpError, NotFoundError, UnavailableError

__all__ = ["LASTS", "Selection", "Wait", "Watcher"]

LASTS = 3000.0
"""Seconds that a watch is asked to last; the API server's own default is half an hour to an hour."""

_IDLE = 300.0
"""Seconds without a byte after which a watch is opened anew; bookmarks come about every minute."""

_SHORT = 5.0
"""A watch that ends sooner and without an event counts as a failure, so that it is not opened in a loop."""

Wait = Callable[[threading.Event, float], Any]
"""Waits so many seconds, or until the event is set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The objects to watch.

    Args:
        resource: Their kind.
        namespace: Their namespace.
        query: ``labelSelector`` or ``fieldSelector``.
    """

    resource: Resource
    namespace: str
    query: Mapping[str, str]

    def target(self, verb: str) -> Target:
        """Name a request for them."""
        return Target(verb=verb, resource=self.resource.plural, namespace=self.namespace)


class _ExpiredError(Exception):
    """The watch went too far back."""


class Watcher:
    """Keeps telling of some objects, from a thread of its own.

    Args:
        api: The API server.
        selection: The objects.
        changed: Takes an object that is there, new or changed.
        gone: Takes the last known state of an object that is not there any more.
        wait: How the thread waits.
        optional: What is missing without it: a missing right then ends it with one warning. Empty: it is tried again.
        keep: Whether to remember the objects, so that a new list tells only what differs.
    """

    def __init__(
        self,
        api: Api,
        selection: Selection,
        *,
        changed: Callable[[Manifest], None],
        gone: Callable[[Manifest], None],
        wait: Wait = threading.Event.wait,
        optional: str = "",
        keep: bool = True,
    ) -> None:
        self._keep = keep
        self._api, self._selection = api, selection
        self._changed, self._gone, self._wait, self._optional = changed, gone, wait, optional
        self._known: dict[str, Manifest] = {}
        self._version = ""
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._warned = False

    def relist(self) -> int:
        """List, tell the difference to what was known, and give the number of objects.

        Raises:
            ClusterError: If it cannot be listed.
        """
        chosen = self._selection
        try:
            items, version = self._api.list_all(chosen.resource, namespace=chosen.namespace, **chosen.query)
        except NotFoundError:
            items, version = [], ""  # The kind itself is not there (any more).
        found = {item["metadata"]["uid"]: item for item in items}
        for uid in [uid for uid in self._known if uid not in found]:
            self._gone(self._known.pop(uid))
        for uid, item in found.items():
            known = self._known.get(uid)
            if known is None or known["metadata"]["resourceVersion"] != item["metadata"]["resourceVersion"]:
                self._note(uid, item)
        self._version = version
        return len(found)

    def start(self) -> None:
        """Watch on in a thread; lists first if that was not done."""
        name = f"watch-{self._selection.resource.plural}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def close(self) -> None:
        """Stop soon; the thread ends by itself."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.close()

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            began = time.monotonic()
            problem: KrKfpError | None = None
            events = 0
            try:
                if not self._version:
                    self.relist()
                for _ in self._events():
                    events += 1
            except _ExpiredError:
                self._version = ""
            except KrKfpError as caught:
                problem = caught
                if self._gives_up(caught):
                    return
            # The server ends a watch as it pleases; that, and what comes after long or fruitful ones, is no failure.
            healthy = events > 0 or time.monotonic() - began > _SHORT
            failures = (1 if problem else 0) if healthy else failures + 1
            if failures:
                asked = getattr(problem, "after", 0.0)
                self._wait(self._closed, max(asked, backoff(failures, self._api.chance())))

    def _gives_up(self, problem: KrKfpError) -> bool:
        if isinstance(problem, UnavailableError):
            return False
        if not self._warned and not self._closed.is_set():
            self._warned = True
            what = f"; {self._optional}" if self._optional else "; trying again until it works"
            self._api.warn(f"{problem}{what}")
        return bool(self._optional) and isinstance(problem, ForbiddenError)

    def _events(self) -> Iterator[None]:
        """Follow one watch to its end.

        Yields:
            After each line.

        Raises:
            _ExpiredError: If a new list is needed.
            ClusterError: If it cannot be opened, or breaks.
        """
        chosen = self._selection
        query = {
            **chosen.query,
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": self._version,
            # Not all at the same moment again.
            "timeoutSeconds": int(LASTS * (1.0 + 0.2 * self._api.chance())),
        }
        target = chosen.target("watch")
        try:
            stream = self._api.stream(chosen.resource.path(chosen.namespace), target, query=query, idle=_IDLE)
        except ClusterError as problem:
            if is_expired(problem.status):
                raise _ExpiredError from problem
            if isinstance(problem, NotFoundError):
                self._version = ""
            raise
        with self._lock:
            self._stream = stream
        if self._closed.is_set():
            stream.close()
        for line in _lines(stream):
            self._take(line, target)
            yield

    def _take(self, line: bytes, target: Target) -> None:
        try:
            event = json.loads(line)
            kind, value = event["type"], event["object"]
            metadata = {"resourceVersion": "", "uid": ""} if kind == "ERROR" else value["metadata"]
            version = metadata["resourceVersion"]
        except (ValueError, KeyError, TypeError) as problem:
            msg = f"{target}: an event cannot be read: {line[:200]!r}"
            raise UnavailableError(msg) from problem
        if kind == "ERROR":
            if is_expired(0, value):
                raise _ExpiredError
            raise error_from(int(value.get("code") or 500), json.dumps(value).encode(), target)
        self._version = version
        if kind == "DELETED":
            self._known.pop(metadata["uid"], None)
            self._gone(value)
        elif kind != "BOOKMARK":
            self._note(metadata["uid"], value)

    def _note(self, uid: str, value: Manifest) -> None:
        if self._keep:
            self._known[uid] = value
        self._changed(value)


def _lines(stream: Stream) -> Iterator[bytes]:
    """Cut a stream into lines; what is left at its end is half an event, which comes again."""
    rest = b""
    for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        yield from (line for line in lines if line.strip())
