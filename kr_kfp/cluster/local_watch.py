"""What happens in a local group, as it happens: events through a thread, a log through a generator."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kr_kfp.cluster.api import Event, Manifest, Sink
from kr_kfp.cluster.local_client import PATIENCE, RETRY, connect
from kr_kfp.cluster.local_places import LOG, LOG_END, Place, is_held

__all__ = ["LocalWatch", "follow"]

_FOLLOW = 0.05
"""Seconds between two looks at a log that has nothing new."""


class LocalWatch:
    """A thread that hands everything that happens to a group to a sink, until the group is gone.

    Args:
        place: The group's folder.
        sink: Takes the events.
    """

    def __init__(self, place: Place, sink: Sink) -> None:
        self._place, self._sink = place, sink
        self._lock = threading.RLock()
        self._closed = False
        self._synced = False
        self._pods: dict[str, Manifest] = {}
        self._group: Manifest = {"metadata": {"name": place.name}}
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{place.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; no event follows."""
        with self._lock:
            self._closed = True
            if self._connection is not None:
                with contextlib.suppress(OSError):
                    self._connection.shutdown(socket.SHUT_RDWR)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._closed:
            connection = self._open()
            if connection is None:
                self._lost()
                return
            with connection:
                if self._stream(connection):
                    return
            # It ended without a word: the supervisor was killed, and its guard may still be at work.

    def _open(self) -> socket.socket | None:
        """Connect; None if there is no group, or none that answers."""
        end = time.monotonic() + PATIENCE
        while not self._closed and time.monotonic() < end:
            with contextlib.suppress(OSError):
                return self._begin(connect(self._place))
            if not is_held(self._place):
                return None
            time.sleep(RETRY)
        return None

    def _begin(self, connection: socket.socket) -> socket.socket:
        with self._lock:
            self._connection = connection
            if self._closed:
                connection.shutdown(socket.SHUT_RDWR)
        connection.settimeout(None)
        return connection

    def _stream(self, connection: socket.socket) -> bool:
        """Hand events on while the connection lasts, and tell whether nothing is to come after it."""
        with contextlib.suppress(OSError):
            connection.sendall(b'{"verb":"watch"}\n')
            for line in connection.makefile("rb"):
                if not line.endswith(b"\n"):
                    break
                message = json.loads(line)
                self._note(Event(message["kind"], message["value"]))
                if message["kind"] == "group-gone":
                    return True
        return self._closed

    def _note(self, event: Event) -> None:
        """Remember what exists and hand an event on."""
        if event.kind == "group":
            self._group = event.value
        elif event.kind == "pod":
            self._pods[event.value["metadata"]["uid"]] = event.value
        elif event.kind == "pod-gone":
            self._pods.pop(event.value["metadata"]["uid"], None)
        elif event.kind == "synced":
            self._synced = True
        with self._lock:
            if not self._closed:
                self._sink(event)

    def _lost(self) -> None:
        """Tell that there is nothing (any more)."""
        if not self._synced:
            self._note(Event("synced"))
        for pod in list(self._pods.values()):
            self._note(Event("pod-gone", pod))
        self._note(Event("group-gone", self._group))


def follow(place: Place, folder: Path) -> Iterator[bytes]:
    """Give the log of a pod's first start as it is written, until that start, or the pod, is over.

    Args:
        place: The group's folder.
        folder: The pod's folder.
    """
    log, done = folder / f"{LOG}0", folder / f"{LOG}0{LOG_END}"
    fd = -1
    try:
        while True:
            # Looked at before the log, so that what was written up to the end is read.
            over = done.exists() or not folder.exists() or not is_held(place)
            if fd < 0:
                with contextlib.suppress(FileNotFoundError):
                    fd = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
            data = os.read(fd, 65536) if fd >= 0 else b""
            if data:
                yield data
            elif over:
                return
            else:
                time.sleep(_FOLLOW)
    finally:
        if fd >= 0:
            os.close(fd)
