"""The ``run`` verb: a task that runs the function in its own pod, without a launcher."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence

from kr_kfp.errors import SetupError
from kr_kfp.executor_input import checkpoint_dir, pod_folder, split_command, take_task_config, with_executor
from kr_kfp.runtime import child, outcomes
from kr_kfp.runtime.host import write_termination
from kr_kfp.spec import local_devices, local_task
from kr_kfp.spec.codec import load_step, with_source
from kr_kfp.spec.outcome import describe_outcome
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import EXECUTOR_INPUT_MARK, ExitCode, Json, unpack

__all__ = ["main"]


def main(packed: str, command: Sequence[str]) -> int:
    """Run KFP's command here: context, checkpoint folder, SIGTERM forwarded, the exception in the termination message.

    Args:
        packed: The packed StepSpec.
        command: KFP's own command.

    Returns:
        The exit code of the function's process.
    """
    data = unpack(packed)
    step = load_step(data)
    parts, given = split_command(with_source(command, data))
    executor_input, _ = take_task_config(given)
    if "KFP_POD_NAME" not in os.environ:
        parts = tuple(local_devices.without_tpu(part) if "pip install" in part else part for part in parts)
    text = json.dumps(executor_input)
    process = child.Process(
        rank=0,
        command=[text if part == EXECUTOR_INPUT_MARK else part for part in with_executor(parts)],
        env={**os.environ, **_environment(step, executor_input)},
    )
    started = time.time()
    try:
        ended = child.run([process])
    except (SetupError, OSError) as problem:
        write_termination(f"kr_kfp: {step.name}: {problem}")
        print(f"kr_kfp: {step.name}: {problem}", file=sys.stderr, flush=True)
        return ExitCode.SETUP
    outcome = outcomes.judge(ended, host=0, attempt=0, started=started, finish_grace=step.finish_grace, oom=False)
    for warning in outcome.warnings:
        print(f"kr_kfp: warning: {warning}", file=sys.stderr, flush=True)
    if not outcome.ok:
        said = describe_outcome(outcome, who=step.name)
        write_termination(said[-4000:])
        print(said, file=sys.stderr, flush=True)
    return outcome.code


def _environment(step: StepSpec, executor_input: Json) -> dict[str, str]:
    local = "KFP_POD_NAME" not in os.environ
    folder = pod_folder(step.name, executor_input, pod_name=os.environ.get("KFP_POD_NAME", ""))
    env = {
        "KR_KFP_TASK": step.name,
        "KR_KFP_FUNCTION": step.name,
        "KR_KFP_FRAMEWORK": step.framework,
        "KR_KFP_SOURCE": os.environ.get(f"KR_KFP_SOURCE_{step.name}", ""),
        "KR_KFP_CHECKPOINT_DIR": checkpoint_dir(executor_input, step.checkpoint_root, folder, local=local),
    }
    if local:
        # On a cluster KFP itself sets env and accelerator on the pod; kfp.local applies neither.
        env |= {name: value for name, value in step.env if isinstance(value, str)}
        env |= local_task.task_env(step.name, step.env, os.environ)
        env |= local_devices.environment({**os.environ, **env}, step.devices_per_host)
    return env
