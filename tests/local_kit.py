"""For tests of the local cluster: a root folder of their own, short groups, and waiting with a deadline."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kr_kfp.cluster.api import Event
from kr_kfp.cluster.local import ORPHAN_ENV, LocalCluster, list_groups
from kr_kfp.cluster.local_places import ROOT_ENV
from kr_kfp.cluster.local_processes import start_time

Json = dict[str, Any]
T = TypeVar("T")

DEADLINE = 120.0
"""Seconds after which a test that waits fails; never waited for in a good run."""

HOLD = 'if [ -e "$KR_KFP_WORK/ran" ]; then exec sleep 1000; fi; touch "$KR_KFP_WORK/ran"; '
"""Begins a shell script as the runner does: its rest runs in the first start only, later ones hold."""


def until(look: Callable[[], T], what: str = "what the test waits for", seconds: float = DEADLINE) -> T:
    """Look again and again until there is something true, and give it."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"{what} did not come within {seconds:g} s"
        time.sleep(0.01)
    return found


class Recorder:
    """A sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = threading.Condition()

    def __call__(self, event: Event) -> None:
        """Take an event."""
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def wait(self, wanted: Callable[[Event], object], seconds: float = DEADLINE) -> Event:
        """Give the first event that is wanted, which may have come already."""
        with self._changed:
            found = self._changed.wait_for(lambda: [e for e in self.events if wanted(e)], timeout=seconds)
        assert found, [e.kind for e in self.events]
        return found[0]

    def wait_gone(self, pod: Json) -> None:
        """Wait until this very pod is gone."""
        uid = pod["metadata"]["uid"]
        self.wait(lambda e: e.kind == "pod-gone" and e.value["metadata"]["uid"] == uid)

    def states(self, pod: str) -> list[Json]:
        """Give the container states that one pod, by UID, went through."""
        return [state(e.value) for e in self.events if e.kind == "pod" and e.value["metadata"]["uid"] == pod]


class Kit:
    """The local cluster with a root folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.cluster = LocalCluster()

    def create(self, command: Sequence[str], *, name: str = "train", hosts: int = 1, **spec: Any) -> Json:
        """Create a group whose hosts run a command; ``spec`` goes into the pod's."""
        return self.cluster.create_group(manifest(command, name=name, hosts=hosts, **spec))

    def sh(self, script: str, *, name: str = "train", hosts: int = 1, **spec: Any) -> Json:
        """Create a group whose hosts run a shell script."""
        return self.create(["sh", "-c", script], name=name, hosts=hosts, **spec)

    def watch(self, name: str = "train") -> Recorder:
        """Record what happens to a group, from now on."""
        recorder = Recorder()
        self.cluster.watch(name, recorder)
        recorder.wait(lambda e: e.kind == "synced")
        return recorder

    def pods(self, count: int = 1, name: str = "train", *, running: bool = True) -> list[Json]:
        """Give the pods by index as soon as there are that many and they run."""

        def look() -> list[Json]:
            pods = self.cluster.list_pods(name)
            good = [p for p in pods if "deletionTimestamp" not in p["metadata"]]
            good = [p for p in good if not running or "running" in state(p)["state"]]
            return good if len(good) == count else []

        return sorted(until(look, f"{count} pods"), key=lambda p: int(index_of(p)))

    def work(self, pod: Json) -> Path:
        """Give a pod's work folder."""
        return self.folder(pod) / "work"

    def folder(self, pod: Json) -> Path:
        """Give a pod's folder."""
        metadata = pod["metadata"]
        group: str = metadata["labels"]["leaderworkerset.sigs.k8s.io/name"]
        return self.root / group / "pods" / f"{metadata['name']}.{metadata['uid'][:8]}"

    def delete(self, group: Json) -> None:
        """Delete a group and wait until it is gone."""
        self.cluster.delete_group(group["metadata"]["name"], uid=group["metadata"]["uid"])
        assert self.cluster.wait_gone(group["metadata"]["name"], DEADLINE)

    def processes(self) -> list[int]:
        """List everything that was started on behalf of this root: supervisors, guards, hosts, their children."""
        return with_variable(f"{ROOT_ENV}={self.root}")


def with_variable(entry: str) -> list[int]:
    """List the living processes with this entry in the environment they were started with."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes()
            except OSError:
                continue
            if entry.encode() in environment.split(b"\0") and start_time(int(folder.name)):
                found.append(int(folder.name))
    return found


def state(pod: Json) -> Json:
    """Give the status of a pod's container."""
    found: Json = pod["status"]["containerStatuses"][0]
    return found


def index_of(pod: Json) -> str:
    """Give a pod's index in its group."""
    found: str = pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"]
    return found


def manifest(command: Sequence[str], *, name: str = "train", hosts: int = 1, **spec: Any) -> Json:
    """Build a LeaderWorkerSet; ``env`` and ``resources`` go to the container, the rest to the pod's spec."""
    container: Json = {"name": "main", "image": "none", "command": list(command)}
    container |= {key: spec.pop(key) for key in ("args", "env", "resources") if key in spec}
    template = {"metadata": {}, "spec": {"terminationGracePeriodSeconds": 5, **spec, "containers": [container]}}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "annotations": {"a": "b"}},
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {"size": hosts, "restartPolicy": "None", "workerTemplate": template},
        },
    }


@pytest.fixture(name="local_root")
def local_root_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a root folder for groups with a short name: a socket's path is limited, and tmp_path may be long."""
    root = Path(tempfile.mkdtemp(prefix="kr-"))
    monkeypatch.setenv(ROOT_ENV, os.fspath(root))
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(name="kit")
def kit_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kit]:
    """Give a local cluster of its own and see to it that no process and no folder of it is left."""
    # Not tmp_path: a socket's path has to be short.
    root = Path(tempfile.mkdtemp(prefix="kr-"))
    monkeypatch.setenv(ROOT_ENV, os.fspath(root))
    monkeypatch.setenv(ORPHAN_ENV, "60")
    kit = Kit(root)
    try:
        yield kit
        monkeypatch.setenv(ROOT_ENV, os.fspath(root))
        for group in list_groups():
            name = group["metadata"]["name"]
            kit.cluster.delete_group(name, uid=group["metadata"]["uid"])
            for pod in kit.cluster.list_pods(name):
                kit.cluster.delete_pod(pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=0)
        until(lambda: not kit.processes(), "the end of all processes")
    finally:
        for pid in kit.processes():
            os.kill(pid, 9)
        shutil.rmtree(root, ignore_errors=True)
