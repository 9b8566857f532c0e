"""The launcher against answers that are ahead of its watch, and against what happens between two of its requests."""

from __future__ import annotations

import copy
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.cluster.api import Event
from kr_kfp.errors import ClusterError, ConflictError, SetupError, UnavailableError
from kr_kfp.names import HOLDER_ANNOTATION, IDENTITY_ANNOTATION
from kr_kfp.runtime.group import HeldError
from kr_kfp.runtime.logs import LogPump
from kr_kfp.runtime.picture import StoppedError
from kr_kfp.spec.leaderworkerset import build, stop_patch
from kr_kfp.spec.observe import pod_index
from kr_kfp.spec.outcome import SETTLE
from kr_kfp.wire import Outcome
from tests.unit.test_launcher import LAUNCH, STEP, Rig, run

Json = dict[str, Any]

DELETED = "LeaderWorkerSet train-x was deleted by somebody else while it ran"


def earlier(rig: Rig) -> Json:
    """Let a launcher make the group and die."""
    rig.cluster.dead_holders.add("earlier")
    return rig.cluster.create_group(build(STEP, replace(LAUNCH, holder="earlier")))


def drop(rig: Rig) -> None:
    """Delete the group in the background, as kubectl does: its pods go later."""
    group = rig.cluster.groups["train-x"]
    rig.cluster.delete_group("train-x", uid=group["metadata"]["uid"])
    del rig.cluster.groups["train-x"]
    for sink in list(rig.cluster._watchers):
        sink(Event("group-gone", group))


def test_what_an_earlier_watch_left_in_the_inbox() -> None:
    """A group that goes just after it was listed by one watch is no news for the next: not its end, not its pods."""
    rig = Rig()
    group = earlier(rig)
    rig.bad(0, ended=1.0)()
    rig.bad(1, ended=2.0)()
    rig.cluster.delete_group("train-x", uid=group["metadata"]["uid"])
    rig.all_ok(10)
    watch = rig.cluster.watch

    def watch_until_gone(name: str, sink: Any) -> Any:
        opened = watch(name, sink)
        rig.cluster.watch = watch  # type: ignore[method-assign]
        rig.cluster.groups.clear()
        for uid, pod in list(rig.cluster.pods.items()):
            del rig.cluster.pods[uid]
            sink(Event("pod-gone", pod))
        sink(Event("group-gone", group))
        # One that took the place of another just before, of which the pods' watch tells a moment later.
        metadata = {**pod["metadata"], "uid": "late", "deletionTimestamp": "2000-01-01T00:00:00Z"}
        sink(Event("pod", {**pod, "metadata": metadata}))
        sink(Event("pod-gone", {**pod, "metadata": metadata}))
        return opened

    rig.cluster.watch = watch_until_gone  # type: ignore[method-assign]
    report = run(rig)
    assert (report.ok, report.lines) == (True, ())
    assert rig.verbs() == ["create", "delete", "create", "patch", "delete"]


def test_a_group_that_goes_between_the_look_and_its_watch() -> None:
    """The watch finds nothing any more, and its word of that is not taken for the end of the next group."""
    rig = Rig()
    group = earlier(rig)
    rig.cluster.delete_group("train-x", uid=group["metadata"]["uid"])
    read = rig.cluster.read_group

    def read_and_go(name: str) -> Json | None:
        rig.cluster.read_group = read  # type: ignore[method-assign]
        found = read(name)
        rig.cluster.groups.clear()
        rig.cluster.pods.clear()
        return found

    rig.cluster.read_group = read_and_go  # type: ignore[method-assign]
    rig.all_ok(10)
    report = run(rig)
    assert (report.ok, report.lines) == (True, ())


@pytest.mark.parametrize("failed", [True, False])
def test_pods_that_outlive_their_group(failed: bool) -> None:
    """They are waited out before a new group is made: what they say would count for it, and they run beside it."""
    rig = Rig()
    earlier(rig)
    if failed:
        rig.bad(0, ended=1.0)()
        rig.bad(1, ended=2.0)()
    drop(rig)
    rig.all_ok(10)
    report = run(rig)
    assert (report.ok, report.attempt) == (True, 0)
    assert rig.verbs() == ["create", "delete", "create", "patch", "delete"]


