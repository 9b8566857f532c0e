"""The decision table of a group, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kr_kfp.spec.observe import HostState, Phase
from kr_kfp.spec.outcome import (
    PEER_GRACE,
    SETTLE,
    Decision,
    decide,
    describe_others,
    describe_outcome,
    follows_a_peer,
    headline,
    is_retried,
)
from kr_kfp.wire import ErrorInfo, Outcome

NOW = 1000.0


def error(kind: str = "ValueError", message: str = "boom") -> ErrorInfo:
    return ErrorInfo(type=kind, message=message, file="train.py", line=14, function="train", source="raise x")


def running(index: int) -> HostState:
    return HostState(index=index, phase=Phase.RUNNING, pod=f"g-0-{index}", uid=f"u{index}", started=900.0)


def ended(index: int, kind: str = "ok", at: float = 990.0, **fields: object) -> HostState:
    outcome = Outcome(kind=kind, host=index, code=0 if kind == "ok" else 1, started=900.0, ended=at)
    return replace(running(index), phase=Phase.ENDED, outcome=replace(outcome, **fields))  # type: ignore[arg-type]


def raised(index: int, at: float = 990.0, kind: str = "ValueError", message: str = "boom") -> HostState:
    return ended(index, "exception", at, error=error(kind, message))


def lost(index: int) -> HostState:
    return replace(running(index), phase=Phase.LOST, reason="pod g was deleted while it ran")


def judge(*states: HostState, **extra: object) -> tuple[Decision, int | None, float | None]:
    values: dict[str, object] = {"now": NOW, "finish_grace": 60.0, "first_bad_seen": NOW - SETTLE, **extra}
    verdict = decide(states, **values)  # type: ignore[arg-type]
    return verdict.decision, verdict.host.index if verdict.host else None, verdict.check_at


def test_all_ended_well() -> None:
    """Every host ended well: success, and the leader's outcome decides."""
    assert judge(ended(0), ended(1)) == (Decision.SUCCESS, 0, None)


def test_all_run() -> None:
    """All run: wait, without any time to look again."""
    assert judge(running(0), running(1)) == (Decision.WAIT, None, None)


def test_first_by_its_own_clock_is_named() -> None:
    """The host whose outcome is earliest is named, not the one seen first."""
    assert judge(raised(0, 990.2), raised(1, 990.1), ended(2)) == (Decision.FAILURE, 1, None)


def test_failure_waits_for_other_stories() -> None:
    """While others still run, their outcomes may be earlier: wait for SETTLE after the first sight."""
    assert judge(running(0), raised(1), first_bad_seen=NOW) == (Decision.WAIT, None, NOW + SETTLE)
    assert judge(running(0), raised(1), first_bad_seen=NOW - SETTLE) == (Decision.FAILURE, 1, None)


def test_cause_before_consequence() -> None:
    """A host that aborted since its peer went away is not named, even if its clock says that it was first."""
    aborted = ended(0, "signal", 980.0, signal=6, code=134)
    assert judge(aborted, raised(1, 990.0), running(2)) == (Decision.FAILURE, 1, None)


def test_only_consequences_wait_for_the_cause() -> None:
    """When hosts only tell that a peer went away, the cause may show late; after PEER_GRACE the first is named."""
    aborted = ended(1, "signal", 980.0, signal=6, code=134)
    seen = NOW - SETTLE
    assert judge(running(0), aborted) == (Decision.WAIT, None, seen + PEER_GRACE)
    assert judge(running(0), aborted, first_bad_seen=NOW - PEER_GRACE) == (Decision.FAILURE, 1, None)


def test_lost_host_restarts() -> None:
    """A lost host, with peers that aborted because of it, is infrastructure loss."""
    aborted = ended(1, "signal", 980.0, signal=6, code=134)
    assert judge(lost(0), aborted, running(2)) == (Decision.RESTART, 0, None)


def test_own_failure_beats_a_lost_host() -> None:
    """User code that failed by itself fails the step, although another host was lost as well."""
    assert judge(lost(0), raised(1)) == (Decision.FAILURE, 1, None)


def test_finish_grace() -> None:
    """Others may run for finish_grace after the first ended well; then the one that still runs is named."""
    verdict = decide([running(0), ended(1), ended(2)], now=NOW, finish_grace=5.0, first_ok_seen=NOW - 4.0)
    assert (verdict.decision, verdict.check_at) == (Decision.WAIT, NOW + 1.0)
    verdict = decide([running(0), ended(1), ended(2)], now=NOW, finish_grace=5.0, first_ok_seen=NOW - 5.0)
    assert verdict.decision is Decision.FAILURE
    assert verdict.host is not None
    assert verdict.host.index == 0
    assert verdict.reason.startswith("host 0 was still running 5 s after hosts 1 and 2 had ended well (finish_grace)")


