"""Durations as people write them."""

from __future__ import annotations

from typing import Any

import pytest

from kr_kfp.spec.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400.0),
        ("1h30m", 5400.0),
        ("1d2h3m4s", 93_784.0),
        ("1.5h", 5400.0),
        ("250ms", 0.25),
        ("1m500ms", 60.5),
        ("45", 45.0),
        ("0.5", 0.5),
        (" 10s ", 10.0),
        (45, 45.0),
        (0, 0.0),
        (0.25, 0.25),
    ],
)
def test_parse_duration(text: str | float, seconds: float) -> None:
    """Units d, h, m, s, ms, largest first; without one it is seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1x", "'1x' is no duration"),
        ("m", "'m' is no duration"),
        ("", "'' is no duration"),
        ("30m1h", "'30m1h' is no duration"),
        ("1h 30m", "'1h 30m' is no duration"),
        ("1e3", "'1e3' is no duration"),
        ("-1h", "'-1h' is no duration"),
        (-1, "-1 is negative"),
        (float("inf"), "inf is not finite"),
        (float("nan"), "nan is not finite"),
        (True, "True is no duration"),
        (None, "None is no duration"),
    ],
)
def test_parse_duration_refuses(value: Any, message: str) -> None:
    """What cannot be read is repeated, with the reason."""
    with pytest.raises(ValueError) as caught:
        parse_duration(value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (5400, "1h30m"), (93_784, "1d2h3m4s"), (0.25, "250ms"), (59.9996, "1m"), (60.5, "1m500ms")],
)
def test_format_duration(seconds: float, text: str) -> None:
    """A duration is written with the fewest units that say it to the millisecond."""
    assert format_duration(seconds) == text
    assert parse_duration(text) == pytest.approx(seconds, abs=0.0005)
