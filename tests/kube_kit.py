"""A launcher's view of the test API server, and pods as a kubelet reports them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kr_kfp.cluster.api import Event
from kr_kfp.cluster.kube import KubeCluster
from kr_kfp.cluster.kube_http import Api, Login
from kr_kfp.cluster.kube_login import pool
from kr_kfp.spec.leaderworkerset import API_VERSION, KIND, LABEL
from tests.kube_server import KubeServer
from tests.local_kit import Recorder

Json = dict[str, Any]

DEADLINE = 60.0
"""Seconds after which a test that waits fails; never waited for in a good run."""

NAMESPACE = "ml"
GROUP: Json = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "train-x"}, "spec": {"replicas": 1}}


def login(server: KubeServer, account: str = "") -> Login:
    """Log in to the test server without credentials."""
    return Login(
        server=server.url,
        namespace=NAMESPACE,
        where=f"namespace {NAMESPACE}",
        pool=pool(None),
        headers=lambda renew: {"Authorization": f"Bearer {'new' if renew else 'old'}"},
        account=account,
    )


class Pauses:
    """Stands in for time: remembers what was waited for, and does not wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds

    def clock(self) -> float:
        return self.now

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.sleep(seconds)
        return event.wait(min(seconds, 0.005))


class WatchedApi(Api):
    """An Api with pauses and warnings kept."""

    def __init__(self, server: KubeServer, *, patience: float = 300.0, account: str = "") -> None:
        self.pauses = Pauses()
        self.warnings: list[str] = []
        super().__init__(
            login(server, account),
            warn=self.warnings.append,
            patience=patience,
            sleep=self.pauses.sleep,
            chance=lambda: 1.0,
            clock=self.pauses.clock,
        )


class Inbox(Recorder):
    """A recorder that is asked for events by their number."""

    def until(self, count: int) -> list[str]:
        """Wait until there are so many events; give all of them in short."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.events) >= count, DEADLINE), self.short()
            return self.short()

    def short(self) -> list[str]:
        return [_short(event) for event in self.events]


def _short(event: Event) -> str:
    if event.value is None:
        return event.kind
    metadata = event.value["metadata"]
    return f"{event.kind} {metadata['name']} {metadata.get('uid', '')}".strip()


def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait until something is so."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, what or "it never came to be"
        time.sleep(0.005)


@contextmanager
def connected(
    server: KubeServer, *, pod: Json | None = None, lost_after: float = 60.0
) -> Iterator[tuple[KubeCluster, WatchedApi]]:
    """A cluster on the test server; ended afterwards."""
    api = WatchedApi(server)
    cluster = KubeCluster(api, pod=pod, lost_after=lost_after, wait=api.pauses.wait)
    try:
        yield cluster, api
    finally:
        cluster.close()


def pod(index: int = 0, *, state: Json | None = None, restarts: int = 0, **metadata: Any) -> Json:
    """A pod of group ``train-x`` as its kubelet reports it."""
    name = f"train-x-0-{index}" if index else "train-x-0"
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}} if state is None else state
    container = {"name": "main", "restartCount": restarts, "state": state, "lastState": {}}
    labels = {f"{LABEL}/name": "train-x", f"{LABEL}/worker-index": str(index)}
    conditions = [{"type": "Ready", "status": "True"}, {"type": "ContainersReady", "status": "True"}]
    return {
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running", "conditions": conditions, "containerStatuses": [container]},
    }
