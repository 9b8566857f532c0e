"""Steps for tests on the local cluster, and how to run them.

Without postponed annotations: KFP's own decorator cannot read those.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kfp import dsl

import kr_kfp
from kr_kfp.wire import TASK_CONFIG_INPUT

__all__ = [
    "Launch",
    "command_of",
    "fault",
    "launching",
    "left_over",
    "over_slices",
    "sees_all",
    "starts_of",
]


@kr_kfp.component(hosts=2, backend="lws", base_image="python:3.12", install_kfp_package=False, finish_grace="60s")
def fault(
    mode: str,
    mark: str,
    model: dsl.Output[dsl.Model],
    on: int = 1,
    collective: bool = True,
    seconds: float = 0.0,
) -> int:
    """Fail in one of many ways on one host while the others wait in a collective."""
    import ctypes
    import os
    import sys
    import time
    from pathlib import Path

    ctx = kr_kfp.context()

    def gather() -> list[int]:
        import jax.numpy as jnp
        from jax.experimental import multihost_utils

        return list(multihost_utils.process_allgather(jnp.array([ctx.host])).ravel().tolist())

    with Path(mark).open("a") as notes:
        notes.write(f"start host={ctx.host} attempt={ctx.attempt} pid={os.getpid()}\n")
    print(f"step on host {ctx.host} of {ctx.hosts}, attempt {ctx.attempt}", flush=True)
    if collective:
        found = gather()
        assert found == list(range(ctx.hosts)), found
    fails = mode in ("raise", "kill", "segfault", "exit", "memory", "lose-host") and ctx.attempt == 0
    if fails and ctx.host == on:
        time.sleep(seconds)
        if mode == "raise":
            raise ValueError("boom on purpose")
        if mode == "kill":
            os.kill(os.getpid(), 9)
        if mode == "segfault":
            ctypes.string_at(0)
        if mode == "exit":
            os._exit(3)
        if mode == "memory":
            hog = []
            while True:
                hog.append(bytearray(16 << 20))
                time.sleep(0.01)
        if mode == "lose-host":
            os.kill(int(os.environ["KR_KFP_RUNNER_PID"]), 9)
    if fails:
        if collective:
            gather()
        time.sleep(600)
    if mode == "sleep" or (mode == "late" and ctx.host == on):
        time.sleep(seconds)
    while mode == "wait" and not Path(f"{mark}.go").exists():
        time.sleep(0.02)
    if ctx.is_leader:
        Path(model.path).write_text(f"weights of attempt {ctx.attempt}")
        model.metadata["attempt"] = ctx.attempt
    sys.stdout.flush()
    return ctx.attempt


@kr_kfp.component(
    accelerator="v5p-16",
    slices=2,
    backend="pathways",
    pathways=kr_kfp.Pathways(scratch="gs://bucket/tmp", version="jax-0.10.0"),
    base_image="python:3.12",
    install_kfp_package=False,
)
def sees_all(mark: str, seconds: float = 0.0) -> dict:  # type: ignore[type-arg]
    """Give what the function sees on the head of a Pathways group; stay for ``seconds`` in attempt 0."""
    import os
    import time
    from pathlib import Path

    import jax

    ctx = kr_kfp.context()
    with Path(mark).open("a") as notes:
        notes.write(f"start host={ctx.host} attempt={ctx.attempt} pid={os.getpid()}\n")
    if ctx.attempt == 0:
        time.sleep(seconds)
    return {
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "hosts": ctx.hosts,
        "host": ctx.host,
        "slices": ctx.slices,
        "platform": jax.devices()[0].platform,
        "coordinator": os.environ.get("JAX_COORDINATOR_ADDRESS", ""),
        "keras": os.environ.get("KERAS_BACKEND", ""),
    }


@kr_kfp.component(
    accelerator="v5p-16", slices=2, base_image="python:3.12", install_kfp_package=False, finish_grace="60s"
)
def over_slices() -> dict:  # type: ignore[type-arg]
    """Add up the numbers of all devices of two slices, and give what each host sees of its place."""
    import os

    import jax
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    ctx = kr_kfp.context()
    # A mesh whose first axis goes over the slices, as for training; CPU devices do not know theirs (slice_index).
    mesh = Mesh(np.array(jax.devices()).reshape(2, 8), ("slice", "chip"))
    assert [device.process_index for device in jax.devices()] == [n // 4 for n in range(16)]
    numbers = np.arange(16, dtype=np.int32).reshape(2, 8)
    cut, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("slice", "chip"), ()))  # type: ignore[no-untyped-call]
    sharded = jax.make_array_from_callback((2, 8), cut, lambda index: numbers[index])
    total = jax.jit(lambda x: x.sum(), out_shardings=whole)(sharded)
    of_slices = jax.jit(lambda x: x.sum(axis=1), out_shardings=whole)(sharded)
    mine = [
        ctx.host,
        jax.process_index(),
        ctx.slice,
        int(os.environ["MEGASCALE_SLICE_ID"]),
        int(os.environ["TPU_WORKER_ID"]),
        int(os.environ["RANK"]),
    ]
    places = multihost_utils.process_allgather(np.array(mine, np.int32))
    return {
        "devices": jax.device_count(),
        "total": int(total),
        "of_slices": np.asarray(of_slices).tolist(),
        "slices": ctx.slices,
        "places": np.asarray(places).tolist(),
        "addresses": os.environ["TPU_PROCESS_ADDRESSES"].count(","),
        "megascale": sorted(name for name in os.environ if name.startswith("MEGASCALE_")),
    }


@dataclass
class Launch:
    """A running task command."""

    process: "subprocess.Popen[bytes]"
    log: Path
    folder: Path
    termination: Path

    def text(self) -> str:
        """Give its log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = 300.0) -> int:
        """Wait for its end and give its exit code."""
        return self.process.wait(timeout=seconds)

    def until(self, text: str, seconds: float = 240.0) -> None:
        """Wait until its log holds ``text``."""
        deadline = time.monotonic() + seconds
        while text not in self.text():
            assert time.monotonic() < deadline, f"{text!r} not within {seconds} s:\n{self.text()[-3000:]}"
            assert self.process.poll() is None or text in self.text(), f"ended early:\n{self.text()[-3000:]}"
            time.sleep(0.02)

    def output(self) -> dict[str, Any]:
        """Give KFP's ExecutorOutput that the launcher wrote."""
        value: dict[str, Any] = json.loads((self.folder / "executor_output.json").read_text(encoding="utf-8"))
        return value


