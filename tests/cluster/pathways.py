"""A step on Pathways with stand-ins for its images (tests/standins), as tests of the cluster start it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kr_kfp
from tests.cluster.images import PATHWAYS_IMAGES, PATHWAYS_VERSION
from tests.cluster.kfp_pod import KfpPod
from tests.cluster.launch import Launching, in_images

STANDIN = Path(__file__).parents[1] / "standins" / "pathwaysutils" / "__init__.py"

SCRATCH = "gs://bucket/scratch"

SMALL = {"cpu": "500m", "memory": "128M"}


@kr_kfp.component(
    accelerator="v5p-16",
    slices=2,
    backend="pathways",
    pathways=kr_kfp.Pathways(
        scratch=SCRATCH,
        version=PATHWAYS_VERSION,
        images=PATHWAYS_IMAGES,
        xla_flags=("--xla_tpu_enable_async_collective_fusion=true",),
        resource_manager=SMALL,
        proxy=SMALL,
    ),
    env={"PYTHONPATH": "/standins"},
)
def drive(breaks: list) -> dict:  # type: ignore[type-arg]
    """Tell what the head sees; in the first attempts let a server end, as ``breaks`` says."""
    import contextlib
    import time

    import jax
    import pathwaysutils

    ctx = kr_kfp.context()
    print("host", ctx.host, "attempt", ctx.attempt, "starts", flush=True)
    if ctx.attempt < len(breaks):
        who = breaks[ctx.attempt]
        with contextlib.suppress(ValueError):  # of a server that has ended there is no answer
            pathwaysutils.end(who, 1)
        if who != "worker":
            raise RuntimeError("IFRT proxy server disconnected")
        time.sleep(600)
    return {
        "attempt": ctx.attempt,
        "devices": jax.device_count(),
        "total": int(jax.numpy.arange(jax.device_count()).sum()),
        "hosts": [ctx.host, ctx.hosts, ctx.slices],
        "report": pathwaysutils.report,
    }


def driving(launching: Launching, breaks: list[str], **changes: Any) -> KfpPod:
    """Give the step's pod, not started yet, with the stand-in for pathwaysutils as a volume of the task."""
    made = {"metadata": {"name": "pathwaysutils"}, "data": {STANDIN.name: STANDIN.read_text(encoding="utf-8")}}
    launching.run.space.create_object("configmaps", made)
    pod = launching.pod(in_images(drive, **changes), breaks=breaks)
    pod.task_config = {
        "volumes": [{"name": "standins", "configMap": {"name": "pathwaysutils"}}],
        "volumeMounts": [{"name": "standins", "mountPath": "/standins/pathwaysutils"}],
    }
    return pod
