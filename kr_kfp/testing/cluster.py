"""A cluster in memory."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kr_kfp.cluster.api import Event, Manifest, Ports, Sink, Watch
from kr_kfp.errors import ConflictError, NotFoundError
from kr_kfp.spec.leaderworkerset import LABEL
from kr_kfp.spec.observe import pod_index
from kr_kfp.spec.pod import CONTAINER
from kr_kfp.testing.clock import FakeClock
from kr_kfp.wire import Outcome, outcome_line, outcome_message

__all__ = ["FakeCluster"]


class _FakeWatch:
    def __init__(self, watchers: list[Sink], sink: Sink) -> None:
        self._watchers, self._sink = watchers, sink

    def close(self) -> None:
        if self._sink in self._watchers:
            self._watchers.remove(self._sink)


class FakeCluster:
    """A cluster in memory that does what LeaderWorkerSet and kubelet do, when the test says so.

    Args:
        clock: Its time; deletions take effect :attr:`ending` seconds later.
        start: Whether pods run as soon as they are made; else :meth:`start_host` starts each.
        pod: The launcher's own pod; None is outside Kubernetes.

    Attributes:
        calls: Every request, as ``(verb, name)``, in order.
        groups: LeaderWorkerSets by name.
        pods: Pods by UID, those that exist.
        logs: Log of each pod by UID.
        config_maps: ``data`` of each ConfigMap by name.
        dead_holders: Holders that do not live any more; all others do.
        ending: Seconds that a pod and a group take from their deletion until they are gone.
    """

    def __init__(self, clock: FakeClock, *, start: bool = True, pod: Manifest | None = None) -> None:
        self.clock, self.start, self.pod = clock, start, pod
        self.calls: list[tuple[str, str]] = []
        self.groups: dict[str, Manifest] = {}
        self.pods: dict[str, Manifest] = {}
        self.logs: dict[str, bytes] = {}
        self.dead_holders: set[str] = set()
        self.config_maps: dict[str, dict[str, str]] = {}
        self.ending = 1.0
        self._watchers: list[Sink] = []
        self._numbers = itertools.count(1)

    where = "the fake cluster"
    is_local = False

    def ports(self, name: str) -> Ports:
        """Give the fixed ports."""
        del name
        return Ports()

    def own_pod(self) -> Manifest | None:
        """Give the launcher's own pod."""
        return self.pod

    def config_map(self, name: str) -> dict[str, str]:
        """Give the data of a ConfigMap; see ``config_maps``."""
        return dict(self.config_maps.get(name, {}))

    def holder(self) -> str:
        """Give this launcher's identity."""
        return "fake-launcher"

    def is_holder_alive(self, holder: str) -> bool:
        """Tell whether another launcher lives; see ``dead_holders``."""
        return bool(holder) and holder not in self.dead_holders

    def create_group(self, manifest: Manifest) -> Manifest:
        """Create a group and its pods."""
        name = manifest["metadata"]["name"]
        self.calls.append(("create", name))
        if name in self.groups:
            msg = f"{name} exists"
            raise ConflictError(msg, status=409, reason="AlreadyExists")
        group = copy.deepcopy(manifest)
        group["metadata"] |= {"uid": self._uid(), "creationTimestamp": self._stamp()}
        group["metadata"]["resourceVersion"] = self._version()
        self.groups[name] = group
        self._make_pods(group)
        return copy.deepcopy(group)

    def read_group(self, name: str) -> Manifest | None:
        """Read a group."""
        self.calls.append(("get", name))
        return copy.deepcopy(self.groups.get(name))

    def patch_group(self, name: str, *, patch: Manifest, resource_version: str) -> Manifest:
        """Apply a merge patch; a change of replicas makes or deletes pods."""
        self.calls.append(("patch", name))
        group = self.groups.get(name)
        if group is None:
            msg = f"{name} is gone"
            raise NotFoundError(msg, status=404, reason="NotFound")
        if group["metadata"]["resourceVersion"] != resource_version:
            msg = f"{name} was changed"
            raise ConflictError(msg, status=409, reason="Conflict")
        before = group["spec"]["replicas"]
        _merge(group, patch)
        group["metadata"]["resourceVersion"] = self._version()
        self._tell(Event("group", copy.deepcopy(group)))
        after = group["spec"]["replicas"]
        if before and not after:
            for uid in list(self.pods):
                self._end_pod(uid)
        elif after and not before:
            self._make_pods(group)
        return copy.deepcopy(group)

    def delete_group(self, name: str, *, uid: str) -> None:
        """Delete a group and its pods; see ``ending``."""
        self.calls.append(("delete", name))
        group = self.groups.get(name)
        if group is None or group["metadata"]["uid"] != uid:
            return
        group["metadata"] |= {"deletionTimestamp": self._stamp(), "resourceVersion": self._version()}
        self._tell(Event("group", copy.deepcopy(group)))
        for pod_uid in list(self.pods):
            self._end_pod(pod_uid)

        def gone() -> None:
            if self.groups.get(name) is group:
                del self.groups[name]
                self._tell(Event("group-gone", copy.deepcopy(group)))

        self.clock.after(self.ending, gone)

    def list_pods(self, name: str) -> list[Manifest]:
        """List pods."""
        self.calls.append(("list", name))
        return copy.deepcopy(list(self.pods.values()))

    def delete_pod(self, name: str, *, uid: str, grace_seconds: float | None = None) -> None:
        """Delete one pod, with a leader all; others take their places when they are gone, if the group wants any."""
        self.calls.append(("delete-pod", name))
        del grace_seconds
        pod = self.pods.get(uid)
        if pod is not None:
            for going in list(self.pods) if pod_index(pod) == 0 else [uid]:
                self._end_pod(going)

    def delete_pods(self, pods: Sequence[tuple[str, str]], *, grace_seconds: float) -> None:
        """Delete pods, given by name and UID."""
        for name, uid in pods:
            self.delete_pod(name, uid=uid, grace_seconds=grace_seconds)

    def watch(self, name: str, sink: Sink) -> Watch:
        """Tell what exists, then every change."""
        self.calls.append(("watch", name))
        self._watchers.append(sink)
        if name in self.groups:
            sink(Event("group", copy.deepcopy(self.groups[name])))
        for pod in self.pods.values():
            sink(Event("pod", copy.deepcopy(pod)))
        sink(Event("synced"))
        if name not in self.groups:
            sink(Event("group-gone", {"metadata": {"name": name}}))
        return _FakeWatch(self._watchers, sink)

    def read_log(self, pod: Manifest, *, previous: bool = False, tail_bytes: int | None = None) -> bytes:
        """Read a pod's log; there is none any more when the pod is gone."""
        del previous, tail_bytes
        uid = pod["metadata"]["uid"]
        return self.logs.get(uid, b"") if uid in self.pods else b""

    def follow_log(self, pod: Manifest) -> Iterator[bytes]:
        """Give a pod's log as it is now."""
        yield self.logs.get(pod["metadata"]["uid"], b"")

    def node_is_lost(self, pod: Manifest) -> bool:
        """Tell whether the pod's node is gone: never here."""
        del pod
        return False

    def start_host(self, index: int) -> None:
        """Let a host's container run."""
        self._set(index, {"running": {"startedAt": self._stamp()}})

    def wait_host(self, index: int, reason: str, message: str = "") -> None:
        """Let a host wait for a reason such as ``ImagePullBackOff``."""
        self._set(index, {"waiting": {"reason": reason, "message": message}})

    def end_host(self, outcome: Outcome, *, reason: str = "") -> None:
        """Let user code of a host end; the kubelet restarts the container, which then holds."""
        pod = self._pod(outcome.host)
        self.logs[pod["metadata"]["uid"]] = (outcome_line(outcome) + "\n").encode()
        terminated = {
            "exitCode": outcome.code,
            "reason": reason or ("Completed" if outcome.code == 0 else "Error"),
            "message": outcome_message(outcome),
            "startedAt": self._stamp(),
            "finishedAt": self._stamp(),
        }
        self._set(outcome.host, {"running": {"startedAt": self._stamp()}}, last=terminated, restarts=1)

    def kill_host(self, index: int, *, code: int = 137, reason: str = "Error") -> None:
        """Let a host's container end without an outcome."""
        self._set(index, {"terminated": {"exitCode": code, "reason": reason, "finishedAt": self._stamp()}})

    def break_sidecar(self, index: int, name: str, *, code: int = 1) -> None:
        """Let a native sidecar of a host end; the kubelet starts it again, and the host's own container lives on."""
        pod = self._pod(index)
        terminated = {"exitCode": code, "reason": "Error", "finishedAt": self._stamp()}
        state = {"running": {"startedAt": self._stamp()}}
        status = {"name": name, "restartCount": 1, "state": state, "lastState": {"terminated": terminated}}
        pod["status"] = {**pod["status"], "initContainerStatuses": [status]}
        self._tell(Event("pod", copy.deepcopy(pod)))

    def restart_server(self, index: int, *, code: int = 1) -> None:
        """Let the server of a Pathways worker end; the kubelet starts it again."""
        terminated = {"exitCode": code, "reason": "Error", "finishedAt": self._stamp()}
        self._set(index, {"running": {"startedAt": self._stamp()}}, last=terminated, restarts=1)

    def lose_host(self, index: int) -> None:
        """Delete a host's pod; another one of the same name and with a new UID takes its place and runs.

        With a leader its workers go, and come anew too.
        """
        uid = self._pod(index)["metadata"]["uid"]
        if index == 0:
            for other in [other for other in self.pods if other != uid]:
                self._end_pod(other)
        self._remove(uid)

    def _pod(self, index: int) -> Manifest:
        return next(pod for pod in self.pods.values() if pod_index(pod) == index)

    def _set(self, index: int, state: Manifest, *, last: Manifest | None = None, restarts: int = 0) -> None:
        pod = self._pod(index)
        names = [container["name"] for container in pod["spec"]["containers"]]
        name = CONTAINER if CONTAINER in names else names[0]
        status = {"name": name, "restartCount": restarts, "state": state, "lastState": {}}
        if last:
            status["lastState"] = {"terminated": last}
        pod["status"] = {"phase": "Running", "startTime": self._stamp(), "containerStatuses": [status]}
        self._tell(Event("pod", copy.deepcopy(pod)))

    def _make_pods(self, group: Manifest) -> None:
        if "deletionTimestamp" in group["metadata"]:
            return
        there = {pod_index(pod) for pod in self.pods.values()}
        for index in range(group["spec"]["leaderWorkerTemplate"]["size"]):
            if index not in there:  # Else when that one is gone: there is one pod of a name.
                self._make_pod(group, index)

    def _make_pod(self, group: Manifest, index: int) -> None:
        name = group["metadata"]["name"]
        uid = self._uid()
        templates = group["spec"]["leaderWorkerTemplate"]
        template = (
            templates["workerTemplate"] if index else templates.get("leaderTemplate", templates["workerTemplate"])
        )
        self.pods[uid] = {
            "metadata": {
                "name": f"{name}-0-{index}" if index else f"{name}-0",
                "uid": uid,
                "labels": {f"{LABEL}/name": name, f"{LABEL}/worker-index": str(index)},
                "creationTimestamp": self._stamp(),
            },
            "spec": copy.deepcopy(template["spec"]),
            "status": {"phase": "Pending"},
        }
        self._tell(Event("pod", copy.deepcopy(self.pods[uid])))
        if self.start:
            self.start_host(index)

    def _end_pod(self, uid: str) -> None:
        if "deletionTimestamp" in self.pods[uid]["metadata"]:
            return
        self.pods[uid]["metadata"]["deletionTimestamp"] = self._stamp()
        self._tell(Event("pod", copy.deepcopy(self.pods[uid])))

        self.clock.after(self.ending, lambda: self._remove(uid))

    def _remove(self, uid: str) -> None:
        """Take a pod away, and make another one in its place if its group still wants any."""
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        self._tell(Event("pod-gone", copy.deepcopy(pod)))
        group = self.groups.get(pod["metadata"]["labels"][f"{LABEL}/name"])
        if group and group["spec"]["replicas"] and "deletionTimestamp" not in group["metadata"]:
            self._make_pod(group, pod_index(pod))

    def _tell(self, event: Event) -> None:
        for sink in list(self._watchers):
            sink(event)

    def _uid(self) -> str:
        return f"uid-{next(self._numbers)}"

    def _version(self) -> str:
        return str(next(self._numbers))

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self.clock.now(), UTC).isoformat(timespec="microseconds")


def _merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7386) in place."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _merge(target[key], value)
        else:
            target[key] = json.loads(json.dumps(value))
