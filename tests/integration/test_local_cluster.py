"""The local cluster does with real processes what LeaderWorkerSet and kubelet do on Kubernetes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kr_kfp.cluster.local import LocalCluster, list_groups
from kr_kfp.cluster.local_places import Place, claim_port, hold, is_held
from kr_kfp.cluster.local_pod import back_off
from kr_kfp.errors import ClusterError, ConflictError, NotFoundError, SetupError
from tests.local_kit import DEADLINE, HOLD, Json, Kit, Recorder, kit_fixture, manifest, state, until

__all__ = ["kit_fixture"]

WAIT_FOR_GO = 'until [ -e "$KR_KFP_WORK/go" ]; do sleep 0.01; done; '


def gone(recorder: Recorder) -> None:
    """Wait for the end of the group."""
    recorder.wait(lambda e: e.kind == "group-gone")


def test_create_gives_the_stored_manifest(kit: Kit) -> None:
    """A created group has UID, version, creation time and namespace beside what was given."""
    given = manifest(["sleep", "1000"])
    made = kit.cluster.create_group(given)
    metadata = made.pop("metadata")
    assert made == {key: value for key, value in given.items() if key != "metadata"}
    assert metadata == {
        "name": "train",
        "annotations": {"a": "b"},
        "namespace": "local",
        "resourceVersion": "1",
        "uid": metadata["uid"],
        "creationTimestamp": metadata["creationTimestamp"],
    }
    assert len(metadata["uid"]) == 36
    assert metadata["creationTimestamp"].endswith("Z")
    found = kit.cluster.read_group("train")
    assert found is not None
    assert found["metadata"] == metadata


def test_a_container_ends_restarts_and_holds(kit: Kit) -> None:
    """Watchers see running, terminated with all facts, then the restart with the facts in lastState."""
    kit.sh(f"{HOLD}{WAIT_FOR_GO}printf outcome > $KR_KFP_TERMINATION_LOG; exit 3")
    recorder = kit.watch()
    (pod,) = kit.pods()
    uid = pod["metadata"]["uid"]
    (kit.work(pod) / "go").touch()
    recorder.wait(lambda e: e.kind == "pod" and state(e.value)["restartCount"] == 1)
    first, ended, second = recorder.states(uid)[-3:]
    facts = ended["state"]["terminated"]
    assert first == {
        "name": "main",
        "restartCount": 0,
        "ready": True,
        "state": {"running": {"startedAt": facts["startedAt"]}},
        "lastState": {},
    }
    assert ended == {
        "name": "main",
        "restartCount": 0,
        "ready": False,
        "state": {
            "terminated": {
                "exitCode": 3,
                "reason": "Error",
                "message": "outcome",
                "startedAt": facts["startedAt"],
                "finishedAt": facts["finishedAt"],
            }
        },
        "lastState": {},
    }
    assert second == {
        "name": "main",
        "restartCount": 1,
        "ready": True,
        "state": {"running": {"startedAt": second["state"]["running"]["startedAt"]}},
        "lastState": {"terminated": facts},
    }
    assert facts["startedAt"] < facts["finishedAt"] < second["state"]["running"]["startedAt"]
    assert len(facts["finishedAt"]) == len("2026-11-30T05:18:43.698893Z")


def test_a_pod_is_as_lws_makes_it(kit: Kit) -> None:
    """Pods have the names, labels, phase and injected variables of LWS, and their own copy of the template."""
    kit.sh("sleep 1000", hosts=2, env=[{"name": "A", "value": "$(LWS_WORKER_INDEX)"}])
    leader, worker = kit.pods(2)
    metadata, spec, status = worker["metadata"], worker["spec"], worker["status"]
    assert leader["metadata"]["name"] == "train-0"
    assert metadata == {
        "name": "train-0-1",
        "namespace": "local",
        "labels": {
            "leaderworkerset.sigs.k8s.io/name": "train",
            "leaderworkerset.sigs.k8s.io/group-index": "0",
            "leaderworkerset.sigs.k8s.io/worker-index": "1",
        },
        "annotations": {},
        "uid": metadata["uid"],
        "creationTimestamp": metadata["creationTimestamp"],
    }
    assert spec["nodeName"] == "local"
    assert spec["containers"][0]["env"] == [
        {"name": "LWS_LEADER_ADDRESS", "value": "127.0.0.1"},
        {"name": "LWS_GROUP_SIZE", "value": "2"},
        {"name": "LWS_WORKER_INDEX", "value": "1"},
        {"name": "A", "value": "$(LWS_WORKER_INDEX)"},
    ]
    assert (status["phase"], status["conditions"]) == ("Running", [])
    assert status["startTime"] == metadata["creationTimestamp"]


@pytest.mark.parametrize(
    ("script", "code", "reason", "number", "message"),
    [
        pytest.param("exit 0", 0, "Completed", None, "", id="good"),
        pytest.param("exit 7", 7, "Error", None, "", id="bad"),
        pytest.param("kill -9 $$$$", 137, "Error", 9, "", id="killed"),
        pytest.param("printf 'a\\377b' > $KR_KFP_TERMINATION_LOG", 0, "Completed", None, "a\ufffdb", id="no-utf-8"),
        pytest.param(
            'python3 -c \'print("x" * 5000 + "end", end="")\' > $KR_KFP_TERMINATION_LOG',
            0,
            "Completed",
            None,
            "x" * 4093 + "end",
            id="too-long",
        ),
        pytest.param("rm $KR_KFP_TERMINATION_LOG; exit 1", 1, "Error", None, "", id="removed"),
        pytest.param('rmdir "$(pwd -P)"; exit 1', 1, "Error", None, "", id="folder-removed"),
    ],
)
def test_how_a_container_ended(kit: Kit, script: str, code: int, reason: str, number: int | None, message: str) -> None:
    """Exit code, signal, reason and message are Kubernetes' own words."""
    kit.sh(f"{HOLD}{script}")
    recorder = kit.watch()
    event = recorder.wait(lambda e: e.kind == "pod" and state(e.value)["lastState"])
    facts = state(event.value)["lastState"]["terminated"]
    found = (facts["exitCode"], facts["reason"], facts.get("signal"), facts["message"])
    assert found == (code, reason, number, message)


