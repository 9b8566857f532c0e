"""What user code may ask at run time. Standard library only; works outside a step too.

In a step the values come from environment variables that the launcher and the runner set (``KR_KFP_*``). Outside one,
in a unit test of the plain function for instance, there is one host and a temporary checkpoint folder.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import threading
from dataclasses import dataclass
from types import FrameType

__all__ = ["Context", "context"]

_stop_asked = threading.Event()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The place of this process in its step.

    Args:
        run: KFP's run id; locally the run's folder name; empty outside a step.
        task: The task's name, equal over retries, different over loop iterations; empty outside a step.
        attempt: 0-based number of the attempt of the whole group; grows with each restart after a lost host.
        host: 0-based index of this host in the group (``LWS_WORKER_INDEX``).
        hosts: Hosts of the group (``LWS_GROUP_SIZE``).
        process: 0-based index of this process on its host.
        processes: User processes on each host (``processes_per_host``).
        slice: 0-based index of this host's TPU slice.
        slices: TPU slices of the group.
        checkpoint_dir: URI or local folder for checkpoints, the same for every host, attempt and retry of this task;
            empty if the step has no artifact output and named no ``checkpoint_root``.
    """

    run: str = ""
    task: str = ""
    attempt: int = 0
    host: int = 0
    hosts: int = 1
    process: int = 0
    processes: int = 1
    slice: int = 0
    slices: int = 1
    checkpoint_dir: str = ""

    @property
    def is_leader(self) -> bool:
        """Whether this is the process whose outputs count: process 0 of host 0."""
        return self.host == 0 and self.process == 0

    def preempted(self) -> bool:
        """Tell whether this host was asked to stop (SIGTERM): save a checkpoint and return or raise soon.

        Kubernetes kills the process after its grace period (30 s by default,
        ``terminationGracePeriodSeconds``). Without a call of :func:`context`, SIGTERM ends the process at once.
        """
        return _stop_asked.is_set()


def context() -> Context:
    """Give the place of this process in its step.

    The first call from the main thread also makes SIGTERM set :meth:`Context.preempted` instead of ending the process,
    unless the program has a handler of its own.

    Returns:
        The values of this process. Outside a step: one host, and a temporary folder as ``checkpoint_dir`` that lives
        as long as the process.
    """
    _install_handler()
    env = os.environ
    if "KR_KFP_TASK" not in env:
        return Context(checkpoint_dir=_outside_folder().name)
    return Context(
        run=env.get("KR_KFP_RUN", ""),
        task=env["KR_KFP_TASK"],
        attempt=int(env.get("KR_KFP_ATTEMPT", "0")),
        host=int(env.get("KR_KFP_HOST", "0")),
        hosts=int(env.get("KR_KFP_HOSTS", "1")),
        process=int(env.get("LOCAL_RANK", "0")),
        processes=int(env.get("LOCAL_WORLD_SIZE", "1")),
        slice=int(env.get("MEGASCALE_SLICE_ID", "0")),
        # The head of Pathways drives all slices and is in none of them.
        slices=int(env.get("KR_KFP_SLICES") or env.get("MEGASCALE_NUM_SLICES", "1")),
        checkpoint_dir=env.get("KR_KFP_CHECKPOINT_DIR", ""),
    )


def _install_handler() -> None:
    # Signal handlers can be set in the main thread only; a handler of the program's own stays.
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _note_stop)


def _note_stop(_number: int, _frame: FrameType | None) -> None:
    _stop_asked.set()


@functools.cache
def _outside_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kr-kfp-checkpoints-")
