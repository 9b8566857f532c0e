"""Pods of a group -> what each host is doing. Pure: dictionaries in, :class:`HostState` out.

Facts are read from ``state.terminated`` or, once the kubelet has restarted the container, ``lastState.terminated``
(protocol measured with LWS 0.9: both show the first end of the runner). The pod's phase says almost nothing, since
pods of a StatefulSet restart for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from typing import Any

from kr_kfp.spec.causes import EXIT_CODES
from kr_kfp.spec.leaderworkerset import LABEL, attempt_of
from kr_kfp.spec.pathways import COLOCATED, SIDECARS, WORKER
from kr_kfp.spec.pod import CONTAINER
from kr_kfp.wire import Outcome, parse_message

__all__ = ["BROKE_FIRST", "HostState", "Phase", "observe", "pod_index", "unix"]

Json = Mapping[str, Any]


class Phase(Enum):
    """What a host is doing."""

    WAITING = "waiting"
    """No user code has started: no pod, no node, image being pulled."""
    RUNNING = "running"
    ENDED = "ended"
    """User code ended; there is an outcome."""
    LOST = "lost"
    """The host went away while user code ran, through no fault of that code; or a Pathways server of it broke."""


BROKE_FIRST = 5.0
"""Seconds by which user code may seem to have failed before the server whose end it felt: Kubernetes writes whole
seconds, by the clock of another node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One host of one attempt.

    Args:
        index: 0-based index in the group.
        phase: What it is doing.
        pod: The pod's name; empty if there is none.
        uid: The pod's UID.
        started: Unix seconds when user code's container first started; 0 if it has not.
        outcome: How user code ended there.
        digest: SHA-256 of the whole outcome where the termination message held only part of it.
        unread: The outcome can only be found in the log of the container that now holds.
        reason: Why it waits or was lost.
        server: It runs a Pathways server in place of user code: it has no end of its own, and can only be lost.
        lost_at: Unix seconds when it was lost, as far as Kubernetes tells; 0 if it does not.
        up: For a server that was lost: whether it runs again.
    """

    index: int
    phase: Phase
    pod: str = ""
    uid: str = ""
    started: float = 0.0
    outcome: Outcome | None = None
    digest: str = ""
    unread: bool = False
    reason: str = ""
    server: bool = False
    lost_at: float = 0.0
    up: bool = False

    @property
    def who(self) -> str:
        """Name it for people."""
        return f"Pathways worker {self.index - 1}" if self.server else f"host {self.index}"


def unix(stamp: str | None) -> float:
    """Read a Kubernetes timestamp (RFC 3339) as Unix seconds; 0 if there is none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def pod_index(pod: Json) -> int:
    """Give a pod's index in its group, by LWS's label."""
    return int((pod["metadata"].get("labels") or {}).get(f"{LABEL}/worker-index", "0"))


def observe(
    pods: Sequence[Json],
    *,
    hosts: int,
    attempt: int,
    gone: Collection[str] = (),
    lost: Mapping[str, str] | None = None,
    runners: int | None = None,
    noted: Sequence[str] = (),
) -> tuple[HostState, ...]:
    """Tell what every host of an attempt is doing.

    Args:
        pods: All pods of the group that were seen, the deleted ones in their last known state.
        hosts: Size of the group.
        attempt: The attempt to look at; pods of others are left out.
        gone: UIDs of pods that are deleted.
        lost: UIDs of pods whose node is lost, with the reason.
        runners: Pods that run the function, from index 0 on; the others are Pathways' workers. None is all.
        noted: What the UIDs of the pods that once ran this attempt begin with, by index; empty if that is not known.
    """
    first_server = hosts if runners is None else runners
    by_index: dict[int, list[Json]] = {index: [] for index in range(hosts)}
    for pod in pods:
        if attempt_of(pod["spec"]) == attempt and pod_index(pod) in by_index:
            by_index[pod_index(pod)].append(pod)
    states = (_host(index, found, gone, lost or {}, server=index >= first_server) for index, found in by_index.items())
    return tuple(
        _unseen(state, by_index[state.index], noted[state.index]) if state.index < len(noted) else state
        for state in states
    )


def _unseen(state: HostState, pods: Sequence[Json], noted: str) -> HostState:
    """Count a host as lost whose pod, in which user code ran, went away unseen: what is there now must not run it."""
    if any(pod["metadata"]["uid"].startswith(noted) for pod in pods):
        return state
    reason = "the pod that it ran in went away while no launcher watched"
    return HostState(
        index=state.index,
        phase=Phase.LOST,
        pod=state.pod,
        uid=state.uid,
        reason=reason,
        server=state.server,
        up=state.phase is Phase.RUNNING or state.up,
    )


