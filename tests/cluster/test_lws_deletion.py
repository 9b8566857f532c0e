"""What LeaderWorkerSet does when pods of a group, or the group, are deleted; and kr_kfp's way to restart one."""

from __future__ import annotations

import time
from typing import Any

from kr_kfp.spec.leaderworkerset import leaders_of
from tests.cluster.groups import HOLD, all_run, container, env_of, exclusive, group, living, uids
from tests.cluster.rest import Seen, Watch
from tests.cluster.space import Space

SLOW = """
import os, signal, time
def leave(*_):
    time.sleep(2)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
while True:
    signal.pause()
"""
"""Takes two seconds to end, so that the order of ends can be seen."""


def test_deleted_worker_comes_back_alone(space: Space) -> None:
    """A worker that is deleted comes back under its name with another UID; all other pods stay."""
    with space.watch("pods") as pods:
        before = _start(space, pods, HOLD)
        space.delete("pods", "g-0-2")
        seen = pods.until(
            lambda changes: all_run(changes, 4) and uids(living(changes).values()) != before, what="new worker"
        )
        after = uids(living(seen).values())
    assert {name for name in before if before[name] != after[name]} == {"g-0-2"}


def test_leader_deleted_in_background_overlaps(space: Space) -> None:
    """A leader deleted in the background is made anew while workers of the old group still run."""
    with space.watch("pods") as pods:
        before = _start(space, pods, SLOW)
        space.delete("pods", "g-0", propagationPolicy="Background")
        seen = pods.until(
            lambda changes: all_run(changes, 4) and not set(before.values()) & set(living(changes)), what="new group"
        )
    assert _created(seen, "g-0", before) < max(_gone(seen, uid) for uid in before.values())


def test_leader_deleted_in_foreground_waits_for_workers(space: Space) -> None:
    """A leader deleted in the foreground is made anew when all pods of the old group are gone."""
    with space.watch("pods") as pods:
        before = _start(space, pods, SLOW)
        space.delete("pods", "g-0", propagationPolicy="Foreground")
        seen = pods.until(
            lambda changes: all_run(changes, 4) and not set(before.values()) & set(living(changes)), what="new group"
        )
    assert _created(seen, "g-0", before) > max(_gone(seen, uid) for uid in before.values())


def test_deleted_group_takes_its_pods_along(space: Space) -> None:
    """A group that is deleted takes leader, workers, StatefulSets, Service and revisions along."""
    with space.watch("pods") as pods:
        _start(space, pods, HOLD)
        space.delete("leaderworkersets", "g", propagationPolicy="Background")
        pods.until(lambda changes: not living(changes), what="end of all pods")
    deadline = time.monotonic() + 30
    kinds = ("leaderworkersets", "statefulsets", "services", "controllerrevisions")
    while any(space.items(kind) for kind in kinds) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {kind: space.items(kind) for kind in kinds} == {kind: [] for kind in kinds}


def test_workers_belong_to_the_leader_pod(space: Space) -> None:
    """The workers' StatefulSet is owned by the leader pod, whose UID therefore names the attempt."""
    with space.watch("pods") as pods:
        before = _start(space, pods, HOLD)
    workers = space.read("statefulsets", "g-0")
    assert workers is not None
    owners = [(owner["kind"], owner["name"], owner["uid"]) for owner in workers["metadata"]["ownerReferences"]]
    assert owners == [("Pod", "g-0", before["g-0"])]


def test_restart_through_replicas_and_template(space: Space) -> None:
    """Replicas 0, then one patch of template and replicas: a new group of the new template, once, with no overlap."""
    main = container(HOLD, chips=4, env=[{"name": "KR_KFP_ATTEMPT", "value": "0"}])
    with space.watch("pods") as pods, space.watch("leaderworkersets") as groups:
        space.create_object("leaderworkersets", group("g", main, annotations=exclusive()))
        pods.until(lambda changes: all_run(changes, 4), what="attempt 0")
        for attempt in (1, 2):
            old = set(living(pods))
            groups.until(lambda changes: leaders_of(changes[-1].object) == 1, what="the count of leaders")
            space.patch("leaderworkersets", "g", {"spec": {"replicas": 0}})
            pods.until(lambda changes: not living(changes), what=f"end of attempt {attempt - 1}")
            groups.until(lambda changes: leaders_of(changes[-1].object) == 0, what="no leader")
            space.patch("leaderworkersets", "g", _next_attempt(main, attempt))
            seen = pods.until(lambda changes: all_run(changes, 4), what=f"attempt {attempt}")
            assert {env_of(pod)["KR_KFP_ATTEMPT"] for pod in living(seen).values()} == {str(attempt)}
            assert not old & set(living(seen))
        time.sleep(3)  # nothing is waited for: no late rolling update may follow
        created = [(change.name, env_of(change.object)["KR_KFP_ATTEMPT"]) for change in pods if change.type == "ADDED"]
    hosts = ("g-0", "g-0-1", "g-0-2", "g-0-3")
    assert sorted(created) == sorted((host, str(attempt)) for host in hosts for attempt in range(3))


def _next_attempt(main: dict[str, Any], attempt: int) -> dict[str, Any]:
    changed = {**main, "env": [{"name": "KR_KFP_ATTEMPT", "value": str(attempt)}]}
    template = {"workerTemplate": {"spec": {"containers": [changed]}}}
    return {"spec": {"replicas": 1, "leaderWorkerTemplate": template}}


def _start(space: Space, pods: Watch, code: str) -> dict[str, str]:
    """Make a group of four, wait until it runs, and give the UIDs of its pods by name."""
    space.create_object("leaderworkersets", group("g", container(code)))
    return uids(living(pods.until(lambda changes: all_run(changes, 4), what="group that runs")).values())


def _created(changes: list[Seen], name: str, before: dict[str, str]) -> float:
    """Say when a pod of this name was made that is not one of the earlier ones."""
    return next(
        change.at
        for change in changes
        if change.name == name and change.object["metadata"]["uid"] not in before.values()
    )


def _gone(changes: list[Seen], uid: str) -> float:
    """Say when a pod was gone."""
    return next(change.at for change in changes if change.object["metadata"]["uid"] == uid and change.type == "DELETED")
