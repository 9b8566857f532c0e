"""The launcher against a cluster in memory: what it asks for, in which order, and what it says."""

from __future__ import annotations

import copy
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.cluster.api import Event
from kr_kfp.errors import ConflictError, ForbiddenError, UnavailableError
from kr_kfp.names import HOLDER_ANNOTATION, IDENTITY_ANNOTATION
from kr_kfp.runtime.group import HeldError
from kr_kfp.runtime.launcher import REFUSED_GRACE, START_GRACE, Launcher
from kr_kfp.runtime.logs import LogPump
from kr_kfp.runtime.picture import StoppedError
from kr_kfp.runtime.report import Report
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.observe import pod_index
from kr_kfp.spec.outcome import PEER_GRACE, SETTLE
from kr_kfp.spec.step import StepSpec
from kr_kfp.testing import FakeClock, FakeCluster
from kr_kfp.wire import UPLOADING, ErrorInfo, Outcome, outcome_line

STEP = StepSpec(name="train", backend="lws", hosts=2, image="python:3.12", finish_grace=60.0)
LAUNCH = Launch(name="train-x", run="r1", task="train", identity="r1/train", holder="fake-launcher", payload=("p",))


class Rig:
    """A launcher on a fake cluster, with everything it said."""

    def __init__(self, step: StepSpec = STEP, launch: Launch = LAUNCH, *, start: bool = True) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster(self.clock, start=start)
        self.said: list[str] = []
        self.step, self.launch = step, launch
        self.launcher = self.make()

    def make(self) -> Launcher:
        logs = LogPump(self.step.name, "none", self.said.append)
        return Launcher(self.cluster, self.clock, step=self.step, launch=self.launch, say=self.said.append, logs=logs)

    def ok(self, host: int, **fields: object) -> Callable[[], None]:
        outcome = Outcome(kind="ok", host=host, started=self.clock.now(), ended=self.clock.now())
        return lambda: self.cluster.end_host(replace(outcome, **fields))  # type: ignore[arg-type]

    def bad(self, host: int, ended: float, kind: str = "ValueError", message: str = "boom") -> Callable[[], None]:
        error = ErrorInfo(type=kind, message=message, file="train.py", line=14, function="train", source="raise x")
        outcome = Outcome(kind="exception", host=host, code=1, ended=ended, error=error)
        return lambda: self.cluster.end_host(outcome)

    def all_ok(self, seconds: float = 5.0) -> None:
        outputs = {"executorOutput": {"parameterValues": {"Output": 0.5}}, "parameters": {}}
        self.clock.after(seconds, self.ok(0, outputs=outputs))
        self.clock.after(seconds, self.ok(1))

    def uid(self, host: int) -> str:
        return next(uid for uid, pod in self.cluster.pods.items() if pod_index(pod) == host)

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.cluster.calls if verb not in ("get", "watch", "list", "delete-pod")]


def run(rig: Rig) -> Report:
    report = rig.launcher.run()
    rig.launcher.clean_up()
    return report


def test_success_gives_the_leaders_outputs_and_deletes() -> None:
    """All hosts end well: the leader's outputs come back and nothing is left."""
    rig = Rig()
    rig.all_ok()
    report = run(rig)
    assert report.ok
    assert report.outputs == {"executorOutput": {"parameterValues": {"Output": 0.5}}, "parameters": {}}
    assert rig.verbs() == ["create", "patch", "delete"]
    assert rig.cluster.groups == {}
    assert rig.cluster.pods == {}
    assert "all 2 hosts ended well after 0.0 s (attempt 0)" in rig.said


