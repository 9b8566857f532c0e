"""One pod of a local group: what the kubelet does with it, from its first container start to its end.

Init containers and containers beside ``main`` are not run: the launcher's machine has kr_kfp already, and there are no
images. A pod without ``main``, a Pathways worker, is shown as running and has no process. The container is restarted
for ever, as in every pod of a StatefulSet.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kr_kfp.cluster import local_processes as processes
from kr_kfp.cluster.local_env import ConfigError, Start, container_start
from kr_kfp.cluster.local_lws import MAIN, stands_idle
from kr_kfp.cluster.local_places import LOG, LOG_END, Place, remove_tree

__all__ = ["Children", "Pod", "back_off", "stamp"]

Json = dict[str, Any]

_MESSAGE_LIMIT = 4096  # As kr_kfp.wire.MESSAGE_LIMIT; kubernetes/kubernetes MaxContainerTerminationMessageLength.
_START_ERROR = 128  # What containerd gives for a program that cannot be started.


def stamp() -> str:
    """Give the time as Kubernetes writes it, with microseconds."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def back_off(restarts: int) -> float:
    """Give the seconds to wait before a restart: none for the first three, then 1, 2, 4 ... up to 60."""
    return 0.0 if restarts <= 3 else min(60.0, 2.0 ** (restarts - 4))


