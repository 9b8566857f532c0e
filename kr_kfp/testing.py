"""For tests of steps and of everything that talks to a cluster.

:func:`run` runs a step on real processes of this machine, one per host, and gives its outputs. :class:`FakeCluster`
and :class:`FakeClock` stand in for a cluster and for time where a test wants to say what happens when.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kr_kfp.cluster.api import Event, Manifest, Ports, Sink, Watch
from kr_kfp.errors import ConflictError, NotFoundError, StepFailedError
from kr_kfp.spec.leaderworkerset import LABEL
from kr_kfp.spec.observe import pod_index
from kr_kfp.spec.pod import CONTAINER
from kr_kfp.wire import Outcome, outcome_line, outcome_message

if TYPE_CHECKING:
    from kr_kfp.authoring.component import Component

__all__ = ["FakeClock", "FakeCluster", "Result", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a step left behind.

    Args:
        exit_code: Exit code of the task's command.
        outputs: Output parameters by name as Python values, output artifacts by name as KFP artifact objects.
        log: Everything that the task printed, hosts' lines with their prefix.
        root: The task's folder: output artifacts, checkpoints.
    """

    exit_code: int
    outputs: Mapping[str, Any]
    log: str
    root: Path

    @property
    def output(self) -> Any:
        """The value that the function returned, where it returned a single one."""
        return self.outputs["Output"]


def run(
    step: Component,
    hosts: int | None = None,
    *,
    root: str | Path | None = None,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 600.0,
    **arguments: Any,
) -> Result:
    """Run a step here, each host a process, exactly as kfp.local would run its task.

    Args:
        step: A component made by :func:`kr_kfp.component`.
        hosts: Hosts without accelerator instead of the step's own shape; None keeps the shape.
        root: Folder for outputs and checkpoints; the same folder again resumes. None is a new temporary folder.
        check: Whether a failing step raises.
        env: Environment variables beside the current ones.
        timeout: Seconds until the task is killed.
        **arguments: The function's arguments; input artifacts as KFP artifact objects or as paths.

    Raises:
        StepFailedError: If the step fails and ``check`` is set; the message is the end of its log.

    Example:
        ``assert kr_kfp.testing.run(train, hosts=2, epochs=1).outputs["accuracy"] > 0.9``
    """
    from kfp.local import executor_input_utils, executor_output_utils, placeholder_utils, utils
    from kfp.local.subprocess_task_handler import replace_python_executable

    from kr_kfp.authoring.component import prepare_local

    chosen = step if hosts is None else step.options(accelerator=None, slices=1, hosts=hosts, backend="lws")
    prepare_local(chosen)
    spec = chosen.component_spec.to_pipeline_spec()
    name, component = next(iter(spec.components.items()))
    container = utils.struct_to_executor_spec(spec.deployment_spec["executors"][component.executor_label]).container
    folder = Path(root or tempfile.mkdtemp(prefix="kr-kfp-run-")).absolute() / name.removeprefix("comp-")
    executor_input = executor_input_utils.construct_executor_input(
        component_spec=component,
        arguments={key: _artifact(key, value, component) for key, value in arguments.items()},
        task_root=str(folder),
        block_input_artifact=False,
    )
    command = placeholder_utils.replace_placeholders(
        full_command=[*container.command, *container.args],
        executor_input_dict=executor_input_utils.executor_input_to_dict(executor_input, component),
        pipeline_resource_name=folder.parent.name,
        task_resource_name=folder.name,
        pipeline_root=str(folder.parent),
        unique_pipeline_id=placeholder_utils.make_random_id(),
    )
    process = subprocess.run(
        replace_python_executable(command, sys.executable),
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=timeout,
    )
    log = process.stdout.decode("utf-8", "replace")
    if process.returncode and check:
        raise StepFailedError("\n".join(log.splitlines()[-40:]))
    outputs: Mapping[str, Any] = {}
    if process.returncode == 0:
        outputs = executor_output_utils.get_outputs_for_task(executor_input=executor_input, component_spec=component)
    return Result(exit_code=process.returncode, outputs=outputs, log=log, root=folder)


def _artifact(key: str, value: Any, component: Any) -> Any:
    """Give an artifact object where a path was given for an input artifact."""
    if key not in component.input_definitions.artifacts or not isinstance(value, str | os.PathLike):
        return value
    from kfp.dsl.types import artifact_types

    title = component.input_definitions.artifacts[key].artifact_type.schema_title
    kind = artifact_types._SCHEMA_TITLE_TO_TYPE.get(title, artifact_types.Artifact)  # noqa: SLF001 - KFP's own table
    return kind(name=key, uri=os.fspath(value), metadata={})