def test_an_outcome_that_is_printed_late_is_read_again() -> None:
    """The second start shows before its line is in the log: it is read again soon, and once only when it is there."""
    rig = Rig()
    line: list[bytes] = []
    read: list[str] = []

    def read_log(pod: dict[str, Any], *, previous: bool = False, tail_bytes: int | None = None) -> bytes:
        read.append(pod["metadata"]["name"])
        if len(read) == 2:
            raise UnavailableError("the node does not answer")
        return line[0] if len(read) > 2 else b""

    def end_leader() -> None:
        big = {"executorOutput": {"parameterValues": {"Output": "x" * 5000}}, "parameters": {}}
        outcome = Outcome(kind="ok", host=0, started=rig.clock.now(), ended=rig.clock.now(), outputs=big)
        rig.cluster.end_host(outcome)
        line.append((outcome_line(outcome) + "\n").encode())

    rig.cluster.read_log = read_log  # type: ignore[method-assign]
    rig.clock.after(5.0, end_leader)
    rig.clock.after(60.0, rig.ok(1))
    report = run(rig)
    assert report.ok
    assert report.outputs["executorOutput"]["parameterValues"] == {"Output": "x" * 5000}
    assert read == ["train-x-0"] * 3


def test_large_outcome_is_read_from_the_holding_container() -> None:
    """Outputs over 4 KiB come from the log of the held container."""
    rig = Rig()
    outputs = {"executorOutput": {"parameterValues": {"Output": "ä" * 50_000}}, "parameters": {}}
    rig.clock.after(1, rig.ok(0, outputs=outputs))
    rig.clock.after(1, rig.ok(1))
    assert run(rig).outputs == outputs


def test_failure_names_the_first_host() -> None:
    """The first host by its outcome's time is named with exception and place; the others follow below."""
    rig = Rig()
    rig.clock.after(5, rig.bad(1, ended=200.0))
    rig.clock.after(6, rig.bad(0, ended=100.0, message="first"))
    report = run(rig)
    assert not report.ok
    assert report.lines[-3:] == (
        "train failed in attempt 0: host 0 failed: ValueError: first",
        "  at train.py:14 in train(): raise x",
        "  other hosts: host 1 after it: ValueError: boom",
    )
    assert rig.verbs() == ["create", "patch", "delete"]


def test_failure_is_quick_while_others_hang() -> None:
    """Hosts in a collective are not waited for: the verdict falls SETTLE after the failure."""
    rig = Rig()
    begun = rig.clock.now()
    rig.clock.after(5, rig.bad(1, ended=begun + 5))
    report = rig.launcher.run()
    assert rig.clock.now() - begun == 5 + SETTLE
    assert report.lines[-1] == "  other hosts: host 0 was running and is stopped"


def test_lost_host_restarts_the_group_under_the_next_number() -> None:
    """A lost pod: all pods away, then the next attempt's number in every pod's env, results of that attempt."""
    rig = Rig()
    rig.clock.after(5, lambda: rig.cluster.lose_host(1))
    rig.all_ok(30)
    report = rig.launcher.run()
    assert [name for verb, name in rig.cluster.calls if verb == "delete-pod"] == ["train-x-0", "train-x-0-1"]
    rig.launcher.clean_up()
    assert report.ok
    assert report.attempt == 1
    assert rig.verbs() == ["create", "patch", "patch", "patch", "patch", "delete"]
    group_said = [line for line in rig.said if "restarting" in line]
    assert group_said == [
        "host 1 was lost: pod train-x-0-1 was deleted while it ran; restarting the group as attempt 1 "
        "(2 restarts left after it)"
    ]


def test_a_watch_that_lags_behind_a_restart() -> None:
    """What it still tells of the attempt before, when the next one has been asked for, is no news."""
    rig = Rig()
    before: list[dict[str, Any]] = []
    patched: list[dict[str, Any]] = []
    patch_group = rig.cluster.patch_group

    def patch(name: str, **given: Any) -> dict[str, Any]:
        patched.append(patch_group(name, **given))
        if len(patched) == 2:
            rig.clock.put(Event("group", patched[0]))
            for pod in before:
                rig.clock.put(Event("pod", pod))
                rig.clock.put(Event("pod-gone", pod))
        return patched[-1]

    rig.cluster.patch_group = patch  # type: ignore[method-assign]
    rig.clock.after(4, lambda: before.extend(copy.deepcopy(list(rig.cluster.pods.values()))))
    rig.clock.after(5, lambda: rig.cluster.lose_host(1))
    rig.all_ok(30)
    report = run(rig)
    assert (report.ok, report.attempt) == (True, 1)
    assert len(before) == 2
    assert rig.verbs() == ["create", "patch", "patch", "patch", "patch", "delete"]


