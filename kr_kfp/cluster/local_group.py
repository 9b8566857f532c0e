"""One group in the supervisor's memory: the LeaderWorkerSet, its pods, and who watches them."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Mapping
from typing import Any

from kr_kfp.cluster import local_processes as processes
from kr_kfp.cluster.local_lws import MAIN, merge_patch, pod_name, size, wants_pods, webhook_pod
from kr_kfp.cluster.local_places import Place
from kr_kfp.cluster.local_pod import Children, Pod, stamp

__all__ = ["Group", "Refusal"]

Json = dict[str, Any]

_MEMORY_CHECK = 0.2
"""Seconds between two looks at the memory of pods with a limit."""

_FIXED = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp")


class Refusal(Exception):  # noqa: N818 - an answer, not a failure of the supervisor
    """A request that is answered with an error.

    Args:
        status: HTTP status that an API server would give.
        reason: Its reason.
        message: What is wrong.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


class Group:
    """A group that makes what its manifest asks for, and changes with it.

    Args:
        manifest: The LeaderWorkerSet as it was given.
        place: The group's folder.
        launcher_env: Environment of the launcher that made it.
    """

    def __init__(self, manifest: Json, *, place: Place, launcher_env: Mapping[str, str]) -> None:
        loop = asyncio.get_running_loop()
        self._place, self._launcher_env = place, launcher_env
        self._children = Children(loop)
        self._pods: dict[str, Pod] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Queue[bytes | None]] = set()
        self._version = 1
        self.empty: asyncio.Future[None] = loop.create_future()
        """Done when the group is deleted and no pod is left; failed if the supervisor has a fault."""
        metadata = {**manifest["metadata"], "namespace": "local", "uid": str(uuid.uuid4())}
        metadata |= {"creationTimestamp": stamp(), "resourceVersion": str(self._version)}
        self.manifest: Json = {**manifest, "metadata": metadata}

    def start(self) -> None:
        """Make the first pods."""
        self._spawn(self._watch_memory())
        self._reconcile()

    def pods(self) -> list[Json]:
        """List the pods, the ones being deleted too."""
        return [pod.manifest for pod in self._pods.values()]

    def patch(self, patch: Json, version: str) -> Json:
        """Apply a merge patch. A changed pod template affects only pods that are made later.

        Raises:
            Refusal: If the group is of another version by now.
        """
        metadata = self.manifest["metadata"]
        if metadata["resourceVersion"] != version:
            message = f"{self._place.name} was changed: it is of version {metadata['resourceVersion']}, not {version}"
            raise Refusal(409, "Conflict", message)
        patched = merge_patch(self.manifest, patch)
        patched["metadata"] |= {key: metadata[key] for key in _FIXED if key in metadata}
        self.manifest = patched
        self._changed()
        self._reconcile()
        return self.manifest

    def delete(self) -> None:
        """Take the group and all its pods away."""
        metadata = self.manifest["metadata"]
        if "deletionTimestamp" not in metadata:
            metadata["deletionTimestamp"] = stamp()
            self._changed()
        self._reconcile()

    def delete_pod(self, name: str, uid: str, *, grace: float | None) -> None:
        """Take one pod away; another one of its name comes. Nothing happens if it is gone already."""
        pod = self._pods.get(name)
        if pod is not None and pod.uid == uid:
            pod.delete(grace=grace)
            self._reconcile()

    def watch(self) -> asyncio.Queue[bytes | None]:
        """Give a queue of lines: what exists now, ``synced``, every change. None ends it."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        queue.put_nowait(_line("group", self.manifest))
        for manifest in self.pods():
            queue.put_nowait(_line("pod", manifest))
        queue.put_nowait(_line("synced", None))
        self._watchers.add(queue)
        return queue

    def unwatch(self, queue: asyncio.Queue[bytes | None]) -> None:
        """Forget a watcher."""
        self._watchers.discard(queue)

    def tell_gone(self) -> None:
        """Tell the watchers that the group is gone, and end their watches."""
        self._tell("group-gone", self.manifest)
        for queue in self._watchers:
            queue.put_nowait(None)

    def _changed(self) -> None:
        self._version += 1
        self.manifest["metadata"]["resourceVersion"] = str(self._version)
        self._tell("group", self.manifest)

    def _reconcile(self) -> None:
        """Do what LWS does: leader first, workers with it; without its leader no worker lives."""
        name = self.manifest["metadata"]["name"]
        leader = self._pods.get(pod_name(name, 0))
        if not wants_pods(self.manifest) or (self._pods and (leader is None or leader.deleting)):
            for pod in list(self._pods.values()):
                pod.delete()
            if not self._pods and "deletionTimestamp" in self.manifest["metadata"] and not self.empty.done():
                self.empty.set_result(None)
            return
        for index in range(size(self.manifest)):
            if pod_name(name, index) not in self._pods:
                self._make_pod(index)

    def _make_pod(self, index: int) -> None:
        manifest = webhook_pod(self.manifest, index)
        manifest["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
        creating = {"waiting": {"reason": "ContainerCreating", "message": ""}}
        container = {"name": MAIN, "restartCount": 0, "ready": False, "state": creating, "lastState": {}}
        manifest["status"] = {"phase": "Pending", "conditions": [], "containerStatuses": [container]}
        pod = Pod(
            manifest,
            place=self._place,
            children=self._children,
            launcher_env=self._launcher_env,
            tell=lambda changed: self._tell("pod", changed),
        )
        self._pods[pod.name] = pod
        self._tell("pod", manifest)
        self._spawn(self._live(pod))

    async def _live(self, pod: Pod) -> None:
        await pod.run()
        del self._pods[pod.name]
        self._tell("pod-gone", pod.manifest)
        self._reconcile()

    async def _watch_memory(self) -> None:
        while not self.empty.done():
            await asyncio.sleep(_MEMORY_CHECK)
            limited = [pod for pod in self._pods.values() if pod.memory_limit is not None]
            if limited:
                everything = processes.table()
                for pod in limited:
                    pod.check_memory(everything)

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not self.empty.done():
            # A fault of ours: the supervisor ends with it, and its guard kills what is left.
            self.empty.set_exception(problem)

    def _tell(self, kind: str, manifest: Json) -> None:
        if self._watchers:
            line = _line(kind, manifest)
            for queue in self._watchers:
                queue.put_nowait(line)


def _line(kind: str, value: Json | None) -> bytes:
    return json.dumps({"kind": kind, "value": value}, separators=(",", ":")).encode() + b"\n"
