"""Time that a test moves."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

from kr_kfp.cluster.api import Event

__all__ = ["FakeClock"]


class FakeClock:
    """Time that moves only when somebody waits, and a script of what happens when.

    Args:
        start: Unix seconds to begin at.
    """

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._inbox: deque[Event] = deque()
        self._script: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Give Unix seconds."""
        return self._now

    def put(self, event: Event) -> None:
        """Hand an event in."""
        self._inbox.append(event)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let ``action`` happen ``seconds`` from now, when somebody waits for that long."""
        heapq.heappush(self._script, (self._now + seconds, next(self._order), action))

    def next_event(self, deadline: float | None) -> Event | None:
        """Give the next event; time goes on to the next scripted action, or to the deadline.

        Raises:
            AssertionError: If nothing can ever happen any more.
        """
        while not self._inbox:
            if self._script and (deadline is None or self._script[0][0] <= deadline):
                self._now, _, action = heapq.heappop(self._script)
                action()
            elif deadline is None:
                msg = "waiting for ever: no event, no script, no deadline"
                raise AssertionError(msg)
            else:
                self._now = max(self._now, deadline)
                return None
        return self._inbox.popleft()
