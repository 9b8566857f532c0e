"""The launcher under watches that lag: whatever is told late, again, or not at all, the end is the same.

On a cluster a group and its pods are watched by two requests. Each tells in order, but at any time after the answers to
the launcher's own requests, and after a break that was too long only what differs from what was told before it.
"""

from __future__ import annotations

import copy
import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kr_kfp.cluster.api import Event, Manifest, Sink, Watch
from kr_kfp.runtime.launcher import Launcher
from kr_kfp.runtime.logs import LogPump
from kr_kfp.runtime.picture import StoppedError
from kr_kfp.runtime.report import Report
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.leaderworkerset import attempt_of
from kr_kfp.spec.step import StepSpec
from kr_kfp.testing import FakeClock, FakeCluster
from kr_kfp.wire import ErrorInfo, Outcome

quick = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])

STEP = StepSpec(name="train", backend="lws", hosts=2, image="python:3.12", finish_grace=1000.0, capacity_timeout=None)
LAUNCH = Launch(name="train-x", run="r1", task="train", identity="r1/train", holder="fake-launcher", payload=("p",))
BEGIN = FakeClock().now()
OUTPUTS = {"executorOutput": {"parameterValues": {"Output": 0.5}}, "parameters": {}}


@dataclass(frozen=True, slots=True)
class Plan:
    """What happens in one attempt.

    Args:
        what: ``ok``, ``evict`` (the leader, after its end), ``raise``, ``crash`` (both), ``lose``, ``churn`` (a pod is lost, and so is the
            one in its place), ``delete`` or ``drop`` (the group, by somebody, with its pods or before them).
        host: Whom it happens to.
        after: Seconds after all hosts run.
    """

    what: str
    host: int
    after: float


@dataclass(frozen=True, slots=True)
class Watching:
    """How the watches lag.

    Args:
        lags: Seconds by which events are late, in turn; of one kind they stay in order.
        outages: Begin and seconds of times in which nothing is told; the newest state is told after it.
        again: Whether what has not changed is told again then, as after a reconnect.
        takes: Seconds that requests take, in turn; things happen before each is answered, and while its answer comes.
    """

    lags: tuple[float, ...] = (0.0,)
    outages: tuple[tuple[float, float], ...] = ()
    again: bool = False
    takes: tuple[float, ...] = (0.0,)


@dataclass(frozen=True, slots=True)
class Moment:
    """When something happens: with the n-th request from now on, or if that is 0 after some seconds."""

    request: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Absence:
    """A launcher leaves and another one comes.

    Args:
        drain: When the first one is asked to leave.
        seconds: How long there is none.
        deleted: Whether somebody deletes the group then: ``delete``, ``drop`` or not.
        left: Seconds until the group or its pods are gone, when the next launcher comes.
    """

    drain: Moment
    seconds: float
    deleted: str
    left: float


class Stream:
    """One watch of a kind of object, as :class:`kr_kfp.cluster.kube_watch.Watcher` tells of it."""

    def __init__(self, cluster: Lagging, kind: str, sink: Sink) -> None:
        self._cluster, self._kind, self._sink = cluster, kind, sink
        self._known: dict[str, Manifest] = {}
        self._last = 0.0
        self._down = False
        self.live = False
        self.closed = False

    def note(self, event: Event) -> None:
        """Take what happens."""
        if not self._down:
            self._tell(event)

    def cut(self) -> None:
        """Begin to miss what happens."""
        self._down = True

    def list_anew(self) -> None:
        """Tell the difference to what was told before."""
        self._down = False
        found = self._cluster.groups.values() if self._kind == "group" else self._cluster.pods.values()
        there = {it["metadata"]["uid"]: copy.deepcopy(it) for it in found}
        for uid in [uid for uid in self._known if uid not in there]:
            self._tell(Event("group-gone" if self._kind == "group" else "pod-gone", self._known[uid]))
        for uid, value in there.items():
            if self._cluster.watching.again or self._known.get(uid) != value:
                self._tell(Event("group" if self._kind == "group" else "pod", value))

    def _tell(self, event: Event) -> None:
        if event.kind in ("group", "pod"):
            self._known[event.value["metadata"]["uid"]] = event.value
            self._cluster.told.add(event.value["metadata"]["uid"])
        elif event.kind in ("group-gone", "pod-gone"):
            self._known.pop(event.value["metadata"].get("uid"), None)
        clock = self._cluster.clock
        lag = next(self._cluster.lags) if self.live else 0.0
        self._last = max(self._last, clock.now() + lag)
        if self._last <= clock.now():
            self._deliver(event)
        else:
            clock.after(self._last - clock.now(), lambda: self._deliver(event))

    def _deliver(self, event: Event) -> None:
        if not self.closed:
            self._sink(event)


