"""What every folder of components/ and pipelines/ promises, and the shape of digits_retrain."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

import kr_kfp_components
import kr_kfp_pipelines
from kr_kfp_pipelines.training.digits_retrain import digits_retrain

FOLDERS = {
    f"{package.__name__}.{path.parent.parent.name}.{path.parent.name}": path.parent
    for package in (kr_kfp_components, kr_kfp_pipelines)
    for path in sorted(Path(package.__path__[0]).glob("*/*/metadata.yaml"))
}


def _metadata(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((folder / "metadata.yaml").read_text(encoding="utf-8"))
    return loaded


def _made(module: str) -> Any:
    return getattr(importlib.import_module(module), module.rpartition(".")[2])


def test_every_folder_is_known() -> None:
    """Each folder with code has metadata, and these are the ones there are."""
    assert sorted(FOLDERS) == [
        "kr_kfp_components.data.digits",
        "kr_kfp_components.evaluation.classifier_report",
        "kr_kfp_components.training.jax_classifier",
        "kr_kfp_components.training.keras_classifier",
        "kr_kfp_pipelines.training.digits_retrain",
        "kr_kfp_pipelines.training.pathways_train",
    ]
    code = {
        path.parent
        for package in (kr_kfp_components, kr_kfp_pipelines)
        for name in ("component.py", "pipeline.py")
        for path in Path(package.__path__[0]).glob(f"*/*/{name}")
    }
    assert code == set(FOLDERS.values())


@pytest.mark.parametrize("module", FOLDERS)
def test_metadata_is_complete(module: str) -> None:
    """Name and category are those of the folders; version, summary, tags, KFP range and Python are there."""
    metadata = _metadata(FOLDERS[module])

    assert [metadata["category"], metadata["name"]] == module.split(".")[1:]
    assert metadata["version"] == "0.1.0"
    assert metadata["kfp"] == ">=2.17,<3"
    assert metadata["python"] == ">=3.11"
    assert metadata["summary"].endswith(".")
    assert metadata["tags"]


@pytest.mark.parametrize("module", [name for name in FOLDERS if name.startswith("kr_kfp_components.")])
def test_metadata_names_what_is_installed(module: str) -> None:
    """The dependencies are the ones that the step installs, in the same words, and so is the accelerator."""
    metadata, made = _metadata(FOLDERS[module]), _made(module)
    command = " ".join(made.component_spec.implementation.container.command)

    assert [package for package in metadata["dependencies"] if f"'{package}'" not in command] == []
    shape = made.step.shape
    assert metadata["accelerator"] == (shape.name if shape else None)


@pytest.mark.parametrize("module", FOLDERS)
def test_readme_documents_every_input_and_output(module: str) -> None:
    """Each input and output has a row in a table of the README."""
    spec = _made(module).component_spec
    rows = {
        line.split("`")[1]
        for line in (FOLDERS[module] / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    }

    wanted = {*(spec.inputs or {}), *(spec.outputs or {})} - {"kr_kfp_task_config"}
    assert rows == wanted


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> dict[str, Any]:
    """The root of the compiled digits_retrain."""
    file = tmp_path / "digits_retrain.yaml"
    compiler.Compiler().compile(digits_retrain, str(file))
    documents = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    root: dict[str, Any] = documents[0]["root"]
    return root


def test_digits_retrain_joins_three_steps(root: dict[str, Any]) -> None:
    """The compiled pipeline has the three tasks in their order, and gives what it promises."""
    after = {name: task.get("dependentTasks", []) for name, task in root["dag"]["tasks"].items()}
    assert after == {
        "digits": [],
        "keras-classifier": ["digits"],
        "classifier-report": ["digits", "keras-classifier"],
    }
    assert sorted(root["outputDefinitions"]["parameters"]) == ["accuracy"]
    assert sorted(root["outputDefinitions"]["artifacts"]) == ["history", "model", "report"]


def test_digits_retrain_defaults(root: dict[str, Any]) -> None:
    """The defaults train 8 epochs with 128 rows a step."""
    defaults = {name: value["defaultValue"] for name, value in root["inputDefinitions"]["parameters"].items()}
    assert defaults == {"epochs": 8.0, "global_batch": 128.0, "learning_rate": 0.02, "seed": 0.0}


def test_training_runs_on_four_hosts_of_four_chips() -> None:
    """The pipeline's training step is declared for v5litepod-16."""
    from kr_kfp_components.training.keras_classifier import keras_classifier

    step = keras_classifier.step
    assert (step.backend, step.hosts, step.devices_per_host) == ("lws", 4, 4)
    assert keras_classifier.options(accelerator=None).step.backend == "pod"
