"""What the launcher prints. Must survive a broken stdout: after a SIGTERM in a KFP pod it is one at once."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable

__all__ = ["Say", "say", "write_line"]

Say = Callable[[str], None]
"""Takes one line for the user."""

_lock = threading.Lock()


def write_line(line: str) -> None:
    """Print one line whole, whatever other threads print; a broken pipe or closed stream is no error."""
    stream = sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = line.encode(encoding, "replace").decode(encoding)
    with _lock, contextlib.suppress(OSError, ValueError):
        stream.write(text + "\n")
        stream.flush()


def say(text: str) -> None:
    """Print what kr_kfp itself has to say, line by line with its name in front."""
    for line in text.splitlines():
        write_line(f"kr_kfp: {line}")
