"""What a broken Pathways server amounts to: pods, decision, launcher (a server that ends is infrastructure loss)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.runtime.launcher import Launcher
from kr_kfp.runtime.logs import LogPump
from kr_kfp.runtime.report import Report
from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.observe import HostState, Phase, observe
from kr_kfp.spec.outcome import SETTLE, Decision, decide
from kr_kfp.spec.step import Pathways, StepSpec
from kr_kfp.testing import FakeClock, FakeCluster
from kr_kfp.wire import ErrorInfo, Outcome, outcome_message

Json = dict[str, Any]

T0, T1, T2 = "2026-11-30T10:00:00Z", "2026-11-30T10:01:00Z", "2026-11-30T10:01:20Z"
BEGAN, FIRST, LATER = 1796032800.0, 1796032860.0, 1796032880.0
RUNNING: Json = {"running": {"startedAt": T0}}


def container(name: str, state: Json, last: Json | None = None, restarts: int = 0) -> Json:
    return {"name": name, "restartCount": restarts, "state": state, "lastState": last or {}}


def ended(at: str, code: int = 1, message: str = "") -> Json:
    return {"terminated": {"exitCode": code, "reason": "Error", "startedAt": T0, "finishedAt": at, "message": message}}


def pod(index: int, status: Json, uid: str = "", made: str = T0, deleted: str = "") -> Json:
    name = "main" if index == 0 else "pathways-worker"
    metadata: Json = {
        "name": f"g-0-{index}" if index else "g-0",
        "uid": uid or f"u{index}",
        "labels": {"leaderworkerset.sigs.k8s.io/worker-index": str(index)},
        "creationTimestamp": made,
    }
    if deleted:
        metadata["deletionTimestamp"] = deleted
    env = [{"name": "KR_KFP_ATTEMPT", "value": "0"}]
    return {"metadata": metadata, "spec": {"containers": [{"name": name, "env": env}]}, "status": status}


def head(main: Json, *sidecars: Json) -> Json:
    beside = sidecars or (container("pathways-rm", RUNNING), container("pathways-proxy", RUNNING))
    return pod(
        0, {"phase": "Running", "startTime": T0, "initContainerStatuses": list(beside), "containerStatuses": [main]}
    )


def worker(index: int, state: Json = RUNNING, last: Json | None = None, restarts: int = 0, **more: Any) -> Json:
    server = container("pathways-worker", state, last, restarts)
    return pod(index, {"phase": "Running", "startTime": T0, "containerStatuses": [server]}, **more)


def seen(*pods: Json, **given: Any) -> tuple[HostState, ...]:
    return observe(pods, hosts=2, attempt=0, runners=1, **given)


MAIN = container("main", RUNNING)
BROKEN = container("pathways-proxy", RUNNING, ended(T1, 139), 1)


def server_lost(reason: str, at: float = FIRST, *, up: bool = True) -> HostState:
    return HostState(index=1, phase=Phase.LOST, pod="g-0-1", uid="u1", reason=reason, server=True, lost_at=at, up=up)


def test_all_run() -> None:
    """Head and worker run; the worker is told apart as one that has no end of its own."""
    front, back = seen(head(MAIN), worker(1))
    assert (front.phase, front.server, front.who) == (Phase.RUNNING, False, "host 0")
    assert (back.phase, back.server, back.who) == (Phase.RUNNING, True, "Pathways worker 0")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ({"waiting": {"reason": "ErrImagePull", "message": "no"}}, "ErrImagePull: no"),
        ({"waiting": {"reason": "ContainerCreating"}}, "ContainerCreating"),
    ],
)
def test_worker_that_waits(state: Json, reason: str) -> None:
    """A worker whose server has not started waits for what the kubelet says."""
    _, back = seen(head(MAIN), worker(1, state))
    assert (back.phase, back.reason, back.server) == (Phase.WAITING, reason, True)
    _, back = seen(head(MAIN))
    assert (back.phase, back.reason, back.server) == (Phase.WAITING, "there is no pod yet", True)


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (
            worker(1, RUNNING, ended(T1, 137), 1),
            server_lost("container pathways-worker ended (Error, exit code 137)"),
        ),
        (
            worker(1, {"waiting": {"reason": "CrashLoopBackOff"}}, ended(T1), 4),
            server_lost("container pathways-worker ended (Error, exit code 1)", up=False),
        ),
        (
            worker(1, ended(T1, 0)),
            server_lost("container pathways-worker ended (Error, exit code 0)", up=False),
        ),
    ],
    ids=["restarted", "crash-loop", "ended"],
)
def test_server_that_ended(given: Json, state: HostState) -> None:
    """A server that ended once is lost, whatever became of it, with how and when; whether it is back is told too."""
    assert seen(head(MAIN), given)[1] == state


def test_worker_that_is_deleted_or_replaced() -> None:
    """A worker's pod that goes while it runs is lost, and up again once its successor runs."""
    gone = worker(1, deleted=T1)
    wanted = server_lost("pod g-0-1 was deleted while it ran", up=False)
    assert seen(head(MAIN), gone)[1] == replace(wanted, started=BEGAN)
    back = seen(head(MAIN), gone, worker(1, uid="new", made=T2), gone={"u1"})[1]
    assert back == replace(wanted, started=BEGAN, up=True)


