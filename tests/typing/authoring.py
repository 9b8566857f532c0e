"""Checked by mypy, never run: the decorator keeps the function's type and takes every documented argument."""

from collections.abc import Callable
from typing import Any, assert_type

from kfp import dsl

import kr_kfp
from kr_kfp.authoring.load import LoadedComponent
from kr_kfp.spec.step import StepSpec


@kr_kfp.component
def bare(count: int, note: str = "") -> float:
    """Be decorated without a call."""
    return float(count)


@kr_kfp.component(
    accelerator="v5litepod-16",
    hosts=4,
    backend="lws",
    framework="jax",
    env={"A": "b", "B": kr_kfp.Secret("s", "k"), "C": kr_kfp.ConfigKey("c", "k")},
    timeout="90m",
    capacity_timeout=None,
    finish_grace=30,
    retry_on={"oom", 42, ConnectionError},
    packages_to_install=["keras"],
    base_image="python:3.12",
)
def called(count: int) -> None:
    """Be decorated with arguments."""


assert_type(bare.python_func(3, note="x"), float)
assert_type(bare.step, StepSpec)
assert_type(bare.options(accelerator=kr_kfp.Tpu("v5e", "4x4"), max_restarts=0).python_func(1), float)
assert_type(called.options(accelerator=kr_kfp.Gpu("h100", per_host=8), base_image="ml:1").step.hosts, int)
assert_type(kr_kfp.load_component("train.yaml"), LoadedComponent)

bare.python_func("three")  # type: ignore[arg-type]
bare.options(host=3)  # type: ignore[call-arg]
bare.options(hosts="3")  # type: ignore[arg-type]
bare.options(backend="podd")  # type: ignore[arg-type]


def any_component(step: kr_kfp.Component) -> Callable[..., Any]:
    """Take a component of any function."""
    return step.python_func


any_component(bare)
any_component(called)


@dsl.pipeline
def pipeline() -> None:
    """Use components as KFP does."""
    task = bare(count=3)
    task.set_retry(2).set_display_name("x")