def test_each_start_has_an_empty_termination_message(kit: Kit) -> None:
    """A start that says nothing does not repeat what the start before said."""
    kit.sh(
        'if [ -e "$KR_KFP_WORK/b" ]; then exec sleep 1000; fi; if [ -e "$KR_KFP_WORK/a" ]; then '
        'touch "$KR_KFP_WORK/b"; exit 2; fi; touch "$KR_KFP_WORK/a"; echo said > $KR_KFP_TERMINATION_LOG; exit 1'
    )
    recorder = kit.watch()
    event = recorder.wait(lambda e: e.kind == "pod" and state(e.value)["restartCount"] == 2)
    facts = state(event.value)["lastState"]["terminated"]
    assert (facts["exitCode"], facts["message"]) == (2, "")


def test_a_name_is_taken_once(kit: Kit) -> None:
    """A second create is refused while the group lives and while it is being deleted, not after."""
    deaf = "trap '' TERM; touch $KR_KFP_WORK/up; sleep 1000 & wait; wait; sleep 1000"
    group = kit.sh(deaf, terminationGracePeriodSeconds=1000)
    with pytest.raises(ConflictError) as refused:
        kit.sh("true")
    assert (refused.value.status, refused.value.reason) == (409, "AlreadyExists")
    assert str(refused.value) == "group train exists"
    (pod,) = kit.pods()
    until((kit.work(pod) / "up").exists)
    kit.cluster.delete_group("train", uid=group["metadata"]["uid"])
    found = kit.cluster.read_group("train")
    assert found is not None
    assert "deletionTimestamp" in found["metadata"]
    with pytest.raises(ConflictError):
        kit.sh("true")
    kit.cluster.delete_pod("train-0", uid=pod["metadata"]["uid"], grace_seconds=0)
    assert kit.cluster.wait_gone("train", DEADLINE)
    assert kit.sh("sleep 1000")["metadata"]["uid"] != group["metadata"]["uid"]


def test_a_wrong_manifest_is_refused(kit: Kit) -> None:
    """All that cannot be run here is named at once, and nothing is started."""
    wrong = manifest(["true"])
    wrong["spec"] |= {"replicas": 2}
    wrong["spec"]["leaderWorkerTemplate"] |= {"size": 0, "leaderTemplate": {"spec": {"containers": []}}}
    with pytest.raises(ClusterError) as refused:
        kit.cluster.create_group(wrong)
    assert refused.value.status == 422
    assert str(refused.value).splitlines() == [
        "invalid LeaderWorkerSet:",
        "spec.replicas: 2; the local cluster runs one group",
        "spec.leaderWorkerTemplate.size: 0; must be 1 or more",
        "spec.leaderWorkerTemplate.leaderTemplate.spec.containers: none is named 'main'",
    ]
    with pytest.raises(ClusterError) as unnamed:
        kit.cluster.create_group(manifest(["true"], name="../up"))
    assert unnamed.value.reason == "Invalid"
    assert list(kit.root.iterdir()) == []


