"""What one attempt's hosts amount to: the decision table of a group. Pure.

| seen | verdict |
|---|---|
| every host ended well (Pathways: the head did) | SUCCESS |
| a host failed by its own doing | FAILURE of the first by its outcome's time, after SETTLE or when all ended |
| the same, and the failure is one of ``retry_on`` | RESTART |
| a host was lost, and no host failed by its own doing | RESTART |
| a host failed when a Pathways server was lost already | RESTART |
| Pathways workers of no more than ``elastic`` slices are away | as if they were there |
| hosts failed only as they do when a peer goes away | wait PEER_GRACE for the peer's own story, then FAILURE |
| some ended well, others still run | wait ``finish_grace``, then FAILURE naming those that still run |
| a host returned and waited in vain for others | FAILURE naming the others |
| else | WAIT |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from kr_kfp.spec.observe import BROKE_FIRST, HostState, Phase
from kr_kfp.spec.peers import tells_of_a_peer
from kr_kfp.wire import LEAVING, Outcome

__all__ = [
    "PEER_GRACE",
    "SETTLE",
    "Decision",
    "Verdict",
    "decide",
    "describe_others",
    "describe_outcome",
    "follows_a_peer",
    "headline",
]

SETTLE = 2.5
"""Seconds to wait for outcomes of other hosts that may have failed earlier: a pod's status lags up to 1 s behind."""

PEER_GRACE = 20.0
"""Seconds to wait for the cause when hosts only tell that a peer went away: an eviction shows late."""


class Decision(Enum):
    """What the launcher does next."""

    WAIT = "wait"
    SUCCESS = "success"
    FAILURE = "failure"
    RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The decision and its reason.

    Args:
        decision: What to do.
        host: The host that decides it; None if it is no single one.
        reason: One sentence for people; empty while waiting.
        check_at: When to decide again although nothing happened, in Unix seconds; None if never.
        user_fault: For RESTART: whether user code failed (``retry_on``) rather than the infrastructure.
    """

    decision: Decision
    host: HostState | None = None
    reason: str = ""
    check_at: float | None = None
    user_fault: bool = False


def follows_a_peer(outcome: Outcome) -> bool:
    """Tell whether a failure looks like the consequence of another host's end rather than its cause.

    JAX aborts (SIGABRT) the remaining processes when its coordination service loses one; collectives raise errors
    that name the transport.
    """
    if outcome.oom:
        return False
    if outcome.kind == "signal" and outcome.signal == 6:
        return True
    if outcome.kind in ("signal", "exit") and LEAVING in outcome.detail:
        return True
    if outcome.kind == "setup":
        return "jax.distributed.initialize(" in outcome.detail or "through the Pathways proxy" in outcome.detail
    return outcome.error is not None and tells_of_a_peer(outcome.error)


def is_retried(outcome: Outcome, retry_on: Sequence[str]) -> bool:
    """Tell whether ``retry_on`` names this failure: ``oom``, its exit code, or its exception's class."""
    names = {str(outcome.code)}
    if outcome.oom or (outcome.error and outcome.error.type == "MemoryError"):
        names.add("oom")
    if outcome.error:
        names.add(outcome.error.type)
    return not names.isdisjoint(retry_on)


def decide(  # noqa: PLR0911 - one return a row of the table
    states: Sequence[HostState],
    *,
    now: float,
    finish_grace: float,
    retry_on: Sequence[str] = (),
    first_ok_seen: float | None = None,
    first_bad_seen: float | None = None,
    elastic: int = 0,
    per_slice: int = 1,
) -> Verdict:
    """Decide about one attempt.

    Args:
        states: Every host of the attempt.
        now: Unix seconds.
        finish_grace: Seconds that others may run after the first ended well.
        retry_on: User failures worth a restart.
        first_ok_seen: When the launcher first saw a host that ended well, by its own clock.
        first_bad_seen: When it first saw one that failed or was lost.
        elastic: Slices that may be missing (Pathways).
        per_slice: Hosts of one slice.
    """
    lost = [*_lost(states, elastic, per_slice)]
    busy = any(s.phase is Phase.RUNNING for s in states)
    states = [s for s in states if not s.server]
    if all(s.outcome and s.outcome.ok and s.phase is Phase.ENDED for s in states):
        return Verdict(decision=Decision.SUCCESS, host=states[0])
    bad = [s for s in states if s.outcome and s.phase is Phase.ENDED and not s.outcome.ok]
    late = [s for s in bad if s.outcome and s.outcome.kind == "late"]
    primary = [s for s in bad if s not in late and s.outcome and not follows_a_peer(s.outcome)]
    seen = now if first_bad_seen is None else first_bad_seen
    settled = not busy or now >= seen + SETTLE
    if bad or lost:
        if not settled:
            return Verdict(decision=Decision.WAIT, check_at=seen + SETTLE)
        if primary and not any(s.server for s in lost):
            return _failure(min(primary, key=_ended), retry_on)
        if lost:
            return Verdict(decision=Decision.RESTART, host=lost[0], reason=_lost_sentence(lost))
        if late:
            return _unfinished(states, late, finish_grace)
        if busy and now < seen + PEER_GRACE:
            return Verdict(decision=Decision.WAIT, check_at=seen + PEER_GRACE)
        return _failure(min(bad, key=_ended), retry_on)
    ended = [s for s in states if s.phase is Phase.ENDED]
    if ended:
        limit = (now if first_ok_seen is None else first_ok_seen) + finish_grace
        if now >= limit:
            return _unfinished(states, ended, finish_grace)
        return Verdict(decision=Decision.WAIT, check_at=limit)
    return Verdict(decision=Decision.WAIT)


