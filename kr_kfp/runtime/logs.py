"""Logs of hosts: bytes as they come -> whole lines with the host's name.

Log streams are not clean text: glyphs are split over chunks, bytes are invalid, progress bars never send a newline, a
line has two megabytes. None of it may fail a job, hold back output for ever or fill the memory.
"""

from __future__ import annotations

import codecs
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from kr_kfp.wire import OUTCOME_PREFIX

__all__ = ["LineSplitter", "LogPump", "starts_an_error"]

MAX_LINE = 65_536
"""Characters after which a line without an end is given out in pieces."""

_ENDS = re.compile(r"\r\n|\n|\r")

_ERROR = re.compile(
    r"^\s*Traceback \(most recent call last\)|^Fatal Python error|^F\d{4} |\b[A-Z]\w*(Error|Exception)\b|\bFATAL\b"
)


def starts_an_error(line: str) -> bool:
    """Tell whether a line of a worker's log is where its trouble begins."""
    return _ERROR.search(line) is not None


class LineSplitter:
    """Cut a stream of bytes into lines.

    A carriage return ends a line too, so that progress bars show; of several such updates that come at once only the
    last is given. Invalid UTF-8 is replaced, NUL becomes the replacement character as well.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._rest = ""

    def feed(self, data: bytes) -> Iterator[str]:
        """Give the lines that are complete now."""
        text = self._rest + self._decode(data).replace("\0", "\ufffd")
        # A carriage return at the very end may be the first half of a line end.
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix(held)
        at, progress = 0, ""
        for end in _ENDS.finditer(text):
            line = text[at : end.start()]
            at = end.end()
            if end.group() == "\r":
                progress = line
                continue
            yield from self._pieces(line or progress)
            progress = ""
        if progress:
            yield from self._pieces(progress)
        self._rest = text[at:] + held
        while len(self._rest) > MAX_LINE:
            yield self._rest[:MAX_LINE]
            self._rest = self._rest[MAX_LINE:]

    def close(self) -> Iterator[str]:
        """Give what is left when the stream has ended."""
        rest = (self._rest + self._decode(b"", final=True)).removesuffix("\r")
        self._rest = ""
        if rest:
            yield from self._pieces(rest)

    @staticmethod
    def _pieces(line: str) -> Iterator[str]:
        for at in range(0, len(line) or 1, MAX_LINE):
            yield line[at : at + MAX_LINE]


Mode = Literal["leader", "all", "none"]


@dataclass(slots=True)
class _Followed:
    """A log that is followed.

    Args:
        shown: Whether its lines are printed from now on.
        thread: Who does it.
    """

    shown: bool
    thread: threading.Thread | None = None


class LogPump:
    """Follows the logs of hosts, one thread each, and prints their lines.

    Args:
        name: The step's name, for the prefix ``[name host 3]``.
        mode: ``leader`` (host 0 in full, others from their first error line), ``all`` or ``none``.
        write: Takes one line.
    """

    def __init__(self, name: str, mode: Mode, write: Callable[[str], None]) -> None:
        self._name, self._mode, self._write = name, mode, write
        self._followed: list[_Followed] = []

    def follow(self, host: int, chunks: Iterable[bytes]) -> None:
        """Print the log of a host until its stream ends."""
        if self._mode == "none":
            return
        one = _Followed(shown=self._mode == "all" or host == 0)
        one.thread = threading.Thread(target=self._pump, args=(host, chunks, one), name=f"log-{host}", daemon=True)
        self._followed.append(one)
        one.thread.start()

    def finish(self, seconds: float, *, shown: bool = False) -> None:
        """Wait until streams have ended, at most ``seconds`` in all.

        Args:
            seconds: How long.
            shown: Wait only for those of which lines are shown: enough where no host failed.
        """
        end = time.monotonic() + seconds
        for one in self._followed:
            if one.thread and (one.shown or not shown):
                one.thread.join(timeout=max(0.0, end - time.monotonic()))

    def _pump(self, host: int, chunks: Iterable[bytes], one: _Followed) -> None:
        splitter, over = LineSplitter(), False

        def show(lines: Iterable[str]) -> None:
            nonlocal over
            for line in lines:
                # On a busy node a followed log may run on into that of the second start, which holds and prints this.
                over = over or line.startswith(OUTCOME_PREFIX)
                if over:
                    return
                one.shown = one.shown or starts_an_error(line)
                if one.shown:
                    self._write(f"[{self._name} host {host}] {line}")

        for chunk in chunks:
            show(splitter.feed(chunk))
        show(splitter.close())