def test_signal_while_a_failed_group_is_made_anew() -> None:
    """A signal that comes while the earlier group is deleted stops the launcher; no other group is made."""
    rig = Rig()
    earlier(rig)
    rig.bad(0, ended=1.0)()
    rig.bad(1, ended=2.0)()
    rig.clock.after(0.5, lambda: rig.clock.put(Event("signal", signal.SIGUSR1)))
    with pytest.raises(StoppedError) as stopped:
        rig.launcher.run()
    assert stopped.value.number == signal.SIGUSR1
    rig.launcher.clean_up()
    assert rig.verbs() == ["create", "patch", "patch", "delete"]
    assert (rig.cluster.groups, rig.cluster.pods) == ({}, {})


def test_adopts_a_group_in_the_middle_of_a_restart() -> None:
    """A launcher that left between the two halves of a restart: the next one does the second."""
    rig = Rig()
    group = earlier(rig)
    rig.cluster.patch_group("train-x", patch=stop_patch(), resource_version=group["metadata"]["resourceVersion"])
    assert rig.clock.next_event(rig.clock.now() + 5.0) is None
    assert rig.cluster.pods == {}
    rig.all_ok(5)
    report = run(rig)
    assert (report.ok, report.attempt) == (True, 1)
    assert "a restart was begun: the group has no replicas; restarting the group as attempt 1" in "\n".join(rig.said)


def test_a_restart_that_was_begun_keeps_the_time_that_has_run() -> None:
    """The first half of a restart writes down how long user code has run, for a launcher that does the second."""
    rig = Rig(replace(STEP, timeout=100.0))
    rig.clock.after(60, lambda: rig.cluster.lose_host(1))
    rig.clock.after(60 + SETTLE + 0.5, lambda: rig.clock.put(Event("signal", signal.SIGTERM)))
    with pytest.raises(StoppedError):
        rig.launcher.run()
    rig.launcher.group.close()
    rig.launcher = rig.make()
    begun = rig.clock.now()
    report = rig.launcher.run()
    assert (report.ok, report.attempt) == (False, 1)
    assert 35.0 < rig.clock.now() - begun < 40.0


@pytest.mark.parametrize("max_restarts", [0, 3])
@pytest.mark.parametrize("ending", [0.0, 1.0, 30.0])
def test_pods_go_before_their_group_is_told_to(max_restarts: int, ending: float) -> None:
    """A group that somebody deletes takes its hosts away; they are not lost, and nothing is restarted."""
    rig = Rig(replace(STEP, max_restarts=max_restarts))
    rig.cluster.ending = ending
    rig.clock.after(5, lambda: drop(rig))
    put = rig.clock.put

    def late(event: Event) -> None:
        if event.kind == "group-gone":
            rig.clock.after(60.0, lambda: put(event))
        else:
            put(event)

    rig.clock.put = late  # type: ignore[method-assign]
    report = run(rig)
    assert report.lines[0] == f"train failed in attempt 0: {DELETED}"
    assert rig.verbs() == ["create", "patch", "delete", "delete"]


def test_deleted_while_it_is_restarted() -> None:
    """The restart ends with the group, and the report says why."""
    rig = Rig()
    rig.cluster.ending = 20.0
    rig.clock.after(5, lambda: rig.cluster.lose_host(1))
    rig.clock.after(5 + SETTLE + 1.0, lambda: drop(rig))
    report = run(rig)
    assert report.lines[0] == f"train failed in attempt 0: {DELETED}"
    assert (rig.cluster.groups, rig.cluster.pods) == ({}, {})


def test_a_pod_that_only_a_list_has_told_of() -> None:
    """A watch that was cut tells neither of a pod that came meanwhile nor that it went: the restart looks again."""
    rig = Rig()
    list_pods = rig.cluster.list_pods
    ghost = {"metadata": {"name": "train-x-0-1", "uid": "ghost", "labels": {}}, "spec": {}, "status": {}}
    listed: list[int] = []

    def listing(name: str) -> list[Json]:
        found = list_pods(name)
        listed.append(len(found))
        # The first is before the group is made, the second when its pods are gone.
        return [ghost] if not found and listed.count(0) == 2 else found

    rig.cluster.list_pods = listing  # type: ignore[method-assign]
    rig.clock.after(5, lambda: rig.cluster.lose_host(1))
    rig.all_ok(40)
    report = run(rig)
    assert (report.ok, report.attempt) == (True, 1)
    assert rig.verbs() == ["create", "patch", "patch", "patch", "patch", "delete"]


