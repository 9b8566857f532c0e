"""A small Keras model trained by one process that drives all TPU chips through Pathways."""

from typing import NamedTuple

from kfp import dsl

import kr_kfp

__all__ = ["Trained", "pathways_train", "train_rings"]

SERVERS = "20260423-jax_0.10.0"
"""Tag of the server images: that of the JAX which the step installs."""


@kr_kfp.component(
    accelerator="v5p-32",
    backend="pathways",
    pathways=kr_kfp.Pathways(version=SERVERS),
    base_image="python:3.12",
    packages_to_install=["jax>=0.10,<0.11", "keras>=3.12,<4", "numpy>=2,<3", "pathwaysutils>=0.1.13,<0.2"],
)
def train_rings(
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    epochs: int = 5,
    batch: int = 128,
    seed: int = 0,
) -> dict:  # type: ignore[type-arg] # KFP takes the bare class
    """Learn to tell points inside a circle from points outside, on every device that this one process sees.

    Args:
        model: A folder with ``model.keras``: points (rows, 2) in, one logit each out. Metadata: devices, processes.
        metrics: accuracy and loss after the last epoch, devices.
        epochs: Passes over the 4,096 points, 1 or more.
        batch: Points of one step, a multiple of the number of devices.
        seed: Seed of points and weights, 0 or more.

    Returns:
        One list of floats per curve, one value per epoch: loss, accuracy.

    Raises:
        ValueError: If the batch cannot be cut over the devices.
    """
    from pathlib import Path

    import jax
    import keras
    import numpy as np

    devices = jax.devices()
    if batch < 1 or batch % len(devices):
        message = f"batch={batch}: give a multiple of the {len(devices)} devices"
        raise ValueError(message)
    # By the devices themselves: Keras would look their names up in a back end of the platform's name, and here it is
    # called "proxy".
    mesh = keras.distribution.DeviceMesh((len(devices),), ["batch"], devices)
    keras.distribution.set_distribution(keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False))

    keras.utils.set_random_seed(seed)
    points = np.random.default_rng(seed).normal(size=(4096, 2)).astype("float32")
    inside = ((points**2).sum(axis=1) < 1.39).astype("float32")  # half of them: 1.39 is the median of chi-squared
    network = keras.Sequential([keras.Input((2,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)])
    network.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)],
    )
    fitted = network.fit(points, inside, batch_size=batch, epochs=epochs, verbose=2)

    curves = {name: [round(float(value), 6) for value in values] for name, values in fitted.history.items()}
    for name, values in curves.items():
        metrics.log_metric(name, values[-1])
    metrics.log_metric("devices", len(devices))
    Path(model.path).mkdir(parents=True, exist_ok=True)
    network.save(Path(model.path) / "model.keras")
    model.metadata.update(framework="keras", devices=len(devices), processes=jax.process_count())
    return curves


class Trained(NamedTuple):
    """What the pipeline gives.

    Args:
        history: One list of floats per curve, one value per epoch.
        model: A folder with ``model.keras``.
    """

    history: dict  # type: ignore[type-arg]
    model: dsl.Model


@dsl.pipeline(
    name="pathways-train",
    description="Trains a small Keras model on v5p-32 (16 chips on 4 hosts) from one process, through Pathways.",
)
def pathways_train(scratch: str, epochs: int = 5, batch: int = 128, seed: int = 0) -> Trained:
    """Train on all chips of a slice from one process.

    Args:
        scratch: Folder of Google Cloud Storage for the Pathways servers, such as ``gs://bucket/pathways``.
        epochs: Passes over the points, 1 or more.
        batch: Points of one step, a multiple of 16.
        seed: Seed of points and weights, 0 or more.

    Returns:
        history: One list of floats per curve, one value per epoch: loss, accuracy.
        model: A folder with ``model.keras``.
    """
    step = train_rings.options(pathways=kr_kfp.Pathways(scratch=scratch, version=SERVERS))
    trained = step(epochs=epochs, batch=batch, seed=seed)
    return Trained(history=trained.outputs["Output"], model=trained.outputs["model"])
