"""What a host does before user code starts: the leader's name, pip once, environment and folders of each process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence

from kr_kfp.errors import SetupError
from kr_kfp.executor_input import host_input
from kr_kfp.runtime import artifacts, child
from kr_kfp.spec.local_devices import without_tpu
from kr_kfp.wire import EXECUTOR_INPUT_MARK, Json, Payload

__all__ = ["after_pip", "attempt", "await_leader", "host_index", "process"]


def host_index() -> int:
    """Give this host's 0-based index in the group."""
    return int(os.environ.get("LWS_WORKER_INDEX", "0"))


def attempt() -> int:
    """Give the 0-based attempt of the group."""
    return int(os.environ.get("KR_KFP_ATTEMPT", "0"))


def process(payload: Payload, command: Sequence[str], work: str, rank: int, count: int) -> child.Process:
    """Prepare one user process: its ExecutorInput, its folders, its environment."""
    folder = os.path.join(work, f"process-{rank}")
    index = host_index()
    mine = host_input(payload.executor_input, folder=folder, attempt=attempt())
    for parameter in (mine["outputs"].get("parameters") or {}).values():
        os.makedirs(os.path.dirname(parameter["outputFile"]), exist_ok=True)
    os.makedirs(folder, exist_ok=True)
    env = {
        **os.environ,
        "KR_KFP_RUNNER_PID": str(os.getpid()),
        "KR_KFP_FAULTS": os.path.join(folder, "faults"),
        **_process_env(payload.options, index, rank, count),
        **artifacts.user_env(payload, os.environ),
    }
    library = env.get("KR_KFP_LIBRARY", "")
    if os.path.isdir(library):
        env["PYTHONPATH"] = ":".join(filter(None, (library, env.get("PYTHONPATH"))))
    if index or rank:
        env["KR_KFP_WORKER_OUTPUTS"] = os.path.join(folder, "outputs")
    text = json.dumps(mine)
    parts = [text if part == EXECUTOR_INPUT_MARK else part for part in command]
    return child.Process(rank=rank, command=parts, env=env)


def _process_env(options: Json, index: int, rank: int, count: int) -> dict[str, str]:
    """Give what user processes see beyond the container's environment (design: what a host sees)."""
    hosts = int(options.get("hosts", 1))
    world, position = hosts * count, index * count + rank
    env = {
        "KR_KFP_HOST": str(index),
        "KR_KFP_HOSTS": str(hosts),
        "KR_KFP_FRAMEWORK": str(options.get("framework", "auto")),
        "KR_KFP_FINISH_GRACE": str(options.get("finish_grace", 300.0)),
        "KR_KFP_SOURCE": str(options.get("source", "")),
        "NNODES": str(hosts),
        "NODE_RANK": str(index),
        "RANK": str(position),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
    }
    if count > 1:
        # As torchrun does (torch/distributed/run.py): each would take a thread for every processor of the host.
        env["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", "1")
    if "JAX_COORDINATOR_ADDRESS" in os.environ:  # not with Pathways, where one process drives all devices
        env |= {
            "KERAS_DISTRIBUTION_JOB_ADDRESSES": os.environ["JAX_COORDINATOR_ADDRESS"],
            "KERAS_DISTRIBUTION_NUM_PROCESSES": str(world),
            "KERAS_DISTRIBUTION_PROCESS_ID": str(position),
        }
    if position:
        # KFP's executor writes its output file on the chief alone (kfp/dsl/executor.py, write_executor_output).
        task = {"type": "workerpool1", "index": position - 1}
        env["CLUSTER_SPEC"] = json.dumps({"cluster": {}, "task": task})
    return env


def after_pip(command: Sequence[str]) -> Sequence[str]:
    """Run KFP's pip step once for all hosts that share one Python, under a lock, and give the rest of the command.

    Only the local cluster names a lock (``KR_KFP_PIP_LOCK``); in pods every host has its own disk.

    Raises:
        SetupError: If pip failed.
    """
    lock = os.environ.get("KR_KFP_PIP_LOCK")
    if not lock or list(command[:2]) != ["sh", "-c"] or "pip install" not in command[2]:
        return command
    import fcntl
    import subprocess

    with open(lock, "a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.seek(0)
        said = held.read()
        if not said:
            # KFP's script ends in: && "$0" "$@"
            code = subprocess.run(["sh", "-c", without_tpu(command[2]), "true"], check=False).returncode
            said = str(code)
            held.write(said)
            held.flush()
    if said != "0":
        msg = f"pip could not install the step's packages_to_install (exit code {said}); its output is in the log"
        raise SetupError(msg)
    return command[3:]


def await_leader(index: int, limit: float) -> None:
    """Wait until the leader's name resolves: its pod may still be pulling its image.

    Raises:
        SetupError: If it does not within ``limit`` seconds.
    """
    address = os.environ.get("LWS_LEADER_ADDRESS", "")
    if index == 0 or not address or address.replace(".", "").isdigit():
        return
    import socket

    begun = time.monotonic()
    said = 0.0
    while True:
        try:
            socket.getaddrinfo(address, None)
        except OSError as problem:
            waited = time.monotonic() - begun
            if waited >= limit:
                msg = (
                    f"host {index} could not resolve the leader {address} for {limit:.0f} s ({problem}). "
                    "Look at the leader's pod: its image may not be there, or the cluster's DNS may be broken"
                )
                raise SetupError(msg) from problem
            if waited >= said:
                _say(f"host {index} waits for the name {address} ({waited:.0f} of {limit:.0f} s)")
                said = waited + 10.0
            time.sleep(min(1.0, limit - waited))
        else:
            return


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"kr_kfp: {text}", file=sys.stderr, flush=True)
