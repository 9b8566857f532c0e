"""The arguments of a call: None, kr_kfp's own input, and how much fits."""

import json
from typing import Any

import pytest
from kfp import dsl

from kr_kfp.authoring.arguments import ARGUMENTS_LIMIT, bind, check_sizes
from kr_kfp.authoring.component import component
from kr_kfp.errors import DeclarationError
from kr_kfp.wire import TASK_CONFIG_INPUT
from tests import declared

STEP = component(declared.optional, hosts=2)


def call(**arguments: object) -> dict[str, Any]:
    """Call the component inside a pipeline and give the constants that the task gets."""

    @dsl.pipeline
    def outer() -> None:
        STEP(**arguments)

    parameters = outer.pipeline_spec.root.dag.tasks["optional"].inputs.parameters
    return {name: item.runtime_value.constant for name, item in parameters.items()}


def refusal(**arguments: object) -> str:
    """Give the problems of a call."""
    with pytest.raises(DeclarationError) as caught:
        call(**arguments)
    return str(caught.value)


def test_optional_inputs_left_out() -> None:
    """What is not given is not in the task, so that the function's own default counts (kubeflow/pipelines#11667)."""
    assert set(call(a=1)) == {"a"}


def test_none_where_none_is_the_default() -> None:
    """An explicit None is the same as leaving it out: plain KFP refuses it."""
    assert set(call(a=1, resume_from=None, overrides=None)) == {"a"}


def test_none_elsewhere() -> None:
    """KFP has no None: every such argument is named."""
    assert refusal(a=None, rate=None) == (
        "call of component 'optional': 2 problems\n"
        "  1. a: None cannot be given: KFP has no such value, and the default is not optional. "
        "Fix: leave it out, or give a value.\n"
        "  2. rate: None cannot be given: KFP has no such value, and the default is 0.5. "
        "Fix: leave it out, or give a value."
    )


def test_own_input_is_no_argument() -> None:
    """The input that KFP fills with the task's settings cannot be passed."""
    assert refusal(a=1, **{TASK_CONFIG_INPUT: {}}) == (
        "call of component 'optional': 1 problem\n"
        "  1. kr_kfp_task_config: it is kr_kfp's own input: KFP fills it with the settings made on the task. "
        "Fix: leave it out, and set resources, env and the like on the task."
    )


def test_unknown_argument_is_kfps_error() -> None:
    """KFP's own messages stay."""
    with pytest.raises(TypeError, match='got an unexpected keyword argument "b"'):
        call(a=1, b=2)
    with pytest.raises(TypeError, match="missing 1 required argument: a"):
        call()


def test_large_argument() -> None:
    """A constant of 200 KB is refused where it is given, with its size and the limit (kubeflow/pipelines#4828)."""
    assert refusal(a=1, resume_from="x" * 200_000) == (
        "call of component 'optional': 1 problem\n"
        "  1. resume_from: it is 200,002 bytes as JSON, all constant arguments together 200,040; 114,687 fit into the "
        "command of a step. Fix: pass large values as an artifact, or as a URI that the function reads."
    )


def test_many_arguments_together() -> None:
    """What counts is the sum, as JSON: quotes and other alphabets grow there."""
    half = ARGUMENTS_LIMIT // 12
    assert len(json.dumps("ü" * half)) > ARGUMENTS_LIMIT // 2 - 10
    assert set(call(a=1, resume_from="ü" * (half - 20))) == {"a", "resume_from"}
    assert "resume_from: it is" in refusal(a=1, resume_from="ü" * half, overrides={"k": "ü" * (half - 5)})


def test_task_outputs_do_not_count() -> None:
    """The size of what an earlier task gives is not known."""
    assert check_sizes({}, {"x": dsl.PIPELINE_JOB_ID_PLACEHOLDER}) == ()
    made = {}

    @dsl.pipeline
    def outer(text: str = "x") -> None:
        made.update(bind("optional", STEP.component_spec.inputs, {"resume_from": text, "overrides": {"k": text}}))
        declared.nothing()

    assert list(made) == ["resume_from", "overrides"]


def test_large_default_is_found_when_decorating() -> None:
    """A default travels like an argument."""
    with pytest.raises(DeclarationError) as caught:
        component(declared.large_default())
    assert [problem.path for problem in caught.value.problems] == ["text"]


def test_texts_arrive_in_the_ir_as_they_are() -> None:
    """Nothing is done to an argument's text."""
    text = "$$ $(HOME) python3 'q\" ü {{jinja}}"
    assert call(a=1, resume_from=text)["resume_from"].string_value == text
