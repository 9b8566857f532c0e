"""The cluster's own cgroups: one for the holder of its namespaces, and one for each node's pods.

Both kinds of machine are known: version 2 (one hierarchy) and version 1, also in the mixed form in which version 2 is
mounted beside it without controllers.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.cluster.processes import Process, wait_for

ROOT = Path("/sys/fs/cgroup")

_HOLDER = "holder"


def unified() -> bool:
    """Say whether this machine has version 2 alone."""
    return (ROOT / "cgroup.controllers").is_file()


def hierarchies() -> list[Path]:
    """List the roots in which a cgroup has to be made."""
    if unified():
        return [ROOT]
    # Names that are links stand for hierarchies of several controllers, which have a folder of their own.
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink())


def create(name: str) -> None:
    """Make a cgroup in every hierarchy."""
    for root in hierarchies():
        folder = root
        for part in Path(name).parts:
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            if unified():
                available = (parent / "cgroup.controllers").read_text(encoding="utf-8").split()
                (parent / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in available), encoding="utf-8")
            elif root.name.startswith("cpuset"):
                # Version 1 starts with no processors and no memory, in which nothing can run.
                for file in ("cpuset.cpus", "cpuset.mems"):
                    (folder / file).write_text((parent / file).read_text(encoding="utf-8"), encoding="utf-8")


def adopt(name: str, pid: int) -> None:
    """Put a process into the cgroup's part for holders (in one hierarchy, which is enough to find it again)."""
    folder = _holders(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.procs").write_text(str(pid), encoding="utf-8")


def kill(name: str) -> None:
    """Kill whatever runs in the cgroup and wait until it is gone; the cgroup stays."""
    folders = [root / name for root in hierarchies()]
    for folder in folders:
        for pid in _members(folder):
            _kill(pid)
    wait_for(f"the end of all processes in {name}", lambda: not any(map(_members, folders)), seconds=30)


def clear(name: str) -> None:
    """Kill whatever runs in the cgroup and remove it.

    The holder goes first: the kernel then kills all others of its namespace itself.
    """
    for pid in _members(_holders(name)):
        _kill(pid)
    wait_for(f"the end of the holder in {name}", lambda: not _members(_holders(name)), seconds=30)
    kill(name)
    for root in hierarchies():
        # Deepest first: a cgroup with others in it cannot be removed.
        for folder, _, _ in os.walk(root / name, topdown=False):
            Path(folder).rmdir()


def _holders(name: str) -> Path:
    return (ROOT if unified() else ROOT / "pids") / name / _HOLDER


def _members(folder: Path) -> list[int]:
    """List the processes of a cgroup and of those in it, which may vanish meanwhile."""
    found: list[int] = []
    for name, _, _ in os.walk(folder):
        try:
            words = Path(name, "cgroup.procs").read_text(encoding="utf-8").split()
        except OSError:
            continue
        # Processes of a foreign namespace have no number here.
        found += [int(word) for word in words if word != "0"]
    return found


def _kill(pid: int) -> None:
    process = Process.find(pid)
    if process is not None:
        process.signal(signal.SIGKILL)