def test_restart_of_the_group_as_a_new_attempt(kit: Kit) -> None:
    """Replicas 0 takes all pods away and keeps the group; 1 makes new ones from the template of then."""
    attempt = {"name": "KR_KFP_ATTEMPT", "value": "0"}
    group = kit.sh("echo attempt $KR_KFP_ATTEMPT; exec sleep 1000", hosts=2, env=[attempt])
    before = kit.pods(2)
    recorder = kit.watch()
    stop = {"spec": {"replicas": 0}}
    kit.cluster.patch_group("train", patch=stop, resource_version=group["metadata"]["resourceVersion"])
    for pod in before:
        recorder.wait_gone(pod)
    assert kit.cluster.list_pods("train") == []
    current = kit.cluster.read_group("train")
    assert current is not None
    assert current["spec"]["replicas"] == 0
    version = current["metadata"]["resourceVersion"]
    containers = current["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    containers[0]["env"][0]["value"] = "1"
    again = {"spec": {"replicas": 1, "leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": containers}}}}}
    patched = kit.cluster.patch_group("train", patch=again, resource_version=version)
    assert patched["metadata"]["uid"] == group["metadata"]["uid"]
    after = kit.pods(2)
    assert {p["metadata"]["uid"] for p in after}.isdisjoint(p["metadata"]["uid"] for p in before)
    until(lambda: [kit.cluster.read_log(p) for p in after] == [b"attempt 1\n"] * 2)
    assert not any(kit.folder(pod).exists() for pod in before)


def test_a_patch_needs_the_current_version(kit: Kit) -> None:
    """A patch of an older version is refused, the group's identity cannot be patched, a null removes a field."""
    group = kit.sh("sleep 1000")
    patch = {"metadata": {"uid": "other", "name": "other", "annotations": {"a": None, "held": "me"}}}
    patched = kit.cluster.patch_group("train", patch=patch, resource_version="1")
    assert patched["metadata"] == group["metadata"] | {"annotations": {"held": "me"}, "resourceVersion": "2"}
    with pytest.raises(ConflictError) as refused:
        kit.cluster.patch_group("train", patch=patch, resource_version="1")
    assert str(refused.value) == "train was changed: it is of version 2, not 1"
    assert (refused.value.status, refused.value.reason) == (409, "Conflict")


def test_what_is_not_there(kit: Kit) -> None:
    """Requests about a group that does not exist give what the protocol says."""
    cluster = kit.cluster
    assert cluster.read_group("train") is None
    assert cluster.list_pods("train") == []
    cluster.delete_group("train", uid="u")
    cluster.delete_pod("train-0", uid="u")
    cluster.delete_pod("odd", uid="u")
    with pytest.raises(NotFoundError) as missing:
        cluster.patch_group("train", patch={}, resource_version="1")
    assert (missing.value.status, missing.value.reason) == (404, "NotFound")
    recorder = kit.watch()
    gone(recorder)
    assert [e.kind for e in recorder.events] == ["synced", "group-gone"]
    assert (cluster.own_pod(), cluster.where) == (None, "the local cluster")


def test_requests_with_another_uid_do_nothing(kit: Kit) -> None:
    """Deletions name the very object; one of the same name is left alone."""
    kit.sh("sleep 1000")
    before = kit.pods()
    kit.cluster.delete_group("train", uid="other")
    kit.cluster.delete_pod("train-0", uid="other", grace_seconds=0)
    assert kit.pods() == before
    assert not kit.cluster.node_is_lost(before[0])