def test_a_pod_that_is_told_of_again_after_it_was_gone() -> None:
    """A reminder of a pod that crosses the news of its end does not bring it back: nothing waits for it."""
    rig = Rig()
    old: dict[str, Json] = {}

    def again() -> None:
        rig.clock.put(Event("pod", old["pod"]))

    def lose() -> None:
        old["pod"] = rig.cluster.pods[rig.uid(1)]
        rig.cluster.lose_host(1)

    rig.clock.after(5, lose)
    rig.clock.after(20, again)
    rig.clock.after(30, lambda: rig.cluster.lose_host(1))
    rig.all_ok(60)
    report = run(rig)
    assert (report.ok, report.attempt) == (True, 2)
    assert rig.said[-1] == "deleted group train-x in 1.0 s"


def test_a_leader_that_goes_before_its_large_outcome_was_read() -> None:
    """Its results went with it, so it is lost: the group restarts at once."""
    rig = Rig()
    big = {"executorOutput": {"parameterValues": {"Output": "x" * 5000}}, "parameters": {}}

    def end_and_go() -> None:
        outcome = Outcome(kind="ok", host=0, started=rig.clock.now(), ended=rig.clock.now(), outputs=big)
        rig.cluster.end_host(outcome)
        rig.cluster.lose_host(0)

    rig.clock.after(5, end_and_go)
    rig.clock.after(20, rig.ok(0, outputs=big))
    rig.clock.after(20, rig.ok(1))
    begun = rig.clock.now()
    report = run(rig)
    assert (report.ok, report.attempt, report.outputs) == (True, 1, big)
    assert rig.clock.now() < begun + 30.0
    assert "host 0 was lost: pod train-x-0 was deleted before its outcome was read" in "\n".join(rig.said)


def test_a_log_that_cannot_be_read_when_finish_grace_is_over() -> None:
    """The node of the leader does not answer: the verdict is that of finish_grace, not an error of the cluster."""
    rig = Rig()

    def read_log(pod: Json, *, previous: bool = False, tail_bytes: int | None = None) -> bytes:
        raise UnavailableError("the node does not answer")

    rig.cluster.read_log = read_log  # type: ignore[method-assign]
    rig.clock.after(5, rig.ok(1))
    report = run(rig)
    assert "host 0 was still running 60 s after host 1 had ended well" in report.lines[0]


@pytest.mark.parametrize("living", [True, False])
def test_a_group_of_somebody_else_is_not_deleted(living: bool) -> None:
    """A launcher that could not take a group over deletes nothing when it leaves."""
    rig = Rig()
    manifest = build(STEP, replace(LAUNCH, holder="other"))
    if not living:
        manifest["metadata"]["annotations"][IDENTITY_ANNOTATION] = "r2/other"
    rig.cluster.create_group(manifest)
    with pytest.raises(HeldError if living else ConflictError):
        rig.launcher.run()
    rig.launcher.clean_up()
    assert rig.verbs() == ["create"]
    assert rig.cluster.groups["train-x"]["metadata"]["annotations"][HOLDER_ANNOTATION] == "other"


def test_a_group_of_which_the_answer_was_lost_is_deleted() -> None:
    """It was made, and the answer did not come: it is this launcher's, and goes with it."""
    rig = Rig()
    create = rig.cluster.create_group

    def create_and_fail(manifest: Json) -> Json:
        create(manifest)
        raise UnavailableError("the server does not answer")

    rig.cluster.create_group = create_and_fail  # type: ignore[method-assign]
    with pytest.raises(ClusterError):
        rig.launcher.run()
    rig.launcher.clean_up()
    assert (rig.cluster.groups, rig.cluster.pods) == ({}, {})


