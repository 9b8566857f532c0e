"""components/evaluation/classifier_report: its numbers and its page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kfp import dsl

from kr_kfp_components.evaluation.classifier_report import classifier_report

# Keras's variables do not know NumPy 2's keyword yet (keras/src/backend/jax/core.py).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

CURVES = {"loss": [1.5, 0.5], "accuracy": [0.25, 0.75], "val_loss": [1.25, 0.625], "val_accuracy": [0.5, 0.5]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What one run of the component gave."""

    accuracy: float
    metrics: dsl.Metrics
    confusion: dsl.ClassificationMetrics
    page: str


@pytest.fixture(name="judge")
def _judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Judged]:
    """Judge a model that reads an image of three pixels as the brightest one."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    import keras

    network = keras.Sequential([keras.Input((1, 3)), keras.layers.Flatten(), keras.layers.Dense(3, use_bias=False)])
    network.set_weights([3 * np.eye(3, dtype=np.float32)])
    (tmp_path / "model").mkdir()
    network.save(tmp_path / "model" / "model.keras")

    def run(
        shown: list[int],
        true: list[int],
        *,
        curves: dict[str, list[float]] = CURVES,
        metadata: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> Judged:
        with (tmp_path / "test").open("wb") as file:
            images = np.eye(3, dtype=np.float32)[shown].reshape(-1, 1, 3)
            np.savez(file, images=images, labels=np.array(true, np.int32))
        (tmp_path / "history").write_text(json.dumps(curves))
        metrics = dsl.Metrics(uri=str(tmp_path / "metrics"))
        confusion = dsl.ClassificationMetrics(uri=str(tmp_path / "confusion"))
        accuracy = classifier_report.python_func(
            model=dsl.Model(uri=str(tmp_path / "model"), metadata=metadata or {}),
            test=dsl.Dataset(uri=str(tmp_path / "test")),
            history=dsl.Artifact(uri=str(tmp_path / "history")),
            metrics=metrics,
            confusion=confusion,
            report=dsl.HTML(uri=str(tmp_path / "report")),
            **arguments,
        )
        return Judged(
            accuracy=accuracy, metrics=metrics, confusion=confusion, page=(tmp_path / "report").read_text("utf-8")
        )

    return run


def test_numbers_of_known_mistakes(judge: Callable[..., Judged]) -> None:
    """Of eight rows two are misread: accuracy 0.75, and the matrix has true classes down, answers across."""
    judged = judge(shown=[0, 0, 1, 1, 1, 2, 2, 2], true=[0, 0, 1, 1, 0, 2, 2, 1])

    assert judged.accuracy == 0.75
    assert judged.metrics.metadata == {"accuracy": 0.75, "rows": 8, "errors": 2}
    assert judged.confusion.metadata["confusionMatrix"] == {
        "annotationSpecs": [{"displayName": "0"}, {"displayName": "1"}, {"displayName": "2"}],
        "rows": [{"row": [2, 1, 0]}, {"row": [0, 2, 1]}, {"row": [0, 0, 2]}],
    }


def test_page_shows_the_mistakes(judge: Callable[..., Judged]) -> None:
    """The page has the key numbers, one picture per misread row with both classes, and the table by class."""
    page = judge(shown=[0, 0, 1, 1, 1, 2, 2, 2], true=[0, 0, 1, 1, 0, 2, 2, 1], title="Three pixels").page

    assert "<h1>Three pixels</h1>" in page
    assert "75.00 %" in page
    assert page.count('src="data:image/png;base64,') == 2
    said = re.findall(r"is <b>(\d)</b>, read as <i>(\d)</i><br>(\d+) % sure", page)
    assert sorted(said) == [("0", "1", "91"), ("1", "2", "91")]
    assert page.count("<svg") == 2
    table = re.sub(r"<[^>]+>|\s+", " ", page[page.index("<th>class</th>") :])
    assert re.sub(r" +", " ", table).strip() == (
        "class rows recall precision 0 3 66.7 % 100.0 % 1 3 66.7 % 66.7 % 2 2 100.0 % 66.7 %"
    )


def test_page_needs_nothing_from_outside(judge: Callable[..., Judged]) -> None:
    """No element of the page loads anything: there is no address but the names of XML vocabularies."""
    page = judge(shown=[0, 1], true=[0, 2]).page

    assert re.findall(r'(?:src|href)="(?!data:image/png;base64,|#)[^"]*"', page) == []
    assert re.findall(r"<script|<link|@import|url\((?!#)", page) == []


def test_page_of_a_model_without_mistakes(judge: Callable[..., Judged]) -> None:
    """Nothing misread is said in words, and there is no empty grid."""
    judged = judge(shown=[0, 1, 2], true=[0, 1, 2])

    assert judged.accuracy == 1.0
    assert "None: every test row was read right" in judged.page
    assert "<figure>" not in judged.page


def test_page_without_validation_curves(judge: Callable[..., Judged]) -> None:
    """A training without validation rows has no legend for a curve that is not there."""
    page = judge(shown=[0, 1], true=[0, 1], curves={"loss": [1.0], "accuracy": [0.5]}).page

    assert "validation" not in page


def test_only_48_mistakes_are_shown(judge: Callable[..., Judged]) -> None:
    """A bad model does not make an endless page; the page says how many there are."""
    page = judge(shown=[0] * 60, true=[1] * 60).page

    assert page.count("<figure>") == 48
    assert "The 48 of 60 of which the model was" in page


def test_metadata_is_shown_as_text(judge: Callable[..., Judged]) -> None:
    """Whole numbers, which KFP hands on as floats, are shown as such, and markup in metadata or title is text."""
    metadata = {"devices": 16.0, "hosts": 4.0, "framework": "<b>keras</b>", "weights_sha256_by_process": ["a"]}
    page = judge(shown=[0], true=[0], metadata=metadata, title="a <i> & b").page

    assert re.sub(r"\s+", " ", page).count("<dd>16 devices, 4 hosts</dd>") == 1
    assert "<td>&lt;b&gt;keras&lt;/b&gt;</td>" in page
    assert "<h1>a &lt;i&gt; &amp; b</h1>" in page
    assert "weights sha256 by process" not in page


def test_unknown_class_is_refused(judge: Callable[..., Judged]) -> None:
    """A label beyond the model's classes is an error that names both."""
    with pytest.raises(ValueError) as caught:
        judge(shown=[0], true=[3])

    assert str(caught.value) == "classifier_report: a label is 3, but the model knows the classes 0 to 2"


def test_empty_test_set_is_refused(judge: Callable[..., Judged], tmp_path: Path) -> None:
    """There is no accuracy of no rows."""
    with pytest.raises(ValueError) as caught:
        judge(shown=[], true=[])

    assert str(caught.value) == f"classifier_report: {tmp_path}/test has no rows"