def test_a_deleted_worker_comes_back_alone(kit: Kit) -> None:
    """A worker comes back under its name with a new UID and an empty work folder; the others stay."""
    kit.sh('touch "$KR_KFP_WORK/$KR_KFP_POD_UID"; exec sleep 1000', hosts=3)
    recorder = kit.watch()
    before = kit.pods(3)
    old = before[1]["metadata"]["uid"]
    kit.cluster.delete_pod("train-0-1", uid=old)
    recorder.wait_gone(before[1])
    after = kit.pods(3)
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, True]
    new = after[1]["metadata"]["uid"]
    assert (after[1]["metadata"]["name"], new != old) == ("train-0-1", True)
    until(lambda: [path.name for path in kit.work(after[1]).iterdir()] == [new])
    assert not kit.folder(before[1]).exists()


def test_a_deleted_leader_takes_its_workers_along(kit: Kit) -> None:
    """All old pods are gone before the first new one is made."""
    kit.sh("exec sleep 1000", hosts=3)
    before = {p["metadata"]["uid"] for p in kit.pods(3)}
    recorder = kit.watch()
    leader = next(p for p in kit.cluster.list_pods("train") if p["metadata"]["name"] == "train-0")
    kit.cluster.delete_pod("train-0", uid=leader["metadata"]["uid"])
    after = {p["metadata"]["uid"] for p in kit.pods(3)}
    assert before.isdisjoint(after)
    recorder.wait(lambda e: e.kind == "pod" and e.value["metadata"]["uid"] in after)
    order = [e.value["metadata"]["uid"] for e in recorder.events if e.kind in ("pod", "pod-gone")]
    assert max(at for at, uid in enumerate(order) if uid in before) < min(
        at for at, uid in enumerate(order) if uid in after
    )


def test_a_host_has_its_grace_and_no_more(kit: Kit) -> None:
    """A host that ignores SIGTERM gets SIGKILL after its grace; what it did meanwhile is told."""
    group = kit.sh(
        "trap 'echo asked' TERM; echo up; while :; do sleep 0.05; done", hosts=1, terminationGracePeriodSeconds=1
    )
    (pod,) = kit.pods()
    until(lambda: kit.cluster.read_log(pod) == b"up\n")
    recorder = kit.watch()
    follow = kit.cluster.follow_log(pod)
    kit.delete(group)
    gone(recorder)
    last = next(e.value for e in recorder.events if e.kind == "pod-gone")
    facts = state(last)["state"]["terminated"]
    assert (facts["exitCode"], facts["signal"]) == (137, 9)
    asked = _seconds(last["metadata"]["deletionTimestamp"])
    assert 1.0 <= _seconds(facts["finishedAt"]) - asked < 30.0  # without a grace of its own, a pod has 30 s
    assert list(follow) == []


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


@pytest.mark.parametrize("grace", [0, 0.1], ids=["at-once", "soon"])
def test_a_deletion_with_another_grace(kit: Kit, grace: float) -> None:
    """The grace that is asked for counts in place of the pod's own, also for one that is being deleted already."""
    kit.sh("trap '' TERM; echo up; while :; do sleep 0.05; done", hosts=2, terminationGracePeriodSeconds=1000)
    recorder = kit.watch()
    leader, worker = kit.pods(2)
    until(lambda: kit.cluster.read_log(worker) == kit.cluster.read_log(leader) == b"up\n")
    kit.cluster.delete_pod("train-0-1", uid=worker["metadata"]["uid"], grace_seconds=grace)
    recorder.wait_gone(worker)
    kit.cluster.delete_pod("train-0", uid=leader["metadata"]["uid"])
    for pod in kit.cluster.list_pods("train"):
        kit.cluster.delete_pod(pod["metadata"]["name"], uid=pod["metadata"]["uid"], grace_seconds=grace)
    recorder.wait_gone(leader)


def test_a_deletion_with_a_longer_grace(kit: Kit) -> None:
    """A host may be given more time than its own grace."""
    kit.sh(
        "trap 'sleep 0.5; echo saved > $KR_KFP_TERMINATION_LOG; exit 4' TERM; echo up; while :; do sleep 0.05; done",
        terminationGracePeriodSeconds=0.1,
    )
    recorder = kit.watch()
    (pod,) = kit.pods()
    until(lambda: kit.cluster.read_log(pod) == b"up\n")
    kit.cluster.delete_pod("train-0", uid=pod["metadata"]["uid"], grace_seconds=30)
    recorder.wait_gone(pod)
    facts = recorder.states(pod["metadata"]["uid"])[-1]["state"]["terminated"]
    assert (facts["exitCode"], facts["message"]) == (4, "saved\n")


