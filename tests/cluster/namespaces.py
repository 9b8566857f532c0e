"""A corner of the machine of one's own: processes, mounts and network that vanish together.

The first process inside does nothing but hold the corner open. When it ends, the kernel kills every other process in
it and drops its mounts and network devices: nothing can be left over but cgroups (empty then) and files. It runs in
the cluster's cgroup, which is how a later start finds it after a crash, whatever became of the files.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.processes import Process, children, spawn, wait_for


@dataclass(slots=True, kw_only=True)
class Namespaces:
    """The namespaces held by one process, and what is started in them."""

    holder: Process
    logs: Path
    """Folder for what started processes print."""
    _started: list[Process] = field(default_factory=list)

    @classmethod
    def create(cls, *, pause: Path, logs: Path, cgroup: str) -> Namespaces:
        """Make process, mount and network namespaces, held by `pause` in the named cgroup."""
        command = [
            "unshare",
            "--pid",
            "--fork",
            "--mount",
            "--propagation=private",
            "--mount-proc",
            "--net",
            str(pause),
        ]
        logs.mkdir(parents=True, exist_ok=True)
        outside = spawn(command, logs / "namespaces.log", os.environ)
        wait_for("the namespaces", lambda: _program(outside.pid) == pause.name or not outside.alive(), seconds=60)
        held = Process.find(next(iter(children(outside.pid)), 0))
        if held is None:
            msg = f"unshare failed: {(logs / 'namespaces.log').read_text(encoding='utf-8')}"
            raise RuntimeError(msg)
        cgroups.adopt(cgroup, held.pid)
        made = cls(holder=held, logs=logs)
        made._started.append(outside)
        # Mounts made by a kubelet must be seen by its containerd, and by the containers that ask for them.
        made.run("mount", "--make-rshared", "/")
        return made

    def inside(self, command: Sequence[str | Path]) -> list[str]:
        """Give the command that runs a command inside."""
        return [
            "nsenter",
            "--wd=/",
            f"--target={self.holder.pid}",
            "--pid",
            "--mount",
            "--net",
            "--",
            *map(str, command),
        ]

    def run(self, *command: str | Path, text: str | None = None) -> str:
        """Run a command inside and give what it prints.

        Raises:
            RuntimeError: It failed; with what it printed.
        """
        done = subprocess.run(self.inside(command), input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}"
            raise RuntimeError(msg)
        return done.stdout

    def start(self, name: str, command: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> Process:
        """Start a process inside that outlives this one; it prints to <logs>/<name>.log.

        Raises:
            RuntimeError: It ended at once; with what it printed.
        """
        log = self.logs / f"{name}.log"
        outside = spawn(self.inside(command), log, os.environ | (env or {}))
        self._started.append(outside)
        wait_for(f"the start of {name}", lambda: bool(children(outside.pid)) or not outside.alive(), seconds=60)
        found = Process.find(next(iter(children(outside.pid)), 0))
        if found is None:
            msg = f"{name} did not start: {log.read_text(encoding='utf-8')[-2000:]}"
            raise RuntimeError(msg)
        return found

    def end(self) -> None:
        """Kill everything inside and wait until the last process is gone."""
        self.holder.signal(signal.SIGKILL)
        wait_for("the end of the namespaces", lambda: not self.holder.alive(), seconds=30)
        for outside in self._started:
            outside.collect()
        self._started.clear()


def _program(parent: int) -> str:
    """Name the program that the first child of a process runs now."""
    for child in children(parent):
        try:
            return Path(f"/proc/{child}/comm").read_text(encoding="utf-8").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
    return ""