def test_restart_budget() -> None:
    """After max_restarts the loss fails the step, and says so."""
    rig = Rig(replace(STEP, max_restarts=1))
    rig.clock.after(5, lambda: rig.cluster.lose_host(0))
    rig.clock.after(20, lambda: rig.cluster.lose_host(0))
    report = run(rig)
    assert not report.ok
    assert report.attempt == 1
    assert report.lines[0].endswith("was deleted while it ran (restarts left: 0 of max_restarts=1)")
    assert "Raise max_restarts" in report.lines[1]


@pytest.mark.parametrize("host", [0, 1])
def test_evicted_without_statuses(host: int) -> None:
    """An evicted pod has no statuses any more: a loss that names pod, reason and message, and clean-up (case 21)."""
    rig = Rig(replace(STEP, max_restarts=0))
    message = "The node was low on resource: ephemeral-storage."

    def evict() -> None:
        pod = rig.cluster.pods[rig.uid(host)]
        status = {"phase": "Failed", "reason": "Evicted", "message": message, "startTime": "2026-01-01T00:00:00Z"}
        nothing = dict.fromkeys(("conditions", "containerStatuses", "initContainerStatuses"))
        pod["status"] = {**status, **nothing}
        rig.clock.put(Event("pod", pod))

    rig.clock.after(5, evict)
    report = run(rig)
    pod = "train-x-0-1" if host else "train-x-0"
    assert report.lines[0] == (
        f"train failed in attempt 0: host {host} was lost: pod {pod} failed (Evicted: {message}) "
        "(restarts left: 0 of max_restarts=0)"
    )
    assert rig.cluster.groups == {}
    assert rig.cluster.pods == {}


def test_killed_runner_is_infrastructure_loss_and_oom_is_not() -> None:
    """A container killed without an outcome is judged by Kubernetes' reason."""
    rig = Rig()
    rig.clock.after(5, lambda: rig.cluster.kill_host(0))
    rig.all_ok(30)
    assert run(rig).attempt == 1
    rig = Rig()
    rig.clock.after(5, lambda: rig.cluster.kill_host(0, reason="OOMKilled"))
    report = run(rig)
    assert report.lines[-2] == (
        "train failed in attempt 0: host 0 failed: out of memory: the kernel killed the process "
        "(OOMKilled, exit code 137)"
    )


def test_peer_errors_wait_for_the_eviction() -> None:
    """Hosts that abort since a peer went away do not fail the step when the peer's pod was evicted."""
    rig = Rig()
    aborted = Outcome(kind="signal", host=0, signal=6, code=134, ended=rig.clock.now())
    rig.clock.after(5, lambda: rig.cluster.end_host(aborted))
    rig.clock.after(15, lambda: rig.cluster.lose_host(1))
    rig.all_ok(60)
    assert run(rig).attempt == 1


def test_peer_errors_alone_fail_after_their_grace() -> None:
    """Without any cause the first host that told of a lost peer is named."""
    rig = Rig()
    begun = rig.clock.now()
    aborted = Outcome(kind="signal", host=0, signal=6, code=134, ended=begun, detail="SIGABRT")
    rig.clock.after(5, lambda: rig.cluster.end_host(aborted))
    assert not rig.launcher.run().ok
    assert rig.clock.now() - begun == 5 + PEER_GRACE


@pytest.mark.parametrize(("grace", "ok"), [(60.0, True), (5.0, False)])
def test_finish_grace(grace: float, ok: bool) -> None:
    """A leader that ends 30 s after the workers is fine with 60 s and a failure naming it with 5 s."""
    rig = Rig(replace(STEP, finish_grace=grace))
    rig.clock.after(5, rig.ok(1))
    rig.clock.after(35, rig.ok(0))
    report = run(rig)
    assert report.ok is ok
    if not ok:
        assert report.lines[-2].startswith(
            "train failed in attempt 0: host 0 was still running 5 s after host 1 had ended well (finish_grace)"
        )


