"""components/training/jax_classifier on one host, in this process; several hosts are in tests/integration/test_orbax.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kfp import dsl

from kr_kfp_components.training.jax_classifier import jax_classifier

Train = Callable[..., tuple[float, dict[str, Any]]]


@pytest.fixture(name="train")
def _train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Train on images whose brightest pixel is the label, with checkpoints in tmp_path/checkpoints."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("KR_KFP_TASK", "train")
    monkeypatch.setenv("KR_KFP_CHECKPOINT_DIR", str(tmp_path / "checkpoints"))
    labels = np.arange(60) % 4
    with (tmp_path / "train").open("wb") as file:
        np.savez(file, images=np.eye(4, dtype=np.float32)[labels].reshape(60, 2, 2), labels=labels)

    def run(**arguments: Any) -> tuple[float, dict[str, Any]]:
        made = {"model": dsl.Model(uri=str(tmp_path / "model")), "metrics": dsl.Metrics(uri=str(tmp_path / "metrics"))}
        given = {"epochs": 4, "global_batch": 20, "hidden": 8} | arguments
        return jax_classifier.python_func(train=dsl.Dataset(uri=str(tmp_path / "train")), **made, **given), made

    return run


def test_outputs_of_one_host(train: Train, tmp_path: Path) -> None:
    """The model's arrays and its metadata are written, and give the accuracy that is returned."""
    accuracy, made = train(epochs=30, hidden=64)

    with np.load(tmp_path / "model") as file:
        assert {name: file[name].shape for name in file} == {"hidden": (4, 64), "logits": (64, 4)}
    assert accuracy == made["model"].metadata["accuracy"] == 1.0
    assert made["metrics"].metadata == {"accuracy": 1.0, "epochs": 30, "devices": 1}
    assert made["model"].metadata["resumed_from"] == 0


def test_a_resumed_training_ends_like_one_without_interruption(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not one bit of the weights differs, and the last two checkpoints stay."""
    _, first = train(epochs=2)
    _, again = train(epochs=4)
    assert f"resuming from epoch 2 (checkpoint of {tmp_path}/checkpoints)\n" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]
    monkeypatch.setenv("KR_KFP_CHECKPOINT_DIR", "")
    _, whole = train(epochs=4)

    digests = [made["model"].metadata["weights_sha256"] for made in (first, again, whole)]
    assert digests[1] == digests[2] != digests[0]
    assert again["model"].metadata["resumed_from"] == 2


def test_a_checkpoint_of_other_arguments_is_refused(train: Train, tmp_path: Path) -> None:
    """Weights of another training are not taken up silently: every difference is named."""
    train(hidden=8, seed=0)

    with pytest.raises(ValueError) as caught:
        train(hidden=4, seed=1)

    assert str(caught.value) == (
        f"jax_classifier: {tmp_path}/checkpoints is from a training with other arguments: "
        "hidden=4 (there 8), seed=1 (there 0). Give this run a checkpoint folder of its own"
    )


def test_all_wrong_arguments_are_named_at_once(train: Train) -> None:
    """One error lists every argument that is out of range, with value and fix."""
    with pytest.raises(ValueError) as caught:
        train(epochs=0, global_batch=0, learning_rate=0.0, hidden=0, seed=-1)

    assert str(caught.value) == (
        "jax_classifier: epochs=0: give 1 or more; global_batch=0: give a multiple of the 1 devices; "
        "learning_rate=0.0: give a number above 0; hidden=0: give 1 or more; seed=-1: give 0 or more"
    )
