"""Read a compiled component back, with all that KFP's own loading loses.

KFP drops ``task_config_passthroughs`` when it loads a component, so that what is set on its tasks would land on the
launcher's pod, and it takes no settings on the tasks of a one-step pipeline. Here both come back as the decorator made
them: the step is read from the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docstring_parser
import yaml
from kfp import components
from kfp.dsl import component_factory, structures, yaml_component
from kfp.dsl.pipeline_task import PipelineTask

from kr_kfp.authoring import lone
from kr_kfp.authoring.build import add_task_config
from kr_kfp.authoring.component import call
from kr_kfp.errors import DeclarationError, Problem, WireError
from kr_kfp.runtime import bootstrap
from kr_kfp.spec.codec import LAUNCHER_RESOURCES, load_step
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import TASK_CONFIG_INPUT, unpack

__all__ = ["LoadedComponent", "load_component"]


class LoadedComponent(lone.Lone, yaml_component.YamlComponent):  # type: ignore[misc] # kfp is untyped
    """A component read from YAML that kr_kfp compiled; its tasks are like those of the decorated function.

    Attributes:
        step: What was decided when it was compiled.
        launcher_resources: cpu and memory of the launcher pod; empty where KFP decides.
    """

    def __init__(self, spec: structures.ComponentSpec, text: str, packed: Mapping[str, Any]) -> None:
        super().__init__(component_spec=spec, component_yaml=text)
        self.step: StepSpec = load_step(packed)
        self.launcher_resources: Mapping[str, str] = packed.get(LAUNCHER_RESOURCES) or {}
        self._component_inputs.discard(TASK_CONFIG_INPUT)

    def __call__(self, *args: Any, **kwargs: Any) -> PipelineTask:
        """Make a task of the component inside a pipeline, or run it at once (kfp.local) outside one.

        Raises:
            DeclarationError: With every argument that KFP could not bring to the function.
        """
        return call(self, self.step, lambda **given: super(LoadedComponent, self).__call__(*args, **given), kwargs)


def load_component(source: str | Path) -> LoadedComponent:
    """Load a component that kr_kfp compiled.

    Args:
        source: A file, its text, or an address (``https://``, ``gs://``, read as KFP reads it).

    Returns:
        A component whose tasks take settings and behave as those of the decorated function.

    Raises:
        DeclarationError: If it is no component of kr_kfp, or of another protocol version.
        FileNotFoundError: If there is no such file.
    """
    name, text = _read(source)
    try:
        documents = [document for document in yaml.safe_load_all(text) if document]
    except yaml.YAMLError as error:
        raise _refusal(name, f"it is no YAML: {error}.", "give a file that KFP's compiler wrote.") from error
    if not documents or not isinstance(documents[0], dict) or "deploymentSpec" not in documents[0]:
        raise _refusal(name, "it holds no compiled component.", "give a file that KFP's compiler wrote.")
    ir = documents[0]
    inner = _only_step(name, ir)
    renamed = {**ir, "pipelineInfo": {**ir["pipelineInfo"], "name": inner}}
    spec = structures.ComponentSpec.from_ir_dicts(renamed, {})
    command = spec.implementation.container.command if spec.implementation.container else []
    try:
        _, packed, _ = bootstrap.split(command or [])
        data = unpack(packed)
        load_step(data)
    except WireError as error:
        fix = "load it with kfp.components.load_component_from_file, or compile it again with this kr_kfp."
        raise _refusal(name, f"{error}.", fix) from error
    spec.name = ir["pipelineInfo"]["name"]
    # The step has it, and KFP reads it as a list that its own set_env_variable cannot add to.
    spec.implementation.container.env = None
    _describe(spec, ir, inner)
    if spec.inputs and TASK_CONFIG_INPUT in spec.inputs:
        add_task_config(spec)
    return LoadedComponent(spec, text, data)


def _read(source: str | Path) -> tuple[str, str]:
    """Give a name for messages and the text."""
    if isinstance(source, str):
        if source.startswith(("http://", "https://", "gs://")):
            return source, str(components.load_component_from_url(source).component_yaml)
        if "\n" in source:
            return "the text", source
    path = Path(source)
    return str(path), path.read_text(encoding="utf-8")


def _only_step(name: str, ir: Mapping[str, Any]) -> str:
    """Give the name of the only step: of the component itself, or of the one-step pipeline that stands for it."""
    executors = [str(label).removeprefix("exec-") for label in ir["deploymentSpec"].get("executors", {})]
    own = str(ir.get("pipelineInfo", {}).get("name", ""))
    if executors in ([own], [f"{own}{lone.STEP_SUFFIX}"]):
        return executors[0]
    message = f"it is a pipeline of {len(executors)} steps ({', '.join(sorted(executors))}), not one component."
    fix = "load it with kfp.components.load_component_from_file: what kr_kfp set on its tasks is in it."
    raise _refusal(name, message, fix)


def _describe(spec: structures.ComponentSpec, ir: Mapping[str, Any], inner: str) -> None:
    """Bring descriptions back, which KFP reads for neither inputs nor outputs."""
    own = ir["components"][f"comp-{inner}"]
    for specs, key in ((spec.inputs, "inputDefinitions"), (spec.outputs, "outputDefinitions")):
        written = {**own.get(key, {}).get("parameters", {}), **own.get(key, {}).get("artifacts", {})}
        for item, value in (specs or {}).items():
            value.description = written.get(item, {}).get("description")
    if spec.description:
        # KFP gives the whole docstring back; the decorator takes its summary.
        summary = component_factory.get_pipeline_description(None, docstring_parser.parse(spec.description))
        spec.description = ir["pipelineInfo"].get("description") or summary


def _refusal(name: str, message: str, fix: str) -> DeclarationError:
    return DeclarationError(f"load_component({name!r})", [Problem("source", message, fix)])