def test_timeout_counts_running_time_over_attempts() -> None:
    """Timeout sums the attempts' running time; waiting is not counted."""
    rig = Rig(replace(STEP, timeout=100.0))
    begun = rig.clock.now()
    rig.clock.after(70, lambda: rig.cluster.lose_host(1))
    report = rig.launcher.run()
    assert (
        report.lines[-2] == "train failed in attempt 1: the function ran longer than timeout=100 s, over all attempts"
    )
    # 70 s and the settling time before the restart, one second without pods, and the rest.
    assert rig.clock.now() - begun == pytest.approx(101.0, abs=0.01)


def test_capacity_timeout_names_the_waiting_host() -> None:
    """Hosts that never run fail the step at capacity_timeout with the scheduler's words."""
    rig = Rig(replace(STEP, capacity_timeout=300.0), start=False)
    rig.clock.after(1, lambda: rig.cluster.start_host(0))
    begun = rig.clock.now()
    report = rig.launcher.run()
    assert rig.clock.now() - begun == 300.0
    assert report.lines[0] == (
        "train failed in attempt 0: not all hosts ran within capacity_timeout=300 s: "
        "1 of 2 hosts wait: host 1: the pod is pending"
    )
    assert rig.said.count("1 of 2 hosts wait: host 1: the pod is pending") == 4


def test_refused_pods_fail_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the namespace's Pod Security level refuses is refused for ever: the step ends after seconds, with the fix."""
    rig = Rig(start=False)
    said = (
        'Create Pod train-x-0 in StatefulSet train-x failed error: pods "train-x-0" is forbidden: violates PodSecurity '
        '"restricted:latest": seccompProfile (pod must not set securityContext.seccompProfile.type)'
    )
    about = {"name": "train-x", "kind": "StatefulSet"}
    refused = {"metadata": {"uid": "e"}, "type": "Warning", "reason": "FailedCreate", "message": said}
    monkeypatch.setattr(rig.cluster, "_make_pods", lambda _: None)
    rig.clock.after(1, lambda: rig.clock.put(Event("notice", {**refused, "involvedObject": about})))
    begun = rig.clock.now()
    report = rig.launcher.run()
    assert rig.clock.now() - begun == 1 + REFUSED_GRACE
    assert report.lines[0] == (
        "train failed in attempt 0: pod train-x-0 cannot be created: it violates the namespace's Pod Security level "
        f"restricted:latest (FailedCreate: {said}). Write pod_security='restricted' for the step. If it is written "
        "already, take from the task what the detail names."
    )


def test_wrong_image_fails_after_its_grace() -> None:
    """A reason that does not heal fails long before the capacity timeout; one that does, does not."""
    rig = Rig(start=False)
    rig.clock.after(1, lambda: rig.cluster.start_host(0))
    rig.clock.after(2, lambda: rig.cluster.wait_host(1, "InvalidImageName", "couldn't parse image"))
    begun = rig.clock.now()
    report = rig.launcher.run()
    assert rig.clock.now() - begun == pytest.approx(2 + START_GRACE, abs=1.0)
    assert "python:3.12" in report.lines[0]
    rig = Rig(start=False)
    rig.clock.after(1, lambda: rig.cluster.start_host(0))
    rig.clock.after(2, lambda: rig.cluster.wait_host(1, "ErrImagePull", "timeout"))
    rig.clock.after(60, lambda: rig.cluster.start_host(1))
    rig.all_ok(200)
    assert run(rig).ok


