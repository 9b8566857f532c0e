"""``python3 -m kr_kfp.storage fetch|put|probe PLAN.json``: one transfer in a process of its own.

The plan is JSON: ``stores`` (StoreSettings), ``items`` (uri, path, name), ``result`` (a file that is written whole at
the end), ``limits`` and ``parent`` (a process whose end ends this one) if wanted. :mod:`kr_kfp.storage.run` writes it.
Exit codes: 0 all is there; 65 it is not, and the result says why; 2 the plan is none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kr_kfp.errors import Problem, StorageError, StorageStoppedError, WireError
from kr_kfp.storage.limits import MIB, Limits
from kr_kfp.storage.reasons import Verb
from kr_kfp.storage.run import FAILED, Item, Moved, Plan
from kr_kfp.storage.session import Session

__all__ = ["main"]

_USAGE = 2
_TICK = 0.25
"""Seconds between two looks at signals, the parent and the time."""

_FIRST = 2.0
"""Seconds before the first progress line; what is over sooner needs none."""

_M_MMAP_THRESHOLD = -3
"""From malloc.h; set, it no longer grows with what is freed."""

_PAST = {"fetch": "fetched", "put": "uploaded"}


def main(arguments: Sequence[str]) -> int:
    """Run one transfer.

    Args:
        arguments: The verb and the plan's file.

    Returns:
        The exit code.
    """
    if len(arguments) != 2 or arguments[0] not in (*_PAST, "probe"):
        _say("usage: python3 -m kr_kfp.storage fetch|put|probe PLAN.json")
        return _USAGE
    try:
        data = json.loads(Path(arguments[1]).read_text(encoding="utf-8"))
        plan, result = Plan.from_json(data), data["result"]
        limits = Limits.from_json(data.get("limits", {}))
    except (OSError, ValueError, KeyError, TypeError, WireError) as problem:
        _say(f"{arguments[1]} is no plan of a transfer: {problem}")
        return _USAGE
    _give_memory_back()
    parent = int(data.get("parent", 0))
    try:
        done = _run(arguments[0], plan, limits, parent)
    except StorageError as error:
        _write(result, _failed(error))
        return FAILED
    _write(result, {"ok": True, "items": [asdict(item) for item in done]})
    return 0


def _run(verb: str, plan: Plan, limits: Limits, parent: int) -> tuple[Moved, ...]:
    try:
        import obstore  # noqa: F401 - to tell a missing package from what goes wrong in it
    except ImportError as error:
        text = f"this Python ({sys.executable}) has no obstore, which moves artifacts: {error}."
        fix = "install it beside kr_kfp: pip install 'obstore>=0.12,<0.13'"
        raise StorageError([Problem(verb, text, fix)]) from error
    way: Verb = "put" if verb == "put" else "fetch"
    counter = _Counter(way, limits.progress)
    session = Session(way, plan.stores, limits=limits, progress=counter.count)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: session.stop())
    if verb == "probe":
        from kr_kfp.storage.probe import probe_all

        return asyncio.run(probe_all(session, plan.items))
    return asyncio.run(_transfer(session, plan.items, counter, parent))


async def _transfer(session: Session, items: Sequence[Item], counter: _Counter, parent: int) -> tuple[Moved, ...]:
    from kr_kfp.storage.fetch import fetch_all
    from kr_kfp.storage.put import put_all

    move = fetch_all if session.verb == "fetch" else put_all
    moving = asyncio.ensure_future(move(session, items))
    while not moving.done():
        await asyncio.wait([moving], timeout=_TICK)
        counter.tell()
        if parent and os.getppid() != parent:
            session.stop()
        if session.stopping.is_set() and not moving.done():
            # What waits for a slow store is cut short; what has to be undone is undone before this is over.
            moving.cancel()
            await asyncio.wait([moving])
    if moving.cancelled():
        session.check()
    done = await moving
    for item in done:
        counter.finished(item)
    return done


class _Counter:
    """Says now and then how far each item is.

    Args:
        verb: Which way.
        every: Seconds between two lines.
    """

    def __init__(self, verb: Verb, every: float) -> None:
        self._done = _PAST[verb]
        self._every = every
        self._next = time.monotonic() + min(every, _FIRST)
        self._state: dict[str, tuple[int, int]] = {}
        self._said: dict[str, tuple[int, int]] = {}

    def count(self, name: str, moved: int, total: int) -> None:
        """Take in what has been moved; called from several threads."""
        self._state[name] = (moved, total)

    def tell(self) -> None:
        """Say how far each item is that moved, if it is time."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        for name, (moved, total) in sorted(self._state.items()):
            if self._said.get(name) != (moved, total) and moved < total:
                self._said[name] = (moved, total)
                _say(f"{self._done} {name} {_megabytes(moved)} of {_megabytes(total)} MB")

    def finished(self, item: Moved) -> None:
        """Say that an item is there."""
        files = f"{item.files:,} file{'' if item.files == 1 else 's'}"
        _say(f"{self._done} {item.name}: {_megabytes(item.bytes)} MB, {files} in {item.seconds:.1f} s")


def _megabytes(amount: int) -> str:
    return f"{amount / 1e6:,.0f}" if amount >= 10_000_000 else f"{amount / 1e6:,.1f}"


def _failed(error: StorageError) -> dict[str, Any]:
    stopped = isinstance(error, StorageStoppedError)
    return {"ok": False, "stopped": stopped, "problems": [asdict(problem) for problem in error.problems]}


def _give_memory_back() -> None:
    """Make glibc return the memory of every part when it is freed, instead of keeping it for the thread that had it.

    Measured for a file of 2 GB: 155 MB at most instead of 270, and no slower. Other C libraries do so anyhow.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MIB)


def _write(file: str, data: dict[str, Any]) -> None:
    """Write the result so that it is there whole or not at all."""
    temporary = Path(f"{file}.tmp")
    temporary.write_text(json.dumps(data), encoding="utf-8")
    temporary.replace(file)


def _say(text: str) -> None:
    # Whoever read standard error may be gone; that is no reason to fail.
    with contextlib.suppress(OSError):
        print(f"kr_kfp: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not by way of the interpreter's end: threads of obstore that still run there abort the process now and then.
    os._exit(code)