def test_worker_on_a_lost_node() -> None:
    """Node loss is told by the launcher's knowledge of nodes."""
    state = seen(head(MAIN), worker(1), lost={"u1": "the node is gone"})[1]
    assert (state.phase, state.reason, state.lost_at) == (Phase.LOST, "the node is gone", 0.0)


def test_colocated_sidecar_that_ended() -> None:
    """The sidecar beside a worker's server counts as the server does."""
    given = worker(1)
    given["status"]["initContainerStatuses"] = [container("colocated-python-sidecar", RUNNING, ended(T1), 1)]
    assert seen(head(MAIN), given)[1].reason == "container colocated-python-sidecar ended (Error, exit code 1)"


def test_proxy_that_ended() -> None:
    """A proxy or resource manager that ended takes the head with it, while user code runs and before."""
    front, _ = seen(head(MAIN, BROKEN), worker(1))
    assert (front.phase, front.reason, front.lost_at) == (
        Phase.LOST,
        "container pathways-proxy ended (Error, exit code 139)",
        FIRST,
    )
    waits = container("main", {"waiting": {"reason": "PodInitializing"}})
    assert seen(head(waits, BROKEN), worker(1))[0].phase is Phase.LOST


def test_init_container_that_ended_is_no_server() -> None:
    """The container that brings kr_kfp ends as it should."""
    provide = container("kr-kfp", ended(T0, 0))
    assert seen(head(MAIN, provide), worker(1))[0].phase is Phase.RUNNING


def failed(at: float) -> Json:
    error = ErrorInfo(type="XlaRuntimeError", message="INTERNAL: it broke")
    outcome = Outcome(kind="exception", host=0, code=1, started=BEGAN, ended=at, error=error)
    return container("main", RUNNING, ended(T1, 1, outcome_message(outcome)), 1)


def test_user_code_that_felt_the_proxys_end() -> None:
    """User code that fails after a server's end is its victim; a server that ends later is no excuse."""
    assert seen(head(failed(FIRST + 3), BROKEN), worker(1))[0].phase is Phase.LOST
    # Kubernetes' clock is that of another node, and it writes whole seconds.
    assert seen(head(failed(FIRST - 4), BROKEN), worker(1))[0].phase is Phase.LOST
    front = seen(head(failed(FIRST - 6), BROKEN), worker(1))[0]
    assert (front.phase, front.outcome and front.outcome.kind) == (Phase.ENDED, "exception")


def test_success_is_the_heads_alone() -> None:
    """A head that ended with 0 has succeeded, whatever becomes of its sidecars and of the workers."""
    good = container("main", RUNNING, ended(T1, 0, outcome_message(Outcome(kind="ok", host=0, ended=FIRST))), 1)
    states = seen(head(good, BROKEN), worker(1, ended(T1)))
    assert states[0].phase is Phase.ENDED
    assert decide(states, now=LATER, finish_grace=60.0).decision is Decision.SUCCESS


def at(decision: Decision, states: tuple[HostState, ...], **more: Any) -> str:
    verdict = decide(states, now=LATER, finish_grace=60.0, first_bad_seen=LATER - SETTLE, **more)
    assert verdict.decision is decision
    return verdict.reason


def test_decision_about_a_lost_server() -> None:
    """A lost worker restarts the group, also where user code failed by its end; not where user code failed before."""
    dead = worker(1, RUNNING, ended(T1, 137), 1)
    said = "Pathways worker 0 was lost: container pathways-worker ended (Error, exit code 137)"
    assert at(Decision.RESTART, seen(head(MAIN), dead)) == said
    assert at(Decision.RESTART, seen(head(failed(FIRST + 1)), dead)) == said
    assert at(Decision.FAILURE, seen(head(failed(FIRST - 30)), dead)) == (
        "host 0 failed: XlaRuntimeError: INTERNAL: it broke"
    )


def test_failure_waits_for_the_servers_story() -> None:
    """The kubelet tells of a server's end a second late: user code that failed is judged after SETTLE."""
    states = seen(head(failed(FIRST)), worker(1))
    verdict = decide(states, now=FIRST + 1, finish_grace=60.0, first_bad_seen=FIRST + 1)
    assert (verdict.decision, verdict.check_at) == (Decision.WAIT, FIRST + 1 + SETTLE)
    assert at(Decision.FAILURE, states).startswith("host 0 failed: XlaRuntimeError")