def test_start_grace_is_the_users() -> None:
    """start_grace takes the place of the two minutes."""
    rig = Rig(replace(STEP, start_grace=7.0), start=False)
    rig.clock.after(1, lambda: rig.cluster.start_host(0))
    rig.clock.after(2, lambda: rig.cluster.wait_host(1, "InvalidImageName", "couldn't parse image"))
    begun = rig.clock.now()
    assert not rig.launcher.run().ok
    assert rig.clock.now() - begun == pytest.approx(2 + 7, abs=1.0)


@pytest.mark.parametrize(("given", "grace"), [(None, REFUSED_GRACE), (3.0, 3.0)])
def test_pod_that_is_refused_for_good_fails_soon(given: float | None, grace: float) -> None:
    """The API server says why it makes no pod, so that the wait is short, and shorter if the user says so (case 25)."""
    rig = Rig(replace(STEP, start_grace=given), start=False)
    notice = {
        "metadata": {"uid": "n1"},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": 'create Pod train-x-0-1 in StatefulSet train-x-0 failed error: pods "train-x-0-1" is forbidden: '
        'error looking up service account ml/nobody: serviceaccount "nobody" not found',
        "involvedObject": {"name": "train-x-0"},
    }

    def refuse() -> None:
        rig.clock.put(Event("pod-gone", rig.cluster.pods.pop(rig.uid(1))))
        rig.clock.put(Event("notice", notice))

    rig.clock.after(2, refuse)
    begun = rig.clock.now()
    report = rig.launcher.run()
    assert "service account nobody does not exist" in report.lines[0]
    assert rig.clock.now() - begun == pytest.approx(2 + grace, abs=1.0)


def test_nothing_is_said_of_a_group_that_was_never_made() -> None:
    """Where a right is missing there is nothing to delete, and nothing is told of a deletion."""
    rig = Rig()

    def refuse(*_: object, **__: object) -> Any:
        msg = "u may not: create leaderworkersets in namespace ml"
        raise ForbiddenError(msg, status=403, reason="Forbidden")

    rig.cluster.create_group = refuse  # type: ignore[method-assign]
    with pytest.raises(ForbiddenError):
        rig.launcher.run()
    rig.launcher.clean_up()
    rig.cluster.read_group = refuse  # type: ignore[method-assign]
    rig.launcher.clean_up()
    assert rig.said == []


def test_upload_is_not_cut_by_finish_grace() -> None:
    """The leader's upload of a large output may last longer than finish_grace; its function returned with the others'."""
    rig = Rig(replace(STEP, finish_grace=10.0))
    rig.clock.after(5, rig.ok(1))
    rig.clock.after(6, lambda: rig.cluster.logs.update({rig.uid(0): f"loss 1\n{UPLOADING}\n".encode()}))
    rig.clock.after(47, rig.ok(0, outputs={"executorOutput": {}}))
    assert run(rig).ok
    assert rig.said.count("host 0 still uploads its outputs") == 4


def test_adopts_the_running_group() -> None:
    """A launcher that starts again finds the group, takes it over and starts nothing twice."""
    rig = Rig()
    rig.cluster.create_group(build(STEP, replace(LAUNCH, holder="earlier")))
    rig.cluster.dead_holders.add("earlier")
    rig.all_ok()
    assert run(rig).ok
    assert rig.verbs() == ["create", "patch", "patch", "delete"]
    assert any("adopted the running group train-x" in line for line in rig.said)


@pytest.mark.parametrize("late", [False, True], ids=["replaced", "away"])
@pytest.mark.parametrize("max_restarts", [3, 0])
def test_adopts_a_group_that_lost_a_host_unseen(max_restarts: int, late: bool) -> None:
    """A host that went away while there was no launcher is lost; the pod in its place counts for nothing."""
    rig = Rig(replace(STEP, max_restarts=max_restarts))
    rig.clock.after(5, lambda: rig.clock.put(Event("signal", signal.SIGTERM)))
    with pytest.raises(StoppedError):
        rig.launcher.run()
    rig.launcher.group.close()
    rig.cluster.lose_host(1)
    if late:
        del rig.cluster.pods[rig.uid(1)]
    rig.launcher = rig.make()
    rig.all_ok(10)
    report = run(rig)
    lost = "host 1 was lost: the pod that it ran in went away while no launcher watched"
    if max_restarts:
        assert (report.ok, report.attempt) == (True, 1)
        assert f"{lost}; restarting the group as attempt 1 (2 restarts left after it)" in rig.said
    else:
        assert report.lines[0] == f"train failed in attempt 0: {lost} (restarts left: 0 of max_restarts=0)"


