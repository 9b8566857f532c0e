"""A Keras 3 classifier on JAX, data-parallel over every device of every host.

KFP ships the function's source alone, so everything it needs is imported or defined inside it; that is why it is one
long function. It runs on every host, and the same source runs on one: nothing in it asks how many there are except to
cut the batch.
"""

from typing import NamedTuple

from kfp import dsl

import kr_kfp

__all__ = ["keras_classifier"]


@kr_kfp.component(
    accelerator="v5litepod-16",
    base_image="python:3.12",
    packages_to_install=["jax[tpu]>=0.9,<0.12", "keras>=3.12,<4", "numpy>=2,<3", "obstore>=0.12,<0.13"],
)
def keras_classifier(  # noqa: C901, PLR0915 # KFP ships one function
    train: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    history: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    epochs: int = 8,
    global_batch: int = 128,
    learning_rate: float = 0.02,
    hidden: int = 512,
    validation_fraction: float = 0.1,
    seed: int = 0,
) -> NamedTuple("Trained", [("accuracy", float), ("curves", dict)]):  # type: ignore[valid-type]
    """Train a small dense network on labelled images, on all devices of all hosts at once.

    The weights are copied to every device and each global batch is cut over them: every host draws the same
    permutation from the seed and feeds its own rows of it. The leader saves a checkpoint after each epoch; a group
    that starts again goes on after the newest one, with the same result as if nothing had happened.

    Args:
        train: An .npz file with ``images``, float32 (rows, height, width) or (rows, height, width, channels), 0 to 1,
            and ``labels``, int (rows,), 0 to classes - 1. Metadata ``classes`` is used if it is there.
        model: A folder with ``model.keras``: images in, one logit per class out. Metadata: framework, accuracy,
            classes, devices, hosts, weights_sha256 and that of each process.
        history: A JSON file with one list of floats per curve, one value per epoch: loss, accuracy, val_loss,
            val_accuracy.
        metrics: accuracy, loss, epochs, devices, processes, global_batch, local_batch, step_milliseconds.
        epochs: Passes over the training rows, 1 or more; epochs of an earlier attempt count.
        global_batch: Rows of one step over all hosts, a multiple of the number of devices. The last batch of an epoch
            is filled up with the first rows of the same permutation.
        learning_rate: Adam's step size in the first epoch; each epoch takes 0.8 times that of the one before.
        hidden: Units of the hidden layer, 1 or more.
        validation_fraction: Share of the rows that is not trained on and gives the val_ curves, 0 (none) to below 1.
        seed: Seed of weights, validation rows and permutations, 0 or more.

    Returns:
        accuracy: The validation accuracy after the last epoch, that on the training rows if there are none, 0 to 1.
        curves: The content of ``history``.

    Raises:
        ValueError: If arguments do not fit the data or the devices; all problems are listed.
        SetupError: If the hosts see different checkpoints.
        StorageError: If checkpoints cannot be written or read at ``checkpoint_dir``.
    """
    import hashlib
    import json
    import math
    import os
    import tempfile
    import time
    from pathlib import Path

    os.environ.setdefault("KERAS_BACKEND", "jax")
    import jax
    import keras
    import numpy as np
    from jax.experimental import multihost_utils

    from kr_kfp import checkpoints, context
    from kr_kfp.errors import SetupError

    ctx = context()
    processes, process = jax.process_count(), jax.process_index()
    devices, local_devices = jax.device_count(), jax.local_device_count()

    # --- the data, and whether the arguments fit it ---
    with np.load(train.path) as file:
        images, labels = file["images"].astype(np.float32), file["labels"].astype(np.int32)
    classes = int(train.metadata.get("classes") or labels.max() + 1)
    order = np.random.default_rng(max(seed, 0)).permutation(len(images))
    held = round(len(images) * validation_fraction)
    wrong = {
        f"epochs={epochs}: give 1 or more": epochs < 1,
        f"global_batch={global_batch}: give a multiple of the {devices} devices": global_batch < 1
        or global_batch % devices > 0,
        f"learning_rate={learning_rate}: give a number above 0": not learning_rate > 0,
        f"hidden={hidden}: give 1 or more": hidden < 1,
        f"validation_fraction={validation_fraction}: give 0 to below 1, so that some of {len(images)} rows are left "
        "to train on": not (validation_fraction >= 0 and held < len(images)),
        f"seed={seed}: give 0 or more": seed < 0,
        f"train: {len(images)} images and {len(labels)} labels: give one label for each image": len(images)
        != len(labels),
        f"train: a label is {labels.max(initial=0)}, but there are {classes} classes": labels.max(initial=0) >= classes,
        "keras runs on " + keras.backend.backend() + ": set KERAS_BACKEND=jax": keras.backend.backend() != "jax",
    }
    problems = [text for text, is_wrong in wrong.items() if is_wrong]
    if problems:
        raise ValueError("keras_classifier: " + "; ".join(problems))
    validation_rows, training_rows = order[:held], order[held:]
    local_batch = global_batch // processes
    steps = math.ceil(len(training_rows) / global_batch)

    class Share(keras.utils.PyDataset):
        """This process's rows of every global batch: every process has as many batches, and they are as long."""

        def __init__(self, rows: np.ndarray, *, training: bool) -> None:
            super().__init__()
            self.rows, self.training = rows, training
            self.start(0)

        def start(self, epoch: int) -> None:
            """Put the rows into the order of an epoch, which is the same on every process and after a restart."""
            wanted = len(self) * global_batch
            mixed = np.random.default_rng([seed, epoch]).permutation(self.rows) if self.training else self.rows
            # A validation batch is filled up with rows of no weight, so that each row counts once.
            self.order, self.weight = np.resize(mixed, wanted), (np.arange(wanted) < len(mixed)).astype(np.float32)

        def __len__(self) -> int:
            return math.ceil(len(self.rows) / global_batch)

        def __getitem__(self, step: int) -> tuple[np.ndarray, ...]:
            first = step * global_batch + process * local_batch
            mine = self.order[first : first + local_batch]
            if self.training:
                return images[mine], labels[mine]
            return images[mine], labels[mine], self.weight[first : first + local_batch]

    # --- the model: weights copied to all devices, batches cut over them ---
    keras.utils.set_random_seed(seed)
    keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    network = keras.Sequential(
        [
            keras.Input(images.shape[1:]),
            keras.layers.Flatten(),
            # Each variable is one more all-reduce in every step, a biased layer has two. The logits start equal.
            keras.layers.Dense(hidden, activation="relu", use_bias=False),
            keras.layers.Dense(classes, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    # The rate falls with the number of steps done, not with the share of `epochs`: a longer run repeats a shorter one.
    rate = keras.optimizers.schedules.ExponentialDecay(learning_rate, steps, 0.8, staircase=True)
    network.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight"),
        weighted_metrics=["accuracy"],
    )
    network.optimizer.build(network.trainable_variables)
    state = [*network.variables, *network.optimizer.variables]

    # --- the checkpoints: one for each epoch, whole or not at all ---
    place = ctx.checkpoint_dir
    settings = {
        "rows": len(images),
        "classes": classes,
        "global_batch": global_batch,
        "learning_rate": learning_rate,
        "hidden": hidden,
        "validation_fraction": validation_fraction,
        "seed": seed,
    }

    def save(epoch: int) -> None:
        """Save what the next epoch needs."""
        with tempfile.TemporaryDirectory() as folder:
            np.savez(Path(folder, "state.npz"), *[np.asarray(variable.value) for variable in state])
            progress = {"epoch": epoch, "curves": curves, "settings": settings}
            Path(folder, "progress.json").write_text(json.dumps(progress), encoding="utf-8")
            checkpoints.save(folder, epoch, place, keep=2)

    def resume(epoch: int) -> None:
        """Take up a checkpoint: weights, optimizer, curves."""
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.restore(place, folder, step=epoch)
            progress = json.loads(Path(folder, "progress.json").read_text(encoding="utf-8"))
            other = [
                f"{key}={value!r} (there {progress['settings'].get(key)!r})"
                for key, value in settings.items()
                if progress["settings"].get(key) != value
            ]
            if other:
                message = f"keras_classifier: {place} is from a training with other arguments: {', '.join(other)}"
                raise ValueError(message + ". Give this run a checkpoint folder of its own")
            with np.load(Path(folder, "state.npz")) as file:
                for index, variable in enumerate(state):
                    variable.assign(file[f"arr_{index}"])
        curves.update(progress["curves"])
        print(f"resuming from epoch {epoch} (checkpoint of {place})\n", end="", flush=True)

    curves: dict[str, list[float]] = {}
    before = (checkpoints.latest(place) if place else None) or 0
    # All look before any can train, since this waits for all: the leader cannot save or delete one meanwhile.
    found = np.ravel(multihost_utils.process_allgather(np.int32(before))).tolist()
    if len(set(found)) > 1:
        seen = ", ".join(f"{epoch} on process {index}" for index, epoch in enumerate(found))
        message = f"the hosts see different checkpoints in {place}, the newest of epoch {seen}"
        raise SetupError(message + ": name a place that all hosts see with checkpoint_root=")
    if before:
        resume(before)

    # --- training ---
    class EachEpoch(keras.callbacks.Callback):
        """Order, clock, curves and checkpoint of every epoch."""

        def __init__(self) -> None:
            super().__init__()
            self.begun, self.spent = 0.0, 0.0
            self.step_seconds: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002
            share.start(epoch)
            self.begun, self.spent = time.perf_counter(), 0.0

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002
            if ctx.preempted():
                print(f"host {ctx.host}: stopping as asked (SIGTERM); the last epoch's checkpoint stays", flush=True)
                raise SystemExit(143)

        def on_test_begin(self, logs: dict[str, float] | None = None) -> None:  # noqa: ARG002
            self.spent = time.perf_counter() - self.begun

        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            self.step_seconds.append((self.spent or time.perf_counter() - self.begun) / steps)
            for name, value in (logs or {}).items():
                curves.setdefault(name, []).append(round(float(value), 6))
            if ctx.is_leader:
                if place:
                    save(epoch + 1)
                said = ", ".join(f"{name} {values[-1]:.4f}" for name, values in sorted(curves.items()))
                print(f"epoch {epoch + 1}/{epochs}: {said}, {self.step_seconds[-1] * 1000:.1f} ms a step", flush=True)

    share, each_epoch = Share(training_rows, training=True), EachEpoch()
    if before < epochs:
        network.fit(
            share,
            validation_data=Share(validation_rows, training=False) if held else None,
            initial_epoch=before,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[each_epoch],
        )
    else:
        print(f"the checkpoint is of epoch {before} of {epochs}: nothing is left to train", flush=True)

    # --- the result: equal on all hosts, written by the leader ---
    digest = hashlib.sha256(b"".join(np.asarray(variable.value).tobytes() for variable in network.variables))
    gathered = multihost_utils.process_allgather(np.frombuffer(digest.digest(), np.uint8))
    digests = [row.tobytes().hex() for row in np.reshape(gathered, (processes, -1))]
    # The first epoch of a process compiles: it says nothing about the others.
    timed = sorted(each_epoch.step_seconds[1:] or each_epoch.step_seconds or [0.0])
    facts = {
        "host": ctx.host,
        "process": process,
        "processes": processes,
        "devices": devices,
        "local_devices": local_devices,
        "global_batch": global_batch,
        "local_batch": local_batch,
        "epochs": epochs,
        "resumed_from": before,
        "steps_per_epoch": steps,
        "step_milliseconds": round(timed[len(timed) // 2] * 1000, 3),
        "weights_sha256": digest.hexdigest(),
    }
    print(json.dumps(facts) + "\n", end="", flush=True)  # one write: hosts may share a log
    if len(set(digests)) > 1:
        message = f"keras_classifier: the processes ended with different weights: {digests}"
        raise RuntimeError(message)
    accuracy = curves["val_accuracy" if held else "accuracy"][-1]
    # Saving makes variables for comparison: under the distribution that would be a collective of the leader alone.
    keras.distribution.set_distribution(None)
    if ctx.is_leader:
        Path(model.path).mkdir(parents=True, exist_ok=True)
        network.save(Path(model.path) / "model.keras")
        model.metadata["framework"] = f"keras {keras.__version__} on jax {jax.__version__}"
        model.metadata["accuracy"] = accuracy
        model.metadata["classes"] = classes
        model.metadata["devices"] = devices
        model.metadata["hosts"] = ctx.hosts
        model.metadata["weights_sha256"] = digest.hexdigest()
        model.metadata["weights_sha256_by_process"] = digests
        Path(history.path).write_text(json.dumps(curves, indent=1), encoding="utf-8")
        metrics.log_metric("accuracy", accuracy)
        metrics.log_metric("loss", curves["loss"][-1])
        for name in ("epochs", "devices", "processes", "global_batch", "local_batch", "step_milliseconds"):
            metrics.log_metric(name, facts[name])
    return accuracy, curves
