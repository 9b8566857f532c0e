"""Where a followed log was read to, so that it is read on after a break without loss and without doubling. Pure.

Lines come with a timestamp in front (``timestamps=true``). A log is asked for again from a whole second on (the API
takes no finer ``sinceTime``: it is a metav1.Time), and the kubelet leaves out, line by line, what is older. Lines of
stdout and stderr may be a little out of order, so that comparing timestamps would lose some. But what is sent again
begins with just the lines of these seconds that were seen already, in the same order: their number is skipped, after a
look whether the first is the same. It is not where the log was rotated meanwhile, or is another container's.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Cursor", "StrangeLogError"]

_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)(?: |\n|$)")

_LONG = 65_536
"""Bytes of a line without an end that are held back."""

_HEAD = 256
"""Bytes by which a line is known again."""


class StrangeLogError(Exception):
    """A log that was asked for again does not begin with what was seen of it."""


@dataclass(slots=True)
class _Second:
    """The lines of one second: how many were seen, and which was the first."""

    count: int
    order: int
    head: bytes


class Cursor:
    """Turns a log with timestamps into the log without, across any number of answers."""

    def __init__(self) -> None:
        self._seconds: dict[str, _Second] = {}
        self._order = 0
        self._newest = b""
        self._by_stamp = False
        # The line that is being read.
        self._rest = b""
        self._read = 0
        self._second = ""
        self._hidden: int | None = 0
        self._given = 0
        # What comes again at the beginning of an answer.
        self._skip = 0
        self._drop = 0
        self._expected = b""

    @property
    def since(self) -> str | None:
        """The ``sinceTime`` to ask from; None is from the start."""
        found = _STAMP.match(self._newest)
        return min(self._seconds, default=None) or (_second(found) if found else None)

    @property
    def empty(self) -> bool:
        """Whether no line was seen yet."""
        return not self._newest

    def begin(self) -> None:
        """Prepare for an answer that begins at :attr:`since`."""
        if self._given:
            # A long line was given in part, and counted: it comes again, if it is not too old, and counts again.
            entry = self._seconds.get(self._second)
            self._drop = self._given if entry else 0
            if entry:
                entry.count -= 1
                if not entry.count:
                    del self._seconds[self._second]
        self._skip = 0 if self._by_stamp else sum(second.count for second in self._seconds.values())
        first = min(self._seconds.values(), key=lambda second: second.order, default=None)
        self._expected = first.head if first and self._skip else b""
        self._rest, self._read, self._given = b"", 0, 0

    def forget(self) -> None:
        """Go by timestamps in the next answer: the lines that would be counted are not there any more."""
        self._by_stamp = True
        self._seconds.clear()
        self._given = self._drop = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the answer and give those that are new, without timestamps.

        Raises:
            StrangeLogError: If the answer does not begin with what was seen.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        new = bytearray()
        for line in lines:
            new += self._take(line + b"\n")
        if len(self._rest) > _LONG:
            new += self._take(self._rest)
            self._rest = b""
        return bytes(new)

    def _take(self, piece: bytes) -> bytes:
        """Take a line, or a part of a long one."""
        if self._read == 0:
            self._hidden = self._begin_line(piece)
        at = self._read
        self._read += len(piece)
        new = b"" if self._hidden is None else piece[max(0, self._hidden - at) :]
        if self._hidden is not None:
            self._given = max(self._hidden, self._read)
        if piece.endswith(b"\n"):
            self._read = self._given = 0
        return new

    def _begin_line(self, piece: bytes) -> int | None:
        """Give how many of a line's bytes are not to be shown: those of its timestamp at least; None for all."""
        found = _STAMP.match(piece)
        if found is None:
            # Of the kubelet itself, which has something to say about the log; it does not come again.
            self._second = ""
            return None if self._skip else 0
        self._second = _second(found)
        if self._skip:
            length = min(len(piece), len(self._expected))
            if piece[:length] != self._expected[:length]:
                raise StrangeLogError
            self._expected = b""
            self._skip -= 1
            return None
        stamp = found[0].rstrip()
        known = self._by_stamp and stamp <= self._newest
        if not known:
            self._by_stamp = False
        self._newest = max(self._newest, stamp)
        self._count(piece)
        drop, self._drop = self._drop, 0
        return None if known else max(found.end() if found[0].endswith(b" ") else len(stamp), drop)

    def _count(self, piece: bytes) -> None:
        """Count a line that would come again, for the two newest seconds: a line may be out of order by a moment."""
        self._order += 1
        entry = self._seconds.setdefault(self._second, _Second(0, self._order, piece[:_HEAD]))
        entry.count += 1
        for second in sorted(self._seconds)[:-2]:
            del self._seconds[second]


def _second(found: re.Match[bytes]) -> str:
    return (found[1] + found[2]).decode("ascii")
