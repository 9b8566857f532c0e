"""A classifier in plain JAX with checkpoints by Orbax, data-parallel over every device of every host.

KFP ships the function's source alone, so everything it needs is imported or defined inside it; that is why it is one
long function.
"""

from typing import Any

from kfp import dsl

import kr_kfp

__all__ = ["jax_classifier"]


@kr_kfp.component(
    accelerator="v5litepod-16",
    base_image="python:3.12",
    packages_to_install=[
        "jax[tpu]>=0.9,<0.12",
        "numpy>=2,<3",
        "orbax-checkpoint>=0.12,<0.13",
        "gcsfs>=2026.4",
        "obstore>=0.12,<0.13",
    ],
)
def jax_classifier(  # noqa: C901, PLR0915 # KFP ships one function
    train: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    epochs: int = 20,
    global_batch: int = 128,
    learning_rate: float = 0.2,
    hidden: int = 64,
    seed: int = 0,
) -> float:
    """Train a network of one hidden layer on labelled images, and save what Orbax needs to go on after each epoch.

    Orbax writes to ``gs://`` and to folders itself: all hosts take part, each with the shards that it holds. It does
    not know ``s3://`` and ``minio://``: there the leader lets it write a local folder, which ``kr_kfp.checkpoints``
    brings to the store. Both ways a step that was cut off is never resumed from.

    Args:
        train: An .npz file with ``images``, float32 (rows, ...), 0 to 1, and ``labels``, int (rows,), 0 to classes - 1.
            Metadata ``classes`` is used if it is there.
        model: An .npz file with ``hidden`` (pixels, units) and ``logits`` (units, classes); the logits of images are
            ``relu(images @ hidden) @ logits``. Metadata: framework, accuracy, weights_sha256, resumed_from.
        metrics: accuracy, epochs, devices.
        epochs: Passes over the rows, 1 or more; epochs of an earlier attempt count.
        global_batch: Rows of one step over all hosts, a multiple of the number of devices. The last batch of an epoch
            is filled up with the first rows of the same permutation.
        learning_rate: Step size of gradient descent with a momentum of 0.9, above 0.
        hidden: Units of the hidden layer, 1 or more.
        seed: Seed of weights and permutations, 0 or more.

    Returns:
        The accuracy on the rows trained on, 0 to 1.

    Raises:
        ValueError: If arguments do not fit the data or the devices; all problems are listed.
        StorageError: If checkpoints cannot be written or read at ``checkpoint_dir`` by ``kr_kfp.checkpoints``.
    """
    import hashlib
    import logging
    import math
    import tempfile
    from functools import partial
    from pathlib import Path

    import jax
    import jax.numpy as jnp
    import numpy as np
    import orbax.checkpoint as ocp
    from jax.experimental import multihost_utils
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    from kr_kfp import checkpoints, context

    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax says twenty lines for each checkpoint
    ctx = context()
    processes, process = jax.process_count(), jax.process_index()
    devices = jax.device_count()

    # --- the data, and whether the arguments fit it ---
    with np.load(train.path) as file:
        images = file["images"].astype(np.float32).reshape(len(file["images"]), -1)
        labels = file["labels"].astype(np.int32)
    classes = int(train.metadata.get("classes") or labels.max() + 1)
    wrong = {
        f"epochs={epochs}: give 1 or more": epochs < 1,
        f"global_batch={global_batch}: give a multiple of the {devices} devices": global_batch < 1
        or global_batch % devices > 0,
        f"learning_rate={learning_rate}: give a number above 0": not learning_rate > 0,
        f"hidden={hidden}: give 1 or more": hidden < 1,
        f"seed={seed}: give 0 or more": seed < 0,
        f"train: {len(images)} images and {len(labels)} labels: give one label for each image": len(images)
        != len(labels),
    }
    problems = [text for text, is_wrong in wrong.items() if is_wrong]
    if problems:
        raise ValueError("jax_classifier: " + "; ".join(problems))
    steps = math.ceil(len(images) / global_batch)

    # --- the model: weights copied to all devices, batches cut over them ---
    mesh = jax.make_mesh((devices,), ("batch",), axis_types=(AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    def loss_of(weights: dict[str, Any], rows: Any, wanted: Any) -> Any:
        """Give the mean cross-entropy."""
        logits = jax.nn.relu(rows @ weights["hidden"]) @ weights["logits"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), wanted[:, None], axis=1).mean()

    @partial(jax.jit, out_shardings=everywhere)
    def learn(state: dict[str, Any], rows: Any, wanted: Any) -> tuple[dict[str, Any], Any]:
        """Take one step of gradient descent."""
        loss, slope = jax.value_and_grad(loss_of)(state["weights"], rows, wanted)
        speed = jax.tree.map(lambda old, new: 0.9 * old + new, state["speed"], slope)
        weights = jax.tree.map(lambda old, change: old - learning_rate * change, state["weights"], speed)
        return {"weights": weights, "speed": speed}, loss

    chance = np.random.default_rng(seed)
    scale = math.sqrt(2 / images.shape[1])
    weights = {
        "hidden": chance.normal(0, scale, (images.shape[1], hidden)).astype(np.float32),
        "logits": np.zeros((hidden, classes), np.float32),
    }
    state = jax.device_put({"weights": weights, "speed": jax.tree.map(np.zeros_like, weights)}, everywhere)

    # --- the checkpoints: one for each epoch, whole or not at all ---
    place = ctx.checkpoint_dir
    # gs:// and folders that all hosts see: Orbax's own, each process writes what it holds.
    itself = place.startswith(("gs://", "/"))
    settings = {
        "rows": len(images),
        "classes": classes,
        "global_batch": global_batch,
        "learning_rate": learning_rate,
        "hidden": hidden,
        "seed": seed,
    }

    def opened(folder: str, *, alone: bool) -> ocp.CheckpointManager:
        """Open a folder of checkpoints; alone is for one that this process has for itself."""
        everybody = ocp.options.MultiprocessingOptions()
        me = ocp.options.MultiprocessingOptions(
            primary_host=process, active_processes={process}, barrier_sync_key_prefix=f"process-{process}"
        )
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2,
            create=not alone,
            enable_async_checkpointing=False,
            multiprocessing_options=me if alone else everybody,
        )
        return ocp.CheckpointManager(folder, options=options)

    def save(epoch: int) -> None:
        """Save what the next epoch needs."""
        if manager:
            parts = {"state": ocp.args.StandardSave(state), "settings": ocp.args.JsonSave(settings)}
            manager.save(epoch, args=ocp.args.Composite(**parts))
        elif place and ctx.is_leader:
            # Weights are the same everywhere, so one process has all of them.
            held = jax.tree.map(lambda array: np.asarray(array.addressable_data(0)), state)
            parts = {"state": ocp.args.StandardSave(held), "settings": ocp.args.JsonSave(settings)}
            with tempfile.TemporaryDirectory() as folder, opened(folder, alone=True) as local:
                local.save(epoch, args=ocp.args.Composite(**parts))
                checkpoints.save(Path(folder, str(epoch)), epoch, place, keep=2)

    def resume(epoch: int) -> Any:
        """Give the state after an epoch."""
        if manager:
            return read(manager, epoch, jax.tree.map(ocp.utils.to_shape_dtype_struct, state))
        with tempfile.TemporaryDirectory() as folder:
            checkpoints.restore(place, Path(folder, str(epoch)), step=epoch)
            with opened(folder, alone=True) as local:
                target = jax.tree.map(lambda array: np.empty(array.shape, array.dtype), state)
                return jax.device_put(read(local, epoch, target), everywhere)

    def read(source: ocp.CheckpointManager, epoch: int, target: Any) -> Any:
        """Read a checkpoint, if it is one of this very training."""
        there = source.restore(epoch, args=ocp.args.Composite(settings=ocp.args.JsonRestore()))["settings"]
        other = [
            f"{key}={value!r} (there {there.get(key)!r})" for key, value in settings.items() if there.get(key) != value
        ]
        if other:
            message = f"jax_classifier: {place} is from a training with other arguments: {', '.join(other)}"
            raise ValueError(message + ". Give this run a checkpoint folder of its own")
        return source.restore(epoch, args=ocp.args.Composite(state=ocp.args.StandardRestore(target)))["state"]

    manager = opened(place, alone=False) if itself else None
    newest = (manager.latest_step() if manager else checkpoints.latest(place) if place else None) or 0
    before = int(multihost_utils.broadcast_one_to_all(np.int32(newest)))
    if before:
        state = resume(before)
        print(f"resuming from epoch {before} (checkpoint of {place})\n", end="", flush=True)

    # --- training ---
    for epoch in range(before, epochs):
        # The same on every process and after a restart.
        order = np.resize(np.random.default_rng([seed, epoch]).permutation(len(images)), steps * global_batch)
        losses = []
        for step in range(steps):
            if ctx.preempted():
                print(f"host {ctx.host}: stopping as asked (SIGTERM); the last epoch's checkpoint stays", flush=True)
                raise SystemExit(143)
            begin = step * global_batch + process * (global_batch // processes)
            mine = order[begin : begin + global_batch // processes]
            rows, wanted = multihost_utils.host_local_array_to_global_array(
                (images[mine], labels[mine]),
                mesh,
                PartitionSpec("batch"),  # type: ignore[no-untyped-call]
            )
            state, loss = learn(state, rows, wanted)
            losses.append(float(loss))
        save(epoch + 1)
        if ctx.is_leader:
            print(f"epoch {epoch + 1}/{epochs}: loss {sum(losses) / steps:.4f}", flush=True)
    if manager:
        manager.close()

    # --- the result: equal on all hosts, written by the leader ---
    final = {name: np.asarray(array.addressable_data(0)) for name, array in sorted(state["weights"].items())}
    digest = hashlib.sha256(b"".join(array.tobytes() for array in final.values())).hexdigest()
    right = (np.maximum(images @ final["hidden"], 0) @ final["logits"]).argmax(axis=1) == labels
    accuracy = float(right.mean())
    print(f"host {ctx.host}: weights {digest}\n", end="", flush=True)
    if ctx.is_leader:
        with open(model.path, "wb") as file:  # noqa: PTH123 - np.savez would append .npz to a path
            np.savez(file, hidden=final["hidden"], logits=final["logits"])
        model.metadata["framework"] = f"jax {jax.__version__}"
        model.metadata["accuracy"] = accuracy
        model.metadata["weights_sha256"] = digest
        model.metadata["resumed_from"] = before
        metrics.log_metric("accuracy", accuracy)
        metrics.log_metric("epochs", max(epochs, before))
        metrics.log_metric("devices", devices)
    return accuracy
