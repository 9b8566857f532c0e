"""Functions that tests declare as components; without postponed annotations, as most modules of users are."""

import linecache
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

import pytest
import yaml
from kfp import dsl
from kfp.compiler import Compiler
from kfp.dsl.base_component import BaseComponent

import kr_kfp
from kr_kfp.runtime.bootstrap import split
from kr_kfp.wire import Json, unpack
from tests.artifacts import Checkpoint

__all__ = ["compiled", "executor", "packed", "train"]


def train(
    data: dsl.Input[dsl.Dataset],
    epochs: int,
    model: dsl.Output[dsl.Model],
    rate: float = 0.5,
    note: Optional[str] = None,
) -> NamedTuple("Result", [("loss", float), ("steps", int)]):  # type: ignore[valid-type]
    """Train a model.

    Args:
        data: Rows.
        epochs: Passes over the rows.
        model: The weights.
        rate: Step size.
        note: Free text.

    Returns:
        loss: The last loss.
        steps: Steps taken.
    """
    model.metadata["epochs"] = epochs
    return (rate, epochs)


def compiled(target: BaseComponent, folder: pytest.TempPathFactory) -> tuple[Json, Json]:
    """Compile a component or pipeline with KFP's compiler.

    Returns:
        The IR and the platform settings (empty if there are none), as read from the YAML.
    """
    file = folder.mktemp("compiled") / "out.yaml"
    Compiler().compile(target, str(file))
    documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    return documents[0], documents[1] if len(documents) > 1 else {}


def executor(ir: Json, name: str) -> Json:
    """Give the container of one executor of an IR."""
    container: Json = ir["deploymentSpec"]["executors"][f"exec-{name}"]["container"]
    return container


def packed(command: list[str]) -> tuple[str, Json]:
    """Give verb and unpacked step of a component's command."""
    verb, text, _ = split(command)
    return verb, unpack(text)


def quoted(data: "dsl.Input[dsl.Dataset]", count: "int") -> None:
    """Have annotations in quotes."""


def postponed_twin(
    steps: int,
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    data: dsl.Input[dsl.Dataset],
    lr: float = 1e-3,
    resume: Optional[str] = None,
) -> NamedTuple("Result", [("loss", float), ("steps", int)]):  # type: ignore[valid-type]
    """Train."""


def no_inputs() -> None:
    """Take nothing."""


def task_config(config: dsl.TaskConfig) -> None:
    """Take KFP's TaskConfig."""


def configured(cfg: dict) -> None:  # type: ignore[type-arg]
    """Take a dict."""


def configured_pipeline(configured: Callable[..., Any]) -> BaseComponent:
    """Make a pipeline whose input stands inside a dict and a list."""

    @dsl.pipeline
    def outer(g: str = "x") -> None:
        configured(cfg={"whole": g, "part": f"hello {g}", "l": [f"x{g}"]})

    return outer


def named(name: str) -> Callable[..., Any]:
    """Make a function of any name, with a source that can be read."""
    file = f"<{name}>"
    text = f"def {name}(count: int) -> None:\n    print(count)\n"
    space: dict[str, Any] = {}
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), space)
    func: Callable[..., Any] = space[name]
    return func


@dsl.component(base_image="python:3.12")
def prepare(rows: dsl.Output[dsl.Dataset]) -> None:
    """Make the training data."""


@dsl.component(base_image="python:3.12")
def nothing() -> None:
    """Do nothing."""


@dsl.component(base_image="python:3.12")
def leaky() -> None:
    """Use a name that is nowhere."""
    print(nowhere)  # type: ignore[name-defined] # noqa: F821


@dsl.container_component
def container() -> dsl.ContainerSpec:
    """Be a container."""
    return dsl.ContainerSpec(image="a", command=["b"])


def shaped_by_inputs(options: Callable[..., Any]) -> BaseComponent:
    """Make a pipeline that gives its inputs as options of a step."""

    @dsl.pipeline
    def outer(num_hosts: int = 2, run: str = "r", exp: str = "e") -> None:
        options(hosts=num_hosts, env={"RUN": f"run-{run}"}, labels={"exp": exp})

    return outer


def optional(
    a: int,
    rate: float = 0.5,
    resume_from: Optional[str] = None,
    overrides: Optional[dict] = None,  # type: ignore[type-arg]
) -> None:
    """Take what need not be given."""


def large_default() -> Callable[..., Any]:
    """Make a function with a default of 120 KB, computed so that its source is short."""

    def large(text: str = "x" * 120_000) -> None:
        print(text)

    return large


def long_names(step: Callable[..., Any]) -> BaseComponent:
    """Make a pipeline with a name of 100 characters around one with a loop."""

    @dsl.pipeline(name="i" * 100)
    def inner() -> None:
        with dsl.ParallelFor([1, 2]) as item:
            step(count=item)

    @dsl.pipeline(name="p" * 100)
    def outer() -> None:
        inner()

    return outer


def plainly(step: Callable[..., Any]) -> BaseComponent:
    """Make a pipeline of preparation and a step, without settings."""

    @dsl.pipeline
    def outer() -> None:
        step(data=prepare().output, epochs=3)

    return outer


def everything(
    text: str,
    numbers: list,  # type: ignore[type-arg]
    table: dict,  # type: ignore[type-arg]
    checkpoint: dsl.Output[Checkpoint],
    default: str = "$$ $(HOME) python3",
    nothing: Optional[str] = None,
) -> str:
    """Give back all that arrived."""
    import json
    import os
    import pathlib

    pathlib.Path(checkpoint.path).write_text(text, encoding="utf-8")
    checkpoint.metadata["step"] = 10
    return json.dumps(
        {
            "text": text,
            "default": default,
            "own": "$$ $(HOME) 'q\" ü python3",
            "numbers": numbers,
            "table": table,
            "nothing": nothing,
            "env": os.environ["PRICE"],
            "hosts": kr_kfp.context().hosts,
        }
    )


def around(step: Callable[..., Any]) -> BaseComponent:
    """Make a pipeline of one step."""

    @dsl.pipeline
    def outer(text: str) -> str:
        output: str = step(text=text, numbers=[1], table={"a": "b"}).outputs["Output"]
        return output

    return outer


def optional_texts(
    a: int,
    resume_from: Optional[str] = None,
    overrides: Optional[dict] = None,  # type: ignore[type-arg]
) -> str:
    """Give back what arrived."""
    import json

    return json.dumps([a, resume_from, overrides])


def modern(a: int, note: str | None = None, table: dict[str, str] | None = None) -> str:
    """Give back what arrived, with types written as they are today."""
    import json

    return json.dumps([a, note, table])


def fails(count: int) -> None:
    """Raise an exception."""
    msg = f"count is {count}, and that is too many"
    raise ValueError(msg)


def scratch_from_inputs(options: Callable[..., Any], settings: Callable[[Any], Any]) -> BaseComponent:
    """Make a pipeline that gives its input, alone and inside a text, as scratch location of two steps."""

    @dsl.pipeline(name="given")
    def given(bucket: str = "gs://bucket/tmp") -> None:
        options(backend="pathways", pathways=settings(bucket))(epochs=1)
        options(backend="pathways", pathways=settings(f"{bucket}/more"))(epochs=1)

    return given


def once(step: Callable[..., Any]) -> BaseComponent:
    """Make a pipeline of one step that takes epochs."""

    @dsl.pipeline(name="once")
    def outer() -> None:
        step(epochs=1)

    return outer
