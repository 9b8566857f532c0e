"""Reading a log on after a break: every line once, whatever was seen and however it broke."""

from __future__ import annotations

import pytest

from kr_kfp.cluster.kube_cursor import Cursor, StrangeLogError


def stamped(*lines: tuple[str, str]) -> bytes:
    return b"".join(f"2026-01-01T00:00:{second}Z {text}\n".encode() for second, text in lines)


LOG = [
    ("01.100000000", "a"),
    ("01.900000000", "b"),
    ("02.000000000", ""),
    ("01.999999999", "out of order"),
    ("02.500000000", "é\r50 %\rd"),
    ("02.500000000", "same moment"),
    ("03.000000001", "x" * 300),
    ("04.000000001", "last"),
]
WHOLE = b"".join(f"{text}\n".encode() for _, text in LOG)


def asked(cursor: Cursor, log: list[tuple[str, str]]) -> bytes:
    """What a kubelet sends from ``since`` on."""
    since = cursor.since
    return stamped(*[(s, t) for s, t in log if since is None or f"2026-01-01T00:00:{s}Z"[:19] >= since[:19]])


def test_timestamps_are_taken_off() -> None:
    """Text, blank lines and carriage returns arrive as they were written."""
    cursor = Cursor()
    cursor.begin()
    assert cursor.feed(stamped(*LOG)) == WHOLE
    assert cursor.since == "2026-01-01T00:00:03Z"
    assert not cursor.empty


@pytest.mark.parametrize("at", range(0, len(stamped(*LOG)) + 1, 7))
def test_a_break_anywhere_loses_and_doubles_nothing(at: int) -> None:
    """Cut at any byte, and asked for again from a whole second on, the log is whole."""
    cursor = Cursor()
    cursor.begin()
    got = cursor.feed(stamped(*LOG)[:at])
    cursor.begin()
    got += cursor.feed(asked(cursor, LOG))
    assert got == WHOLE


def test_many_breaks_in_the_same_second() -> None:
    """Breaks while what is known already comes again do no harm."""
    cursor, got = Cursor(), b""
    for at in (10, 30, 31, 60, 61, 100, 5, 0, 150, 9999):
        cursor.begin()
        got += cursor.feed(asked(cursor, LOG)[:at])
    cursor.begin()
    got += cursor.feed(asked(cursor, LOG))
    assert got == WHOLE


@pytest.mark.parametrize("cut", [70_000, 140_000, 199_999, 200_030])
def test_a_long_line_is_given_in_part_and_goes_on(cut: int) -> None:
    """A line without an end is not held back for ever, and a break inside it does not double its beginning."""
    log = [("01.0", "first"), ("02.0", "y" * 200_000), ("03.0", "end")]
    data = stamped(*log)
    cursor = Cursor()
    cursor.begin()
    got = b""
    for at in range(0, cut, 10_000):
        got += cursor.feed(data[at : min(at + 10_000, cut)])
    assert len(got) > 60_000
    cursor.begin()
    got += cursor.feed(asked(cursor, log))
    assert got == b"first\n" + b"y" * 200_000 + b"\nend\n"


def test_lines_without_a_timestamp_pass() -> None:
    """What the kubelet itself says about a log has none; it is shown once and not expected again."""
    cursor = Cursor()
    cursor.begin()
    assert cursor.feed(stamped(("01.0", "a")) + b"unable to retrieve container logs\n") == (
        b"a\nunable to retrieve container logs\n"
    )
    cursor.begin()
    assert cursor.feed(b"rpc error\n" + stamped(("01.0", "a"), ("01.5", "b"))) == b"b\n"


def test_another_log_is_noticed() -> None:
    """What does not begin with what was seen is another container's log, or was rotated."""
    cursor = Cursor()
    cursor.begin()
    cursor.feed(stamped(("01.1", "a"), ("01.2", "b")))
    cursor.begin()
    with pytest.raises(StrangeLogError):
        cursor.feed(stamped(("01.3", "of the second start")))


def test_a_rotated_log_goes_on_by_timestamps() -> None:
    """Where the lines that would be counted are gone, later timestamps tell what is new; then it counts again."""
    cursor = Cursor()
    cursor.begin()
    cursor.feed(stamped(("01.1", "a"), ("01.2", "b")))
    cursor.forget()
    assert cursor.since == "2026-01-01T00:00:01Z"
    cursor.begin()
    assert cursor.feed(stamped(("01.2", "b"), ("01.3", "c"), ("01.3", "d"))) == b"c\nd\n"
    cursor.begin()
    assert cursor.feed(stamped(("01.2", "b"), ("01.3", "c"), ("01.3", "d"), ("01.4", "e"))) == b"e\n"


def test_offsets_of_other_time_zones() -> None:
    """Nodes may write local time; the offset stays with what is asked for."""
    cursor = Cursor()
    cursor.begin()
    assert cursor.feed(b"2026-01-01T02:00:01.5+02:00 a\n2026-01-01T02:00:02+02:00 \n") == b"a\n\n"
    assert cursor.since == "2026-01-01T02:00:01+02:00"
