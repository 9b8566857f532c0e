"""Steps on one pod under kfp.local: real subprocesses, KFP's own runner."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest
from kfp import dsl, local
from kfp.local import config

from kr_kfp.authoring.component import component
from tests import declared

TEXT = "$$ $(HOME) ${HOME} 'q\" \\ ü \u2028 python python3 python3.11 {{jinja}}"


class Outputs(NamedTuple):
    """What the pipeline below gives."""

    declared: str
    task: str


@pytest.fixture(name="root")
def local_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run components at once, in this environment, with outputs below a folder of the test."""
    before = config.LocalExecutionConfig.instance
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("KR_KFP_TERMINATION_LOG", str(tmp_path / "termination-log"))
    # What a call leaves in the environment for the step goes with the test.
    monkeypatch.setenv("KR_KFP_PACKAGE", "")
    monkeypatch.delenv("KR_KFP_PACKAGE")
    for func in (declared.everything, declared.fails, declared.modern, declared.optional_texts):
        monkeypatch.setenv(f"KR_KFP_SOURCE_{func.__name__}", "")
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "root"))
    yield tmp_path
    config.LocalExecutionConfig.instance = before


def outputs(task: Any) -> dict[str, Any]:
    """Give the outputs of a finished task without its folder."""
    checkpoint = task.outputs["checkpoint"]
    return {
        "result": json.loads(task.outputs["Output"]),
        "text": Path(checkpoint.path).read_text(encoding="utf-8"),
        "metadata": checkpoint.metadata,
    }


@pytest.mark.parametrize(
    ("accelerator", "backend"), [(None, "pod"), ("v5litepod-1", "pod"), (None, "lws"), ("v5litepod-1", "lws")]
)
def test_same_step_in_every_shape_of_one_host(
    accelerator: str | None, backend: Literal["pod", "lws"], root: Path
) -> None:
    """Pod or group of one, with or without an accelerator: the same interface, artifacts, metadata and texts.

    A group of one waits for no worker (kubernetes-sigs/lws#189); an artifact class of the user's own keeps its file
    and metadata (kubeflow/pipelines#8877).
    """
    made = component(
        declared.everything,
        accelerator=accelerator,
        backend=backend,
        env={"PRICE": TEXT},
        install_kfp_package=False,
        framework="none",
    )
    assert made.step.backend == backend
    found = outputs(made(text=TEXT, numbers=[1, 2.5], table={"a": {"b": TEXT}}))
    assert found == {
        "result": {
            "text": TEXT,
            "default": "$$ $(HOME) python3",
            "own": "$$ $(HOME) 'q\" ü python3",
            "numbers": [1, 2.5],
            "table": {"a": {"b": TEXT}},
            "nothing": None,
            "env": TEXT,
            "hosts": 1,
        },
        "text": TEXT,
        "metadata": {"step": 10},
    }


@pytest.mark.filterwarnings("ignore:Task .* settings .* have no effect:UserWarning")
def test_step_in_a_local_pipeline(root: Path) -> None:
    """Inside a pipeline the settings on the task do not disturb the local run."""
    made = component(
        declared.everything, accelerator="v5litepod-1", env={"PRICE": TEXT}, install_kfp_package=False, framework="none"
    )
    assert json.loads(declared.around(made)(text=TEXT).output)["env"] == TEXT


@pytest.mark.parametrize("backend", ["pod", "lws"])
@pytest.mark.filterwarnings("ignore:Task .* settings .* have no effect:UserWarning")
def test_variable_set_on_the_task_wins(
    backend: Literal["pod", "lws"], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a cluster: the task's value before the component's, that before the author's own."""
    monkeypatch.setenv("PRICE", "mine")
    made = component(
        declared.everything, backend=backend, env={"PRICE": "declared"}, install_kfp_package=False, framework="none"
    )

    @dsl.pipeline
    def both(text: str = "x") -> Outputs:
        first = made(text=text, numbers=[1], table={"a": "b"})
        second = made(text=text, numbers=[1], table={"a": "b"}).set_env_variable("PRICE", TEXT).after(first)
        return Outputs(declared=first.outputs["Output"], task=second.outputs["Output"])

    task = both()
    assert json.loads(task.outputs["declared"])["env"] == "declared"
    assert json.loads(task.outputs["task"])["env"] == TEXT


def test_optional_inputs(root: Path) -> None:
    """What is left out, or None, is None in the function (kubeflow/pipelines#11667)."""
    made = component(declared.optional_texts, install_kfp_package=False, framework="none")
    assert made(a=1).output == "[1, null, null]"
    assert made(a=1, resume_from=None, overrides=None).output == "[1, null, null]"
    assert made(a=1, resume_from="x", overrides={"k": 1.5}).output == '[1, "x", {"k": 1.5}]'


def test_union_with_none(root: Path) -> None:
    """What is written ``X | None`` arrives as what is written Optional[X]."""
    made = component(declared.modern, install_kfp_package=False, framework="none")
    assert made(a=1).output == "[1, null, null]"
    assert made(a=1, note="x", table={"k": "v"}).output == '[1, "x", {"k": "v"}]'


def test_exception_in_the_termination_message(root: Path) -> None:
    """A failing step leaves the exception and its line in the author's file where Kubernetes would show it."""
    made = component(declared.fails, install_kfp_package=False, framework="none")
    with pytest.raises(RuntimeError, match="FAILURE"):
        made(count=3)
    message = (root / "termination-log").read_text(encoding="utf-8")
    assert "ValueError" in message
    assert "count is 3, and that is too many" in message
    lines = Path(declared.__file__).read_text(encoding="utf-8").splitlines()
    [line] = [number for number, text in enumerate(lines, 1) if "raise ValueError(msg)" in text]
    assert f"{declared.__file__}:{line}" in message or f'{declared.__file__}", line {line}' in message


@pytest.mark.timeout(900)
def test_empty_venv(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kfp.local's default gives the step an empty venv: kr_kfp and KFP are installed into it."""
    monkeypatch.delenv("PYTHONPATH")
    local.init(local.SubprocessRunner(use_venv=True), pipeline_root=str(root / "root"))
    made = component(declared.optional_texts, framework="none")
    assert made(a=1, resume_from="x").output == '[1, "x", null]'


def test_same_interface_for_both(root: Path) -> None:
    """A pod step takes the same arguments as plain KFP's."""
    made = component(declared.optional_texts)
    plain = dsl.component(declared.optional_texts, base_image="python:3.12")
    assert made.component_spec.inputs == plain.component_spec.inputs
    assert made.required_inputs == plain.required_inputs == ["a"]