class Streams:
    """The watches of one group."""

    def __init__(self, cluster: Lagging, sink: Sink) -> None:
        self._group, self._pods = Stream(cluster, "group", sink), Stream(cluster, "pod", sink)
        self.watch: Watch | None = None

    def note(self, event: Event) -> None:
        """Take what happens."""
        (self._pods if event.kind in ("pod", "pod-gone") else self._group).note(event)

    def both(self) -> tuple[Stream, Stream]:
        """Give each."""
        return self._group, self._pods

    def close(self) -> None:
        """Stop."""
        assert self.watch is not None
        self.watch.close()
        for stream in self.both():
            stream.closed = True


class Lagging(FakeCluster):
    """A cluster of which watches tell late, and in which things happen to each attempt."""

    def __init__(self, clock: Clock, plans: Sequence[Plan], watching: Watching, ending: float) -> None:
        super().__init__(clock)
        self.clock: Clock = clock
        self.watching, self.ending = watching, ending
        self.lags = itertools.cycle(watching.lags)
        self.takes = itertools.cycle(watching.takes)
        for name in (
            "create_group",
            "read_group",
            "patch_group",
            "delete_group",
            "list_pods",
            "delete_pod",
            "read_log",
        ):
            setattr(self, name, self._slow(getattr(self, name)))
        self.open: list[Streams] = []
        self.made: list[tuple[str, int, int]] = []
        self.asked = 0
        self.signals: set[int] = set()
        self.restarts = 0
        self.lived: set[str] = set()
        self.told: set[str] = set()
        self._plans = iter(plans)
        self._planned: set[tuple[str, int]] = set()
        for begin, seconds in watching.outages:
            clock.after(begin, lambda: self._each(Stream.cut))
            clock.after(begin + seconds, lambda: self._each(Stream.list_anew))

    def _each(self, action: Callable[[Stream], None]) -> None:
        for streams in self.open:
            for stream in streams.both():
                if not stream.closed:
                    action(stream)

    def _slow(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **given: Any) -> Any:
            self.asked += 1
            if self.asked in self.signals:
                self.clock.put(Event("signal", 15))
            self.clock.go_on(next(self.takes))
            try:
                return request(*args, **given)
            finally:
                self.clock.go_on(next(self.takes))

        return ask

    def patch_group(self, name: str, *, patch: dict[str, Any], resource_version: str) -> Manifest:
        """Count the halves of restarts; a note on the group is none."""
        self.restarts += "spec" in patch
        return super().patch_group(name, patch=patch, resource_version=resource_version)

    def watch(self, name: str, sink: Sink) -> Watch:
        """Tell what exists at once, and what happens then late."""
        streams = Streams(self, sink)
        streams.watch = super().watch(name, streams.note)
        for stream in streams.both():
            stream.live = True
        self.open.append(streams)
        return streams

    def _make_pod(self, group: Manifest, index: int) -> None:
        super()._make_pod(group, index)
        self.lived |= self.pods.keys()
        uid = group["metadata"]["uid"]
        attempt = attempt_of(self._pod(index)["spec"])
        self.made.append((uid, attempt, index))
        if index == STEP.hosts - 1 and (uid, attempt) not in self._planned:
            self._planned.add((uid, attempt))
            self._follow(next(self._plans, Plan("ok", 0, 5.0)), attempt)

    def _follow(self, plan: Plan, attempt: int) -> None:
        steps = {
            "ok": [self.well(0, attempt), self.well(1, attempt)],
            "evict": [self.well(0, attempt), self.evict(attempt), self.lose(0, attempt), self.well(1, attempt)],
            "raise": [self.bad(plan.host, attempt)],
            "crash": [self.bad(0, attempt), self.bad(1, attempt)],
            "lose": [self.lose(plan.host, attempt)],
            "churn": [self.lose(plan.host, attempt)] * 3,
            "delete": [lambda: self.delete_group("train-x", uid=self.groups["train-x"]["metadata"]["uid"])],
            "drop": [self.drop],
        }[plan.what]
        for number, step in enumerate(steps):
            self.clock.after(plan.after + 0.3 * number, self._if_there(step, attempt))

    def _if_there(self, step: Callable[[], None], attempt: int) -> Callable[[], None]:
        """Let something happen to an attempt that is still whole."""

        def act() -> None:
            group = self.groups.get("train-x")
            pods = [p for p in self.pods.values() if "deletionTimestamp" not in p["metadata"]]
            if group and len(pods) == STEP.hosts and all(attempt_of(p["spec"]) == attempt for p in pods):
                step()

        return act

    def well(self, host: int, attempt: int) -> Callable[[], None]:
        """Let a host end well."""
        outputs = OUTPUTS if host == 0 else None
        return lambda: self.end_host(Outcome(kind="ok", host=host, attempt=attempt, outputs=outputs))

    def bad(self, host: int, attempt: int) -> Callable[[], None]:
        """Let a host raise."""
        error = ErrorInfo(type="ValueError", message="boom")
        return lambda: self.end_host(Outcome(kind="exception", host=host, attempt=attempt, code=1, error=error))

    def lose(self, host: int, attempt: int) -> Callable[[], None]:
        """Lose a host; another pod takes its place, and runs among peers of before if no launcher restarts the group.

        With a new leader all are new, and run to their end.
        """
        later = [self.well(0, attempt), self.well(1, attempt)] if host == 0 else [self.abort(0, attempt)]

        def act() -> None:
            self.lose_host(host)
            for step in later:
                self.clock.after(300.0, self._if_there(step, attempt))

        return act

    def abort(self, host: int, attempt: int) -> Callable[[], None]:
        """Let a host end as JAX ends it when a peer is away."""
        return lambda: self.end_host(Outcome(kind="signal", host=host, attempt=attempt, code=134, signal=6))

    def evict(self, attempt: int) -> Callable[[], None]:
        """Evict the leader, whose status tells nothing else then."""
        del attempt

        def act() -> None:
            pod = self._pod(0)
            pod["status"] = {"phase": "Failed", "reason": "Evicted", "startTime": self._stamp()}
            self._tell(Event("pod", copy.deepcopy(pod)))

        return act

    def drop(self) -> None:
        """Delete the group in the background: its pods go later."""
        group = self.groups.pop("train-x")
        self._tell(Event("group-gone", copy.deepcopy(group)))
        for uid in list(self.pods):
            self._end_pod(uid)


