"""Files of this machine: what an artifact's folder holds, and copies of it for ``file://`` URIs.

obstore could copy local files too, but hides names such as ``part#1`` and follows no rule of ours about links.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kr_kfp.errors import Problem

__all__ = ["Scan", "copy_file", "scan"]

_CHUNK = 1024 * 1024


@dataclass(slots=True, kw_only=True)
class Scan:
    """What lies at a local path.

    Args:
        single: Whether it is a file.
        files: Path below the folder, with ``/`` (empty for a single file), and bytes of each; in the order of names.
        folders: Paths of folders without anything in them; an empty text is the folder itself.
        problems: What cannot be moved.
    """

    single: bool
    files: list[tuple[str, int]] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def scan(path: str) -> Scan:
    """List a file or a folder.

    Links to files and folders count as what they point to, wherever that is, as for KFP's own upload. Links that point
    nowhere or back to a folder above, and what is neither file nor folder, are problems.

    Raises:
        OSError: If the path itself is not there or may not be read.
    """
    found = Scan(single=not stat.S_ISDIR(os.stat(path).st_mode))  # noqa: PTH116 - text, not Path: there may be millions
    if found.single:
        _add(found, path, "", os.stat(path))  # noqa: PTH116
    else:
        _walk(found, path, "", ())
        found.files.sort()
        found.folders.sort()
    return found


def _walk(found: Scan, path: str, relative: str, above: tuple[tuple[int, int], ...]) -> None:
    here = os.stat(path)  # noqa: PTH116
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        found.problems.append(Problem(path, "is a link to a folder above itself.", "remove the link"))
        return
    empty = True
    with os.scandir(path) as entries:
        for entry in entries:
            empty = False
            name = f"{relative}/{entry.name}" if relative else entry.name
            try:
                status = entry.stat()
                if stat.S_ISDIR(status.st_mode):
                    _walk(found, entry.path, name, (*above, identity))
                else:
                    _add(found, entry.path, name, status)
            except FileNotFoundError:
                found.problems.append(Problem(entry.path, "is a link that points nowhere.", "remove the link"))
            except OSError as error:
                found.problems.append(Problem(entry.path, f"cannot be read: {error.strerror}."))
    if empty:
        found.folders.append(relative)


def _add(found: Scan, path: str, name: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        found.files.append((name, status.st_size))
    else:
        found.problems.append(Problem(path, "is neither a file nor a folder.", "remove it from the artifact"))


def copy_file(
    source: str, target: str, moved: Callable[[int], None], check: Callable[[], None], *, durable: bool = False
) -> int:
    """Copy the content of a file; runs in a thread.

    Args:
        source: The file.
        target: A path where nothing is yet.
        moved: Told of every piece.
        check: Called between pieces; may raise.
        durable: Whether it shall survive a crash of the machine.

    Returns:
        The bytes.
    """
    total = 0
    with open(source, "rb", buffering=0) as file, open(target, "xb", buffering=0) as copy:  # noqa: PTH123
        for piece in _pieces(file.fileno()):
            check()
            written = 0
            while written < len(piece):
                written += copy.write(piece[written:]) or 0
            total += written
            moved(written)
        if durable:
            os.fsync(copy.fileno())
    return total


def _pieces(descriptor: int) -> Iterator[memoryview]:
    while piece := os.read(descriptor, _CHUNK):
        yield memoryview(piece)
