"""One function in every shape."""

from kfp import dsl

import kr_kfp


@kr_kfp.component(packages_to_install=["keras>=3.12,<4"])
def train(
    data: dsl.Input[dsl.Dataset],
    epochs: int,
    model: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
    rate: float = 0.01,
) -> float:
    """Train a model.

    Args:
        data: Rows.
        epochs: Passes over the rows.
        model: The weights.
        metrics: The last loss.
        rate: Step size.

    Returns:
        The last loss.
    """
    place = kr_kfp.context()
    metrics.log_metric("loss", rate / epochs)
    if place.is_leader:
        model.metadata["checkpoints"] = place.checkpoint_dir
    return rate / epochs


CASES = {
    "shape-cpu": train,
    "shape-cpu-group-of-one": train.options(backend="lws"),
    "shape-cpu-hosts": train.options(hosts=3, logs="all", retry_on={"oom", 42}, max_restarts=1),
    "shape-gpu-host": train.options(accelerator="h100x8", shm="64Gi"),
    "shape-gpu-hosts": train.options(accelerator="gb200x4", hosts=2, framework="torch", processes_per_host="gpu"),
    "shape-tpu-host": train.options(accelerator="v5litepod-4", spot=True),
    "shape-tpu-slice": train.options(accelerator="v5litepod-16", timeout="2d", capacity_timeout=None),
    "shape-tpu-slices": train.options(accelerator="v5litepod-16", slices=2),
    "shape-tpu-pathways": train.options(
        accelerator="v5p-32",
        slices=2,
        backend="pathways",
        pathways=kr_kfp.Pathways(scratch="gs://bucket/tmp", version="20260423-jax_0.10.0", elastic_slices=1),
    ),
    "shape-env": train.options(
        hosts=2,
        env={
            "PRICE": "$$ $(HOME)",
            "TOKEN": kr_kfp.Secret("tracker", "token"),
            "MODE": kr_kfp.ConfigKey("settings", "mode"),
        },
        labels={"team": "vision"},
        annotations={"team.example/note": "ünïcode"},
        checkpoint_root="gs://bucket/checkpoints",
        cluster="gke:project/location/name",
    ),
    "shape-quota": train.options(
        hosts=2, passthrough=False, launcher_resources={"cpu": "500m", "memory": "512Mi"}, launcher_image="launcher:1"
    ),
}