def _host(
    index: int, pods: Sequence[Json], gone: Collection[str], lost: Mapping[str, str], *, server: bool
) -> HostState:
    """Judge one index by the first of its pods in which user code started: another one must never start it again."""
    judge = _server if server else _runner
    states = [
        judge(index, pod, gone=pod["metadata"]["uid"] in gone, node_lost=lost.get(pod["metadata"]["uid"], ""))
        for pod in sorted(pods, key=lambda p: str(p["metadata"].get("creationTimestamp", "")))
    ]
    begun = [state for state in states if state.phase is not Phase.WAITING]
    if not begun:
        nothing = HostState(index=index, phase=Phase.WAITING, reason="there is no pod yet", server=server)
        return states[-1] if states else nothing
    first = begun[0]
    if first.phase is Phase.RUNNING and len(states) > states.index(first) + 1:
        first = _lost(first, f"pod {first.pod} was replaced by another of the same name while it ran")
    if first.phase is Phase.LOST and server:
        newest = states[-1]
        return _with(first, up=newest.phase is Phase.RUNNING or newest.up)
    return first


def _runner(index: int, pod: Json, *, gone: bool, node_lost: str) -> HostState:
    """Judge a pod in which the function runs; on Pathways' head the servers beside it must have lived on."""
    state = _pod(index, pod, gone=gone, node_lost=node_lost)
    broken = _broken(pod.get("status") or {}, SIDECARS)
    if broken is None or state.phase is Phase.LOST or (state.outcome and state.outcome.ok):
        return state
    reason, at = broken
    if state.phase is Phase.ENDED and state.outcome and at > state.outcome.ended + BROKE_FIRST:
        return state  # user code failed first
    return _with(state, phase=Phase.LOST, reason=reason, lost_at=at, outcome=None, digest="", unread=False)


