"""components/training/keras_classifier on one host, in this process; several hosts are in tests/integration."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kfp import dsl

from kr_kfp import checkpoints
from kr_kfp.errors import StorageError
from kr_kfp_components.training.keras_classifier import keras_classifier

# Keras's variables do not know NumPy 2's keyword yet (keras/src/backend/jax/core.py).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

ROWS = 60
OUTPUTS = {"model": dsl.Model, "history": dsl.Artifact, "metrics": dsl.Metrics}

Train = Callable[..., tuple[tuple[float, dict[str, list[float]]], dict[str, Any]]]


@pytest.fixture(name="train")
def _train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train on images whose brightest pixel is the label, with checkpoints in tmp_path/checkpoints."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("KR_KFP_TASK", "train")
    monkeypatch.setenv("KR_KFP_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    labels = np.arange(ROWS) % 4
    images = np.eye(4, dtype=np.float32)[labels].reshape(ROWS, 2, 2)

    def run(**arguments: Any) -> tuple[tuple[float, dict[str, list[float]]], dict[str, Any]]:
        data = {"images": images, "labels": labels} | arguments.pop("data", {})
        with (tmp_path / "train").open("wb") as file:
            np.savez(file, **data)
        made = {name: kind(uri=str(tmp_path / name)) for name, kind in OUTPUTS.items()}
        given = {"epochs": 2, "global_batch": 16, "hidden": 8} | arguments
        return keras_classifier.python_func(train=dsl.Dataset(uri=str(tmp_path / "train")), **made, **given), made

    return run


def test_outputs_of_one_host(train: Train, tmp_path: Path) -> None:
    """Model, history and metrics are written, and history holds what is returned: one value per epoch and curve."""
    (accuracy, curves), made = train(epochs=3)

    assert sorted(curves) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert [len(values) for values in curves.values()] == [3, 3, 3, 3]
    assert json.loads((tmp_path / "history").read_text()) == curves
    assert (tmp_path / "model" / "model.keras").is_file()
    assert accuracy == curves["val_accuracy"][-1] == made["metrics"].metadata["accuracy"]
    facts = {name: made["metrics"].metadata[name] for name in ("devices", "processes", "global_batch", "local_batch")}
    assert facts == {"devices": 1, "processes": 1, "global_batch": 16, "local_batch": 16}
    assert made["model"].metadata["weights_sha256_by_process"] == [made["model"].metadata["weights_sha256"]]


def test_validation_can_be_left_out(train: Train) -> None:
    """Without validation rows there are two curves, and the accuracy is that on the training rows."""
    (accuracy, curves), _ = train(validation_fraction=0.0)

    assert sorted(curves) == ["accuracy", "loss"]
    assert accuracy == curves["accuracy"][-1]


def test_seed_decides_the_weights(train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Equal seeds end with equal weights, another seed with others."""
    digests = []
    for run, seed in enumerate((5, 5, 6)):
        monkeypatch.setenv("KR_KFP_CHECKPOINT_DIR", str(tmp_path / f"checkpoints-{run}"))
        digests.append(train(epochs=1, seed=seed)[1]["model"].metadata["weights_sha256"])

    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_the_last_two_checkpoints_stay(train: Train, tmp_path: Path) -> None:
    """Each checkpoint is whole; older ones and what was cut off are gone."""
    cut_off = tmp_path / "checkpoints" / "step-0000000001-0123456789ab"
    cut_off.mkdir(parents=True)
    (cut_off / "state.npz").write_bytes(b"half")

    train(epochs=4)

    assert checkpoints.steps(str(tmp_path / "checkpoints")) == (3, 4)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 4
    assert checkpoints.restore(str(tmp_path / "checkpoints"), tmp_path / "last") == 4
    assert sorted(path.name for path in (tmp_path / "last").iterdir()) == ["progress.json", "state.npz"]


def test_a_finished_training_is_not_repeated(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    """A step that starts again after its last checkpoint gives the same result without training."""
    first, _ = train(epochs=2)
    capsys.readouterr()

    again, made = train(epochs=2)

    said = capsys.readouterr().out
    assert "nothing is left to train" in said
    assert "epoch 1/2" not in said
    assert again == first
    assert made["metrics"].metadata["epochs"] == 2


def test_a_checkpoint_of_other_arguments_is_refused(train: Train, tmp_path: Path) -> None:
    """Weights of another training are not taken up silently: every difference is named."""
    train(hidden=8, seed=0)

    with pytest.raises(ValueError) as caught:
        train(hidden=4, seed=1)

    assert str(caught.value) == (
        f"keras_classifier: {tmp_path}/checkpoints is from a training with other arguments: "
        "hidden=4 (there 8), seed=1 (there 0). Give this run a checkpoint folder of its own"
    )


def test_a_step_without_checkpoint_folder_trains(train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty checkpoint_dir means no checkpoints, not an error."""
    monkeypatch.setenv("KR_KFP_CHECKPOINT_DIR", "")

    (_, curves), _ = train(epochs=1)

    assert len(curves["loss"]) == 1
    assert not (tmp_path / "checkpoints").exists()


def test_a_place_that_is_none_is_refused(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint_dir that nothing can be written to gives one error with the fix, before any training."""
    monkeypatch.setenv("KR_KFP_CHECKPOINT_DIR", "oci://registry/x")

    with pytest.raises(StorageError, match=r"'oci://registry/x': is no place for checkpoints. Fix: use gs://"):
        train()


def test_all_wrong_arguments_are_named_at_once(train: Train) -> None:
    """One error lists every argument that is out of range, with value and fix."""
    with pytest.raises(ValueError) as caught:
        train(epochs=0, global_batch=0, learning_rate=0.0, hidden=0, validation_fraction=1.0, seed=-1)

    assert str(caught.value) == (
        "keras_classifier: epochs=0: give 1 or more; global_batch=0: give a multiple of the 1 devices; "
        "learning_rate=0.0: give a number above 0; hidden=0: give 1 or more; validation_fraction=1.0: give 0 to below "
        "1, so that some of 60 rows are left to train on; seed=-1: give 0 or more"
    )


def test_data_that_does_not_fit_is_refused(train: Train) -> None:
    """Images and labels must belong together."""
    with pytest.raises(ValueError, match="60 images and 3 labels: give one label for each image"):
        train(data={"labels": np.array([0, 1, 2])})