class Clock(FakeClock):
    """Time that comes to an end, and goes on while requests are made."""

    def __init__(self) -> None:
        super().__init__()
        self._going = False
        self.heard = 0

    def go_on(self, seconds: float) -> None:
        """Let happen what happens in the next seconds, to which what is asked for then does not add."""
        if self._going or not seconds:
            return
        self._going = True
        end = self._now + seconds
        while self._script and self._script[0][0] <= end:
            self._now, _, action = heapq.heappop(self._script)
            action()
        self._now, self._going = end, False

    def next_event(self, deadline: float | None) -> Event | None:
        """Give the next event.

        Raises:
            AssertionError: If nothing comes of it any more.
        """
        assert self.now() < BEGIN + 50_000.0, "the launcher goes on for ever"
        event = super().next_event(deadline)
        self.heard += event is not None and event.kind == "signal"
        return event


class World:
    """A cluster and launchers."""

    def __init__(
        self, plans: Sequence[Plan], watching: Watching, *, ending: float = 1.0, max_restarts: int = 2
    ) -> None:
        self.clock = Clock()
        self.cluster = Lagging(self.clock, plans, watching, ending)
        self.step = replace(STEP, max_restarts=max_restarts)
        self.said: list[str] = []

    def launcher(self, holder: str = LAUNCH.holder) -> Launcher:
        """Make a launcher."""
        logs = LogPump(self.step.name, "none", self.said.append)
        launch = replace(LAUNCH, holder=holder)
        return Launcher(self.cluster, self.clock, step=self.step, launch=launch, say=self.said.append, logs=logs)

    def signal(self, moment: Moment) -> None:
        """Let a signal come."""
        if moment.request:
            self.cluster.signals.add(self.cluster.asked + moment.request)
        else:
            self.clock.after(moment.seconds, lambda: self.clock.put(Event("signal", 15)))

    def run(self, launcher: Launcher) -> bool:
        """Run a launcher and tell whether a signal stopped it; none that it has heard was without effect."""
        before = self.clock.heard
        try:
            launcher.run()
        except StoppedError:
            return True
        assert self.clock.heard == before
        return False

    def leave(self, launcher: Launcher, absence: Absence) -> None:
        """Let a launcher's process end: nothing is told to it any more. Then let happen what happens until the next."""
        launcher.group.close()
        while self.clock.next_event(self.clock.now()):
            pass
        self.cluster.dead_holders.add(launcher.launch.holder)
        self.clock.go_on(absence.seconds)
        group = self.cluster.groups.get("train-x")
        if group and absence.deleted:
            if absence.deleted == "delete":
                self.cluster.delete_group("train-x", uid=group["metadata"]["uid"])
            else:
                self.cluster.drop()
            self.clock.go_on(max(0.0, self.cluster.ending - absence.left))

    def requests(self) -> dict[str, int]:
        """Count what makes and restarts the group."""
        verbs = [verb for verb, _ in self.cluster.calls]
        return {"create": verbs.count("create"), "restart": self.cluster.restarts}

    def check(self) -> None:
        """Check what holds at every end."""
        assert self.cluster.groups == {}
        # What somebody else deletes in the background may end later than its group.
        assert [pod for pod in self.cluster.pods.values() if "deletionTimestamp" not in pod["metadata"]] == []
        for _, of_group in itertools.groupby(self.cluster.made, key=lambda made: made[0]):
            attempts = [attempt for _, attempt, _ in of_group]
            assert attempts == sorted(attempts)
            assert attempts[0] == 0