def test_what_a_watcher_sees_of_a_deletion(kit: Kit) -> None:
    """Pods are asked, end and go; then the group goes, its folder before it; nothing follows."""
    group = kit.sh("exec sleep 1000")
    kit.pods()
    recorder = kit.watch()
    kit.cluster.delete_group("train", uid=group["metadata"]["uid"])
    gone(recorder)
    assert not (kit.root / "train").exists()
    assert kit.cluster.create_group(manifest(["sleep", "1000"]))["metadata"]["uid"] != group["metadata"]["uid"]
    kit.pods()
    assert [e.kind for e in recorder.events] == [
        *("group", "pod", "synced", "group", "pod", "pod", "pod-gone", "group-gone")
    ]
    assert recorder.events[-1].value["metadata"]["uid"] == group["metadata"]["uid"]


def test_a_closed_watch_is_silent(kit: Kit) -> None:
    """No event follows close(), and closing from the sink itself works."""
    group = kit.sh("exec sleep 1000")
    recorder = Recorder()
    watch = kit.cluster.watch("train", recorder)
    recorder.wait(lambda e: e.kind == "synced")
    watch.close()
    seen = len(recorder.events)
    once: list[Any] = []
    ready = threading.Event()

    def close_at_once(event: object) -> None:
        assert ready.wait(DEADLINE)
        once.append(event)
        other.close()

    other = kit.cluster.watch("train", close_at_once)
    ready.set()
    until(lambda: once)
    kit.delete(group)
    assert (len(recorder.events), len(once)) == (seen, 1)


def test_a_program_that_is_not_there(kit: Kit) -> None:
    """It counts as a start that failed, and is tried again ever more slowly."""
    kit.create(["no-such-program"])
    recorder = kit.watch()
    event = recorder.wait(lambda e: e.kind == "pod" and "CrashLoopBackOff" in str(state(e.value)))
    shown = state(event.value)
    assert shown["state"]["waiting"] == {
        "reason": "CrashLoopBackOff",
        "message": "back-off 1s restarting failed container=main pod=train-0",
    }
    facts = shown["lastState"]["terminated"]
    assert (shown["restartCount"], facts["exitCode"], facts["reason"]) == (3, 128, "StartError")
    assert facts["message"] == "cannot start 'no-such-program': [Errno 2] No such file or directory: 'no-such-program'"


def test_back_off() -> None:
    """Three restarts come at once, then the pause doubles up to a minute."""
    assert [back_off(n) for n in range(1, 13)] == [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_a_value_that_only_a_cluster_has(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret comes from the launcher's variable of that name; without it the container waits and says why."""
    monkeypatch.setenv("GIVEN", "from the launcher")
    secret = {"secretKeyRef": {"name": "keys", "key": "k"}}
    kit.sh("echo $GIVEN; sleep 1000", name="good", env=[{"name": "GIVEN", "valueFrom": secret}])
    (pod,) = kit.pods(name="good")
    until(lambda: kit.cluster.read_log(pod) == b"from the launcher\n")
    kit.sh("sleep 1000", name="bad", env=[{"name": "MISSING", "valueFrom": secret}])
    recorder = kit.watch("bad")
    event = recorder.wait(
        lambda e: e.kind == "pod" and state(e.value)["state"]["waiting"]["reason"] != "ContainerCreating"
    )
    assert state(event.value)["state"]["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": "MISSING comes from key 'k' of secret 'keys', which the local cluster cannot read. "
        "Set MISSING in the environment that the pipeline is run in",
    }
    assert event.value["status"]["phase"] == "Pending"


def test_ports_are_free_distinct_and_kept(kit: Kit) -> None:
    """A name keeps its ports; a taken port and one that is promised to another group are passed over."""
    first = kit.cluster.ports("train")
    numbers = [first.jax, first.torch, first.megascale]
    assert len(set(numbers)) == 3
    assert all(20_000 <= n < 30_000 for n in numbers)
    assert kit.cluster.ports("train") == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.jax))
        other = kit.cluster.ports("train")
    assert first.jax not in (other.jax, other.torch, other.megascale)
    assert not claim_port(kit.root, first.jax, "another")
    claim = kit.root / ".ports" / str(first.jax)
    os.utime(claim, (0, 0), follow_symlinks=False)
    assert claim_port(kit.root, first.jax, "another")


