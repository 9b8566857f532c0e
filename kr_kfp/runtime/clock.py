"""The real clock: time and one inbox for everything that wakes the launcher."""

from __future__ import annotations

import queue
import time

from kr_kfp.cluster.api import Event

__all__ = ["RealClock"]


class RealClock:
    """Implements :class:`kr_kfp.cluster.api.Clock`; ``put`` is safe in threads and signal handlers (SimpleQueue)."""

    def __init__(self) -> None:
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def now(self) -> float:
        """Give Unix seconds."""
        return time.time()

    def next_event(self, deadline: float | None) -> Event | None:
        """Wait for the next event until ``deadline``; None when it has passed."""
        timeout = None if deadline is None else max(0.0, deadline - time.time())
        try:
            return self._inbox.get(timeout=timeout)
        except queue.Empty:
            return None

    def put(self, event: Event) -> None:
        """Hand an event in."""
        self._inbox.put(event)
