"""The launcher: one group from creation to verdict, results and deletion. One code path for every cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kr_kfp.cluster.api import Clock, Cluster
from kr_kfp.errors import ClusterError, ForbiddenError, NotFoundError, UnavailableError
from kr_kfp.runtime.group import Group
from kr_kfp.runtime.logs import LogPump
from kr_kfp.runtime.picture import StoppedError
from kr_kfp.runtime.report import Report, shape_of, why_waiting
from kr_kfp.spec.diagnose import Category, Diagnosis, diagnose
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.observe import HostState, Phase, unix
from kr_kfp.spec.outcome import Decision, Verdict, decide, describe_others, describe_outcome
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import UPLOADING, Outcome, outcome_from_log

__all__ = ["Launcher"]

START_GRACE = 120.0
"""Seconds that a host may wait for what waiting does not cure, such as a wrong image name (``start_grace``)."""

REFUSED_GRACE = 15.0
"""The same where the API server refuses to make the pod: it tells the reason itself, and no registry is involved."""

_REFUSED = (Category.FORBIDDEN, Category.POD_SECURITY, Category.QUOTA, Category.SERVICE_ACCOUNT)

_LOST_ADVICE = (
    "Hosts were lost, the function did not fail. Raise max_restarts if that is to be expected here (spot capacity, "
    "nodes that are drained), or look at the node's events: kubectl get events"
)

_TAIL = 65_536
"""Bytes of the leader's log in which its runner's lines are looked for."""

LOG_AGAIN = 1.0
"""Seconds until a log that does not tell the outcome yet is read again: it is printed just after the second start."""

NOTICE_EVERY = 60.0
"""Seconds between two lines about hosts that still wait."""


class Launcher:
    """Runs one step on one group of hosts.

    Args:
        cluster: Where the group lives.
        clock: Time and inbox.
        step: The step.
        launch: Names, places and payload of this launch.
        say: Takes the launcher's own lines.
        logs: Prints the hosts' logs.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        *,
        step: StepSpec,
        launch: Launch,
        say: Callable[[str], None],
        logs: LogPump,
    ) -> None:
        self.cluster, self.clock, self.step, self.launch = cluster, clock, step, launch
        self.say, self.logs = say, logs
        self.group = self._group()
        self._followed: set[str] = set()
        self._read: dict[str, Outcome] = {}
        self._read_again: float | None = None
        self._missing: set[str] = set()
        self._first_ok: float | None = None
        self._first_bad: float | None = None
        self._stuck_since: float | None = None
        self._began_waiting = clock.now()
        self._next_notice = clock.now() + NOTICE_EVERY
        self._running_since: float | None = None

    def _group(self) -> Group:
        step = self.step
        return Group(self.cluster, self.clock, name=self.launch.name, hosts=step.pods, runners=step.runners)

    def run(self) -> Report:
        """Make or adopt the group, wait for its verdict, restart it where that helps, give the report.

        The group still exists afterwards: :meth:`clean_up` deletes it when the outputs are safe.

        Raises:
            StoppedError: If a signal asked to stop.
            HeldError: If a living launcher holds the group.
            SetupError: If another one takes it over.
            ClusterError: If the cluster refuses.
        """
        self._acquire()
        while True:
            verdict = self._verdict()
            if verdict.decision is Decision.WAIT:
                self.group.next(verdict.check_at)
                continue
            if verdict.decision is Decision.RESTART:
                if (instead := self._restart(verdict)) is None:
                    continue
                verdict = instead
            if verdict.decision is Decision.SUCCESS:
                return self._success()
            return self._failure(verdict)

    def clean_up(self, *, wait: bool = True) -> None:
        """Delete the group; a deletion that hangs is told and changes nothing.

        Args:
            wait: Wait until it is gone. False is for hosts that only hold, with nothing left to do: the cluster ends
                them without a launcher once it was asked to.
        """
        begun = self.clock.now()
        try:
            if not wait and self.group.leave():
                self.say(f"deleting group {self.launch.name}")
                return
            if not self.group.delete():
                return
            gone = self.group.wait_gone(begun + self.step.terminate_grace)
        except ClusterError as problem:
            if isinstance(problem, ForbiddenError) and self.group.manifest is None:
                return  # Nothing was made; what is forbidden has been told.
            self.say(f"could not delete LeaderWorkerSet {self.launch.name}: {problem}")
            return
        if gone:
            self.logs.finish(1.0)  # Also what hosts said as they were ended comes before the verdict.
            self.say(f"deleted group {self.launch.name} in {self.clock.now() - begun:.1f} s")
        else:
            self.say(
                f"group {self.launch.name} is being deleted but was not gone after {self.step.terminate_grace:g} s; "
                "look for what is left by its name"
            )

    def _acquire(self) -> None:
        manifest = build(self.step, self.launch)
        self.group.acquire(manifest)
        self.group.sync()
        if self.group.adopted and self._verdict().decision is Decision.FAILURE:
            self.say(f"group {self.launch.name} of an earlier launcher had failed; it is made anew")
            self.clean_up()
            if self.group.asked_to_stop is not None:
                raise StoppedError(self.group.asked_to_stop)
            self._forget()
            self.group = self._group()
            self.group.acquire(manifest)
            self.group.sync()
        if self.group.adopted and self.group.attempt == 0:
            # The wait for capacity began with the group, whichever launcher watched it then.
            self._began_waiting = unix(self.group.created) or self._began_waiting
        verb = "adopted the running group" if self.group.adopted else "created group"
        self.say(f"{verb} {self.launch.name} on {self.cluster.where}: {shape_of(self.step)}")

    def _verdict(self) -> Verdict:
        """Look at all hosts now and decide."""
        now = self.clock.now()
        self._read_again = None
        if self.group.manifest is None:
            return self._deleted()
        if self.group.is_stopped:
            # An earlier launcher has left. What hosts said as they were ended for the restart tells nothing.
            return Verdict(decision=Decision.RESTART, reason="a restart was begun: the group has no replicas")
        states = tuple(self._whole(state) for state in self.group.states())
        self._follow_logs(states)
        self._note_times(states, now)
        self._let_upload(states, now)
        verdict = decide(
            states,
            now=now,
            finish_grace=self.step.finish_grace,
            retry_on=self.step.retry_on,
            first_ok_seen=self._first_ok,
            first_bad_seen=self._first_bad,
            elastic=self.step.pathways.elastic_slices if self.step.pathways else 0,
            per_slice=self.step.hosts_per_slice,
        )
        if verdict.decision is not Decision.WAIT:
            return verdict
        self._note_missing(states)
        return self._limits(states, verdict, now)

    def _deleted(self) -> Verdict:
        return Verdict(decision=Decision.FAILURE, reason=self.group.loss)

    def _whole(self, state: HostState) -> HostState:
        """Read an outcome that only the log of the holding container tells."""
        if not state.unread and not (state.digest and state.index == 0):
            return state
        outcome = self._read.get(state.uid)
        outcome = outcome or outcome_from_log(self._log(state).decode("utf-8", "replace"), state.digest)
        if outcome is None and state.uid in self.group.gone:
            reason = f"pod {state.pod} was deleted before its outcome was read"
            return replace(state, phase=Phase.LOST, outcome=None, digest="", unread=False, reason=reason)
        if outcome is None:
            # Not printed yet, or not to be had now: the container is between its first end and its second start.
            self._read_again = self.clock.now() + LOG_AGAIN
            return replace(state, phase=Phase.RUNNING, outcome=None)
        self._read[state.uid] = outcome
        if outcome.kind in ("lost", "terminated"):
            return replace(state, phase=Phase.LOST, outcome=outcome, reason="the runner was killed")
        return replace(state, outcome=outcome, digest="", unread=False)

    def _log(self, state: HostState, *, tail_bytes: int | None = None) -> bytes:
        """Read a host's log; nothing if its node does not answer."""
        try:
            return self.cluster.read_log(self.group.pods[state.uid], tail_bytes=tail_bytes)
        except UnavailableError:
            return b""

    def _follow_logs(self, states: tuple[HostState, ...]) -> None:
        for state in states:
            # A Pathways server tells nothing of the function: kubectl logs -c pathways-worker has its words.
            known = state.uid in self.group.pods  # not so for one that went away before this launcher came
            if known and state.phase is not Phase.WAITING and not state.server and state.uid not in self._followed:
                self._followed.add(state.uid)
                self.logs.follow(state.index, self.cluster.follow_log(self.group.pods[state.uid]))

    def _note_times(self, states: tuple[HostState, ...], now: float) -> None:
        if self._first_ok is None and any(s.outcome and s.outcome.ok for s in states):
            self._first_ok = now
        if self._first_bad is None and any(
            s.phase is Phase.LOST or (s.outcome and not s.outcome.ok and s.phase is Phase.ENDED) for s in states
        ):
            self._first_bad = now
        if self._running_since is None and all(s.phase is not Phase.WAITING for s in states):
            self._running_since = max(s.started for s in states) or now
            pods = "hosts" if self.step.pathways is None else "pods"
            hosts = "the host runs" if len(states) == 1 else f"all {len(states)} {pods} run"
            self.say(f"{hosts} after {max(0.0, self._running_since - self._began_waiting):.1f} s")
            self._note_pods(states)

    def _note_pods(self, states: tuple[HostState, ...]) -> None:
        """Write down which pods run the attempt; without that, all goes on as long as this launcher lives."""
        if any(state.phase is Phase.LOST for state in states):
            return
        try:
            self.group.note([state.uid for state in states])
        except NotFoundError:
            return  # Deleted by somebody else, which the watch will tell.
        except UnavailableError as problem:
            self.say(f"could not write down which pods run: {problem}")

    def _let_upload(self, states: tuple[HostState, ...], now: float) -> None:
        """Begin finish_grace anew while the leader, as the only one left, uploads: its function has returned too.

        The log is asked only when the time is over. A transfer has limits of its own, so this comes to an end.
        """
        leader, others = states[0], states[1:]
        if self._first_ok is None or now < self._first_ok + self.step.finish_grace:
            return
        is_last = leader.phase is Phase.RUNNING and all(state.outcome and state.outcome.ok for state in others)
        if is_last and UPLOADING.encode() in self._log(leader, tail_bytes=_TAIL):
            self._first_ok = now
            self.say("host 0 still uploads its outputs")

    def _note_missing(self, states: tuple[HostState, ...]) -> None:
        """Tell once of each Pathways worker that is lost while the step goes on without it."""
        if self.step.pathways is None or not self.step.pathways.elastic_slices:
            return
        for state in states:
            if state.server and state.phase is Phase.LOST and state.uid not in self._missing:
                self._missing.add(state.uid)
                self.say(f"{state.who} was lost: {state.reason}; the step goes on (elastic_slices)")

    def _limits(self, states: tuple[HostState, ...], verdict: Verdict, now: float) -> Verdict:
        """Apply timeout, capacity_timeout and the patience with reasons that do not heal."""
        times = [at for at in (verdict.check_at, self._read_again) if at is not None]
        if self._running_since is not None:
            if self.step.timeout is not None:
                end = self._running_since + self.step.timeout - self.group.ran
                if now >= end:
                    reason = f"the function ran longer than timeout={self.step.timeout:g} s, over all attempts"
                    return Verdict(decision=Decision.FAILURE, reason=reason)
                times.append(end)
            return replace(verdict, check_at=min(times, default=None))
        found = self._causes()
        stuck, look_again = self._stuck(found, now)
        if stuck:
            return Verdict(decision=Decision.FAILURE, reason=stuck)
        why = why_waiting(states, found)
        if self.step.capacity_timeout is not None:
            end = self._began_waiting + self.step.capacity_timeout
            if now >= end:
                reason = f"not all hosts ran within capacity_timeout={self.step.capacity_timeout:g} s: {why}"
                return Verdict(decision=Decision.FAILURE, reason=reason)
            times.append(end)
        if now >= self._next_notice:
            self._next_notice = now + NOTICE_EVERY
            self.say(why)
        times.append(self._next_notice)
        if look_again is not None:
            times.append(look_again)
        return replace(verdict, check_at=min(times))

    def _causes(self) -> tuple[Diagnosis, ...]:
        """Say what is wrong with the pods that are there, and with those that are not made."""
        pods = [pod for uid, pod in self.group.pods.items() if uid not in self.group.gone]
        return diagnose(pods, self.group.manifest, list(self.group.notices.values()))

    def _stuck(self, found: Sequence[Diagnosis], now: float) -> tuple[str, float | None]:
        """Say why waiting is in vain, once the reason has lasted for its grace; or when to look again."""
        if not any(d.permanent or d.category is Category.IMAGE_PULL for d in found):
            self._stuck_since = None
            return "", None
        # A pull that fails goes to and fro between its two reasons; the clock runs on meanwhile.
        self._stuck_since = self._stuck_since or now
        grace = START_GRACE if self.step.start_grace is None else self.step.start_grace
        permanent = next((d for d in found if d.permanent), None)
        if permanent is None:
            return "", None
        if permanent.category in _REFUSED:
            grace = min(grace, REFUSED_GRACE)
        end = self._stuck_since + grace
        return (str(permanent), None) if now >= end else ("", end)

    def _restart(self, verdict: Verdict) -> Verdict | None:
        """Start the next attempt; where that is not possible, give the verdict that stands instead."""
        if self.group.is_deleted():
            return self._deleted()  # Its hosts are lost since they go with it.
        attempt = self.group.attempt
        left = self.step.max_restarts - attempt - 1
        if left < 0:
            limit = f"restarts left: 0 of max_restarts={self.step.max_restarts}"
            return replace(verdict, reason=f"{verdict.reason} ({limit})")
        self.say(f"{verdict.reason}; restarting the group as attempt {attempt + 1} ({left} restarts left after it)")
        now = self.clock.now()
        ran = self.group.ran + (max(0.0, now - self._running_since) if self._running_since else 0.0)
        try:
            self.group.restart(ran)
        except NotFoundError:
            return self._deleted()
        self._forget()
        self.say(f"attempt {self.group.attempt} begins; training resumes from its checkpoint if it keeps one")
        return None

    def _forget(self) -> None:
        """Begin to count anew for the next attempt."""
        self._first_ok = self._first_bad = self._stuck_since = self._running_since = None
        self._began_waiting = self.clock.now()
        self._next_notice = self._began_waiting + NOTICE_EVERY

    def _success(self) -> Report:
        states = [self._whole(state) for state in self.group.states() if not state.server]
        self.logs.finish(5.0, shown=True)
        outcomes = [state.outcome for state in states if state.outcome]
        leader = outcomes[0]
        warnings = [f"host {o.host}: {text}" for o in outcomes for text in o.warnings]
        took = max(o.ended for o in outcomes) - min(o.started for o in outcomes)
        hosts = "the host" if len(states) == 1 else f"all {len(states)} hosts"
        self.say(f"{hosts} ended well after {took:.1f} s (attempt {self.group.attempt})")
        return Report(ok=True, attempt=self.group.attempt, outputs=leader.outputs or {}, warnings=tuple(warnings))

    def _failure(self, verdict: Verdict) -> Report:
        self.group.stopping = True
        states = self.group.states() if self.group.manifest is not None else ()
        self.logs.finish(1.0)
        lines = [f"{self.step.name} failed in attempt {self.group.attempt}: {verdict.reason}"]
        host = verdict.host
        if host and host.outcome and not host.outcome.ok:
            who = f"host {host.index} (pod {host.pod})"
            lines = describe_outcome(host.outcome, who).splitlines()
            lines.append(f"{self.step.name} failed in attempt {self.group.attempt}: {verdict.reason}")
            error = host.outcome.error
            if error and error.file:
                lines.append(f"  at {error.file}:{error.line} in {error.function}(): {error.source}")
        if host and host.phase is Phase.LOST:
            lines.append(f"  {_LOST_ADVICE}")
        others = describe_others([state for state in states if host is None or state.index != host.index])
        if others:
            lines.append(f"  other hosts: {others}")
        return Report(ok=False, attempt=self.group.attempt, outputs={}, lines=tuple(lines))
