"""The cluster's own cgroups: one for the holder of its namespaces, and one for each node's pods.

Both kinds of machine are known: version 2 (one hierarchy) and version 1, also in the mixed form in which version 2 is
mounted beside it without controllers.
"""

from __future__ import annotations

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
    for root in hierarchies():
        for procs in (root / name).rglob("cgroup.procs"):
            for pid in _members(procs):
                _kill(pid)
    for root in hierarchies():
        wait_for(f"the end of all processes in {root / name}", lambda root=root: not _busy(root / name), seconds=30)  # type: ignore[misc]


def clear(name: str) -> list[int]:
    """Kill whatever runs in the cgroup, remove it and give the numbers of what was killed.

    The holder goes first: the kernel then kills all others of its namespace itself.
    """
    killed: list[int] = []
    roots = [root / name for root in hierarchies()]
    for folder in (_holders(name), *roots):
        for procs in folder.rglob("cgroup.procs"):
            killed += [pid for pid in _members(procs) if _kill(pid)]
    for root in roots:
        wait_for(f"the end of all processes in {root}", lambda root=root: not _busy(root), seconds=30)  # type: ignore[misc]
        # Deepest first: a cgroup with others in it cannot be removed.
        for folder in sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True):
            folder.rmdir()
        if root.is_dir():
            root.rmdir()
    return killed


def _holders(name: str) -> Path:
    return (ROOT if unified() else ROOT / "pids") / name / _HOLDER


def _members(procs: Path) -> list[int]:
    try:
        return [int(pid) for pid in procs.read_text(encoding="utf-8").split() if pid != "0"]
    except (FileNotFoundError, OSError):
        return []


def _busy(folder: Path) -> bool:
    return any(_members(procs) for procs in folder.rglob("cgroup.procs"))


def _kill(pid: int) -> bool:
    process = Process.find(pid)
    if process is None:
        return False
    process.signal(signal.SIGKILL)
    return True
