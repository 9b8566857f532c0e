"""The runner: one host of a group. Standard library only, so that a training image needs nothing but Python.

First start of the container: run the user's processes, write the outcome to a marker (write, fsync, rename) and to the
termination message, exit with the child's code; Kubernetes then shows the true exit code and reason. The kubelet
starts the container again, as it does for every pod of a StatefulSet: the marker is printed, which is the outcome, and
the container holds until SIGTERM. User code runs once per pod, ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from types import FrameType

from kr_kfp.errors import SetupError, StorageError, StorageStoppedError
from kr_kfp.executor_input import with_executor
from kr_kfp.runtime import artifacts, child, collect, outcomes, prepare
from kr_kfp.wire import (
    OUTCOME_FILE,
    ExitCode,
    Outcome,
    Payload,
    outcome_line,
    outcome_message,
    unpack,
)

__all__ = ["main"]

_STARTED = "started"
_CUT_SHORT = "SIGTERM came from outside while outputs were written"


def main(arguments: Sequence[str]) -> int:
    """Run this host, or hold if it has run already.

    Args:
        arguments: The packed payload, in chunks.

    Returns:
        The exit code for the container. Does not return while holding.
    """
    work = os.environ["KR_KFP_WORK"]
    done = os.path.join(work, OUTCOME_FILE)
    if os.path.exists(done):
        # What comes before this runner (spec/pod.py) holds already, unless the image lacks the programs for it.
        return _hold(done)
    payload = Payload.from_json(unpack("".join(arguments)))
    if not _first_start(work):
        # The runner itself was killed. User code must not start twice in one pod, so this is all there is to say.
        lost = Outcome(kind="lost", host=prepare.host_index(), attempt=prepare.attempt(), code=137, ended=time.time())
        _write(done, outcome_line(lost) + "\n")
        return _hold(done)
    signal.signal(signal.SIGTERM, _stop_early)
    try:
        outcome = _run(payload, work)
    except (SetupError, OSError) as problem:
        outcome = _early("setup", ExitCode.SETUP, str(problem))
    except (_StoppedEarlyError, StorageStoppedError):
        outcome = _early("terminated", 128 + signal.SIGTERM, "SIGTERM came from outside before the function ran")
    except StorageError as problem:
        outcome = _early("storage", ExitCode.STORAGE, f"inputs could not be fetched: {problem}")
    _write(done, outcome_line(outcome) + "\n")
    write_termination(outcome_message(outcome))
    return outcome.code


class _StoppedEarlyError(Exception):
    """SIGTERM came before the function ran."""


def _stop_early(_number: int, _frame: FrameType | None) -> None:
    # Process 1 of a container has no default action for signals: without a handler it would live on until SIGKILL.
    raise _StoppedEarlyError


def _early(kind: str, code: int, detail: str) -> Outcome:
    """Give the outcome of a host whose function did not run."""
    return Outcome(
        kind=kind, host=prepare.host_index(), attempt=prepare.attempt(), code=code, ended=time.time(), detail=detail
    )


def _run(payload: Payload, work: str) -> Outcome:
    index, attempt = prepare.host_index(), prepare.attempt()
    prepare.await_leader(index, float(payload.options.get("resolve_limit", 300.0)))
    command = prepare.after_pip(with_executor(payload.command))
    artifacts.fetch_inputs(payload, work)
    count = int(payload.options.get("processes_per_host", 1))
    processes = [prepare.process(payload, command, work, rank, count) for rank in range(count)]
    before = collect.oom_kills()
    started = time.time()
    ended = child.run(processes)
    outcome = outcomes.judge(
        ended,
        host=index,
        attempt=attempt,
        started=started,
        finish_grace=float(payload.options.get("finish_grace", 300.0)),
        oom=collect.oom_kills() > before,
        several=count > 1,
    )
    if outcome.kind == "signal":
        source = str(payload.options.get("source", ""))
        faults = os.path.join(work, f"process-{ended.first.rank}", "faults")
        return _with(outcome, error=collect.crash(faults, str(payload.options.get("name", "")), source))
    return _check(outcome, payload, work, count) if outcome.ok else outcome


def _check(outcome: Outcome, payload: Payload, work: str, count: int) -> Outcome:
    """Look at what a host that ended well has left behind."""
    stray = collect.stray_files(payload, work, outcome.host, count)
    if stray:
        shown = ", ".join(stray[:5]) + (f" and {len(stray) - 5} more" if len(stray) > 5 else "")
        detail = (
            f"a worker wrote into the path of an output, where only host 0's files count: {shown}. "
            "Write there if kr_kfp.context().is_leader, or let every host write below the output's .uri"
        )
        return _with(outcome, kind="worker-files", code=ExitCode.FAILED, detail=detail)
    if outcome.host:
        return outcome
    outputs = collect.outputs(payload, work, outcome.attempt)
    try:
        said = artifacts.put_outputs(payload, outputs, attempt=outcome.attempt, work=work)
    except StorageStoppedError:
        return _with(outcome, kind="terminated", code=128 + signal.SIGTERM, detail=_CUT_SHORT)
    except (StorageError, SetupError) as problem:
        detail = f"the function returned, but its outputs could not be written: {problem}"
        return _with(outcome, kind="storage", code=ExitCode.STORAGE, detail=detail, ended=time.time())
    return _with(outcome, outputs=outputs, warnings=(*outcome.warnings, *said))


def _hold(done: str) -> int:
    """Print the outcome and stay until SIGTERM: an end would start this container once more."""
    signal.signal(signal.SIGTERM, _leave)
    with open(done, encoding="utf-8") as file:
        print(file.read(), end="", flush=True)
    while True:
        signal.pause()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _first_start(work: str) -> bool:
    """Note the first start of this pod; False if it was noted before."""
    os.makedirs(work, exist_ok=True)
    try:
        os.close(os.open(os.path.join(work, _STARTED), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        return False
    return True


def _write(path: str, text: str) -> None:
    """Write a file so that it is there whole or not at all, even after a crash of the machine."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_termination(text: str) -> None:
    """Write the container's termination message, where there is such a file."""
    path = os.environ.get("KR_KFP_TERMINATION_LOG", "")
    if not path and os.path.exists("/dev/termination-log"):
        path = "/dev/termination-log"
    if path:
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(text)


def _with(outcome: Outcome, **changes: object) -> Outcome:
    from dataclasses import replace

    return replace(outcome, **changes)  # type: ignore[arg-type]