def test_which_pods_run_cannot_be_written_down() -> None:
    """An API server that is away is told of, and nothing else comes of it."""
    rig = Rig()

    def away(name: str, **given: Any) -> dict[str, Any]:
        msg = "the API server does not answer"
        raise UnavailableError(msg)

    rig.cluster.patch_group = away  # type: ignore[method-assign]
    rig.all_ok()
    assert run(rig).ok
    assert "could not write down which pods run: the API server does not answer" in rig.said


def test_adoption_does_not_prolong_the_wait_for_capacity() -> None:
    """capacity_timeout counts from the group's creation, not from the start of the launcher that adopts it."""
    rig = Rig(replace(STEP, capacity_timeout=300.0), start=False)
    rig.cluster.create_group(build(STEP, replace(LAUNCH, holder="earlier")))
    rig.cluster.dead_holders.add("earlier")
    created = rig.clock.now()
    assert rig.clock.next_event(created + 200.0) is None
    report = rig.launcher.run()
    assert rig.clock.now() == created + 300.0
    assert "not all hosts ran within capacity_timeout=300 s" in report.lines[0]


def test_adopts_the_finished_group() -> None:
    """A group that finished while nobody looked gives its results."""
    rig = Rig()
    rig.cluster.create_group(build(STEP, replace(LAUNCH, holder="earlier")))
    rig.cluster.dead_holders.add("earlier")
    rig.ok(0, outputs={"executorOutput": {"x": 1}})()
    rig.ok(1)()
    assert run(rig).outputs == {"executorOutput": {"x": 1}}


def test_failed_group_is_made_anew() -> None:
    """A group that had failed before this launcher came is deleted and made again."""
    rig = Rig()
    rig.cluster.create_group(build(STEP, replace(LAUNCH, holder="earlier")))
    rig.cluster.dead_holders.add("earlier")
    rig.bad(0, ended=1.0)()
    rig.bad(1, ended=2.0)()
    rig.all_ok()
    assert run(rig).ok
    assert rig.verbs() == ["create", "patch", "patch", "delete", "create", "patch", "delete"]


def test_group_being_deleted_is_waited_out() -> None:
    """A group that is going away is not adopted."""
    rig = Rig()
    group = rig.cluster.create_group(build(STEP, LAUNCH))
    rig.cluster.delete_group("train-x", uid=group["metadata"]["uid"])
    rig.all_ok(10)
    assert run(rig).ok
    assert rig.verbs() == ["create", "delete", "create", "patch", "delete"]


def test_living_holder_keeps_its_group() -> None:
    """A group that a living launcher holds is left alone."""
    rig = Rig()
    rig.cluster.create_group(build(STEP, replace(LAUNCH, holder="other")))
    with pytest.raises(HeldError, match=r"held by another launcher that is at work \(other\)"):
        rig.launcher.run()
    assert rig.cluster.groups["train-x"]["metadata"]["annotations"][HOLDER_ANNOTATION] == "other"


def test_foreign_group_is_an_error() -> None:
    """A LeaderWorkerSet of that name which belongs to another task is no adoption."""
    rig = Rig()
    manifest = build(STEP, LAUNCH)
    manifest["metadata"]["annotations"][IDENTITY_ANNOTATION] = "r2/other"
    rig.cluster.create_group(manifest)
    with pytest.raises(ConflictError, match="is not of this task"):
        rig.launcher.run()


