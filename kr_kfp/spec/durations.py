"""Durations as people write them: ``90m``, ``1h30m``, ``1.5h``, ``250ms``, or a number of seconds."""

from __future__ import annotations

import math
import re

__all__ = ["EXAMPLES", "format_duration", "parse_duration"]

EXAMPLES = "'90s', '90m', '1h30m', '2d' or a number of seconds"
"""For messages about a duration that cannot be read."""

_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_WHOLE = re.compile(r"(?:\d+(?:\.\d+)?d)?(?:\d+(?:\.\d+)?h)?(?:\d+(?:\.\d+)?m)?(?:\d+(?:\.\d+)?s)?(?:\d+(?:\.\d+)?ms)?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def parse_duration(value: str | float) -> float:
    """Read a duration.

    Args:
        value: Seconds as a number or as digits, or parts with the units d, h, m, s and ms, largest first, without
            blanks.

    Returns:
        Seconds.

    Raises:
        ValueError: If it cannot be read, is negative or not finite. The message says which.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        msg = f"{value!r} is no duration"
        raise ValueError(msg)  # noqa: TRY004 - callers turn every unreadable duration into one kind of problem
    if isinstance(value, int | float):
        return _checked(float(value), value)
    text = value.strip()
    if _NUMBER.fullmatch(text):
        return _checked(float(text), value)
    if not text or not _WHOLE.fullmatch(text):
        msg = f"{value!r} is no duration"
        raise ValueError(msg)
    return _checked(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)), value)


def format_duration(seconds: float) -> str:
    """Write a duration as people do: the fewest units that say it exactly, to the millisecond.

    Args:
        seconds: Not negative.

    Returns:
        Text that :func:`parse_duration` reads back, such as ``1h30m`` or ``0s``.
    """
    rest = round(seconds * 1000)
    parts = []
    for unit, factor in _UNITS.items():
        count, rest = divmod(rest, round(factor * 1000))
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def _checked(seconds: float, value: str | float) -> float:
    if not math.isfinite(seconds):
        msg = f"{value!r} is not finite"
        raise ValueError(msg)
    if seconds < 0:
        msg = f"{value!r} is negative"
        raise ValueError(msg)
    return seconds
