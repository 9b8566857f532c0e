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
from pathlib import Path

__all__ = ["BuildError", "binary", "build"]

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
    folder = _folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Several test processes may want it at once; the lock goes with the process that holds it.
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _build(folder)
    return folder


def _folder() -> Path:
    """Give the folder for this state of the sources, complete once it is there."""
    digest = hashlib.sha256()
    for file in sorted([SOURCE / "go.mod", SOURCE / "go.sum", *SOURCE.glob("gcs/*.go")]):
        digest.update(f"{file.name}\0{file.read_text(encoding='utf-8')}\0".encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "kr-kfp" / "test-servers" / digest.hexdigest()[:16]


def _build(folder: Path) -> None:
    go = shutil.which("go")
    if go is None:
        msg = (
            "the S3 and GCS servers of the tests are built with Go, which is not on the PATH: install Go 1.26 or newer"
        )
        raise BuildError(msg)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        unfinished = Path(place, folder.name)
        unfinished.mkdir()
        # No names of local folders and no debugging symbols: smaller, and linked in half the time.
        command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", f"{unfinished}/"]
        done = subprocess.run([*command, *TARGETS.values()], cwd=SOURCE, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            msg = f"{' '.join(command)} in {SOURCE} failed:\n{done.stdout}{done.stderr}"
            raise BuildError(msg)
        unfinished.rename(folder)


if __name__ == "__main__":
    print(build())
