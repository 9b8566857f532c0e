"""What is initialised before user code, by framework.

JAX: ``jax.distributed.initialize`` with explicit arguments on CPU and GPU (JAX reads neither the number of processes
nor its own id from the environment: jax/_src/distributed.py), by detection on TPU (jax/_src/clusters). A second call
by user code is harmless. PyTorch: the runner sets what ``torch.distributed.init_process_group`` reads (RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torch/distributed/rendezvous.py), LOCAL_RANK and LOCAL_WORLD_SIZE; which process
group to make stays with user code. Other names of torchrun's (torch/distributed/elastic/agent/server/
local_elastic_agent.py) are its agent's: with TORCHELASTIC_USE_AGENT_STORE process 0 would look for the agent's store in
place of making its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from kr_kfp.errors import SetupError
from kr_kfp.names import PATHWAYS_ENV

__all__ = ["MEGASCALE", "choose", "start"]

MEGASCALE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")
"""Set by kr_kfp for two or more slices, and for no fewer."""


def choose(wanted: str, has: Callable[[str], bool], processes: int = 1) -> str:
    """Choose the framework.

    Args:
        wanted: ``auto``, ``jax``, ``torch`` or ``none``.
        has: Tells whether a module can be imported.
        processes: Processes on each host. Several are PyTorch's way; of JAX each would take all devices of the host.

    Raises:
        SetupError: If the wanted framework cannot be imported.
    """
    if wanted == "auto":
        return next((name for name in (("jax", "torch") if processes == 1 else ("torch",)) if has(name)), "none")
    if wanted != "none" and not has(wanted):
        msg = f"framework={wanted!r}, but {wanted} cannot be imported in this image. Add it to packages_to_install"
        raise SetupError(msg)
    return wanted


def start() -> Callable[[], None]:
    """Initialise the framework of this process.

    Returns:
        What to call after the function has returned: leaves the group of hosts.

    Raises:
        SetupError: If that cannot be done; the message says why.
    """
    if PATHWAYS_ENV in os.environ:
        from kr_kfp.runtime import pathways

        _reject_early_devices()
        os.environ.setdefault("KERAS_BACKEND", "jax")
        pathways.start()
        return _nothing
    world = int(os.environ.get("WORLD_SIZE", "1"))
    wanted = os.environ.get("KR_KFP_FRAMEWORK", "auto")
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    name = choose(wanted, lambda module: importlib.util.find_spec(module) is not None, processes)
    told = "by what can be imported" + ("; several processes on a host are PyTorch's" if processes > 1 else "")
    why = f" ({told})" if wanted == "auto" else ""
    print(f"kr_kfp: framework {name}{why}", flush=True)
    if name in ("jax", "torch"):
        os.environ.setdefault("KERAS_BACKEND", name)
    if name != "jax" or "KR_KFP_HOST" not in os.environ or "JAX_COORDINATOR_ADDRESS" not in os.environ:
        return _nothing
    return _start_jax(world)


def _nothing() -> None:
    pass


def _reject_early_devices() -> None:
    """Refuse to go on where JAX has its devices already: those of this host alone.

    Raises:
        SetupError: Naming what may have asked for them.
    """
    if "jax" not in sys.modules:
        return
    import jax
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        msg = (
            f"JAX had asked for its devices before the step began, by {_culprit(jax)}: this host would train alone. "
            "Remove that call, or do it inside the function"
        )
        raise SetupError(msg)


def _start_jax(world: int) -> Callable[[], None]:
    import jax

    _reject_early_devices()
    if _on_tpu() and importlib.util.find_spec("libtpu") is None and "TPU_LIBRARY_PATH" not in os.environ:
        msg = (
            "the host has TPU chips, but libtpu cannot be imported: JAX would look for its peers elsewhere. "
            "Add 'jax[tpu]' to packages_to_install, or set JAX_PLATFORMS=cpu in env= to leave the chips alone"
        )
        raise SetupError(msg)
    arguments = _jax_arguments(world)
    try:
        with _one_slice():
            jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError) as problem:
        msg = f"jax.distributed.initialize({arguments}) failed: {problem}"
        raise SetupError(msg) from problem
    jax.distributed.initialize = _second_call
    print(f"kr_kfp: process {jax.process_index()} of {jax.process_count()} joined", flush=True)
    if jax.process_count() != world:
        msg = f"JAX counts {jax.process_count()} processes where the step has {world}: hosts would train alone"
        raise SetupError(msg)
    return jax.distributed.shutdown


def _on_tpu() -> bool:
    platforms = os.environ.get("JAX_PLATFORMS", "tpu")
    return "TPU_WORKER_HOSTNAMES" in os.environ and platforms.split(",")[0] == "tpu"


def _jax_arguments(world: int) -> dict[str, Any]:
    """Give the arguments of ``jax.distributed.initialize``; timeouts are whole seconds there."""
    arguments: dict[str, Any] = {
        "initialization_timeout": int(os.environ.get("KR_KFP_JOIN_TIMEOUT", "300")),
        "shutdown_timeout_seconds": max(1, round(float(os.environ.get("KR_KFP_FINISH_GRACE", "300")))),
    }
    if not _on_tpu():
        arguments |= {
            "coordinator_address": os.environ["JAX_COORDINATOR_ADDRESS"],
            "num_processes": world,
            "process_id": int(os.environ["RANK"]),
            # An installed kubernetes package would make JAX look for a Job's pods (clusters/k8s_cluster.py).
            "cluster_detection_method": "deactivate",
        }
    return arguments


@contextlib.contextmanager
def _one_slice() -> Iterator[None]:
    """Let JAX believe at once that there is one slice, where no variable says that there are more.

    Its detection on TPU asks Google's metadata server for each of these that is unset, several seconds for each, and
    fails where there is none; empty is as good as unset (jax/_src/clusters/cloud_tpu_cluster.py). libtpu, which starts
    later, shall not see them: they are for several slices alone.
    """
    absent = [name for name in MEGASCALE if name not in os.environ]
    os.environ.update(dict.fromkeys(absent, ""))
    try:
        yield
    finally:
        for name in absent:
            os.environ.pop(name, None)


def _second_call(*_args: Any, **_kwargs: Any) -> None:
    print("kr_kfp: jax.distributed.initialize was done before the function; this call does nothing", flush=True)


def _culprit(jax: Any) -> str:
    """Name the modules that hold JAX, loaded before the executor: only start-up modules can be."""
    known = ("jax", "jaxlib", "kr_kfp", "__main__", "keras", "flax", "optax", "orbax", "chex")
    names = [
        f"{name} ({getattr(module, '__file__', None) or 'built in'})"
        for name, module in sorted(sys.modules.items())
        if name.partition(".")[0] not in known
        and any(value is jax for value in vars(module).values() if value is not None)
    ]
    return ", ".join(names) or "a module that Python loads at start (sitecustomize, a .pth file)"
