"""Build the servers from their Go modules, once for each state of what they are made of.

``python -m tests.servers.build`` does so ahead of the tests: about three minutes on two cores.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["BuildError", "binary", "build", "kept"]

SOURCE = Path(__file__).parent / "go"
TARGETS = {"gcs": "./gcs", "versitygw": "github.com/versity/versitygw/cmd/versitygw"}


class BuildError(Exception):
    """A server could not be built; the message says why."""


def binary(name: str) -> Path:
    """Give the path of a server's program, built if need be.

    Args:
        name: A key of ``TARGETS``.

    Raises:
        BuildError: If it cannot be built.
    """
    return build() / name


def build() -> Path:
    """Give the folder with all programs, built if need be.

    Raises:
        BuildError: If there is no Go, or it fails.
    """
    digest = hashlib.sha256()
    for file in sorted([SOURCE / "go.mod", SOURCE / "go.sum", *SOURCE.glob("gcs/*.go")]):
        digest.update(f"{file.name}\0{file.read_text(encoding='utf-8')}\0".encode())
    return kept(digest.hexdigest()[:16], _build)


def kept(name: str, make: Callable[[Path], None]) -> Path:
    """Give a folder of the user's cache, made if need be; it is complete once it is there.

    Args:
        name: Its name, of which everything that decides its content is a part; without a dot.
        make: Fills it. What it raises leaves no folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "kr-kfp" / "test-servers" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several test processes may want it at once; the lock goes with the process that holds it.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as place:
                unfinished = Path(place, name)
                unfinished.mkdir()
                make(unfinished)
                unfinished.rename(folder)
    return folder


def _build(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        msg = (
            "the S3 and GCS servers of the tests are built with Go, which is not on the PATH: install Go 1.26 or newer"
        )
        raise BuildError(msg)
    # No names of local folders and no debugging symbols: smaller, and linked in half the time.
    command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", f"{folder}/"]
    done = subprocess.run([*command, *TARGETS.values()], cwd=SOURCE, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"{' '.join(command)} in {SOURCE} failed:\n{done.stdout}{done.stderr}"
        raise BuildError(msg)


if __name__ == "__main__":
    print(build())
