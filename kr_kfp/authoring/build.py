"""From a function, or a component that KFP made of one, to the component spec of a step."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kfp import dsl
from kfp.dsl import structures
from kfp.dsl.task_config import TaskConfig
from kfp.dsl.types import type_utils

from kr_kfp.authoring import arguments, source
from kr_kfp.authoring.annotations import resolve_annotations
from kr_kfp.authoring.package import author_package
from kr_kfp.authoring.tasks import PASSTHROUGHS
from kr_kfp.errors import DeclarationError, Problem
from kr_kfp.runtime.bootstrap import prefix
from kr_kfp.spec.check import REFUSED_KEYWORDS, check_value
from kr_kfp.spec.codec import dump_step
from kr_kfp.spec.declare import declare
from kr_kfp.spec.step import RUN_TIME_SCRATCH, StepSpec
from kr_kfp.wire import SCRATCH_INPUT, TASK_CONFIG_INPUT, pack

__all__ = ["DEFAULT_IMAGE", "Built", "Declaration", "add_task_config", "build", "dsl_keywords"]

DEFAULT_IMAGE = "python:3.12"
"""Image of a step that names none: KFP's own next default (its python:3.11 comes with a FutureWarning), and a version
that kr_kfp and current JAX run on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """What the author wrote.

    Args:
        func: The function.
        given: All arguments that were given, over decorator and ``options()``.
        lifted: The spec of the KFP component that was lifted; None for a function.
    """

    func: Callable[..., Any]
    given: Mapping[str, Any] = field(default_factory=dict)
    lifted: structures.ComponentSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What became of it.

    Args:
        spec: The component's spec, command and inputs as KFP gets them.
        step: The step.
        launcher_resources: cpu and memory of the launcher pod; empty where KFP decides.
        bound: Arguments of kr_kfp's own inputs: what a pipeline input gives to an option.
    """

    spec: structures.ComponentSpec
    step: StepSpec
    launcher_resources: Mapping[str, str] = field(default_factory=dict)
    bound: Mapping[str, Any] = field(default_factory=dict)


def dsl_keywords() -> tuple[str, ...]:
    """Give the keywords that ``dsl.component`` of the installed kfp takes."""
    return tuple(name for name in inspect.signature(dsl.component).parameters if name != "func")


def build(declaration: Declaration, *, changes: Mapping[str, Any] | None = None) -> Built:
    """Make the component spec of a step.

    Args:
        declaration: What the author wrote.
        changes: What ``options()`` changes about it.

    Raises:
        DeclarationError: With every problem of arguments, source and interface at once.
    """
    func = declaration.func
    name = getattr(func, "__name__", type(func).__name__)
    mine = dict(declaration.given if changes is None else changes)
    inherited = {} if changes is None else {k: v for k, v in declaration.given.items() if k not in mine}
    everything = {**inherited, **mine}
    keywords = dsl_keywords()
    step, problems = declare(
        mine,
        name=name,
        image=_image(everything, declaration.lifted),
        keywords=keywords,
        inherited=inherited,
        requirement=_requirement(everything),
    )
    found = list(problems)
    if declaration.lifted is None:
        usable = {
            key: value
            for key, value in everything.items()
            if key in keywords and key not in REFUSED_KEYWORDS and not check_value(key, value)
        }
        spec, functions, more = _from_function(func, usable)
    else:
        spec, functions, more = _from_component(declaration, mine, keywords)
    found += more
    shipped = source.Shipped(command=())
    if spec is not None:
        shipped, unshippable = source.ship(spec.implementation.container.command, functions)
        found += [*unshippable, *_check_inputs(spec, step)]
    launcher: Mapping[str, str] = {}
    if spec is not None and step is not None:
        launcher = everything.get("launcher_resources") or {} if step.backend != "pod" else {}
        packed = pack(dump_step(step, source=shipped.source, launcher_resources=launcher))
        spec = _assemble(spec, step, shipped, packed, passthrough=everything.get("passthrough", True))
        found += source.check_sizes(spec.implementation.container.command)
    if found or spec is None or step is None:
        subject = f"component {name!r}" if changes is None else f"options of component {name!r}"
        raise DeclarationError(subject, found)
    bound = {}
    if step.pathways is not None and step.pathways.scratch == RUN_TIME_SCRATCH:
        bound[SCRATCH_INPUT] = everything["pathways"].scratch
    return Built(spec=spec, step=step, launcher_resources=launcher, bound=bound)


def _image(given: Mapping[str, Any], lifted: structures.ComponentSpec | None) -> str:
    own = lifted.implementation.container.image if lifted is not None else DEFAULT_IMAGE
    return str(given.get("target_image") or given.get("base_image") or own)


def _requirement(given: Mapping[str, Any]) -> str | None:
    if given.get("install_kr_kfp_package") is False:
        return None
    path = given.get("kr_kfp_package_path")
    return path if isinstance(path, str) else author_package().requirement


Draft = tuple["structures.ComponentSpec | None", tuple[Callable[..., Any], ...], list[Problem]]


def _from_function(func: Callable[..., Any], keywords: Mapping[str, Any]) -> Draft:
    """Let KFP make a component of the function."""
    problems = list(source.check_function(func))
    if problems or not inspect.isfunction(func):
        return None, (), problems
    additional = tuple(keywords.get("additional_funcs") or ())
    for helper in additional:
        problems += [
            Problem(f"additional_funcs: {getattr(helper, '__name__', helper)}", found.message, found.fix)
            for found in source.check_function(helper)
        ]
    readable, found = resolve_annotations(func)
    problems += found
    if problems:
        return None, (), [*problems, *source.check_names([func], bodies_only=True)]
    settings = {"base_image": DEFAULT_IMAGE, **{k: v for k, v in keywords.items() if k != "output_component_file"}}
    settings["base_image"] = settings["base_image"] or DEFAULT_IMAGE
    try:
        made = dsl.component(readable, **settings)
    # KFP reports what it cannot make of a signature, a path or a list by these, with text that says it.
    except (TypeError, ValueError) as error:
        functions = [func, *additional]
        found = source.check_names(functions)
        # A class that is missing in an annotation says more than what KFP made of it.
        early = len(found) > len(source.check_names(functions, bodies_only=True))
        said = [] if early else [Problem("function", f"KFP cannot make a component of it: {error}")]
        return None, (), [*said, *found]
    return made.component_spec, (func, *additional), []


def _from_component(declaration: Declaration, given: Mapping[str, Any], keywords: tuple[str, ...]) -> Draft:
    """Take over what KFP made; only the image may be another one."""
    problems = [
        Problem(name, "the lifted component has decided it already.", f"give {name}= to dsl.component there.")
        for name, value in given.items()
        if name in keywords and name not in ("base_image", *REFUSED_KEYWORDS) and value is not None
    ]
    return copy.deepcopy(declaration.lifted), (declaration.func,), problems


def _check_inputs(spec: structures.ComponentSpec, step: StepSpec | None) -> list[Problem]:
    inputs = spec.inputs or {}
    problems = list(arguments.check_sizes(inputs, {}))
    problems += [
        Problem(name, "kr_kfp has an input of that name.", "choose another name.")
        for name in (TASK_CONFIG_INPUT, SCRATCH_INPUT)
        if name in inputs
    ]
    if step is not None:
        problems += _check_streams(inputs, step)
    if step is not None and step.backend != "pod":
        fix = "leave it out: settings made on the task reach the training pods without it."
        message = f"backend {step.backend!r} takes KFP's TaskConfig for itself."
        own = [name for name, item in inputs.items() if type_utils.is_task_config_type(item.type)]
        problems += [Problem(name, message, fix) for name in own if name != TASK_CONFIG_INPUT]
        if spec.task_config_passthroughs and not own:
            problems.append(Problem("task_config_passthroughs", message, fix))
    return problems


def _check_streams(inputs: Mapping[str, structures.InputSpec], step: StepSpec) -> Iterator[Problem]:
    artifacts = [name for name, item in inputs.items() if not type_utils.is_parameter_type(item.type)]
    fix = f"name one of: {', '.join(artifacts)}." if artifacts else "leave it out: there is no input artifact."
    for name in step.stream_inputs:
        if name not in artifacts:
            yield Problem("stream_inputs", f"{name!r} is no input artifact of the function.", fix)


def _assemble(
    spec: structures.ComponentSpec, step: StepSpec, shipped: source.Shipped, packed: str, *, passthrough: bool
) -> structures.ComponentSpec:
    """Put the prefix before KFP's command, and KFP's TaskConfig into the inputs."""
    container = spec.implementation.container
    # The task's own pod is the launcher; the training pods' image travels in the step.
    container.image = step.image if step.backend == "pod" else step.launcher_image or step.image
    container.command = [
        *prefix(
            "run" if step.backend == "pod" else "launch",
            packed,
            requirement=step.requirement,
            index_urls=step.index_urls,
            trusted_hosts=step.trusted_hosts,
        ),
        *shipped.command,
    ]
    if step.backend != "pod" and passthrough:
        add_task_config(spec)
    if step.pathways is not None and step.pathways.scratch == RUN_TIME_SCRATCH:
        spec.inputs = {**(spec.inputs or {}), SCRATCH_INPUT: structures.InputSpec(type="String", optional=True)}
    return spec


def add_task_config(spec: structures.ComponentSpec) -> None:
    """Add the input through which KFP hands on the settings made on a task, to the spec alone."""
    spec.inputs = {
        **(spec.inputs or {}),
        TASK_CONFIG_INPUT: structures.InputSpec(type=TaskConfig.__name__, optional=True),
    }
    spec.task_config_passthroughs = [
        dsl.TaskConfigPassthrough(field=item, apply_to_task=False) for item in PASSTHROUGHS
    ]