def _lost(states: Sequence[HostState], elastic: int, per_slice: int) -> Iterator[HostState]:
    """Give the hosts that are lost; a Pathways server counts only if it was lost before user code failed."""
    failed = min((_ended(s) for s in states if not s.server and s.outcome and s.phase is Phase.ENDED), default=None)
    away = {(s.index - 1) // per_slice for s in states if s.server and s.phase is Phase.LOST and not s.up}
    for state in states:
        if state.phase is not Phase.LOST:
            continue
        late = failed is not None and state.lost_at > failed + BROKE_FIRST
        if not state.server or (not late and (elastic == 0 or len(away) > elastic)):
            yield state


def _ended(state: HostState) -> float:
    return state.outcome.ended if state.outcome else 0.0


def _failure(state: HostState, retry_on: Sequence[str]) -> Verdict:
    assert state.outcome is not None  # noqa: S101 - by construction: only hosts with an outcome fail
    sentence = f"host {state.index} failed: {headline(state.outcome)}"
    if is_retried(state.outcome, retry_on):
        return Verdict(decision=Decision.RESTART, host=state, reason=sentence, user_fault=True)
    return Verdict(decision=Decision.FAILURE, host=state, reason=sentence)


def _lost_sentence(lost: Sequence[HostState]) -> str:
    return "; ".join(f"{s.who} was lost: {s.reason}" for s in lost)


def _unfinished(states: Sequence[HostState], done: Sequence[HostState], finish_grace: float) -> Verdict:
    """Name the hosts that had not finished when the others' patience ended."""
    finished = {s.index for s in states if s.outcome and s.outcome.kind in ("ok", "late")}
    rest = [s for s in states if s.index not in finished] or list(done)
    verb = "was" if len(rest) == 1 else "were"
    reason = (
        f"{_hosts(rest)} {verb} still running {finish_grace:g} s after {_hosts(done)} had ended well "
        "(finish_grace). Raise finish_grace if that is meant"
    )
    return Verdict(decision=Decision.FAILURE, host=rest[0], reason=reason)


def _hosts(states: Sequence[HostState]) -> str:
    numbers = [str(s.index) for s in states]
    if len(numbers) == 1:
        return f"host {numbers[0]}"
    return f"hosts {', '.join(numbers[:-1])} and {numbers[-1]}"


def headline(outcome: Outcome) -> str:
    """Say in one line how user code ended."""
    if outcome.error and outcome.kind == "signal":
        return f"{outcome.detail} ({outcome.error.message})"
    if outcome.error:
        message = outcome.error.message.strip()
        first = message.splitlines()[0] if message else ""
        return f"{outcome.detail}{outcome.error.type}" + (f": {first}" if first else "")
    if outcome.oom:
        return "out of memory: the kernel killed the process (OOMKilled, exit code 137)"
    return outcome.detail or f"exit code {outcome.code}"


def describe_outcome(outcome: Outcome, who: str) -> str:
    """Tell a failure in a few lines: traceback first, then who, what, where, and what to do."""
    lines = []
    error = outcome.error
    if error and error.traceback:
        lines += [f"{who}: traceback of the failing function", *(f"  {line}" for line in error.traceback.splitlines())]
    lines.append(f"{who}: {headline(outcome)}")
    if error and error.file:
        source = f": {error.source}" if error.source else ""
        lines.append(f"{who}:   at {error.file}:{error.line} in {error.function}(){source}")
    advice = _advice(outcome)
    if advice:
        lines.append(f"{who}:   {advice}")
    return "\n".join(lines)


_NAMED = 8
"""Hosts of one fate that are named; the others are counted."""

_OTHERS_LIMIT = 1200
"""Characters about other hosts: KFP shows a termination message of 4,096 bytes, and they are not its point."""


def describe_others(states: Sequence[HostState]) -> str:
    """Tell how hosts fared that did not decide the attempt, those of one fate together; empty if there is nothing."""
    fates: dict[tuple[str, str, bool], list[int]] = {}
    for state in states:
        # A Pathways server that runs on has nothing to tell.
        if not state.server or state.phase is not Phase.RUNNING:
            fates.setdefault((*_fate(state), state.server), []).append(state.index - int(state.server))
    told = []
    for (one, many, server), indexes in fates.items():
        kind = "Pathways worker" if server else "host"
        named = ", ".join(map(str, indexes[:_NAMED])) + (f" and {len(indexes) - _NAMED} more" * (len(indexes) > _NAMED))
        told.append(f"{kind} {named} {one}" if len(indexes) == 1 else f"{kind}s {named} {many}")
    text = "; ".join(told)
    return text if len(text) <= _OTHERS_LIMIT else f"{text[:_OTHERS_LIMIT]} ..."


def _fate(state: HostState) -> tuple[str, str]:
    """Say how a host fared, of one and of many."""
    if state.outcome and state.phase is Phase.ENDED:
        said = "ended well" if state.outcome.ok else f"after it: {headline(state.outcome)}"
        return said, said
    if state.phase is Phase.RUNNING:
        return "was running and is stopped", "were running and are stopped"
    # The cause, without Kubernetes' long text: the first of them stands above.
    said = f"had not started ({state.reason.partition(': ')[0]})" if state.phase is Phase.WAITING else state.reason
    return said, said


def _advice(outcome: Outcome) -> str:
    if outcome.oom:
        return "Give the hosts more memory (set_memory_limit), use a smaller batch, or retry_on={'oom'}."
    if outcome.kind == "signal" and outcome.signal == 9:
        return "SIGKILL comes from outside the program: mostly the kernel, for memory. Look at the host's memory."
    if outcome.kind == "signal" and outcome.signal in (4, 7, 8, 11):
        return "Native code crashed; the Python stack that faulthandler printed is in this host's log."
    if outcome.kind == "exit":
        return "Let the function return, or raise an exception; KFP's outputs are written when it returns."
    return ""
