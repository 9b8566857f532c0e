"""What LeaderWorkerSet tells a group's hosts, and where it puts them."""

from __future__ import annotations

import json

from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.step import StepSpec
from tests.cluster.groups import LWS, all_run, container, exclusive, group, is_running, living
from tests.cluster.images import PYTHON_IMAGE
from tests.cluster.rest import Json
from tests.cluster.space import Space
from tests.cluster.spare import Spare

TELL = """
import json, os, pathlib, signal
told = {key: value for key, value in os.environ.items() if key.startswith(("LWS_", "TPU_", "OWN_"))}
pathlib.Path("/work/env").write_text(json.dumps(told))
print(json.dumps(told), flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    signal.pause()
"""
"""Prints the variables that matter here, and holds."""

TWO_HOSTS = "v5e:2x4@ct5lp-hightpu-4t"
"""A slice of two hosts with four chips each."""

SLICES = {"subGroupSize": 2, "subGroupPolicyType": "LeaderWorker"}
"""Two slices of two hosts in a group of four."""


def _told(space: Space, body: Json) -> dict[str, dict[str, str]]:
    """Run a group of four and give what each host was told, by the pod's name."""
    with space.watch("pods") as pods:
        space.create_object("leaderworkersets", body)
        size = body["spec"]["leaderWorkerTemplate"]["size"]
        seen = pods.until(lambda changes: all_run(changes, size), what="group that runs")
    names = sorted(pod["metadata"]["name"] for pod in living(seen).values())
    return {name: json.loads(space.first_line(name)) for name in names}


def test_hosts_know_leader_size_and_index(space: Space) -> None:
    """Every host without chips is told the leader's address, the size and its own index, and nothing else."""
    told = _told(space, group("g", container(TELL)))
    address = f"g-0.g.{space.name}"
    assert told == {
        name: {"LWS_LEADER_ADDRESS": address, "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": str(index)}
        for index, name in enumerate(("g-0", "g-0-1", "g-0-2", "g-0-3"))
    }


def test_hosts_with_chips_know_their_peers(space: Space) -> None:
    """Every host that requests google.com/tpu is told its worker number and the names and ports of all."""
    told = _told(space, group("g", container(TELL, chips=4), annotations=exclusive()))
    hosts = ("g-0", "g-0-1", "g-0-2", "g-0-3")
    assert told == {
        name: {
            "LWS_LEADER_ADDRESS": f"g-0.g.{space.name}",
            "LWS_GROUP_SIZE": "4",
            "LWS_WORKER_INDEX": str(index),
            "TPU_NAME": "g-0",
            "TPU_PROCESS_ADDRESSES": ",".join(f"{host}.g:8476" for host in hosts),
            "TPU_PROCESS_PORT": "8476",
            "TPU_WORKER_HOSTNAMES": ",".join(f"{host}.g" for host in hosts),
            "TPU_WORKER_ID": str(index),
        }
        for index, name in enumerate(hosts)
    }


def test_own_worker_id_turns_injection_off(space: Space) -> None:
    """A TPU_WORKER_ID of the user's own makes LeaderWorkerSet leave out all of its TPU variables."""
    main = container(TELL, chips=4, env=[{"name": "TPU_WORKER_ID", "value": "7"}])
    told = _told(space, group("g", main, size=2))
    assert [{key for key in env if key.startswith("TPU_")} for env in told.values()] == [{"TPU_WORKER_ID"}] * 2
    assert [env["TPU_WORKER_ID"] for env in told.values()] == ["7", "7"]


def test_later_variables_expand_injected_ones(space: Space) -> None:
    """A variable of the template may refer to an injected one: those stand first."""
    main = container(TELL, env=[{"name": "OWN_ADDRESS", "value": "$(LWS_LEADER_ADDRESS):1234"}])
    told = _told(space, group("g", main, size=2))
    assert [env["OWN_ADDRESS"] for env in told.values()] == [f"g-0.g.{space.name}:1234"] * 2


def test_subgroups_know_their_own_peers(space: Space) -> None:
    """In a group of two sub-groups, as for two slices, hosts are labelled with theirs and told its hosts only.

    LeaderWorkerSet 0.9.0 forgets to mark the leader as one that has chips; the template has to do it.
    """
    body = group("g", container(TELL, chips=4), subGroupPolicy=SLICES)
    template = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    template["metadata"] = {"annotations": {f"{LWS}/leader-requests-tpus": "true"}}
    told = _told(space, body)
    names = {name: env["TPU_WORKER_HOSTNAMES"] for name, env in told.items()}
    assert names == {
        "g-0": "g-0.g,g-0-1.g",
        "g-0-1": "g-0.g,g-0-1.g",
        "g-0-2": "g-0-2.g,g-0-3.g",
        "g-0-3": "g-0-2.g,g-0-3.g",
    }
    assert [env["TPU_WORKER_ID"] for env in told.values()] == ["0", "1", "0", "1"]
    labels = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in space.items("pods")}
    index = {name: labels[name][f"{LWS}/subgroup-index"] for name in told}
    assert index == {"g-0": "0", "g-0-1": "0", "g-0-2": "1", "g-0-3": "1"}