def _server(index: int, pod: Json, *, gone: bool, node_lost: str) -> HostState:
    """Judge a pod of Pathways' workers, which has no runner of ours: its first end is a loss."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    container: Json = next((c for c in status.get("containerStatuses") or () if c.get("name") == WORKER), {})
    state = container.get("state") or {}
    base = HostState(index=index, phase=Phase.WAITING, pod=metadata["name"], uid=metadata["uid"], server=True)
    running, going = state.get("running"), gone or bool(metadata.get("deletionTimestamp"))
    broken = _broken(status, (WORKER, COLOCATED))
    if broken is not None:
        reason, at = broken
        return _with(_lost(base, reason), lost_at=at, up=bool(running) and not going and not node_lost)
    if running is None:
        if status.get("phase") == "Failed" and status.get("startTime"):
            return _lost(base, _failed(base, status))
        return _waiting(base, _why_waiting(status, state))
    base = _started(base, unix(running.get("startedAt")))
    if going:
        at = unix(metadata.get("deletionTimestamp"))
        return _with(_lost(base, _deleted(base) + _disruption(status)), lost_at=at)
    return _lost(base, node_lost) if node_lost else base


def _broken(status: Json, names: Collection[str]) -> tuple[str, float] | None:
    """Find a container without a runner of ours that has ended, or was started again; say how, and when."""
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(key) or ():
            ended = (container.get("lastState") or {}).get("terminated") or (container.get("state") or {}).get(
                "terminated"
            )
            if container.get("name") not in names or not (ended or container.get("restartCount")):
                continue
            how = f"{ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}" if ended else "restarted"
            return f"container {container['name']} ended ({how})", unix((ended or {}).get("finishedAt"))
    return None


def _pod(index: int, pod: Json, *, gone: bool, node_lost: str) -> HostState:  # noqa: PLR0911 - a table
    metadata, status = pod["metadata"], pod.get("status") or {}
    container: Json = next((c for c in status.get("containerStatuses") or () if c.get("name") == CONTAINER), {})
    state, last = container.get("state") or {}, container.get("lastState") or {}
    terminated = last.get("terminated") or state.get("terminated")
    running = state.get("running")
    base = HostState(index=index, phase=Phase.WAITING, pod=metadata["name"], uid=metadata["uid"])
    if terminated:
        ended = _ended(base, terminated, int(container.get("restartCount") or 0), holding=bool(running))
        if ended.phase is not Phase.LOST:
            return ended
        # Its last words are SIGTERM's; why that came, the pod says.
        silent = ended.outcome is None and (gone or metadata.get("deletionTimestamp"))
        return _lost(ended, (_deleted(base) if silent else ended.reason) + _disruption(status))
    if status.get("phase") == "Failed":
        reason = _failed(base, status)
        # One that failed before it started anything is made anew by its StatefulSet and costs nothing.
        return _lost(base, reason) if running or status.get("startTime") else _waiting(base, reason)
    if running is None:
        if gone:
            return _waiting(base, "the pod was deleted before it started")
        return _waiting(base, _why_waiting(status, state))
    base = _started(base, unix(running.get("startedAt")))
    if gone or metadata.get("deletionTimestamp"):
        return _lost(base, _deleted(base) + _disruption(status))
    if node_lost:
        return _lost(base, node_lost)
    return base


def _deleted(base: HostState) -> str:
    return f"pod {base.pod} was deleted while it ran"


def _failed(base: HostState, status: Json) -> str:
    """Say how a pod failed as a whole: an evicted one may tell nothing else."""
    why = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
    return f"pod {base.pod} failed" + (f" ({why})" if why else "")


def _ended(base: HostState, terminated: Json, restarts: int, *, holding: bool) -> HostState:
    started = unix(terminated.get("startedAt"))
    read = parse_message(terminated.get("message") or "")
    if read is None and restarts > 1 and holding:
        # lastState keeps the last end only, here that of a holding runner; its log tells the outcome once more.
        return _with(base, phase=Phase.ENDED, started=started, unread=True)
    outcome, digest = read or (_by_reason(base.index, terminated), "")
    if outcome is None:
        how = f"{terminated.get('reason')} (exit code {terminated.get('exitCode')})"
        why = f"the container of pod {base.pod} ended with {how}"
        return _lost(_started(base, started), why)
    if terminated.get("reason") == "OOMKilled" and not outcome.ok:
        # The runner lived and told of SIGKILL; that it was for memory, Kubernetes alone knows.
        outcome = replace(outcome, oom=True)
    started = outcome.started or started
    if outcome.kind in ("lost", "terminated"):
        why = "the runner was killed" if outcome.kind == "lost" else outcome.detail
        return _lost(_with(base, started=started, outcome=outcome), why)
    return _with(base, phase=Phase.ENDED, started=started, outcome=outcome, digest=digest)


_KILLED = (137, 143, 255)

_NO_PROGRAM = (126, 127)
"""What a shell ends with that cannot run a program: the runner's own would be of user code, and have an outcome."""


def _by_reason(index: int, terminated: Json) -> Outcome | None:
    """Judge a container that left no outcome by Kubernetes' own words; None means it was lost."""
    code, reason = int(terminated.get("exitCode") or 0), str(terminated.get("reason") or "")
    ended = unix(terminated.get("finishedAt"))
    if reason == "OOMKilled":
        return Outcome(kind="signal", host=index, code=code or 137, signal=9, oom=True, ended=ended)
    if code in _KILLED or reason in ("ContainerStatusUnknown", "Unknown"):
        return None
    said = str(terminated.get("message") or "").strip()
    detail = f"the runner did not start: {reason or 'Error'}, exit code {code}" + (f": {said[-800:]}" if said else "")
    if code in _NO_PROGRAM:
        detail += f". {EXIT_CODES[code].resolution}"
    return Outcome(kind="setup", host=index, code=code or 1, ended=ended, detail=detail)


def _why_waiting(status: Json, state: Json) -> str:
    waiting = state.get("waiting") or {}
    if waiting.get("reason") not in (None, "", "ContainerCreating", "PodInitializing"):
        return ": ".join(filter(None, (waiting["reason"], waiting.get("message"))))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    return str(waiting.get("reason") or "the pod is pending")


def _disruption(status: Json) -> str:
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return f" ({condition.get('reason')}: {condition.get('message')})"
    return ""


def _with(state: HostState, **changes: Any) -> HostState:
    return replace(state, **changes)


def _started(state: HostState, at: float) -> HostState:
    return _with(state, phase=Phase.RUNNING, started=at)


def _lost(state: HostState, reason: str) -> HostState:
    return _with(state, phase=Phase.LOST, reason=reason)


def _waiting(state: HostState, reason: str) -> HostState:
    return _with(state, reason=reason)
