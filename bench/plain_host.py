"""One of the four processes of local_overhead's script: joins JAX, runs the component's plain function."""

from __future__ import annotations

import os
import sys

import jax
from kfp import dsl

from kr_kfp_components.training.keras_classifier import keras_classifier


def main(data: str, folder: str, epochs: int) -> None:
    """Train with outputs below ``folder``."""
    jax.distributed.initialize(
        os.environ["JAX_COORDINATOR_ADDRESS"],
        int(os.environ["WORLD_SIZE"]),
        int(os.environ["RANK"]),
        cluster_detection_method="deactivate",
    )
    keras_classifier.python_func(
        train=dsl.Dataset(uri=data),
        model=dsl.Model(uri=f"{folder}/model"),
        history=dsl.Artifact(uri=f"{folder}/history"),
        metrics=dsl.Metrics(uri=f"{folder}/metrics"),
        epochs=epochs,
    )
    jax.distributed.shutdown()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