def test_a_holder_is_a_process_that_lives(kit: Kit) -> None:
    """A holder lives as long as its process; the same id with another start time is somebody else."""
    cluster = kit.cluster
    mine = cluster.holder()
    assert cluster.is_holder_alive(mine)
    assert not cluster.is_holder_alive(f"local-{os.getpid()}-1")
    assert not cluster.is_holder_alive("5e7e4fb3-pod-uid")
    with subprocess.Popen(
        [sys.executable, "-c", "from kr_kfp.cluster.local import LocalCluster as C; print(C().holder()); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        other = process.stdout.readline().strip()
        assert other.startswith(f"local-{process.pid}-")
        assert cluster.is_holder_alive(other)
        process.kill()
        # Also before its parent has collected it.
        until(lambda: not cluster.is_holder_alive(other))


def test_groups_are_listed(kit: Kit) -> None:
    """All groups of this user are listed, those that were left behind dead are not."""
    kit.sh("exec sleep 1000", name="b")
    kit.sh("exec sleep 1000", name="a")
    (kit.root / "dead").mkdir()
    (kit.root / "dead" / "lock").touch()
    assert [group["metadata"]["name"] for group in list_groups()] == ["a", "b"]


def test_a_root_of_somebody_else_is_refused(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is kept where another user could change it; a loose mode is tightened; a long path is refused."""
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o777)
    monkeypatch.setenv("KR_KFP_LOCAL_ROOT", str(loose))
    assert list_groups() == []
    assert loose.stat().st_mode & 0o777 == 0o700
    link = tmp_path / "link"
    link.symlink_to(loose)
    monkeypatch.setenv("KR_KFP_LOCAL_ROOT", str(link))
    with pytest.raises(SetupError) as foreign:
        LocalCluster().read_group("train")
    assert str(foreign.value) == (
        f"{link} is not a folder of this user, so groups cannot be kept there. Set KR_KFP_LOCAL_ROOT to one that is"
    )
    deep = tmp_path / ("d" * 100)
    monkeypatch.setenv("KR_KFP_LOCAL_ROOT", str(deep))
    with pytest.raises(SetupError) as long:
        LocalCluster().read_group("train")
    size = len(str(deep / "train" / "socket"))
    assert str(long.value) == (
        f"{deep}/train/socket has {size} bytes, a socket's path at most 100. Set KR_KFP_LOCAL_ROOT to less"
    )


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_root_that_belongs_to_another_user_is_refused(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ownership is looked at, not rights."""
    given_away = kit.root / "given"
    given_away.mkdir()
    os.chown(given_away, 12345, -1)
    monkeypatch.setenv("KR_KFP_LOCAL_ROOT", str(given_away))
    with pytest.raises(SetupError):
        list_groups()


def test_a_wrong_orphan_time_is_refused(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that cannot be read is an error and not a default."""
    monkeypatch.setenv("KR_KFP_LOCAL_ORPHAN_SECONDS", "soon")
    with pytest.raises(SetupError) as refused:
        kit.sh("true")
    assert str(refused.value) == (
        "KR_KFP_LOCAL_ORPHAN_SECONDS='soon' is no number of seconds. Set it to one, or unset it"
    )


def test_a_lock_belongs_to_one(kit: Kit) -> None:
    """The lock is free when it is let go, and a lock in a folder that was removed is worth nothing."""
    place = Place(kit.root / "g")
    first = hold(place)
    assert first is not None
    assert hold(place) is None
    assert is_held(place)
    os.close(first)
    assert not is_held(place)
    second = hold(place)
    assert second is not None
    os.close(second)


def test_a_supervisor_that_cannot_start_says_why(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its log is in the error, and the name is free afterwards."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClusterError) as failed:
        kit.sh("true")
    assert str(failed.value) == "the supervisor of group train did not start: it said nothing"
    assert kit.cluster.read_group("train") is None


def test_many_hosts(kit: Kit) -> None:
    """A large group starts, ends and leaves nothing."""
    group = kit.sh(f"{HOLD}exit 0", hosts=16)
    recorder = kit.watch()
    ended: set[str] = set()

    def all_ended(event: Any) -> bool:
        if event.kind == "pod" and state(event.value)["restartCount"] == 1:
            ended.add(event.value["metadata"]["name"])
        return len(ended) == 16

    recorder.wait(all_ended)
    kit.delete(group)
    pods: list[Json] = [e.value for e in recorder.events if e.kind == "pod-gone"]
    gone(recorder)
    assert {p["metadata"]["name"] for p in pods} <= ended
