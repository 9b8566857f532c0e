"""What a group of pods does that runs to completion on LeaderWorkerSet: the facts that design section 5 builds on."""

from __future__ import annotations

import contextlib
import time

from tests.cluster.groups import HOLD, ONCE, all_hold, all_run, container, group, living, main_status, uids
from tests.cluster.space import Space


def test_holding_group_stays_as_it_is(space: Space) -> None:
    """With restartPolicy None, hosts that ended well are started again once, hold, and nothing else happens."""
    with space.watch("pods") as pods:
        space.create_object("leaderworkersets", group("g", container(ONCE.format(code=0))))
        seen = pods.until(lambda changes: all_hold(changes, 4), what="group that holds")
        before = uids(living(seen).values())
        time.sleep(5)  # nothing is waited for: the group is left alone
        after = living(pods)
    assert uids(after.values()) == before
    for pod in after.values():
        status = main_status(pod)
        ended = status["lastState"]["terminated"]
        assert (ended["exitCode"], ended["reason"], ended["message"]) == (0, "Completed", "outcome 0")
        assert status["restartCount"] == 1
        name = pod["metadata"]["name"]
        assert space.first_line(name) == "held exit 0"
        assert space.logs(name, previous=True) == "ran\n"


def test_end_is_seen_in_state_first(space: Space) -> None:
    """A watch shows an end in state.terminated, and afterwards the same facts in lastState.terminated."""
    with space.watch("pods") as pods:
        space.create_object("leaderworkersets", group("g", container(ONCE.format(code=3)), size=1))
        seen = pods.until(lambda changes: all_hold(changes, 1), what="host that holds")
    ends = [main_status(change.object).get("state", {}).get("terminated") for change in seen]
    first = next(end for end in ends if end)
    last = main_status(seen[-1].object)["lastState"]["terminated"]
    assert (first["exitCode"], first["reason"], first["message"]) == (3, "Error", "outcome 3")
    assert last == first


def test_recreating_policy_runs_a_finished_training_again(space: Space) -> None:
    """With RecreateGroupOnPodRestart a group that ended well is made anew and runs again, with other pods."""
    with space.watch("pods") as pods:
        body = group("g", container(ONCE.format(code=0)), size=2, policy="RecreateGroupOnPodRestart")
        space.create_object("leaderworkersets", body)
        seen = pods.until(lambda changes: _completed(changes, "g-0") >= 2, what="second run")
    assert _completed(seen, "g-0") >= 2


def _completed(changes: list, leader: str) -> int:  # type: ignore[type-arg]
    """Count the pods of this name whose program ended well."""
    ended = {
        change.object["metadata"]["uid"]
        for change in changes
        if change.name == leader
        for state in (main_status(change.object).get("state", {}), main_status(change.object).get("lastState", {}))
        if state.get("terminated", {}).get("exitCode") == 0
    }
    return len(ended)


def test_memory_limit_kills_with_reason(space: Space) -> None:
    """A container over its memory limit ends with reason OOMKilled and code 137."""
    code = ONCE.replace("code = {code}", "data = bytearray(500_000_000)").replace("{{", "{").replace("}}", "}")
    main = container(code, resources={"limits": {"memory": "100Mi"}})
    with space.watch("pods") as pods:
        space.create_object("leaderworkersets", group("g", main, size=1))
        seen = pods.until(lambda changes: any(_killed(c.object) for c in changes), what="kill for memory")
    killed = next(_killed(change.object) for change in seen if _killed(change.object))
    assert (killed["reason"], killed["exitCode"]) == ("OOMKilled", 137)


def _killed(pod: dict) -> dict:  # type: ignore[type-arg]
    status = main_status(pod)
    ends = (status.get(kind, {}).get("terminated", {}) for kind in ("state", "lastState"))
    return next((end for end in ends if end.get("reason") == "OOMKilled"), {})


def test_last_state_tells_the_last_end_only(space: Space) -> None:
    """When a holding container is killed, lastState shows that kill and the first end is there no more."""
    code = ONCE.format(code=0).replace("lambda *_: os._exit(0)", "lambda *_: os._exit(9)")
    with space.watch("pods") as pods:
        space.create_object("leaderworkersets", group("g", container(code), size=1))
        pods.until(lambda changes: all_hold(changes, 1), what="host that holds")
        assert space.first_line("g-0") == "held exit 0"  # From then on it hears SIGTERM.
        with contextlib.suppress(RuntimeError):  # The container may have ended before the answer comes.
            space.run_in("g-0", "sh", "-c", "kill 1")
        seen = pods.until(lambda changes: _restarts(changes) == 2 and all_run(changes, 1), what="third start")
    ended = main_status(seen[-1].object)["lastState"]["terminated"]
    assert ended["exitCode"] == 9
    assert "outcome" not in ended.get("message", "")
    assert space.first_line("g-0") == "held exit 0"


def _restarts(changes: list) -> int:  # type: ignore[type-arg]
    return int(main_status(changes[-1].object).get("restartCount", 0))


def test_group_of_one_has_no_workers(space: Space) -> None:
    """A group of one host has a leader, no StatefulSet of workers, and is available."""
    with space.watch("pods") as pods, space.watch("leaderworkersets") as groups:
        space.create_object("leaderworkersets", group("g", container(HOLD), size=1))
        pods.until(lambda changes: all_run(changes, 1), what="leader that runs")
        groups.until(lambda changes: _condition(changes[-1].object, "Available") == "True", what="available group")
    assert [pod["metadata"]["name"] for pod in space.items("pods")] == ["g-0"]
    assert [item["metadata"]["name"] for item in space.items("statefulsets")] == ["g"]


def _condition(thing: dict, kind: str) -> str:  # type: ignore[type-arg]
    conditions = thing.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in conditions if c["type"] == kind), "")


def test_no_condition_says_finished(space: Space) -> None:
    """A group whose hosts all ended well is Available like one that runs: conditions tell no verdict."""
    with space.watch("pods") as pods, space.watch("leaderworkersets") as groups:
        space.create_object("leaderworkersets", group("g", container(ONCE.format(code=0)), size=2))
        pods.until(lambda changes: all_hold(changes, 2), what="group that holds")
        groups.until(lambda changes: _condition(changes[-1].object, "Available") == "True", what="available group")
    found = space.read("leaderworkersets", "g")
    assert found is not None
    assert {c["type"] for c in found["status"]["conditions"]} <= {"Available", "Progressing", "UpdateInProgress"}
