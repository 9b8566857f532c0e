"""The public surface as a type checker sees it: checked by mypy (make lint), never run.

Lines that must be refused carry ``type: ignore`` with the expected code; mypy reports an ignore that is not needed.
"""

from __future__ import annotations

from typing import NamedTuple, assert_type

from kfp import dsl

import kr_kfp
from kr_kfp.spec.step import StepSpec


@kr_kfp.component
def bare(rate: float, name: str = "x") -> int:
    """Stand for a decorated function."""
    return int(rate) + len(name)


class Report(NamedTuple):
    """Stand for a result with several outputs."""

    loss: float
    steps: int


@kr_kfp.component(
    accelerator=kr_kfp.Tpu("v5e", topology="4x4"),
    env={"A": "1", "TOKEN": kr_kfp.Secret("vault", "token"), "MODE": kr_kfp.ConfigKey("settings", "mode")},
    finish_grace="10m",
    timeout=3600,
    retry_on={"oom"},
    packages_to_install=["keras"],
)
def train(epochs: int) -> Report:
    """Stand for a decorated function on many hosts."""
    return Report(loss=0.0, steps=epochs)


def functions_keep_their_types() -> None:
    """The plain function has the signature that was written."""
    assert_type(bare.python_func(0.5), int)
    assert_type(bare.python_func(0.5, name="y"), int)
    assert_type(train.python_func(epochs=3), Report)
    bare.python_func("fast")  # type: ignore[arg-type]
    bare.python_func(rates=0.5)  # type: ignore[call-arg]


def options_give_the_same_component() -> None:
    """Another shape has the same function."""
    small = train.options(accelerator=None)
    assert_type(small.python_func(3), Report)
    assert_type(small.step, StepSpec)
    train.options(accelerator=4)  # type: ignore[arg-type]
    train.options(acelerator=None)  # type: ignore[call-arg]
    kr_kfp.component(host=4)  # type: ignore[call-overload]


def options_of_every_shape_are_accepted() -> None:
    """Accelerators are names or values; a GPU says how many a host has."""
    train.options(accelerator="v5litepod-16")
    train.options(accelerator=kr_kfp.Gpu("h100", per_host=8), hosts=2)


def existing_components_are_lifted() -> None:
    """A component of ``dsl.component`` gives one of ours, whose function has no known type."""

    @dsl.component
    def other(a: int) -> int:
        return a

    lifted: kr_kfp.Component = kr_kfp.component(other, accelerator="v5litepod-16")
    assert_type(lifted.step, StepSpec)


def context_is_typed() -> None:
    """User code gets plain values."""
    ctx = kr_kfp.context()
    assert_type(ctx, kr_kfp.Context)
    assert_type(ctx.host, int)
    assert_type(ctx.is_leader, bool)
    assert_type(ctx.checkpoint_dir, str)
    assert_type(ctx.preempted(), bool)
    ctx.host = 1  # type: ignore[misc]


def errors_are_typed(caught: kr_kfp.DeclarationError) -> None:
    """All problems of a declaration can be read as values."""
    assert_type(caught.problems, tuple[kr_kfp.Problem, ...])
    assert_type(caught.problems[0].fix, str)
    assert_type(kr_kfp.__version__, str)
