"""A step in one line of a test: real processes of this machine, one per host."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kr_kfp.errors import StepFailedError

if TYPE_CHECKING:
    from kr_kfp.authoring.component import Component

__all__ = ["Result", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a step left behind.

    Args:
        exit_code: Exit code of the task's command.
        outputs: Output parameters by name as Python values, output artifacts by name as KFP artifact objects.
        log: Everything that the task printed, hosts' lines with their prefix.
        root: The task's folder: output artifacts, checkpoints.
    """

    exit_code: int
    outputs: Mapping[str, Any]
    log: str
    root: Path

    @property
    def output(self) -> Any:
        """The value that the function returned, where it returned a single one."""
        return self.outputs["Output"]


def run(
    step: Component,
    hosts: int | None = None,
    *,
    root: str | Path | None = None,
    artifacts: str | None = None,
    check: bool = True,
    env: Mapping[str, str] | None = None,
    timeout: float | None = 600.0,
    **arguments: Any,
) -> Result:
    """Run a step here, each host a process, exactly as kfp.local would run its task.

    Args:
        step: A component made by :func:`kr_kfp.component`.
        hosts: Hosts without accelerator instead of the step's own shape; None keeps the shape.
        root: Folder for outputs and checkpoints; the same folder again resumes. None is a new temporary folder.
        artifacts: URI below which the hosts' output artifacts go, such as ``s3://bucket/folder``; None keeps them below
            ``root``. Only for a step on hosts of a group: artifacts of one pod are moved by KFP itself, not here.
        check: Whether a failing step raises.
        env: Environment variables beside the current ones.
        timeout: Seconds until the task is killed.
        **arguments: The function's arguments; input artifacts as KFP artifact objects, paths or URIs.

    Raises:
        StepFailedError: If the step fails and ``check`` is set; the message is the end of its log.

    Example:
        ``assert kr_kfp.testing.run(train, hosts=2, epochs=1).outputs["accuracy"] > 0.9``
    """
    from kfp.local import executor_output_utils
    from kfp.local.subprocess_task_handler import replace_python_executable

    chosen = step if hosts is None else step.options(accelerator=None, slices=1, hosts=hosts, backend="lws")
    task = _prepare(chosen, root, artifacts, arguments)
    process = subprocess.run(
        replace_python_executable(task.command, sys.executable),
        env={**os.environ, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=timeout,
    )
    log = process.stdout.decode("utf-8", "replace")
    if process.returncode and check:
        raise StepFailedError("\n".join(log.splitlines()[-40:]))
    outputs: Mapping[str, Any] = {}
    if process.returncode == 0:
        outputs = executor_output_utils.get_outputs_for_task(
            executor_input=task.executor_input, component_spec=task.component
        )
    return Result(exit_code=process.returncode, outputs=outputs, log=log, root=task.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """A task as kfp.local would run it: its command, with KFP's own objects (``Any``: KFP is untyped)."""

    command: list[str]
    executor_input: Any
    component: Any
    folder: Path


def _prepare(
    step: Component, root: str | os.PathLike[str] | None, artifacts: str | None, arguments: Mapping[str, Any]
) -> _Task:
    from kfp.local import executor_input_utils, placeholder_utils, utils

    from kr_kfp.authoring.component import prepare_local

    prepare_local(step, step.step)
    spec = step.component_spec.to_pipeline_spec()
    name, component = next(iter(spec.components.items()))
    container = utils.struct_to_executor_spec(spec.deployment_spec["executors"][component.executor_label]).container
    folder = Path(root or tempfile.mkdtemp(prefix="kr-kfp-run-")).absolute() / name.removeprefix("comp-")
    executor_input = executor_input_utils.construct_executor_input(
        component_spec=component,
        arguments={key: _artifact(key, value, component) for key, value in arguments.items()},
        task_root=str(folder),
        block_input_artifact=False,
    )
    if artifacts:
        for key, group in executor_input.outputs.artifacts.items():
            group.artifacts[0].uri = f"{artifacts.rstrip('/')}/{folder.name}/{key}"
    command = placeholder_utils.replace_placeholders(
        full_command=[*container.command, *container.args],
        executor_input_dict=executor_input_utils.executor_input_to_dict(executor_input, component),
        pipeline_resource_name=folder.parent.name,
        task_resource_name=folder.name,
        pipeline_root=str(folder.parent),
        unique_pipeline_id=placeholder_utils.make_random_id(),
    )
    return _Task(command=command, executor_input=executor_input, component=component, folder=folder)


def _artifact(key: str, value: Any, component: Any) -> Any:
    """Give an artifact object where a path was given for an input artifact."""
    if key not in component.input_definitions.artifacts or not isinstance(value, str | os.PathLike):
        return value
    from kfp.dsl.types import artifact_types

    title = component.input_definitions.artifacts[key].artifact_type.schema_title
    kind = artifact_types._SCHEMA_TITLE_TO_TYPE.get(title, artifact_types.Artifact)  # noqa: SLF001 - KFP's own table
    return kind(name=key, uri=os.fspath(value), metadata={})