def test_late_hosts_name_the_other_one() -> None:
    """Hosts that returned and waited in vain in JAX's barrier name the one that had not finished."""
    coordinator = ended(0, "signal", 994.9, signal=6, code=134)
    late = [ended(i, "late", 995.0, code=134) for i in (1, 2)]
    assert judge(coordinator, *late) == (Decision.FAILURE, 0, None)


@pytest.mark.parametrize(
    ("state", "retry_on", "expected"),
    [
        (ended(0, "signal", signal=9, oom=True, code=137), ("oom",), Decision.RESTART),
        (ended(0, "signal", signal=9, oom=True, code=137), (), Decision.FAILURE),
        (ended(0, "exit", code=3), ("3",), Decision.RESTART),
        (raised(0, kind="FloatingPointError"), ("FloatingPointError",), Decision.RESTART),
        (raised(0, kind="MemoryError"), ("oom",), Decision.RESTART),
        (raised(0), ("FloatingPointError", "3"), Decision.FAILURE),
    ],
    ids=["oom", "oom-not-asked", "exit-code", "exception", "memory-error", "another"],
)
def test_retry_on(state: HostState, retry_on: tuple[str, ...], expected: Decision) -> None:
    """Only failures that retry_on names are worth a restart."""
    verdict = decide([state], now=NOW, finish_grace=60.0, retry_on=retry_on, first_bad_seen=NOW)
    assert verdict.decision is expected
    assert verdict.user_fault is (expected is Decision.RESTART)


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(kind="signal", host=0, signal=6, code=134), True),
        (Outcome(kind="signal", host=0, signal=11, code=139), False),
        (Outcome(kind="signal", host=0, signal=9, code=137, oom=True), False),
        (
            Outcome(kind="exception", host=0, error=error("XlaRuntimeError", "UNAVAILABLE: Gloo all-reduce failed")),
            True,
        ),
        (Outcome(kind="exception", host=0, error=error("ValueError", "bad shape")), False),
        (Outcome(kind="exception", host=0, error=error("KeyError", "'peer'")), False),
        (Outcome(kind="setup", host=0, detail="jax.distributed.initialize({}) failed: x"), True),
        (Outcome(kind="setup", host=0, detail="pip could not install"), False),
    ],
)
def test_follows_a_peer(outcome: Outcome, expected: bool) -> None:
    """Consequences of another host's end are told from causes."""
    assert follows_a_peer(outcome) is expected


def test_is_retried_by_code() -> None:
    """An exit code is named as decimal text."""
    assert is_retried(Outcome(kind="exit", host=0, code=3), ("3",))
    assert not is_retried(Outcome(kind="exit", host=0, code=3), ("4", "oom"))


def test_description_ends_with_the_place() -> None:
    """The last lines name who, what, and the line in the user's file."""
    outcome = Outcome(kind="exception", host=2, error=replace(error(), traceback="Traceback\n  x"))
    assert describe_outcome(outcome, "host 2").splitlines() == [
        "host 2: traceback of the failing function",
        "  Traceback",
        "    x",
        "host 2: ValueError: boom",
        "host 2:   at train.py:14 in train(): raise x",
    ]


def test_oom_says_what_to_do() -> None:
    """A kill for memory is named as such, with a way out."""
    outcome = Outcome(kind="signal", host=0, signal=9, oom=True, code=137)
    assert headline(outcome) == "out of memory: the kernel killed the process (OOMKilled, exit code 137)"
    assert "set_memory_limit" in describe_outcome(outcome, "host 0")


def test_others_of_one_fate_are_told_together() -> None:
    """However many hosts there are, the line about them stays short, and names few of them."""
    waiting = [replace(running(i), phase=Phase.WAITING, reason="ErrImagePull: a long text") for i in (4, 5)]
    states = [ended(1), running(2), running(3), *waiting, raised(6)]
    assert describe_others(states) == (
        "host 1 ended well; hosts 2, 3 were running and are stopped; hosts 4, 5 had not started (ErrImagePull); "
        "host 6 after it: ValueError: boom"
    )
    assert describe_others([running(i) for i in range(1, 257)]) == (
        "hosts 1, 2, 3, 4, 5, 6, 7, 8 and 248 more were running and are stopped"
    )
    assert describe_others([replace(running(1), server=True)]) == ""
    assert describe_others([replace(running(1), server=True, phase=Phase.LOST, reason="gone")]) == (
        "Pathways worker 0 gone"
    )
    gone = [replace(running(i), phase=Phase.LOST, reason=f"pod train-x-0-{i} was deleted") for i in range(1, 257)]
    assert len(describe_others(gone)) == 1204
