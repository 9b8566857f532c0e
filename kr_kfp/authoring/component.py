"""``kr_kfp.component``: a drop-in for ``dsl.component`` whose step may run on many hosts."""

from __future__ import annotations

import inspect
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, overload

from kfp import dsl
from kfp.dsl import base_component, pipeline_context, python_component
from kfp.dsl.pipeline_task import PipelineTask
from kfp.pipeline_spec import pipeline_spec_pb2

from kr_kfp.authoring import lone, source
from kr_kfp.authoring.arguments import bind
from kr_kfp.authoring.build import DEFAULT_IMAGE, Built, Declaration, build, dsl_keywords
from kr_kfp.authoring.package import offer_local_package
from kr_kfp.authoring.tasks import dress
from kr_kfp.errors import DeclarationError, Problem
from kr_kfp.spec import local_task
from kr_kfp.spec.check import REFUSED_KEYWORDS
from kr_kfp.spec.options import DEFAULTS, OPTIONS, Options
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import TASK_CONFIG_INPUT

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import ParamSpec, TypeVar  # for type checkers only: defaults of type variables (PEP 696)

    P = ParamSpec("P", default=...)
    R = TypeVar("R", default=Any)
else:
    from typing import ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["SOURCE_ENV", "Component", "call", "check_placed", "component", "prepare_local"]

SOURCE_ENV = "KR_KFP_SOURCE_"
"""With the function's name: ``file:line`` of its ``def``, for local runs, whose tracebacks then name that file."""

_log = logging.getLogger("kr_kfp")


class Component(lone.Lone, python_component.PythonComponent, Generic[P, R]):  # type: ignore[misc] # kfp is untyped
    """A KFP component made by :func:`component`.

    Attributes:
        step: What was decided: backend, hosts, accelerator and all options.
        python_func: The plain function.
        launcher_resources: cpu and memory of the launcher pod; empty where KFP decides.
    """

    step: StepSpec
    python_func: Callable[P, R]

    def __init__(self, declaration: Declaration, built: Built) -> None:
        super().__init__(component_spec=built.spec, python_func=declaration.func)
        self._declaration = declaration
        self.step = built.step
        self.launcher_resources = built.launcher_resources
        self._bound = built.bound
        self._component_inputs.discard(TASK_CONFIG_INPUT)
        _log.info("%s: backend %s (%s)", self.step.name, self.step.backend, self.step.reason)

    def options(self, **changes: Unpack[Options]) -> Component[P, R]:
        """Give another shape of the same step; this one stays as it is.

        Args:
            **changes: Any argument of :func:`component`, keywords of ``dsl.component`` included. Arguments of this
                component that mean nothing for the new shape, such as ``finish_grace`` on a single pod or ``hosts``
                on another TPU topology, are dropped; those given here are refused.

        Raises:
            DeclarationError: With every problem.
        """
        given: dict[str, Any] = {**self._declaration.given, **changes}
        built = build(self._declaration, changes=changes)
        other = Component(Declaration(func=self.python_func, given=given, lifted=self._declaration.lifted), built)
        _write(other, changes.get("output_component_file"))
        return other

    def __call__(self, *args: Any, **kwargs: Any) -> PipelineTask:
        """Make a task of the component inside a pipeline, or run it at once (kfp.local) outside one.

        Raises:
            DeclarationError: With every argument that KFP could not bring to the function.
        """
        own = self._bound
        return call(self, self.step, lambda **given: super(Component, self).__call__(*args, **given, **own), kwargs)

    @property
    def pipeline_spec(self) -> pipeline_spec_pb2.PipelineSpec:
        """The IR of the component compiled by itself."""
        check_placed(self.name, self.step)
        return super().pipeline_spec


def call(
    made: base_component.BaseComponent,
    step: StepSpec,
    make: Callable[..., PipelineTask],
    given: Mapping[str, Any],
) -> PipelineTask:
    """Make a task of a step, with what its step sets on it.

    Args:
        made: The component.
        step: Its step.
        make: KFP's own call of the component.
        given: The arguments.
    """
    arguments = bind(made.name, made.component_spec.inputs or {}, given)
    if pipeline_context.Pipeline.get_default_pipeline() is not None:
        check_placed(made.name, step)
    prepare_local(made, step)
    task = make(**arguments)
    if pipeline_context.Pipeline.get_default_pipeline() is None:
        return task  # it has run, and KFP takes no more settings
    return dress(task, step, launcher_resources=made.launcher_resources)


def check_placed(name: str, step: StepSpec) -> None:
    """Refuse a step that could not run in a pipeline: one for Pathways whose servers have no scratch location.

    Outside of a pipeline it may run on this machine, where there are no servers.

    Raises:
        DeclarationError: If it is none.
    """
    if step.pathways is not None and step.pathways.scratch is None:
        message = "it is missing: the servers need a folder of Google Cloud Storage."
        fix = "write .options(pathways=kr_kfp.Pathways(scratch=...)) with a constant or an input of the pipeline."
        subject = f"component {name!r} in a pipeline"
        raise DeclarationError(subject, [Problem("pathways.scratch", message, fix)])