class FakeClock:
    """Time that moves only when somebody waits, and a script of what happens when.

    Args:
        start: Unix seconds to begin at.
    """

    def __init__(self, start: float = 1_000_000.0) -> None:
        self._now = start
        self._inbox: deque[Event] = deque()
        self._script: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Give Unix seconds."""
        return self._now

    def put(self, event: Event) -> None:
        """Hand an event in."""
        self._inbox.append(event)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let ``action`` happen ``seconds`` from now, when somebody waits for that long."""
        heapq.heappush(self._script, (self._now + seconds, next(self._order), action))

    def next_event(self, deadline: float | None) -> Event | None:
        """Give the next event; time goes on to the next scripted action, or to the deadline.

        Raises:
            AssertionError: If nothing can ever happen any more.
        """
        while not self._inbox:
            if self._script and (deadline is None or self._script[0][0] <= deadline):
                self._now, _, action = heapq.heappop(self._script)
                action()
            elif deadline is None:
                msg = "waiting for ever: no event, no script, no deadline"
                raise AssertionError(msg)
            else:
                self._now = max(self._now, deadline)
                return None
        return self._inbox.popleft()


class _FakeWatch:
    def __init__(self, watchers: list[Sink], sink: Sink) -> None:
        self._watchers, self._sink = watchers, sink

    def close(self) -> None:
        if self._sink in self._watchers:
            self._watchers.remove(self._sink)


class FakeCluster:
    """A cluster in memory that does what LeaderWorkerSet and kubelet do, when the test says so.

    Args:
        clock: Its time; deletions take effect one second later.
        start: Whether pods run as soon as they are made; else :meth:`start_host` starts each.
        pod: The launcher's own pod; None is outside Kubernetes.

    Attributes:
        calls: Every request, as ``(verb, name)``, in order.
        groups: LeaderWorkerSets by name.
        pods: Pods by UID, those that exist.
        logs: Log of each pod by UID.
        dead_holders: Holders that do not live any more; all others do.
    """

    def __init__(self, clock: FakeClock, *, start: bool = True, pod: Manifest | None = None) -> None:
        self.clock, self.start, self.pod = clock, start, pod
        self.calls: list[tuple[str, str]] = []
        self.groups: dict[str, Manifest] = {}
        self.pods: dict[str, Manifest] = {}
        self.logs: dict[str, bytes] = {}
        self.dead_holders: set[str] = set()
        self._watchers: list[Sink] = []
        self._numbers = itertools.count(1)

    where = "the fake cluster"

    def ports(self, name: str) -> Ports:
        """Give the fixed ports."""
        del name
        return Ports()

    def own_pod(self) -> Manifest | None:
        """Give the launcher's own pod."""
        return self.pod

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
        group["metadata"] |= {"uid": self._uid(), "resourceVersion": self._uid(), "creationTimestamp": self._stamp()}
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
        group["metadata"]["resourceVersion"] = self._uid()
        self._tell(Event("group", copy.deepcopy(group)))
        after = group["spec"]["replicas"]
        if before and not after:
            for uid in list(self.pods):
                self._end_pod(uid)
        elif after and not before:
            self._make_pods(group)
        return copy.deepcopy(group)

    def delete_group(self, name: str, *, uid: str) -> None:
        """Delete a group and its pods, one second later."""
        self.calls.append(("delete", name))
        group = self.groups.get(name)
        if group is None or group["metadata"]["uid"] != uid:
            return
        group["metadata"]["deletionTimestamp"] = self._stamp()
        for pod_uid in list(self.pods):
            self._end_pod(pod_uid)

        def gone() -> None:
            if self.groups.pop(name, None) is not None:
                self._tell(Event("group-gone", group))

        self.clock.after(1.0, gone)

    def list_pods(self, name: str) -> list[Manifest]:
        """List pods."""
        self.calls.append(("list", name))
        return copy.deepcopy(list(self.pods.values()))

    def delete_pod(self, name: str, *, uid: str, grace_seconds: float | None = None) -> None:
        """Delete one pod; its StatefulSet makes another one, unless all are going already."""
        self.calls.append(("delete-pod", name))
        pod = self.pods.get(uid)
        if pod is not None and "deletionTimestamp" not in pod["metadata"]:
            self.lose_host(pod_index(pod))
        del grace_seconds

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
        """Read a pod's log."""
        del previous, tail_bytes
        return self.logs.get(pod["metadata"]["uid"], b"")

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
        """Delete a host's pod; another one of the same name and with a new UID takes its place and runs."""
        old = self._pod(index)
        del self.pods[old["metadata"]["uid"]]
        self._tell(Event("pod-gone", copy.deepcopy(old)))
        group = next(iter(self.groups.values()))
        self._make_pod(group, index)

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
        for index in range(group["spec"]["leaderWorkerTemplate"]["size"]):
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
        self.pods[uid]["metadata"]["deletionTimestamp"] = self._stamp()

        def gone() -> None:
            pod = self.pods.pop(uid, None)
            if pod is not None:
                self._tell(Event("pod-gone", copy.deepcopy(pod)))

        self.clock.after(1.0, gone)

    def _tell(self, event: Event) -> None:
        for sink in list(self._watchers):
            sink(event)

    def _uid(self) -> str:
        return f"uid-{next(self._numbers)}"

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
