"""Digits, a classifier trained on 4 hosts of 4 chips, and its report."""

from typing import NamedTuple

from kfp import dsl

from kr_kfp_components.data.digits import digits
from kr_kfp_components.evaluation.classifier_report import classifier_report
from kr_kfp_components.training.keras_classifier import keras_classifier

__all__ = ["Retrained", "digits_retrain"]


class Retrained(NamedTuple):
    """What the pipeline gives.

    Args:
        accuracy: Share of the unseen rows that were read right, 0 to 1.
        model: A folder with ``model.keras``.
        history: The learning curves as JSON.
        report: The report as one HTML page.
    """

    accuracy: float
    model: dsl.Model
    history: dsl.Artifact
    report: dsl.HTML


@dsl.pipeline(
    name="digits-retrain",
    description="Trains a classifier of handwritten digits on v5litepod-16 (4 hosts of 4 chips) and reports on it.",
)
def digits_retrain(
    epochs: int = 8,
    global_batch: int = 128,
    learning_rate: float = 0.02,
    seed: int = 0,
) -> Retrained:
    """Train and judge a digit classifier.

    Args:
        epochs: Passes over the training rows, 1 or more.
        global_batch: Rows of one step over all hosts, a multiple of 16.
        learning_rate: Adam's step size in the first epoch.
        seed: Seed of the split, the weights and the order of rows, 0 or more.

    Returns:
        accuracy: Share of the 360 unseen rows that were read right, 0 to 1.
        model: A folder with ``model.keras``.
        history: The learning curves as JSON.
        report: The report as one HTML page.
    """
    data = digits(seed=seed)
    trained = keras_classifier(
        train=data.outputs["train"],
        epochs=epochs,
        global_batch=global_batch,
        learning_rate=learning_rate,
        seed=seed,
    )
    judged = classifier_report(
        model=trained.outputs["model"],
        test=data.outputs["test"],
        history=trained.outputs["history"],
        title="Handwritten digits",
    )
    return Retrained(
        accuracy=judged.outputs["Output"],
        model=trained.outputs["model"],
        history=trained.outputs["history"],
        report=judged.outputs["report"],
    )
