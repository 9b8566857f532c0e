"""What kr_kfp sets on a task, when its component is called inside a pipeline.

These settings cannot be part of a component: KFP keeps resources, node selectors and annotations on tasks only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from kfp import dsl, kubernetes
from kfp.dsl import structures
from kfp.dsl.pipeline_task import PipelineTask

from kr_kfp.errors import DeclarationError, Problem
from kr_kfp.runtime.bootstrap import KILL_COMMAND
from kr_kfp.spec.placement import placement, tolerations
from kr_kfp.spec.pod import SHM, SHM_VOLUME
from kr_kfp.spec.step import ConfigKey, Secret, StepSpec
from kr_kfp.wire import TASK_CONFIG_INPUT

__all__ = ["KILL_ANNOTATION", "PASSTHROUGHS", "dress", "needs_dressing"]

KILL_ANNOTATION = "workflows.argoproj.io/kill-cmd-main"
"""Argo runs this command in the container instead of signalling process 1 (argo-workflows ``workflow/common``)."""

PASSTHROUGHS = (
    dsl.TaskConfigField.RESOURCES,
    dsl.TaskConfigField.ENV,
    dsl.TaskConfigField.KUBERNETES_AFFINITY,
    dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
    dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
    dsl.TaskConfigField.KUBERNETES_VOLUMES,
)
"""All six: KFP refuses at compile every setting of a kind that is not listed."""


def needs_dressing(step: StepSpec) -> bool:
    """Tell whether anything of a pod step has to be set on its task."""
    return bool(step.shape or step.env or step.labels or step.annotations or step.spot or step.shm)


def dress(task: PipelineTask, step: StepSpec, *, launcher_resources: Mapping[str, str] | None = None) -> PipelineTask:
    """Set on a task what its step needs.

    Args:
        task: The task, inside a pipeline.
        step: The step.
        launcher_resources: cpu and memory of the launcher pod, as requests and limits.

    Returns:
        The same task.
    """
    if step.backend == "pod":
        return _dress_pod(task, step)
    kubernetes.add_pod_annotation(task, KILL_ANNOTATION, json.dumps(KILL_COMMAND))
    amounts = launcher_resources or {}
    if "cpu" in amounts:
        task.set_cpu_request(amounts["cpu"]).set_cpu_limit(amounts["cpu"])
    if "memory" in amounts:
        task.set_memory_request(amounts["memory"]).set_memory_limit(amounts["memory"])
    task.platform_config = _LauncherConfig(task.name, task.platform_config)
    task._inputs = _Inputs(task.inputs)  # noqa: SLF001 - KFP has no public way to set them
    return task


def _dress_pod(task: PipelineTask, step: StepSpec) -> PipelineTask:
    # Not by KFP's setters: each of them walks the whole stack for its message (inspect.stack), 10 ms in a notebook.
    container = task.container_spec
    if step.shape:
        container.resources = structures.ResourceSpec(
            accelerator_type=step.shape.resource, accelerator_count=str(step.shape.chips_per_host)
        )
    _dress_env(task, step)
    for key, value in placement(step).items():
        kubernetes.add_node_selector(task, key, value)
    for toleration in tolerations(step):
        kubernetes.add_toleration(task, **toleration)
    if step.shm:
        kubernetes.empty_dir_mount(task, SHM_VOLUME, SHM, medium="Memory", size_limit=step.shm_size or None)
    for key, value in step.labels:
        kubernetes.add_pod_label(task, key, value)
    for key, value in step.annotations:
        kubernetes.add_pod_annotation(task, key, value)
    return task


def _dress_env(task: PipelineTask, step: StepSpec) -> None:
    container = task.container_spec
    # Kubernetes expands $(NAME) and $$ in values; the author's text shall arrive as it was written.
    texts = {name: given.replace("$", "$$") for name, given in step.env if isinstance(given, str)}
    if texts:
        container.env = {**(container.env or {}), **texts}
    for name, given in step.env:
        if isinstance(given, Secret):
            kubernetes.use_secret_as_env(task, given.name, {given.key: name})
        elif isinstance(given, ConfigKey):
            kubernetes.use_config_map_as_env(task, given.name, {given.key: name})


class _LauncherConfig(dict[str, Any]):
    """Platform settings of a launcher's task; refuses the one that would kill the launcher and nothing else.

    ``kfp.kubernetes.set_timeout`` becomes activeDeadlineSeconds of the launcher's pod: at its end the hosts would
    train on, unwatched.
    """

    def __init__(self, task: str, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.task = task

    def __setitem__(self, platform: str, config: Any) -> None:
        if isinstance(config, Mapping) and "activeDeadlineSeconds" in config:
            self._refuse(config["activeDeadlineSeconds"])
        super().__setitem__(platform, config)

    def _refuse(self, seconds: Any) -> NoReturn:
        message = f"set_timeout({seconds}) would kill only the launcher's pod, and leave the hosts of its group."
        subject = f"task {self.task!r}"
        raise DeclarationError(
            subject,
            [Problem("set_timeout", message, f"use timeout={seconds} in the decorator, or .options(timeout=).")],
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        from copy import deepcopy

        return deepcopy(dict(self), memo)


class _Inputs(dict[str, Any]):
    """Arguments of a task; its ``ignore_upstream_failure`` looks up every input of the component, given or not."""

    def __missing__(self, name: str) -> None:
        if name != TASK_CONFIG_INPUT:
            raise KeyError(name)
