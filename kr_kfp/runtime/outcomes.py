"""From how the processes ended to this host's Outcome. Values in, values out; standard library only."""

from __future__ import annotations

import signal
from dataclasses import replace

from kr_kfp.runtime.child import Ended, Process
from kr_kfp.wire import LEAVING, ExitCode, Outcome

__all__ = ["judge", "signal_of"]


def signal_of(code: int) -> int:
    """Give the signal behind an exit code: ``-n`` of our own child, ``128+n`` of a shell's; 0 if there is none."""
    if code < 0:
        return -code
    return code - 128 if 128 < code <= 128 + signal.NSIG else 0


def _container_code(code: int) -> int:
    """Give the exit code that the container shall show: the child's own, ``128+n`` for a signal, never 0."""
    return 128 - code if code < 0 else code or ExitCode.FAILED


def judge(
    ended: Ended, *, host: int, attempt: int, started: float, finish_grace: float, oom: bool, several: bool = False
) -> Outcome:
    """Give the outcome of a host.

    Args:
        ended: How its processes ended.
        host: 0-based index in the group.
        attempt: 0-based attempt.
        started: Unix seconds when the processes started.
        finish_grace: Seconds that JAX's shutdown waits for other hosts.
        oom: Whether the kernel killed for memory meanwhile.
        several: Whether the host ran several processes, so that the failing one is named.
    """
    process = ended.first
    blank = Outcome(kind="", host=host, attempt=attempt, started=started, oom=oom)
    who = f"process {process.rank} of this host: " if several else ""
    code = process.code if process.code is not None else 0
    returned = process.event("returned")
    if ended.terminated_at and not (returned and float(returned["time"]) < ended.terminated_at):
        return replace(
            blank,
            kind="terminated",
            code=_container_code(code),
            ended=ended.terminated_at,
            detail=f"{who}SIGTERM came from outside while the function ran",
        )
    if not process.failed:
        done = process.event("done") or {}
        late = f"{who}the process ended with {_words(code)} after the function had returned and its results were safe"
        warnings = (late,) if code else ()
        return replace(blank, kind="ok", ended=float(done.get("time", process.ended)), warnings=warnings)
    return _judge_failed(process, who, code, finish_grace, blank)


def _judge_failed(process: Process, who: str, code: int, finish_grace: float, blank: Outcome) -> Outcome:
    shown = _container_code(code)
    if setup := process.event("setup"):
        detail = who + str(setup["message"])
        return replace(blank, kind="setup", code=ExitCode.SETUP, ended=float(setup["time"]), detail=detail)
    if raised := process.event("exception"):
        return replace(
            blank, kind="exception", code=shown, ended=float(raised["time"]), error=process.error, detail=who
        )
    if stop := process.event("exit"):
        detail = f"{who}sys.exit({stop['code']!r}) ended the process before the function returned"
        return replace(blank, kind="exit", code=shown, ended=float(stop["time"]), detail=detail)
    returned = process.event("returned")
    waited = process.ended - float(returned["time"]) if returned else 0.0
    # One second less, since JAX counts its timeout in whole seconds.
    if returned and waited >= finish_grace - 1.0:
        detail = f"{who}the function returned, then {waited:.0f} s passed while other hosts had not finished"
        return replace(blank, kind="late", code=shown, ended=process.ended, detail=detail)
    number = signal_of(code)
    when = LEAVING if returned else "before the function returned"
    detail = f"{who}the process ended with {_words(code)} {when}"
    return replace(
        blank, kind="signal" if number else "exit", code=shown, signal=number, ended=process.ended, detail=detail
    )


def _words(code: int) -> str:
    number = signal_of(code)
    if not number:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(number).name}"
    except ValueError:
        return f"signal {number}"