def command_of(
    step: Any, folder: Path, arguments: dict[str, Any], task_config: dict[str, Any] | None = None
) -> list[str]:
    """Give the task's command as kfp.local would run it, its placeholders resolved; a Path is an input artifact."""
    container = step.component_spec.implementation.container
    outputs = step.component_spec.outputs or {}
    values = {k: v.default for k, v in (step.component_spec.inputs or {}).items() if v.default is not None}
    values |= {k: v for k, v in arguments.items() if not isinstance(v, Path)}
    if task_config is not None:
        values[TASK_CONFIG_INPUT] = task_config
    given = {k: v for k, v in arguments.items() if isinstance(v, Path)}
    artifacts = {name for name, spec in outputs.items() if "@" in str(spec.type)}
    executor_input = {
        "inputs": {
            "parameterValues": values,
            "artifacts": {name: _artifact(name, path, "system.Dataset") for name, path in given.items()},
        },
        "outputs": {
            "outputFile": str(folder / "executor_output.json"),
            "parameters": {n: {"outputFile": str(folder / n)} for n in outputs if n not in artifacts},
            "artifacts": {n: _artifact(n, folder / n, str(outputs[n].type).partition("@")[0]) for n in artifacts},
        },
    }
    parts = [*container.command, *container.args]
    return [
        json.dumps(executor_input) if "{{$}}" in str(part) else str(part).replace("python3", sys.executable)
        for part in parts
    ]


def _artifact(name: str, path: Path, title: str) -> dict[str, Any]:
    return {"artifacts": [{"name": name, "uri": str(path), "type": {"schemaTitle": title}, "metadata": {}}]}


@contextmanager
def launching(
    step: Any,
    folder: Path,
    arguments: dict[str, Any],
    *,
    task_config: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Launch]:
    """Run a task's command as a process; whatever is left of it at the end is killed, and its group with it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix="launch-", suffix=".log", dir=folder.parent, delete=False) as log:
        process = subprocess.Popen(
            command_of(step, folder, arguments, task_config),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "KR_KFP_TERMINATION_LOG": str(folder.parent / "termination"), **(env or {})},
            start_new_session=True,
        )
    launch = Launch(process, Path(log.name), folder, folder.parent / "termination")
    try:
        yield launch
    except BaseException:
        print(launch.text()[-8000:])  # pytest shows it: what a test found wrong is told there
        raise
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def starts_of(mark: Path) -> list[str]:
    """Give the lines that user code wrote at its starts, without process ids, sorted."""
    if not mark.exists():
        return []
    return sorted(line.rpartition(" pid=")[0] for line in mark.read_text(encoding="utf-8").splitlines())


def left_over(word: str, seconds: float = 60.0) -> list[str]:
    """List the processes that still hold ``word`` in environment or command after ``seconds`` at most.

    The supervisor tells that the group is gone and then ends itself, a moment later than the launcher may.
    """
    deadline = time.monotonic() + seconds
    while (found := _holding(word)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def _holding(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            text = (entry / "environ").read_bytes() + command
            state = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if word.encode() in text and state != "Z":
            found.append(f"{entry.name}: {command[:200]!r}")
    return found