def test_a_restart_while_the_controller_is_behind() -> None:
    """A leader that its StatefulSet brings back, as long as nobody has scaled it, gets no place in the next attempt."""
    rig = Rig()
    cluster = rig.cluster
    stopped: list[float] = []
    begun: list[tuple[float, int]] = []
    remove, patch_group, create_group = cluster._remove, cluster.patch_group, cluster.create_group

    def create(manifest: Json) -> Json:
        made = create_group(manifest)
        cluster.groups["train-x"]["status"] = {"replicas": 1}
        return made

    def patch(name: str, *, patch: Json, resource_version: str) -> Json:
        replicas = patch.get("spec", {}).get("replicas")
        if replicas == 0:
            stopped.append(rig.clock.now())
            rig.clock.after(20.0, catch_up)
        elif replicas == 1:
            begun.append((rig.clock.now(), len(cluster.pods)))
        return patch_group(name, patch=patch, resource_version=resource_version)

    def take_away(uid: str) -> None:
        leader = uid in cluster.pods and pod_index(cluster.pods[uid]) == 0
        old = copy.deepcopy(cluster.groups["train-x"])
        remove(uid)
        if leader and old["status"]["replicas"] and not old["spec"]["replicas"]:
            rig.clock.after(0.05, lambda: cluster._make_pod(old, 0))

    def catch_up() -> None:
        group = cluster.groups["train-x"]
        group["status"] = {"replicas": 0}
        group["metadata"]["resourceVersion"] = cluster._version()
        for sink in list(cluster._watchers):
            sink(Event("group", copy.deepcopy(group)))

    cluster._remove = take_away  # type: ignore[method-assign]
    cluster.patch_group = patch  # type: ignore[method-assign]
    cluster.create_group = create  # type: ignore[method-assign]
    rig.clock.after(5, lambda: cluster.lose_host(1))
    rig.clock.after(40, rig.ok(0, attempt=1))
    rig.clock.after(40, rig.ok(1, attempt=1))
    report = run(rig)
    assert (report.ok, report.attempt) == (True, 1)
    assert len(stopped) == len(begun) == 1
    ((at, pods),) = begun
    assert 20.0 <= at - stopped[0] < 22.0
    assert pods == 0


def take_over(rig: Rig) -> None:
    """Be another launcher that takes the first one for dead."""
    group = rig.cluster.groups["train-x"]
    patch = {"metadata": {"annotations": {HOLDER_ANNOTATION: "lease:kr-kfp-other"}}}
    rig.cluster.patch_group("train-x", patch=patch, resource_version=group["metadata"]["resourceVersion"])


def test_another_launcher_takes_over() -> None:
    """A launcher that wakes up too late says so, touches nothing, and leaves the verdict to the new holder."""
    rig = Rig()

    rig.clock.after(5, lambda: take_over(rig))
    rig.all_ok(6)
    with pytest.raises(SetupError) as gone:
        rig.launcher.run()
    assert str(gone.value) == (
        "another launcher (lease:kr-kfp-other) took over LeaderWorkerSet train-x: this one was not heard of for too long "
        "(was its machine asleep or cut off?). The group runs on, and what that one tells counts"
    )
    assert rig.verbs() == ["create", "patch", "patch"]
    assert len(rig.cluster.pods) == 2


def test_another_launcher_took_over_unheard() -> None:
    """Its watch is behind, so only the group itself tells, before it would be restarted: that is the other's now."""
    rig = Rig()
    put = rig.clock.put
    rig.clock.put = lambda event: None if event.kind == "group" else put(event)  # type: ignore[method-assign]

    rig.clock.after(5, lambda: take_over(rig))
    rig.clock.after(6, lambda: rig.cluster.lose_host(1))
    with pytest.raises(SetupError, match=r"another launcher \(lease:kr-kfp-other\) took over"):
        rig.launcher.run()
    assert rig.verbs() == ["create", "patch", "patch"]


def test_the_last_words_of_hosts_are_shown() -> None:
    """What a host prints as it is ended with its group comes before the group's end, however late its log is read."""
    rig = Rig()
    asked = threading.Event()

    class Pump(LogPump):
        def finish(self, seconds: float, *, shown: bool = False) -> None:
            if not rig.cluster.pods:
                asked.set()
            super().finish(30.0 if asked.is_set() else 0.0, shown=shown)

    def follow_log(pod: Json) -> Iterator[bytes]:
        yield b"epoch 1\n"
        if asked.wait(10):
            yield b"saved\n"

    rig.cluster.follow_log = follow_log  # type: ignore[method-assign]
    rig.launcher.logs = Pump("train", "leader", rig.said.append)
    rig.clock.after(5, rig.bad(1, ended=100.0))
    assert not run(rig).ok
    assert rig.said[-2:] == ["[train host 0] saved", "deleted group train-x in 1.0 s"]
