"""``python -m tests.tiers``: all tests, those on the cluster beside the others.

Both spend about half of their time waiting. Each tier has a process of its own: what one imports or leaves running is
no business of the next. A tier that fails does not hold back the others, so that one run tells everything.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

__all__ = ["run"]

ROOT = Path(__file__).parents[1]

LOG = ROOT / "build" / "cluster-tier.log"
"""What the tier on the cluster prints; shown when the others are through."""

_PYTEST = (sys.executable, "-m", "pytest")

TIERS = (
    (*_PYTEST, "tests/unit", "tests/property", "tests/golden"),
    (*_PYTEST, "tests/contract"),
    (*_PYTEST, "tests/integration"),
)
BESIDE = (sys.executable, "-m", "tests.cluster", "test")

_LOOK = 0.5
"""Seconds between two looks for more of the log."""


class _Children:
    """Starts processes, and ends them in good order when this one is to end."""

    def __init__(self) -> None:
        self.stopped = False
        self._all: list[subprocess.Popen[bytes]] = []
        # Ctrl-C reaches every process of the terminal by itself; SIGTERM is passed on as what pytest cleans up after.
        signal.signal(signal.SIGINT, lambda *_: self._stop(tell=False))
        signal.signal(signal.SIGTERM, lambda *_: self._stop(tell=True))

    def start(self, command: Sequence[str], out: BinaryIO | None = None) -> subprocess.Popen[bytes]:
        """Start a command in the repository's folder, its output to a file or where ours goes."""
        child = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT if out else None)
        self._all.append(child)
        return child

    def _stop(self, *, tell: bool) -> None:
        self.stopped = True
        for child in self._all if tell else ():
            child.send_signal(signal.SIGINT)


def run(tiers: Sequence[Sequence[str]] = TIERS, beside: Sequence[str] = BESIDE, log: Path = LOG) -> int:
    """Run all tiers and print what they print.

    Args:
        tiers: Commands that run one after the other.
        beside: Command that runs at the same time.
        log: File for what that one prints.

    Returns:
        The first exit code that is not 0, else 0; 130 if a signal ended it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    children = _Children()
    with log.open("wb") as out, log.open("rb") as shown:
        other = children.start(beside, out)
        codes = [children.start(tier).wait() for tier in tiers if not children.stopped]
        print(f"\n{' '.join(beside[1:])}, beside these since their start:\n", flush=True)
        while other.poll() is None:
            _show(shown)
            time.sleep(_LOOK)
        _show(shown)
    if children.stopped:
        return 128 + signal.SIGINT
    return next((code for code in (*codes, other.returncode) if code), 0)


def _show(log: BinaryIO) -> None:
    sys.stdout.buffer.write(log.read())
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(run())
