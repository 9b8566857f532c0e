"""What the cluster shows when a node is gone, and what frees a group that has a pod there."""

from __future__ import annotations

import time

from tests.cluster.groups import HOLD, all_run, container, group, living, uids
from tests.cluster.rest import Json, Rest, Seen
from tests.cluster.space import Space
from tests.cluster.spare import Spare


def _ready(pod: Json) -> str:
    conditions = pod.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")


def test_pod_on_a_lost_node_is_known_by_ready(space: Space, spare: Spare, admin: Rest) -> None:
    """A pod on a lost node stays Running with no DisruptionTarget; its Ready turns False, its node is unreachable."""
    node = spare.add("lost", topology="2x2")
    with space.watch("pods") as pods:
        pod = {"nodeSelector": {"cloud.google.com/gke-nodepool": "lost"}}
        space.create_object("leaderworkersets", group("g", container(HOLD), size=1, pod=pod))
        pods.until(lambda changes: all_run(changes, 1), what="host that runs")
        node.lose()
        seen = pods.until(lambda changes: _ready(changes[-1].object) == "False", what="pod that is not ready")
    shown = seen[-1].object
    assert shown["status"]["phase"] == "Running"
    assert "deletionTimestamp" not in shown["metadata"]
    assert "DisruptionTarget" not in {condition["type"] for condition in shown["status"]["conditions"]}
    taints = admin.get("nodes", None, node.spec.name)["spec"].get("taints", [])
    assert "node.kubernetes.io/unreachable" in {taint["key"] for taint in taints}


def test_group_with_a_lost_host_restarts_by_force(space: Space, spare: Spare) -> None:
    """Replicas 0 does not free a group of its pod on a lost node; a forced delete of that pod does, at once."""
    node = spare.add("lost", topology="2x2")
    with space.watch("pods") as pods:
        pod = {"affinity": _prefer("lost")}
        space.create_object("leaderworkersets", group("g", container(HOLD, chips=4), size=2, pod=pod))
        before = living(pods.until(lambda changes: all_run(changes, 2), what="group that runs"))
        lost = next(pod["metadata"]["name"] for pod in before.values() if pod["spec"]["nodeName"] == node.spec.name)
        node.lose()
        pods.until(lambda changes: _ready(_named(changes, lost)) == "False", what="pod that is not ready")
        space.patch("leaderworkersets", "g", {"spec": {"replicas": 0}})
        other = next(name for name in uids(before.values()) if name != lost)
        if lost != "g-0":  # workers are asked to end when the leader is gone
            pods.until(lambda changes: other not in uids(living(changes).values()), what="end of the living host")
        time.sleep(5)  # nothing is waited for: the lost host stays, however long one looks
        assert lost in uids(living(pods).values())
        space.delete("pods", lost, gracePeriodSeconds=0)
        pods.until(lambda changes: not living(changes), what="end of all pods")
        space.patch("leaderworkersets", "g", {"spec": {"replicas": 1}})
        pods.until(lambda changes: all_run(changes, 2), what="next attempt on living nodes")


def _named(changes: list[Seen], name: str) -> Json:
    """Give the present state of the pod of this name."""
    return next(pod for pod in living(changes).values() if pod["metadata"]["name"] == name)


def _prefer(pool: str) -> Json:
    """Prefer a pool, which takes as many hosts as it has chips for; the others go elsewhere."""
    term = {"matchExpressions": [{"key": "cloud.google.com/gke-nodepool", "operator": "In", "values": [pool]}]}
    preferred = [{"weight": 100, "preference": term}]
    return {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
