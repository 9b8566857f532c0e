"""A component compiled by itself: the IR that keeps what KFP only keeps on tasks.

KFP's lone component carries neither resources nor platform settings. A pod step that needs them is exported as a
pipeline of one step. Its name must differ from its step's, or KFP loads it as the bare step and loses them; the
pipeline keeps the component's name and the step gets another. A launcher keeps KFP's form, with its annotation added.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kfp.compiler import pipeline_spec_builder
from kfp.dsl import pipeline_channel, pipeline_context, pipeline_task, structures, utils
from kfp.dsl.types import type_utils
from kfp.pipeline_spec import pipeline_spec_pb2

from kr_kfp.authoring.tasks import KILL_ANNOTATION, dress, needs_dressing
from kr_kfp.runtime.bootstrap import KILL_COMMAND
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import TASK_CONFIG_INPUT

__all__ = ["STEP_SUFFIX", "Lone", "lone_platform", "lone_spec"]

STEP_SUFFIX = "-step"
"""Ends the name of the only step of an exported pipeline."""


class Lone:
    """What a component of kr_kfp gives KFP's compiler in place of KFP's own: mixed in before KFP's class."""

    component_spec: structures.ComponentSpec
    step: StepSpec

    @property
    def pipeline_spec(self) -> pipeline_spec_pb2.PipelineSpec:
        """The IR of the component compiled by itself."""
        return lone_spec(self.component_spec, self.step)

    @property
    def platform_spec(self) -> pipeline_spec_pb2.PlatformSpec:
        """The platform settings of the component compiled by itself."""
        return lone_platform(self.component_spec, self.step)


def lone_spec(spec: structures.ComponentSpec, step: StepSpec) -> pipeline_spec_pb2.PipelineSpec:
    """Give the IR of a component compiled by itself."""
    if _as_graph(spec, step):
        return _graph(spec, step)[0]
    with _no_pipeline():
        lone = spec.to_pipeline_spec()
    # KFP's driver fills the input of the step; as an input of the whole pipeline nobody could give it.
    lone.root.input_definitions.parameters.pop(TASK_CONFIG_INPUT, None)
    del lone.root.task_config_passthroughs[:]
    for task in lone.root.dag.tasks.values():
        task.inputs.parameters.pop(TASK_CONFIG_INPUT, None)
    return lone


def lone_platform(spec: structures.ComponentSpec, step: StepSpec) -> pipeline_spec_pb2.PlatformSpec:
    """Give the platform settings that go with :func:`lone_spec`."""
    if _as_graph(spec, step):
        return _graph(spec, step)[1]
    platform = pipeline_spec_pb2.PlatformSpec()
    if step.backend != "pod":
        executor = utils.sanitize_executor_label(spec.name)
        metadata = {"podMetadata": {"annotations": {KILL_ANNOTATION: json.dumps(KILL_COMMAND)}}}
        platform.platforms["kubernetes"].deployment_spec.executors[executor].update(metadata)
    return platform


def _as_graph(spec: structures.ComponentSpec, step: StepSpec) -> bool:
    # A pipeline has no input for PipelineTaskFinalStatus: such a component is an exit task and never runs by itself.
    final = any(type_utils.is_task_final_status_type(item.type) for item in (spec.inputs or {}).values())
    return step.backend == "pod" and needs_dressing(step) and not final


def _graph(
    spec: structures.ComponentSpec, step: StepSpec
) -> tuple[pipeline_spec_pb2.PipelineSpec, pipeline_spec_pb2.PlatformSpec]:
    inner = copy.deepcopy(spec)
    inner.name = f"{spec.name}{STEP_SUFFIX}"
    outer = structures.ComponentSpec(
        name=spec.name,
        description=spec.description,
        inputs=copy.deepcopy(spec.inputs),
        outputs=copy.deepcopy(spec.outputs),
        implementation=structures.Implementation(),
    )
    channels = {
        name: pipeline_channel.create_pipeline_channel(
            name=name, channel_type=item.type, is_artifact_list=item.is_artifact_list
        )
        for name, item in (inner.inputs or {}).items()
    }
    with _no_pipeline(), pipeline_context.Pipeline(spec.name) as pipeline:
        task = dress(pipeline_task.PipelineTask(component_spec=inner, args=channels), step)
    # As KFP does for its own pipelines: no template may have the group's name.
    pipeline.groups[0].name = uuid.uuid4().hex
    graph, platform = pipeline_spec_builder.create_pipeline_spec(
        pipeline=pipeline, component_spec=outer, pipeline_outputs=dict(task.outputs)
    )
    if spec.description is not None:
        graph.pipeline_info.description = spec.description
    return graph, platform


@contextmanager
def _no_pipeline() -> Iterator[None]:
    """Step out of the pipeline that is being compiled, if there is one, and back into it."""
    around = pipeline_context.Pipeline._default_pipeline  # noqa: SLF001 - KFP has no public way to pause it
    register = pipeline_task.PipelineTask._register_task_handler  # noqa: SLF001
    pipeline_context.Pipeline._default_pipeline = None  # noqa: SLF001
    pipeline_task.PipelineTask._register_task_handler = pipeline_task._register_task_handler  # noqa: SLF001
    try:
        yield
    finally:
        pipeline_context.Pipeline._default_pipeline = around  # noqa: SLF001
        pipeline_task.PipelineTask._register_task_handler = register  # noqa: SLF001
