"""JAX across the hosts of a group, with what LeaderWorkerSet injects and nothing of kr_kfp's."""

from __future__ import annotations

import json

from tests.cluster.groups import all_run, container, exclusive, group, living
from tests.cluster.images import TRAIN_IMAGE
from tests.cluster.space import Space

GATHER = """
import json, os, signal
import jax
jax.distributed.initialize(
    os.environ["LWS_LEADER_ADDRESS"] + ":8476",
    int(os.environ["LWS_GROUP_SIZE"]),
    int(os.environ["LWS_WORKER_INDEX"]),
    cluster_detection_method="deactivate",
)
import jax.numpy as jnp
from jax.experimental import multihost_utils
found = multihost_utils.process_allgather(jnp.array([jax.process_index()]))
print("found", json.dumps([jax.device_count(), jax.local_device_count(), found.ravel().tolist()]), flush=True)
jax.distributed.shutdown()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    signal.pause()
"""


def test_four_hosts_with_four_devices_form_one_mesh(space: Space) -> None:
    """Four hosts find each other by the injected variables: 16 devices, and a collective that is right on each."""
    env = [
        {"name": "JAX_PLATFORMS", "value": "cpu"},
        {"name": "XLA_FLAGS", "value": "--xla_force_host_platform_device_count=4"},
    ]
    body = group("g", container(GATHER, chips=4, image=TRAIN_IMAGE, env=env), annotations=exclusive())
    with space.watch("pods") as pods:
        space.create_object("leaderworkersets", body)
        seen = pods.until(lambda changes: all_run(changes, 4), what="group that runs")
    names = sorted(pod["metadata"]["name"] for pod in living(seen).values())
    found = [json.loads(space.line(name, "found ")) for name in names]
    assert found == [[16, 4, [0, 1, 2, 3]]] * 4