def test_elastic_slices() -> None:
    """Workers of as many slices as may be missing are no loss while they are away; of more they are."""
    away: Json = {"waiting": {"reason": "CrashLoopBackOff"}}
    pods = [head(MAIN), *(worker(index, away, ended(T1), 2) for index in (1, 2)), worker(3), worker(4)]
    states = observe(pods, hosts=5, attempt=0, runners=1)
    assert at(Decision.WAIT, states, elastic=1, per_slice=2) == ""
    pods[4] = worker(4, away, ended(T1), 2)
    states = observe(pods, hosts=5, attempt=0, runners=1)
    assert "Pathways worker 3 was lost" in at(Decision.RESTART, states, elastic=1, per_slice=2)
    # Once they are back they do not count any more.
    pods = [head(MAIN), *(worker(index, RUNNING, ended(T1), 2) for index in (1, 2, 3, 4))]
    states = observe(pods, hosts=5, attempt=0, runners=1)
    assert at(Decision.WAIT, states, elastic=1, per_slice=2) == ""
    assert "Pathways worker 0 was lost" in at(Decision.RESTART, states)


# --- the launcher -----------------------------------------------------------------------------------------------------

STEP = StepSpec(
    name="train",
    backend="pathways",
    image="python:3.12",
    shape=resolve("v5p-16"),
    hosts=2,
    max_restarts=1,
    pathways=Pathways(scratch="gs://bucket/tmp", version="jax-0.10.0"),
)
LAUNCH = Launch(name="train-x", run="r1", task="train", identity="r1/train", holder="fake-launcher", payload=("p",))


class Rig:
    """A launcher of a Pathways step on a fake cluster."""

    def __init__(self, step: StepSpec = STEP) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock)
        self.said: list[str] = []
        logs = LogPump("train", "none", self.said.append)
        self.launcher = Launcher(self.cluster, self.clock, step=step, launch=LAUNCH, say=self.said.append, logs=logs)

    def ok(self) -> None:
        now = self.clock.now()
        outputs: Json = {"executorOutput": {"parameterValues": {"Output": 1}}, "parameters": {}}
        self.cluster.end_host(Outcome(kind="ok", host=0, started=now, ended=now, outputs=outputs))

    def run(self) -> Report:
        report = self.launcher.run()
        self.launcher.clean_up()
        return report

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.cluster.calls if verb not in ("get", "watch", "list", "delete-pod")]


def test_launcher_ends_with_the_head() -> None:
    """Three pods are made, and the head's end is the step's end."""
    rig = Rig()
    rig.clock.after(5.0, rig.ok)
    report = rig.run()
    assert (report.ok, report.outputs["executorOutput"]) == (True, {"parameterValues": {"Output": 1}})
    assert rig.verbs() == ["create", "patch", "delete"]
    assert any("2 hosts of v5p-16, 4 chips each, topology 2x2x2, and a head without accelerator" in s for s in rig.said)
    assert any(s.startswith("all 3 pods run after") for s in rig.said)
    assert "the host ended well after 0.0 s (attempt 0)" in rig.said


@pytest.mark.parametrize("part", ["proxy", "worker", "pod"])
def test_launcher_restarts_after_a_broken_server(part: str) -> None:
    """The whole group restarts once, within its budget, and the next attempt decides."""
    rig = Rig()

    def break_it() -> None:
        if part == "proxy":
            rig.cluster.break_sidecar(0, "pathways-proxy")
        elif part == "worker":
            rig.cluster.restart_server(2)
        else:
            rig.cluster.lose_host(1)

    rig.clock.after(5.0, break_it)
    rig.clock.after(30.0, rig.ok)
    report = rig.run()
    assert (report.ok, report.attempt) == (True, 1)
    assert rig.verbs() == ["create", "patch", "patch", "patch", "patch", "delete"]
    who = {"proxy": "host 0", "worker": "Pathways worker 1", "pod": "Pathways worker 0"}[part]
    assert any(s.startswith(f"{who} was lost: ") and "restarting the group as attempt 1" in s for s in rig.said)


def test_launcher_gives_up_after_its_budget() -> None:
    """A proxy that ends in every attempt fails the step, naming it."""
    rig = Rig()
    rig.clock.after(5.0, lambda: rig.cluster.break_sidecar(0, "pathways-rm"))
    rig.clock.after(30.0, lambda: rig.cluster.break_sidecar(0, "pathways-rm"))
    report = rig.run()
    assert not report.ok
    assert report.lines[0] == (
        "train failed in attempt 1: host 0 was lost: container pathways-rm ended (Error, exit code 1) "
        "(restarts left: 0 of max_restarts=1)"
    )


def test_launcher_goes_on_without_an_elastic_slice() -> None:
    """With elastic slices a worker that ends is told once, and the step goes on."""
    settings = replace(STEP.pathways or Pathways(), elastic_slices=1)
    rig = Rig(replace(STEP, slices=2, hosts=4, pathways=settings))
    rig.clock.after(5.0, lambda: rig.cluster.restart_server(3))
    rig.clock.after(10.0, rig.ok)
    report = rig.run()
    assert (report.ok, report.attempt) == (True, 0)
    said = "Pathways worker 2 was lost: container pathways-worker ended (Error, exit code 1); the step goes on"
    assert [s for s in rig.said if s.startswith(said)] == [f"{said} (elastic_slices)"]