def outcome(world: World) -> dict[str, Any]:
    """Run a launcher to its end and give what must not depend on the watches."""
    launcher = world.launcher()
    try:
        report = launcher.run()
    finally:
        launcher.clean_up()
    world.check()
    return {**told(report), **world.requests()}


def told(report: Report) -> dict[str, Any]:
    """Give what a report says, without words that depend on the moment."""
    why = next((line for line in report.lines if line.startswith("train failed in attempt")), "")
    kind = "lost" if "was lost" in why else why
    return {"ok": report.ok, "attempt": report.attempt, "outputs": report.outputs, "why": kind}


PLANS = st.lists(
    st.builds(
        Plan,
        st.sampled_from(["ok", "evict", "raise", "crash", "lose", "lose", "churn", "delete", "drop"]),
        st.integers(0, 1),
        st.sampled_from([0.0, 0.1, 3.0, 10.0]),
    ),
    max_size=4,
)
LAGS = st.lists(st.sampled_from([0.0, 0.001, 0.5, 1.0, 3.0, 8.0, 40.0]), min_size=1, max_size=7).map(tuple)
OUTAGES = st.lists(st.tuples(st.floats(0.0, 40.0), st.floats(0.1, 30.0)), max_size=2).map(tuple)
TAKES = st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.2, 1.5]), min_size=1, max_size=7).map(tuple)
WATCHING = st.builds(Watching, LAGS, OUTAGES, st.booleans(), TAKES)
MOMENT = st.builds(Moment, st.integers(0, 24), st.floats(0.0, 30.0))
ABSENCE = st.builds(
    Absence,
    MOMENT,
    st.sampled_from([0.0, 1.0, 5.0, 20.0]),
    st.sampled_from(["", "", "delete", "drop"]),
    st.sampled_from([0.005, 0.1, 1.0]),
)
ENDING = st.sampled_from([0.0, 0.5, 1.0, 2.4, 30.0])
RESTARTS = st.integers(0, 2)


@quick
@given(PLANS, WATCHING, ENDING, RESTARTS)
def test_the_same_end_under_every_lag(plans: list[Plan], watching: Watching, ending: float, restarts: int) -> None:
    """Report, restarts and creations are those of a watch that tells all at once."""
    # How a pod ended that is replaced while nothing is told is known to nobody: it counts as lost.
    assume(not (watching.outages and any(plan.what == "evict" for plan in plans)))
    prompt = outcome(World(plans, Watching(), ending=ending, max_restarts=restarts))
    world = World(plans, watching, ending=ending, max_restarts=restarts)
    found = outcome(world)
    # Nor does anybody know of pods that came and went meanwhile.
    assert found == prompt or not world.cluster.lived <= world.cluster.told


@quick
@given(PLANS, WATCHING, ENDING, MOMENT, MOMENT)
def test_a_signal_at_any_moment(
    plans: list[Plan], watching: Watching, ending: float, first: Moment, second: Moment
) -> None:
    """It stops the launcher, or came after the end; nothing is left, whatever comes while it cleans up."""
    world = World(plans, watching, ending=ending)
    world.signal(first)
    world.signal(second)
    launcher = world.launcher()
    world.run(launcher)
    launcher.clean_up()
    world.check()


@quick
@given(PLANS, WATCHING, ENDING, st.lists(ABSENCE, min_size=1, max_size=2))
def test_adoption_at_any_moment(plans: list[Plan], watching: Watching, ending: float, absences: list[Absence]) -> None:
    """A launcher that is drained leaves its group to the next, in whatever state, in the middle of a restart too."""
    world = World(plans, watching, ending=ending)
    for number, absence in enumerate(absences):
        launcher = world.launcher(f"launcher-{number}")
        world.signal(absence.drain)
        if not world.run(launcher):
            break
        world.leave(launcher, absence)
    else:
        launcher = world.launcher("last")
        world.run(launcher)
    launcher.clean_up()
    world.check()
