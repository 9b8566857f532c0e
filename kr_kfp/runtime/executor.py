"""Runs in place of KFP's executor module: framework first, then KFP's own executor, and every end is told at once.

A user exception must not reach the interpreter's normal exit: JAX's shutdown barrier there keeps the process for up to
300 s and then aborts it with 134 (measured, JAX 0.10.2). So the exception hook tells the runner (time, traceback),
flushes and leaves by ``os._exit``. On success JAX is shut down here, before the runner touches any output.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import sys
import time
import traceback
from types import TracebackType
from typing import Any, NoReturn

from kr_kfp.errors import SetupError
from kr_kfp.runtime.artifacts import ROOT_ENV
from kr_kfp.runtime.child import EVENTS_ENV
from kr_kfp.runtime.places import USER_FILE, author_place, translate
from kr_kfp.wire import ExitCode

__all__ = ["describe", "main"]

_LINES = 200


def main() -> None:
    """Prepare the framework, run KFP's executor, leave the group of hosts."""
    _tell("started", pid=os.getpid())
    sys.excepthook = _on_exception
    _note_crashes()
    _list_checkpoints_anew()
    from kr_kfp.runtime import frameworks

    try:
        leave = frameworks.start()
    except SetupError as problem:
        _tell("setup", message=str(problem))
        _leave(ExitCode.SETUP)
    try:
        _run_kfp()
    except SystemExit as stop:
        _tell("exit", code=stop.code if isinstance(stop.code, int) else str(stop.code))
        _leave(_code(stop))
    _tell("returned")
    leave()
    _tell("done")


def _note_crashes() -> None:
    """Let faulthandler write the Python stack of a native crash where the runner finds it."""
    path = os.environ.get("KR_KFP_FAULTS")
    if path:
        # Open for as long as the process lives; an unbuffered file, since nothing flushes in a crash.
        faulthandler.enable(open(path, "wb", buffering=0))  # noqa: SIM115
    else:
        faulthandler.enable()


def _list_checkpoints_anew() -> None:
    """Let gcsfs keep no listings where checkpoints are in Google Cloud Storage, unless the user has configured it.

    Orbax writes arrays through TensorStore and looks for them through gcsfs, whose listings never expire: after one
    that came a moment too early, a checkpoint that was just written "does not exist", and training fails (gcsfs/core.py
    ``_info``, fsspec/spec.py ``_ls_from_cache``; seen with orbax-checkpoint 0.12.8, gcsfs 2026.10.1). fsspec reads
    ``FSSPEC_GCS`` when it is imported (fsspec/config.py ``set_conf_env``).
    """
    if os.environ.get("KR_KFP_CHECKPOINT_DIR", "").startswith("gs://"):
        os.environ.setdefault("FSSPEC_GCS", '{"use_listings_cache": false}')


def _run_kfp() -> None:
    from kfp.dsl import executor, executor_main

    class HostExecutor(executor.Executor):  # type: ignore[misc]
        """KFP's executor; on workers an output's path lies in the worker's own folder while its uri stays."""

        def assign_input_and_output_artifacts(self) -> None:
            super().assign_input_and_output_artifacts()
            folder = os.environ.get("KR_KFP_WORKER_OUTPUTS")
            if folder:
                os.makedirs(folder, exist_ok=True)
                for name, artifact in self.output_artifacts.items():
                    artifact.set_path(os.path.join(folder, name))

    _relocate(os.environ.get(ROOT_ENV, ""))
    executor_main.component_executor.Executor = HostExecutor
    logging.getLogger().addFilter(_is_for_people)
    executor_main.executor_main()


def _relocate(root: str) -> None:
    """Put KFP's paths for remote artifacts (``/gcs`` ...) below a folder, where a host may not write to ``/``."""
    from kfp.dsl.types import artifact_types

    for name in ("_GCS_LOCAL_MOUNT_PREFIX", "_MINIO_LOCAL_MOUNT_PREFIX", "_S3_LOCAL_MOUNT_PREFIX"):
        setattr(artifact_types, name, f"{root}{getattr(artifact_types, name)}")


def _is_for_people(record: logging.LogRecord) -> bool:
    """Leave out what KFP's executor tells of itself: the whole ExecutorInput on every host, a line for each brace."""
    return not record.getMessage().startswith(("Got executor_input:", "Loading KFP component", "Looking for component"))


def describe(
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    *,
    function: str = "",
    source: str = "",
) -> dict[str, Any]:
    """Give an exception as the fields of :class:`kr_kfp.wire.ErrorInfo`.

    The traceback begins in user code: what kr_kfp and KFP did before is left out.

    Args:
        kind: Its class.
        error: The exception.
        trace: Its traceback.
        function: Name of the user's function.
        source: ``file:line`` of its ``def`` on the author's machine; empty if not known.
    """
    trace = _from_user_code(trace)
    frames = traceback.extract_tb(trace)
    mine = [f for f in frames if os.path.basename(f.filename) == USER_FILE]
    text = translate("".join(traceback.format_exception(kind, error, trace)), function, source)
    lines = text.splitlines()
    if len(lines) > _LINES:
        half = _LINES // 2
        lines = [*lines[:half], f"  ... {len(lines) - 2 * half} lines left out ...", *lines[-half:]]
    info: dict[str, Any] = {"type": kind.__name__, "message": str(error)[:2000], "traceback": "\n".join(lines)}
    if frames:
        frame = (mine or frames)[-1]
        file, line, code = author_place(frame.filename, frame.lineno or 0, function, source)
        info |= {"file": file, "line": line, "function": frame.name, "source": code}
    return info


def _from_user_code(trace: TracebackType | None) -> TracebackType | None:
    at = trace
    while at is not None:
        if os.path.basename(at.tb_frame.f_code.co_filename) == USER_FILE:
            return at
        at = at.tb_next
    return trace


def _on_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    at = time.time()
    function, source = os.environ.get("KR_KFP_FUNCTION", ""), os.environ.get("KR_KFP_SOURCE", "")
    info = describe(kind, error, trace, function=function, source=source)
    _tell("exception", at=at, error=info)
    print(info["traceback"], file=sys.stderr, flush=True)
    _leave(1)


def _tell(event: str, *, at: float | None = None, **fields: Any) -> None:
    """Write one event to the runner's pipe; without a runner there is nobody to tell."""
    number = os.environ.get(EVENTS_ENV)
    if number:
        line = json.dumps({"event": event, "time": time.time() if at is None else at, **fields}) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(int(number), data) :]


def _leave(exit_code: int) -> NoReturn:
    """Leave without the interpreter's own exit, where JAX would wait for other hosts."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(exit_code)


def _code(stop: SystemExit) -> int:
    if isinstance(stop.code, int):
        return stop.code & 255 or 1
    return 1


if __name__ == "__main__":
    main()
