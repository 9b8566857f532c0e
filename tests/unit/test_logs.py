"""Logs that are not clean text (case 20)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from kr_kfp.runtime.logs import MAX_LINE, LineSplitter, LogPump, starts_an_error
from kr_kfp.wire import Outcome, outcome_line


def lines(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [line for chunk in chunks for line in splitter.feed(chunk)] + list(splitter.close())


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_glyphs_straddle_every_chunk_border(size: int) -> None:
    """A three-byte glyph split anywhere stays whole."""
    data = "100%|███▏| 1/1\nfertig ✓\n".encode()
    assert lines(*[data[i : i + size] for i in range(0, len(data), size)]) == ["100%|███▏| 1/1", "fertig ✓"]


def test_invalid_bytes_are_replaced() -> None:
    """A stray latin-1 byte and a NUL never fail the job."""
    assert lines(b"a\xe4b\0c\nnext\n") == ["a\ufffdb\ufffdc", "next"]


def test_line_without_end_comes_in_pieces() -> None:
    """Two megabytes without a newline neither wait for ever nor fill the memory."""
    splitter = LineSplitter()
    found = [line for _ in range(32) for line in splitter.feed(b"x" * MAX_LINE)]
    assert [len(line) for line in found] == [MAX_LINE] * 31
    assert [len(line) for line in splitter.close()] == [MAX_LINE]


def test_progress_shows_without_a_newline() -> None:
    """Of progress updates that come at once the last is shown; the next one is shown when it comes."""
    splitter = LineSplitter()
    assert list(splitter.feed(b"1%\r2%\r3%\rrest")) == ["3%"]
    assert list(splitter.feed(b"\r4%\r")) == ["rest"]
    assert list(splitter.close()) == ["4%"]


def test_carriage_return_before_newline_is_one_end() -> None:
    """Windows line ends make no empty lines, also split between the two bytes."""
    assert lines(b"a\r\nb\r", b"\nc\n") == ["a", "b", "c"]


def test_blank_lines_and_colours_stay() -> None:
    """Blank lines and ANSI colours are passed on."""
    assert lines(b"\n\x1b[31mred\x1b[0m\n\n") == ["", "\x1b[31mred\x1b[0m", ""]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Traceback (most recent call last):", True),
        ("Fatal Python error: Segmentation fault", True),
        ("jax.errors.JaxRuntimeError: UNAVAILABLE", True),
        ("F0101 00:00:00 coordination", True),
        ("loss 0.5, no error so far", False),
        ("epoch 1", False),
    ],
)
def test_error_lines(line: str, expected: bool) -> None:
    """A worker's log is shown from its first error line on."""
    assert starts_an_error(line) is expected


def test_pump_shows_leader_in_full_and_workers_from_their_error() -> None:
    """By default the leader's log is printed in full, a worker's from its first error line."""
    said: list[str] = []
    pump = LogPump("train", "leader", said.append)
    pump.follow(0, [b"epoch 1\n"])
    pump.finish(10)
    pump.follow(3, [b"epoch 1\nTraceback (most recent call last):\n  x\n"])
    pump.finish(10)
    assert said == [
        "[train host 0] epoch 1",
        "[train host 3] Traceback (most recent call last):",
        "[train host 3]   x",
    ]


def test_only_what_is_shown_is_waited_for() -> None:
    """A worker that has nothing to show does not hold back the end; one that has does, as the leader does."""
    said: list[str] = []
    pump = LogPump("train", "leader", said.append)
    quiet, error, told = threading.Event(), threading.Event(), threading.Semaphore(0)

    def log(first: bytes, until: threading.Event) -> Iterator[bytes]:
        yield first
        told.release()
        until.wait(30)
        yield b"last\n"

    pump.follow(1, log(b"epoch 1\n", quiet))
    pump.follow(2, log(b"Fatal Python error\n", error))
    assert told.acquire(timeout=30)
    assert told.acquire(timeout=30)
    pump.follow(0, [b"epoch 1\n"])
    pump.finish(0.0, shown=True)
    error.set()
    pump.finish(30, shown=True)
    assert sorted(said) == ["[train host 0] epoch 1", "[train host 2] Fatal Python error", "[train host 2] last"]
    quiet.set()
    pump.finish(30)


def test_the_holders_line_is_not_for_people() -> None:
    """What a host prints while it holds is left out, however long it is, where a log ran on into its second start."""
    said: list[str] = []
    pump = LogPump("train", "all", said.append)
    outcome = Outcome(kind="ok", host=0, started=1.0, ended=2.0, outputs={"x": os.urandom(100_000).hex()})
    pump.follow(0, [b"epoch 1\n", outcome_line(outcome).encode() + b"\n"])
    pump.finish(10)
    assert said == ["[train host 0] epoch 1"]