def test_two_slices_of_kr_kfp_are_numbered_right(space: Space) -> None:
    """In kr_kfp's own manifest of two slices every host has its number within its slice, the leader too."""
    step = StepSpec(name="train", backend="lws", image=PYTHON_IMAGE, hosts=4, slices=2, shape=resolve(TWO_HOSTS))
    body = build(step, Launch(name="g", run="run", task="task", identity="run/task", holder="uid", payload=("p",)))
    body["metadata"]["annotations"] = {}  # there are no such pools here
    template = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    template["spec"] = {
        **group("g", container(TELL, chips=4))["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    }
    told = _told(space, body)
    assert [env["TPU_WORKER_ID"] for env in told.values()] == ["0", "1", "0", "1"]


def test_unmarked_leader_of_subgroups_has_no_worker_number(space: Space) -> None:
    """Without that mark the leader of a group with sub-groups is told worker number -1 (a fault of 0.9.0)."""
    told = _told(space, group("g", container(TELL, chips=4), subGroupPolicy=SLICES))
    assert [env["TPU_WORKER_ID"] for env in told.values()] == ["-1", "1", "0", "1"]


def test_pods_carry_the_labels_they_are_found_by(space: Space) -> None:
    """Every pod has the group's name, group index 0 and its worker index as labels."""
    _told(space, group("g", container(TELL)))
    labels = {pod["metadata"]["name"]: pod["metadata"]["labels"] for pod in space.items("pods", f"{LWS}/name=g")}
    shown = {name: (found[f"{LWS}/group-index"], found[f"{LWS}/worker-index"]) for name, found in labels.items()}
    assert shown == {"g-0": ("0", "0"), "g-0-1": ("0", "1"), "g-0-2": ("0", "2"), "g-0-3": ("0", "3")}


def test_exclusive_group_stays_on_one_pool(space: Space, spare: Spare) -> None:
    """With two pools that would do, all hosts of an exclusive group run on nodes of the same one."""
    for _ in range(2):
        spare.add("other", topology="4x4")
    pod = {"nodeSelector": {"cloud.google.com/gke-tpu-topology": "4x4"}}
    _told(space, group("g", container(TELL, chips=4), size=2, pod=pod, annotations=exclusive()))
    nodes = {node["metadata"]["name"]: node["metadata"]["labels"] for node in space.rest.items("nodes")}
    pools = {nodes[pod["spec"]["nodeName"]]["cloud.google.com/gke-nodepool"] for pod in space.items("pods")}
    assert len(pools) == 1


def test_leader_may_choose_a_pool_that_is_too_small(space: Space, spare: Spare) -> None:
    """Nothing counts a pool's nodes before the leader is placed: on a pool of one, the worker waits for ever.

    So a group must name a topology, whose pools have as many nodes as it has hosts (kr_kfp does, spec/placement.py).
    """
    spare.add("small")
    pod = {"nodeSelector": {"cloud.google.com/gke-nodepool": "small"}}
    with space.watch("pods") as pods:
        body = group("g", container(TELL, chips=4), size=2, pod=pod, annotations=exclusive())
        space.create_object("leaderworkersets", body)
        seen = pods.until(lambda changes: _unschedulable(living(changes), "g-0-1"), what="worker that waits")
        pods.until(lambda changes: _running(living(changes), "g") == 1, what="leader that runs")
    assert {pod["metadata"]["name"] for pod in living(seen).values()} == {"g-0", "g-0-1"}


def test_second_exclusive_group_waits_for_the_pool(space: Space) -> None:
    """While an exclusive group holds the only pool, the leader of a second one stays Pending, and runs afterwards."""
    _told(space, group("g", container(TELL, chips=4), annotations=exclusive()))
    with space.watch("pods") as pods:
        space.create_object("leaderworkersets", group("h", container(TELL, chips=4), annotations=exclusive()))
        seen = pods.until(lambda changes: _unschedulable(living(changes), "h-0"), what="leader that waits")
        assert "h-0-1" not in {pod["metadata"]["name"] for pod in living(seen).values()}
        space.delete("leaderworkersets", "g")
        pods.until(lambda changes: _running(living(changes), "h") == 4, what="second group that runs")


def _unschedulable(pods: dict[str, Json], name: str) -> bool:
    conditions = (
        condition
        for pod in pods.values()
        if pod["metadata"]["name"] == name
        for condition in pod.get("status", {}).get("conditions", [])
    )
    return any(c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions)


def _running(pods: dict[str, Json], name: str) -> int:
    return sum(is_running(pod) for pod in pods.values() if pod["metadata"]["labels"][f"{LWS}/name"] == name)
