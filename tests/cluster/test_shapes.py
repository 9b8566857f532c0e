"""Shapes on nodes that look like theirs: two slices, hosts with GPUs, and node pools that no two groups share."""

from __future__ import annotations

import kr_kfp
from kr_kfp.spec.leaderworkerset import build
from tests.cluster.groups import HOLD, LWS, environment, hosts_of, is_running, living
from tests.cluster.images import PYTHON_IMAGE
from tests.cluster.launch import Launching, devices, nothing_is_left, shape
from tests.cluster.pools import GKE, MACHINE, POOL, Pools
from tests.cluster.rest import Json, Seen
from tests.cluster.space import Space
from tests.shapes import LAUNCH, step_of
from tests.steps import over_slices

MEGASCALE = ["MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"]


def test_two_slices_of_two_hosts_are_one_program(launching: Launching, pools: Pools) -> None:
    """Each slice has a pool for itself, process ids follow the slices, and a sum goes over all devices of both."""
    pools.slices("pool-a", "pool-b")
    with launching.run.space.watch("pods") as watch:
        pod = launching.start(shape(over_slices, env=devices(4)))
        ended = pod.wait(seconds=200)
        hosts = hosts_of(watch)
    assert ended.code == 0, pod.log()
    assert pod.outputs()["parameterValues"]["Output"] == {
        "devices": 16,
        "total": sum(range(16)),
        "of_slices": [sum(range(8)), sum(range(8, 16))],
        "slices": 2,
        # host, JAX process, context().slice, MEGASCALE_SLICE_ID, TPU_WORKER_ID, RANK
        "places": [[0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 1, 1], [2, 2, 1, 1, 0, 2], [3, 3, 1, 1, 1, 3]],
        "addresses": 1,
        "megascale": MEGASCALE,
    }
    leader, *_ = sorted(hosts)
    group = leader.removesuffix("-0")
    coordinator = f"{leader}.{group}.{launching.run.space.name}:8080"
    told = {name: [environment(host)[key] for key in MEGASCALE] for name, host in hosts.items()}
    slices = ("0", "0", "1", "1")
    names = (leader, *(f"{leader}-{number}" for number in (1, 2, 3)))
    assert told == {name: [coordinator, "2", index] for name, index in zip(names, slices, strict=True)}
    places = [pools.of(hosts[name]["spec"]["nodeName"]) for name in names]
    assert places in (["pool-a"] * 2 + ["pool-b"] * 2, ["pool-b"] * 2 + ["pool-a"] * 2)
    assert len({host["spec"]["nodeName"] for host in hosts.values()}) == 4
    nothing_is_left(launching)


@kr_kfp.component(accelerator=kr_kfp.Gpu("h100", per_host=8), hosts=2, shm="96Mi")
def on_gpus() -> dict:  # type: ignore[type-arg]
    """Tell what a host with GPUs sees of itself and its peer."""
    import os

    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    ctx = kr_kfp.context()
    memory = os.statvfs("/dev/shm")
    mine = [ctx.host, jax.process_index(), jax.local_device_count(), memory.f_blocks * memory.f_frsize]
    return {
        "devices": jax.device_count(),
        "hosts": np.asarray(multihost_utils.process_allgather(np.array(mine, np.int32))).tolist(),
        "coordinator": os.environ["JAX_COORDINATOR_ADDRESS"],
        "of_tpus": sorted(name for name in os.environ if name.startswith(("TPU_WORKER_", "MEGASCALE_"))),
    }


def test_hosts_with_gpus(launching: Launching, pools: Pools) -> None:
    """They run on nodes with GPUs, tolerate their taint, have memory at /dev/shm, and JAX joins by explicit arguments."""
    labels = {f"{GKE}gke-accelerator": "nvidia-h100-80gb", MACHINE: "a3-highgpu-8g"}
    nodes = ["node-1", "node-2"]
    pools.make("gpus", nodes, labels=labels, resource="nvidia.com/gpu", amount=8)
    with launching.run.space.watch("pods") as watch:
        pod = launching.start(shape(on_gpus, env=devices(8)))
        ended = pod.wait(seconds=200)
        hosts = hosts_of(watch)
    assert ended.code == 0, pod.log()
    leader, *_ = sorted(hosts)
    group, space = leader.removesuffix("-0"), launching.run.space.name
    assert pod.outputs()["parameterValues"]["Output"] == {
        "devices": 16,
        "hosts": [[host, host, 8, 96 << 20] for host in (0, 1)],
        "coordinator": f"{leader}.{group}.{space}:8482",
        "of_tpus": [],
    }
    assert sorted(host["spec"]["nodeName"] for host in hosts.values()) == nodes
    for host in hosts.values():
        (main,) = host["spec"]["containers"]
        assert main["resources"]["limits"]["nvidia.com/gpu"] == "8"
    nothing_is_left(launching)


def held(name: str) -> Json:
    """Give kr_kfp's group of one slice of two hosts, in which nothing but a program that holds runs."""
    body = build(step_of(accelerator="v5p-16"), LAUNCH)
    body["metadata"]["name"] = name
    spec = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    del spec["initContainers"]
    spec["containers"][0] |= {"image": PYTHON_IMAGE, "command": ["python3", "-c", HOLD], "args": []}
    return body


def test_groups_have_node_pools_for_themselves(space: Space, pools: Pools) -> None:
    """Of three groups of two hosts two run, each in one pool alone, although every node has chips for all.

    The third waits, and takes the pool of the one that goes.
    """
    labels = {f"{GKE}gke-tpu-accelerator": "tpu-v5p-slice", f"{GKE}gke-tpu-topology": "2x2x2"}
    for name, nodes in (("pool-a", ["node-1", "node-2"]), ("pool-b", ["node-3", "node-4"])):
        pools.make(name, nodes, labels=labels, resource="google.com/tpu", amount=12)

    def by_group(changes: list[Seen]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for pod in living(changes).values():
            if is_running(pod):
                found.setdefault(pod["metadata"]["labels"][f"{LWS}/name"], []).append(pod["spec"]["nodeName"])
        return {name: sorted(nodes) for name, nodes in found.items() if len(nodes) == 2}

    def unplaced(changes: list[Seen]) -> list[str]:
        reasons = [c.get("reason") for pod in living(changes).values() for c in pod["status"].get("conditions", [])]
        return [reason for reason in reasons if reason == "Unschedulable"]

    with space.watch("pods") as pods:
        for name in ("one", "two", "three"):
            space.create_object("leaderworkersets", held(name))
        seen = pods.until(lambda changes: len(by_group(changes)) == 2 and bool(unplaced(changes)), what="two groups")
        first = by_group(seen)
        assert sorted(first.values()) == [["node-1", "node-2"], ["node-3", "node-4"]]
        (waiting,) = {"one", "two", "three"} - first.keys()
        gone = min(first)
        space.delete("leaderworkersets", gone)
        seen = pods.until(lambda changes: by_group(changes).keys() == {"one", "two", "three"} - {gone}, what="third")
        assert by_group(seen)[waiting] == first[gone]
    selectors = [pod["spec"]["nodeSelector"].get(POOL) for pod in living(seen).values()]
    assert {selector for selector in selectors if selector} <= {"pool-a", "pool-b"}