@pytest.mark.parametrize("after", [0.0, 3.0])
def test_signal_stops(after: float) -> None:
    """A signal is seen between two steps; cleaning up deletes the group, and further signals change nothing."""
    rig = Rig()
    rig.clock.after(after, lambda: rig.clock.put(Event("signal", signal.SIGTERM)))
    rig.clock.after(after + 0.5, lambda: rig.clock.put(Event("signal", signal.SIGTERM)))
    with pytest.raises(StoppedError):
        rig.launcher.run()
    rig.launcher.clean_up()
    assert rig.cluster.groups == {}
    assert rig.cluster.pods == {}


def test_signal_during_a_restart() -> None:
    """A signal between the two halves of a restart stops, and nothing is left."""
    rig = Rig()
    rig.clock.after(5, lambda: rig.cluster.lose_host(1))
    rig.clock.after(5 + SETTLE + 0.5, lambda: rig.clock.put(Event("signal", signal.SIGUSR1)))
    with pytest.raises(StoppedError):
        rig.launcher.run()
    rig.launcher.clean_up()
    assert rig.cluster.groups == {}
    assert rig.cluster.pods == {}


@pytest.mark.parametrize(("runners", "hurried"), [(2, []), (1, ["train-x-0", "train-x-0-1"])])
def test_leaving_a_group_that_is_being_deleted(runners: int, hurried: list[str]) -> None:
    """The launcher leaves with one request, without waiting; only servers, which do not hold, are hurried."""
    rig = Rig()
    rig.all_ok()
    assert rig.launcher.run().ok
    before = rig.clock.now()
    rig.launcher.group.runners = runners
    rig.launcher.clean_up(wait=False)
    assert rig.clock.now() == before
    assert "deletionTimestamp" in rig.cluster.groups["train-x"]["metadata"]
    assert ["deletionTimestamp" in pod["metadata"] for pod in rig.cluster.pods.values()] == [True, True]
    assert rig.said[-1] == "deleting group train-x"
    assert [call for call in rig.cluster.calls if call[0].startswith("delete")] == [
        ("delete", "train-x"),
        *(("delete-pod", name) for name in hurried),
    ]


def test_a_lost_node_is_not_left_to_the_cluster() -> None:
    """After success too the pod of a node that is lost is taken away by force: nobody else would."""
    rig = Rig()
    rig.all_ok()
    assert rig.launcher.run().ok
    rig.cluster.node_is_lost = lambda pod: pod_index(pod) == 1  # type: ignore[method-assign]
    rig.launcher.clean_up(wait=False)
    assert [name for verb, name in rig.cluster.calls if verb == "delete-pod"] == ["train-x-0", "train-x-0-1"]
    assert rig.said[-1] == "deleted group train-x in 1.0 s"


def test_group_deleted_by_somebody() -> None:
    """A group that somebody else deletes is a failure that says so."""
    rig = Rig()

    def delete() -> None:
        rig.cluster.delete_group("train-x", uid=rig.cluster.groups["train-x"]["metadata"]["uid"])

    rig.clock.after(5, delete)
    report = run(rig)
    assert not report.ok


def test_evicted_after_its_end_keeps_its_outcome() -> None:
    """A host that had ended and is evicted while it holds stays ended; nothing restarts (case 21)."""
    rig = Rig()
    outputs = {"executorOutput": {"x": 1}}
    rig.clock.after(1, rig.ok(0, outputs=outputs))

    def evict() -> None:
        pod = next(pod for pod in rig.cluster.pods.values() if pod["metadata"]["name"] == "train-x-0")
        status = {"phase": "Failed", "reason": "Evicted", "message": "disk pressure", "containerStatuses": None}
        rig.clock.put(Event("pod", {**pod, "status": status}))

    rig.clock.after(2, evict)
    rig.clock.after(5, rig.ok(1))
    assert run(rig).outputs == outputs
    assert rig.verbs() == ["create", "patch", "delete"]


def test_group_of_one() -> None:
    """A group of one host waits for no workers."""
    rig = Rig(replace(STEP, hosts=1))
    rig.clock.after(1, rig.ok(0, outputs={}))
    assert run(rig).ok
    assert "the host ended well after 0.0 s (attempt 0)" in rig.said
