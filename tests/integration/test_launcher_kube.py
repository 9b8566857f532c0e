"""The launcher on an API server that breaks at the wrong moment: the verdict is the hosts', never the connection's."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kr_kfp.cluster.api import Event
from kr_kfp.runtime.clock import RealClock
from kr_kfp.runtime.launcher import Launcher
from kr_kfp.runtime.logs import LogPump
from kr_kfp.runtime.picture import StoppedError
from kr_kfp.runtime.report import Report
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import ErrorInfo, Outcome, outcome_message
from tests.kube_kit import DEADLINE, Json, connected, pod, until
from tests.kube_server import Fault, KubeServer

OWN: Json = {
    "metadata": {"name": "launcher", "uid": "l1", "labels": {"pipeline/runid": "r1"}},
    "spec": {"containers": [{"name": "main"}]},
    "status": {"phase": "Running"},
}
STEP = StepSpec(name="train", backend="lws", hosts=3, image="python:3.12")
LAUNCH = Launch(name="train-x", run="r1", task="train", identity="r1/train", holder="l1", payload=("p",))


@pytest.fixture
def server() -> Iterator[KubeServer]:
    """An API server."""
    server = KubeServer()
    yield server
    server.close()


def ended(host: int, *, code: int = 0) -> Json:
    """A pod whose container has ended and holds."""
    error = ErrorInfo(type="ValueError", message="boom", file="train.py", line=1, function="train", source="x")
    now = time.time()
    outcome = Outcome(kind="ok", host=host, started=now, ended=now, outputs={"host": host})
    if code:
        outcome = Outcome(kind="exception", host=host, code=code, started=now, ended=now, error=error)
    found = pod(host, restarts=1, uid=f"p{host}")
    end = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "message": outcome_message(outcome),
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:00:01Z",
    }
    found["status"]["containerStatuses"][0]["lastState"] = {"terminated": end}
    return found


def run(server: KubeServer, change: Callable[[], object]) -> Report:
    """Run a launcher; when its three hosts run and all watches are open, change something."""
    with connected(server, pod=OWN) as (cluster, _), ThreadPoolExecutor(1) as threads:
        logs = LogPump("train", "none", lambda _: None)
        launcher = Launcher(cluster, RealClock(), step=STEP, launch=LAUNCH, say=lambda _: None, logs=logs)
        running = threads.submit(launcher.run)
        until(lambda: server.count("create leaderworkersets"))
        for host in range(3):
            server.put("pods", pod(host, uid=f"p{host}"))
        until(lambda: server.count("watch pods") and server.count("watch leaderworkersets"))
        change()
        return running.result(timeout=DEADLINE)


def test_worker_fails_while_the_leader_runs(server: KubeServer) -> None:
    """A worker's failure is the step's, soon, with its exit code, although the leader lives on (case 17)."""
    began = time.monotonic()
    report = run(server, lambda: server.put("pods", ended(2, code=3)))
    assert not report.ok
    assert time.monotonic() - began < STEP.finish_grace / 10
    assert "train failed in attempt 0: host 2 failed: ValueError: boom" in report.lines


@pytest.mark.parametrize("gone_in_stream", [False, True])
def test_leader_ends_well_and_a_worker_fails_unseen(server: KubeServer, gone_in_stream: bool) -> None:
    """Both happen while the watch is broken and too old to go on: a new list tells both, and the failure counts."""

    def change() -> None:
        server.gone_in_stream = gone_in_stream
        server.put("pods", ended(0))
        server.put("pods", ended(1, code=3))
        server.expire()
        server.end_streams("reset")

    report = run(server, change)
    assert not report.ok
    assert "train failed in attempt 0: host 1 failed: ValueError: boom" in report.lines
    assert any("host 0 ended well" in line for line in report.lines)


def test_success_while_the_server_is_away(server: KubeServer) -> None:
    """All end well while lists and watches are answered with 503, 429 and cut connections: success, a little later."""

    def change() -> None:
        for kind in ("list pods", "watch pods", "list leaderworkersets"):
            busy = Fault(status=429, headers={"Retry-After": "1"})
            server.fail(kind, Fault(status=503), busy, Fault(reset=True), Fault(status=504))
        server.expire()
        server.end_streams("reset")
        for host in range(3):
            server.put("pods", ended(host))

    report = run(server, change)
    assert report.ok
    assert report.outputs == {"host": 0}
    assert server.count("list pods") >= 4


def test_signal_while_the_group_is_made(server: KubeServer) -> None:
    """A stop that comes during the create call, or before it, is obeyed when it is known what there is to delete."""
    server.fail("create leaderworkersets", Fault(pause=0.5))
    clock = RealClock()
    with connected(server, pod=OWN) as (cluster, _), ThreadPoolExecutor(1) as threads:
        logs = LogPump("train", "none", lambda _: None)
        launcher = Launcher(cluster, clock, step=STEP, launch=LAUNCH, say=lambda _: None, logs=logs)
        running = threads.submit(launcher.run)
        until(lambda: server.count("create leaderworkersets"))
        clock.put(Event("signal", signal.SIGUSR1))
        with pytest.raises(StoppedError):
            running.result(timeout=DEADLINE)
        leaving = threads.submit(launcher.clean_up)
        clock.put(Event("signal", signal.SIGUSR1))
        until(lambda: server.count("delete leaderworkersets"))
        server.remove("leaderworkersets", "train-x")
        leaving.result(timeout=DEADLINE)
    assert [server.count(f"{verb} leaderworkersets") for verb in ("create", "delete")] == [1, 1]