class Children:
    """Starts containers and tells when their first processes end; strays that were inherited are collected too.

    Args:
        loop: The running event loop, in the main thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._prepare = processes.die_with_parent(signal.SIGKILL)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)

    def start(self, start: Start, *, cwd: Path, log: Path) -> tuple[int, asyncio.Future[int]]:
        """Start a container's first process at the head of a process group of its own.

        Not of a session: Linux schedules sessions against each other (autogroup, sched(7)), and hosts that wait for
        one another in collectives then lose a third of their speed to wake-ups (measured on 2 cores, 6.18).

        Returns:
            Its id, and a future of its exit code: negative is the signal that killed it.

        Raises:
            OSError: If it cannot be started.
        """
        with log.open("ab") as output:
            process = subprocess.Popen(
                start.command,
                env=start.env,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                preexec_fn=self._prepare,  # noqa: PLW1509 - this process has one thread
            )
        # Collected below and not by Popen, which would call it still running when it is dropped.
        process.returncode = 0
        future = self._loop.create_future()
        self._waiting[process.pid] = future
        return process.pid, future

    def _reap(self) -> None:
        for pid, status in processes.reap():
            future = self._waiting.pop(pid, None)
            if future is not None:
                future.set_result(os.waitstatus_to_exitcode(status))


class Pod:
    """A pod and its container.

    Args:
        manifest: The pod as LWS made it, with UID; changed in place as its status changes.
        place: The group's folder.
        children: Starts its containers.
        launcher_env: Environment of the launcher that made the group.
        tell: Called after every change.
    """

    def __init__(
        self,
        manifest: Json,
        *,
        place: Place,
        children: Children,
        launcher_env: Mapping[str, str],
        tell: Callable[[Json], None],
    ) -> None:
        self.manifest, self._children, self._tell = manifest, children, tell
        self._place, self._launcher_env = place, launcher_env
        metadata = manifest["metadata"]
        self.name: str = metadata["name"]
        self.uid: str = metadata["uid"]
        self.folder = place.pod(self.name, self.uid)
        self.memory_limit: float | None = None
        self._grace = float(manifest["spec"].get("terminationGracePeriodSeconds", 30))
        self._leader = 0
        self._running = False
        self._out_of_memory = False
        self._deleted = asyncio.Event()

    @property
    def deleting(self) -> bool:
        """Whether the pod was asked to end."""
        return self._deleted.is_set()

    async def run(self) -> None:
        """Live until the pod is deleted and all its processes and its folder are gone."""
        metadata, status = self.manifest["metadata"], self.manifest["status"]
        (self.folder / "work").mkdir(parents=True)
        (self.folder / "uid").write_text(self.uid, encoding="ascii")
        if stands_idle(self.manifest["spec"]):
            self._show_idle()
            await self._deleted.wait()
            remove_tree(self.folder)
            return
        try:
            start = container_start(
                self.manifest, self.folder, launcher_env=self._launcher_env, pip_lock=self._place.pip_lock
            )
        except ConfigError as problem:
            self._show(waiting={"reason": "CreateContainerConfigError", "message": str(problem)})
            await self._deleted.wait()
        else:
            self.memory_limit = start.memory_limit
            status["startTime"] = metadata["creationTimestamp"]
            await self._restart_for_ever(start)
        remove_tree(self.folder)

    def delete(self, *, grace: float | None = None) -> None:
        """Ask the pod to end: SIGTERM now, SIGKILL after its grace.

        Args:
            grace: Seconds in place of the pod's own grace; a pod that is being deleted already is hurried by it. 0
                kills at once.
        """
        if not self.deleting:
            grace = self._grace if grace is None else grace
            self.manifest["metadata"]["deletionTimestamp"] = stamp()
            self._deleted.set()
            self._tell(self.manifest)
            if self._running and grace > 0:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._leader, signal.SIGTERM)
        if grace is None:
            return
        if grace > 0:
            asyncio.get_running_loop().call_later(grace, self._kill)
        else:
            self._kill()

    def check_memory(self, everything: Mapping[int, processes.Process]) -> None:
        """Kill the largest process if all of them together have too much memory, as the kernel would.

        The container's first process is taken last: the runner is to live and tell.
        """
        if not self._running or self.memory_limit is None:
            return
        sizes = processes.above(self.memory_limit, self._processes(everything))
        if sizes:
            self._out_of_memory = True
            processes.kill([max(sizes, key=lambda pid: (pid != self._leader, sizes[pid]))])

    async def _restart_for_ever(self, start: Start) -> None:
        last: Json = {}
        restarts = 0
        while not self.deleting:
            last = await self._run_once(start, restarts, last)
            restarts += 1
            delay = back_off(restarts)
            if delay and not self.deleting:
                message = f"back-off {delay:g}s restarting failed container={MAIN} pod={self.name}"
                waiting = {"reason": "CrashLoopBackOff", "message": message}
                self._show(waiting=waiting, restarts=restarts - 1, last=last)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._deleted.wait(), delay)

    async def _run_once(self, start: Start, restarts: int, last: Json) -> Json:
        """Run the container once and give its ``terminated`` state."""
        log = self.folder / f"{LOG}{restarts}"
        self._drop_old_logs(restarts)
        message, cwd = self.folder / "termination-log", self.folder / "cwd"
        began = stamp()
        self._out_of_memory = False
        try:
            cwd.mkdir(exist_ok=True)
            message.write_bytes(b"")
            self._leader, exited = self._children.start(start, cwd=cwd, log=log)
        except (OSError, subprocess.SubprocessError) as problem:
            code, text = _START_ERROR, f"cannot start {start.command[0]!r}: {problem}"
            terminated = {"exitCode": code, "reason": "StartError", "message": text}
        else:
            self._running = True
            (self.folder / "pid").write_text(str(self._leader), encoding="ascii")
            self._show(running={"startedAt": began}, restarts=restarts, last=last)
            code = await exited
            self._running = False
            await self._clear_processes()
            terminated = _terminated(code, out_of_memory=self._out_of_memory, message=_tail(message))
        (self.folder / f"{LOG}{restarts}{LOG_END}").touch()
        terminated |= {"startedAt": began, "finishedAt": stamp()}
        self._show(terminated=terminated, restarts=restarts, last=last)
        return terminated

    async def _clear_processes(self) -> None:
        """Kill what the container left behind and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._leader, signal.SIGKILL)
        while left := self._processes(processes.table()):
            processes.kill(left)
            await asyncio.sleep(0.005)

    def _processes(self, everything: Mapping[int, processes.Process]) -> set[int]:
        return processes.pod_processes(everything, ancestor=os.getpid(), uid=self.uid, group=self._leader)

    def _kill(self) -> None:
        if self._running:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, signal.SIGKILL)

    def _drop_old_logs(self, restarts: int) -> None:
        """Keep the first log, which is followed, and the one before; a container that fails for ever fills no disk."""
        if restarts > 2:
            (self.folder / f"{LOG}{restarts - 2}").unlink(missing_ok=True)
            (self.folder / f"{LOG}{restarts - 2}{LOG_END}").unlink(missing_ok=True)

    def _show_idle(self) -> None:
        """Show the containers of a pod without a process as running."""
        now = stamp()
        names = [container["name"] for container in self.manifest["spec"]["containers"]]
        self.manifest["status"] |= {
            "phase": "Running",
            "startTime": now,
            "containerStatuses": [
                {
                    "name": name,
                    "restartCount": 0,
                    "ready": True,
                    "state": {"running": {"startedAt": now}},
                    "lastState": {},
                }
                for name in names
            ],
        }
        self._tell(self.manifest)

    def _show(
        self,
        *,
        running: Json | None = None,
        terminated: Json | None = None,
        waiting: Json | None = None,
        restarts: int = 0,
        last: Json | None = None,
    ) -> None:
        """Put a container state into the pod's status and tell of it."""
        status = self.manifest["status"]
        states = {"running": running, "terminated": terminated, "waiting": waiting}
        if running:
            status["phase"] = "Running"
        status["containerStatuses"] = [
            {
                "name": MAIN,
                "restartCount": restarts,
                "ready": running is not None,
                "state": {key: value for key, value in states.items() if value is not None},
                "lastState": {"terminated": last} if last else {},
            }
        ]
        self._tell(self.manifest)


def _terminated(code: int, *, out_of_memory: bool, message: str) -> Json:
    """Give exit code, reason and message as Kubernetes shows them."""
    reason = "Completed" if code == 0 else "OOMKilled" if out_of_memory else "Error"
    state: Json = {"exitCode": 128 - code if code < 0 else code, "reason": reason, "message": message}
    if code < 0:
        state["signal"] = -code
    return state


def _tail(path: Path) -> str:
    """Read the last 4,096 bytes of a file, which user code may have filled with anything."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MESSAGE_LIMIT))
            text = file.read(_MESSAGE_LIMIT).decode("utf-8", "replace")
    except OSError:
        return ""
    return text.encode()[-_MESSAGE_LIMIT:].decode("utf-8", "ignore")
