"""Local files and folders that appear whole or not at all: written beside their place, then renamed into it.

A folder is written anew under a name of its own, so nothing that lies in its place already, a symbolic link for
instance, can lead a write elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path

__all__ = ["Target", "free_bytes"]

_MADE: set[str] = set()
"""Temporary names of this process."""


class Target:
    """One file or folder on its way.

    Args:
        path: Where it shall appear. What is there by then is replaced.
        folder: Whether it is a folder.
    """

    def __init__(self, path: str, *, folder: bool) -> None:
        self.path = Path(path)
        self.folder = folder
        self._stem = f".{_short(self.path.name)}."
        self.temporary = self.path.with_name(f"{self._stem}{os.getpid()}-{uuid.uuid4().hex[:8]}.kr-kfp")
        self._made: set[str] = set()
        _MADE.add(self.temporary.name)

    def begin(self) -> None:
        """Make the parents, and the folder under its temporary name; remove what a killed process has left of it.

        Raises:
            OSError: If they cannot be made.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for entry in self.path.parent.iterdir():
            if entry.name.startswith(self._stem) and entry.name.endswith(".kr-kfp"):
                process = entry.name.removeprefix(self._stem).partition("-")[0]
                if entry.name not in _MADE and not _lives(process):
                    _remove(entry)
        if self.folder:
            self.temporary.mkdir()

    def place(self, relative: str) -> str:
        """Give the temporary place of one file and make its folders.

        Args:
            relative: Its path below the folder, with ``/``; empty for a target that is a file.
        """
        if not relative:
            return str(self.temporary)
        self.make(relative.rpartition("/")[0])
        return f"{self.temporary}/{relative}"

    def make(self, relative: str) -> None:
        """Make a folder below the target."""
        if relative not in self._made:
            Path(f"{self.temporary}/{relative}").mkdir(parents=True, exist_ok=True)
            self._made.add(relative)

    def publish(self) -> None:
        """Put it into its place, at once; what was there is removed afterwards.

        Raises:
            OSError: If it cannot be renamed, because its place is a mount point for instance.
        """
        try:
            self.temporary.replace(self.path)
        except OSError as error:
            # A file gives way to a file, and a folder to an empty one, but to nothing else.
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ENOTDIR}:
                raise
            aside = self.temporary.with_suffix(".old.kr-kfp")
            self.path.rename(aside)
            self.temporary.rename(self.path)
            _remove(aside)

    def discard(self) -> None:
        """Remove what was written so far."""
        _remove(self.temporary)


def _short(name: str) -> str:
    """Cut a name so that the temporary one, with what is put around it, stays below 255 bytes."""
    return name.encode()[:190].decode(errors="ignore")


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _lives(process: str) -> bool:
    """Tell whether another process lives. A container that starts again gives out the same numbers: not this one's."""
    if process == str(os.getpid()):
        return False
    try:
        os.kill(int(process), 0)
        # A process that nobody has waited for answers too: "<number> (<name>) Z ...".
        return (
            not Path(f"/proc/{process}/stat")
            .read_text(encoding="utf-8", errors="ignore")
            .rpartition(")")[2]
            .startswith(" Z")
        )
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except OSError:
        return True


def free_bytes(path: str) -> tuple[int, int]:
    """Give the file system that a path will lie on, as its device number, and the bytes that are free there."""
    place = Path(path).absolute()
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    return place.stat().st_dev, status.f_bavail * status.f_frsize
