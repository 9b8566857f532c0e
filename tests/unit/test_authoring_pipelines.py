"""Steps inside loops, conditions, exit handlers and nested pipelines: values of the IR."""

from typing import Any

import pytest
from kfp import dsl

from kr_kfp.authoring.component import component
from kr_kfp.authoring.tasks import KILL_ANNOTATION
from kr_kfp.spec.accelerators import resolve, selectors
from tests import declared
from tests.declared import compiled, executor, packed

LWS = component(declared.optional, accelerator="v5litepod-16")
POD = LWS.options(accelerator="v5litepod-4")


@dsl.pipeline(name="looped")
def looped(rates: list[float]) -> None:
    """Train once for each rate."""
    with dsl.ParallelFor(rates, parallelism=2) as rate:
        LWS(a=1, rate=rate)
        POD(a=2, rate=rate)


@dsl.pipeline(name="chosen")
def chosen(big: bool) -> None:
    """Choose the shape by an input: both are compiled, one runs."""
    with dsl.If(big == True):  # noqa: E712 - KFP's condition
        LWS(a=1)
    with dsl.Else():
        POD(a=2)


@dsl.pipeline(name="guarded")
def guarded(text: str) -> None:
    """Tell the end whatever happens."""
    last = LWS(a=9).set_display_name("last")
    with dsl.ExitHandler(last, name="guard"):
        POD(a=1, resume_from=text)


@dsl.pipeline(name="inner")
def inner(note: str) -> None:
    """Train in two shapes."""
    LWS(a=1, resume_from=note)
    POD(a=2).set_caching_options(False)


@dsl.pipeline(name="nested")
def nested(note: str) -> None:
    """Use a pipeline as a step, twice."""
    first = inner(note=note)
    inner(note="b").after(first)


def kubernetes_settings(platform: dict[str, Any]) -> dict[str, Any]:
    """Give the Kubernetes settings of all executors."""
    found: dict[str, Any] = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return found


@pytest.mark.parametrize(
    ("pipeline", "lws", "pod"),
    [
        (looped, ["optional"], ["optional-2"]),
        (chosen, ["optional"], ["optional-2"]),
        (guarded, ["optional"], ["optional-2"]),
        (nested, ["optional", "optional-3"], ["optional-2", "optional-2-2"]),
    ],
    ids=["ParallelFor", "If", "ExitHandler", "nested"],
)
def test_every_step_keeps_its_shape(
    pipeline: Any, lws: list[str], pod: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Wherever a step stands, launcher and pod have their command, resources, selectors and annotation."""
    ir, platform = compiled(pipeline, tmp_path_factory)
    found = kubernetes_settings(platform)
    assert sorted(ir["deploymentSpec"]["executors"]) == sorted(f"exec-{name}" for name in lws + pod)
    for name in lws:
        verb, data = packed(executor(ir, name)["command"])
        assert (verb, data["hosts"]) == ("launch", 4)
        assert list(found[f"exec-{name}"]["podMetadata"]["annotations"]) == [KILL_ANNOTATION]
        assert "resources" not in executor(ir, name)
        assert len(ir["components"][f"comp-{name}"]["taskConfigPassthroughs"]) == 6
    for name in pod:
        verb, data = packed(executor(ir, name)["command"])
        assert (verb, data["hosts"]) == ("run", 1)
        assert found[f"exec-{name}"]["nodeSelector"] == {"labels": selectors(resolve("v5litepod-4"))}
        assert executor(ir, name)["resources"]["accelerator"]["resourceCount"] == "4"
        assert "taskConfigPassthroughs" not in ir["components"][f"comp-{name}"]


def test_loop(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The loop's item reaches the step."""
    ir, _ = compiled(looped, tmp_path_factory)
    loop = ir["components"]["comp-for-loop-1"]["dag"]["tasks"]
    item = {"componentInputParameter": "pipelinechannel--rates-loop-item"}
    assert loop["optional"]["inputs"]["parameters"]["rate"] == item
    assert ir["root"]["dag"]["tasks"]["for-loop-1"]["iteratorPolicy"] == {"parallelismLimit": 2}


def test_exit_task(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A launcher may be the exit task."""
    ir, _ = compiled(guarded, tmp_path_factory)
    task = ir["root"]["dag"]["tasks"]["optional"]
    assert task["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
    assert task["taskInfo"] == {"name": "last"}


def test_long_names_everywhere(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Names of 120 and 100 characters compile in a loop of a nested pipeline (kubeflow/pipelines#12350)."""
    ir, platform = compiled(declared.long_names(component(declared.named("t" * 120), hosts=2)), tmp_path_factory)
    assert packed(executor(ir, "t" * 120)["command"])[1]["name"] == "t" * 120
    assert f"exec-{'t' * 120}" in kubernetes_settings(platform)


def test_caching_in_a_nested_pipeline(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Caching settings stay where they were made."""
    ir, _ = compiled(nested, tmp_path_factory)
    tasks = ir["components"]["comp-inner"]["dag"]["tasks"]
    assert tasks["optional"]["cachingOptions"] == {"enableCache": True}
    assert tasks["optional-2"]["cachingOptions"] == {}
