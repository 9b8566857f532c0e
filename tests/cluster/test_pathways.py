"""The layout of Pathways with stand-ins for its images, which check what they are given and reach one another.

What the stand-ins ask for is written from other projects that run Pathways (tests/standins/pathways), and not from what
kr_kfp gives them.
"""

from __future__ import annotations

from tests.cluster.groups import LWS, hosts_of
from tests.cluster.launch import Launching, nothing_is_left
from tests.cluster.pathways import SCRATCH, driving
from tests.cluster.pools import Pools
from tests.cluster.rest import Json


def worker_of(names: list[str], index: int, head: str) -> Json:
    """Give what a worker is expected to tell of itself."""
    mine = names[2 * (index // 2) : 2 * (index // 2) + 2]
    return {
        "role": "worker",
        "pod": names[index],
        "arguments": [
            "--server_port=29005",
            f"--resource_manager_address={head}:29001",
            f"--gcs_scratch_location={SCRATCH}",
        ],
        "env": {
            "MEGASCALE_COORDINATOR_ADDRESS": head,
            "MEGASCALE_GRPC_ENABLE_XOR_TRACER": "false",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": str(index // 2),
            "PATHWAYS_HEAD": head,
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "TPU_MIN_LOG_LEVEL": "0",
            "TPU_WORKER_HOSTNAMES": ",".join(f"{name}.{head.split('.')[1]}" for name in mine),
            "TPU_WORKER_ID": str(index % 2),
            "XCLOUD_ENVIRONMENT": "GCP",
        },
        "reached": mine,
    }


def test_one_function_drives_two_slices(launching: Launching, pools: Pools) -> None:
    """The function runs once, on a head off the TPU nodes; every server has its arguments, variables and peers."""
    pools.slices("pool-a", "pool-b")
    with launching.run.space.watch("pods") as watch:
        pod = driving(launching, []).start()
        ended = pod.wait(seconds=200)
        pods = hosts_of(watch)
    log = pod.log()
    assert ended.code == 0, log
    assert log.count(" starts\n") == 1
    found = pod.outputs()["parameterValues"]["Output"]
    report = found.pop("report")
    assert found == {"attempt": 0, "devices": 16, "total": sum(range(16)), "hosts": [0, 1, 2]}
    leader, *names = sorted(pods)
    head = f"{leader}.{leader.removesuffix('-0')}.{launching.run.space.name}"
    assert report["client"] == {
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        "JAX_BACKEND_TARGET": "grpc://localhost:29000",
        "JAX_PLATFORMS": "proxy",
        "PATHWAYS_HEAD": head,
        "XCLOUD_ENVIRONMENT": "GCP",
    }
    assert report["manager"] == {
        "role": "manager",
        "pod": leader,
        "arguments": [
            "--server_port=29001",
            f"--gcs_scratch_location={SCRATCH}",
            "--node_type=resource_manager",
            "--instance_count=2",
            "--instance_type=tpuv5:2x2x2",
        ],
        "env": {"HOST_ADDRESS": head, "TPU_SKIP_MDS_QUERY": "true"},
    }
    assert report["proxy"] == {
        "role": "proxy",
        "pod": leader,
        "arguments": [
            "--server_port=29000",
            f"--resource_manager_address={head}:29001",
            f"--gcs_scratch_location={SCRATCH}",
            "--xla_tpu_enable_async_collective_fusion=true",
        ],
        "env": {"PATHWAYS_HEAD": head, "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true"},
    }
    workers = [{key: value for key, value in worker.items() if key != "address"} for worker in report["workers"]]
    assert workers == [worker_of(names, index, head) for index in range(4)]
    nodes = {name: each["spec"]["nodeName"] for name, each in pods.items()}
    assert nodes[leader] == "node-0"
    places = [pools.of(nodes[name]) for name in names]
    assert places in (["pool-a"] * 2 + ["pool-b"] * 2, ["pool-b"] * 2 + ["pool-a"] * 2)
    subgroups = {name: each["metadata"]["labels"].get(f"{LWS}/subgroup-index") for name, each in pods.items()}
    assert subgroups == {leader: None, **dict(zip(names, ("0", "0", "1", "1"), strict=True))}
    check_security(pods)
    nothing_is_left(launching)


def check_security(pods: dict[str, Json]) -> None:
    """Servers are left as those who publish them run them, and nobody gets a token."""
    for pod in pods.values():
        assert pod["spec"]["automountServiceAccountToken"] is False
        for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
            mine = container["name"] in ("main", "kr-kfp")
            assert ("securityContext" in container) is mine, container["name"]


def test_broken_servers_restart_the_group(launching: Launching, pools: Pools) -> None:
    """A worker's server that ends, and a proxy whose end user code felt, are infrastructure losses: attempt 2 ends well."""
    pools.slices("pool-a", "pool-b")
    pod = driving(launching, ["worker", "proxy"], max_restarts=2).start()
    ended = pod.wait(seconds=250)
    log = pod.log()
    assert ended.code == 0, log
    assert pod.outputs()["parameterValues"]["Output"]["attempt"] == 2
    worker = "Pathways worker 1 was lost: container pathways-worker ended (Error, exit code 1)"
    proxy = "host 0 was lost: container pathways-proxy ended (Error, exit code 1)"
    assert f"{worker}; restarting the group as attempt 1 (1 restarts left after it)" in log
    assert f"{proxy}; restarting the group as attempt 2 (0 restarts left after it)" in log
    nothing_is_left(launching)


def test_broken_server_without_restarts(launching: Launching, pools: Pools) -> None:
    """With no restarts left the step fails, and says which server ended rather than what user code felt."""
    pools.slices("pool-a", "pool-b")
    ended = driving(launching, ["manager"], max_restarts=0).start().wait(seconds=200)
    assert ended.code == 1
    said = "host 0 was lost: container pathways-rm ended (Error, exit code 1) (restarts left: 0 of max_restarts=0)"
    assert f"drive failed in attempt 0: {said}" in ended.message
    nothing_is_left(launching)