def prepare_local(made: base_component.BaseComponent, step: StepSpec) -> None:
    """Leave in this process's environment what a local run of a component needs to know of the author's machine.

    kfp.local hands the environment on to the steps: where kr_kfp itself is, where the function stands, and which
    variables are the author's own.
    """
    offer_local_package()
    os.environ.update(local_task.note(step.name, step.env, os.environ))
    place = source.author_place(made.python_func) if hasattr(made, "python_func") else ""
    if place:
        os.environ[f"{SOURCE_ENV}{made.python_func.__name__}"] = place


@overload
def component(func: Callable[P, R], **options: Unpack[Options]) -> Component[P, R]: ...
@overload
def component(func: base_component.BaseComponent, **options: Unpack[Options]) -> Component: ...
@overload
def component(func: None = None, **options: Unpack[Options]) -> Callable[[Callable[P, R]], Component[P, R]]: ...
def component(func: Any = None, **options: Any) -> Any:
    """Make a KFP component of a function, on one pod or on many hosts.

    A drop-in for ``dsl.component``, bare or with arguments, which takes every keyword of it. The function does not
    change with the shape. It can also lift a component that ``dsl.component`` made: its image, packages and command
    are kept.

    Args:
        func: The function, or an existing lightweight component.
        **options: Keywords of ``dsl.component``, and those of the table in :mod:`kr_kfp.spec.options`:
            ``accelerator``, ``hosts``, ``slices``, ``backend``, ``framework``, ``processes_per_host``, ``env``,
            ``timeout``, ``capacity_timeout``, ``start_grace``, ``finish_grace``, ``terminate_grace``, ``max_restarts``,
            ``retry_on``, ``spot``, ``shm``, ``pod_security``, ``service_account``, ``api_token``, ``logs``,
            ``cluster``, ``launcher_image``, ``launcher_resources``, ``checkpoint_root``, ``stream_inputs``, ``labels``,
            ``annotations``, ``passthrough``, ``pathways``, ``install_kr_kfp_package``, ``kr_kfp_package_path``.
            Durations are ``"90m"``, ``"1h30m"`` or seconds. ``base_image`` is ``python:3.12`` if not given.

    Returns:
        A component; a decorator if no function was given.

    Raises:
        DeclarationError: With every problem at once, each with argument, value and fix.

    Example:
        ``@kr_kfp.component(accelerator="v5litepod-16", packages_to_install=["keras", "jax[tpu]"])``
    """
    if func is None:
        return lambda decorated: component(decorated, **options)
    if isinstance(func, Component):
        return func.options(**options)
    declaration = _declaration(func, options)
    made: Component = Component(declaration, build(declaration))
    _write(made, options.get("output_component_file"))
    return made


def _declaration(func: Any, options: Mapping[str, Any]) -> Declaration:
    if not isinstance(func, base_component.BaseComponent):
        return Declaration(func=func, given=options)
    if isinstance(func, python_component.PythonComponent):
        return Declaration(func=func.python_func, given=options, lifted=func.component_spec)
    kind = f"a {type(func).__name__} has no Python function that could run on every host."
    fix = "lift a component made by dsl.component; a compiled one of kr_kfp is read by kr_kfp.load_component."
    subject = f"component {func.name!r}"
    raise DeclarationError(subject, [Problem("function", kind, fix)])


def _write(made: Component[Any, Any], file: str | None) -> None:
    """Write the component where KFP's deprecated keyword asks for it; KFP itself would write it without the prefix."""
    if file is None:
        return
    from kfp.compiler import Compiler

    warnings.warn(
        "output_component_file is deprecated by KFP: use kfp.compiler.Compiler().compile().",
        DeprecationWarning,
        stacklevel=3,
    )
    Compiler().compile(made, file)


def _signature() -> inspect.Signature:
    """Spell the arguments out, for ``help()`` and the editors of notebooks."""
    kind = inspect.Parameter.KEYWORD_ONLY
    ours = [inspect.Parameter(name, kind, default=DEFAULTS[name]) for name in OPTIONS]
    theirs = [
        parameter.replace(kind=kind, default=DEFAULT_IMAGE if name == "base_image" else parameter.default)
        for name, parameter in inspect.signature(dsl.component).parameters.items()
        if name in dsl_keywords() and name not in REFUSED_KEYWORDS
    ]
    func = inspect.Parameter("func", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    return inspect.Signature([func, *ours, *theirs])


component.__signature__ = _signature()  # type: ignore[attr-defined]
