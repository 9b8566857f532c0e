"""Groups as tests make them, and questions to what a watch of their pods has seen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.cluster.images import PYTHON_IMAGE
from tests.cluster.rest import Json, Seen

LWS = "leaderworkerset.sigs.k8s.io"
"""Prefix of LeaderWorkerSet's labels and annotations."""

HOLD = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
while True:
    signal.pause()
"""
"""Runs until it is asked to end, then ends at once."""

ONCE = """
import os, pathlib, signal, sys
marker = pathlib.Path("/work/marker")
if marker.exists():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    print("held", marker.read_text(), flush=True)
    while True:
        signal.pause()
code = {code}
print("ran", flush=True)
marker.write_text(f"exit {{code}}")
pathlib.Path("/dev/termination-log").write_text(f"outcome {{code}}")
sys.exit(code)
"""
"""Runs once per pod: ends with a code, and holds when the kubelet starts it again."""


def container(code: str, *, chips: int = 0, image: str = PYTHON_IMAGE, **fields: Any) -> Json:
    """Describe the main container: Python code, and chips of a node."""
    made: Json = {
        "name": "main",
        "image": image,
        "command": ["python3", "-c", code],
        "volumeMounts": [{"name": "work", "mountPath": "/work"}],
        **fields,
    }
    if chips:
        made["resources"] = {"limits": {"google.com/tpu": str(chips)}}
    return made


def group(
    name: str, main: Json, *, size: int = 4, policy: str = "None", pod: Json | None = None, **fields: Any
) -> Json:
    """Describe a LeaderWorkerSet with one template for all of its hosts.

    Args:
        name: Its name.
        main: The container of each host.
        size: Hosts.
        policy: What LeaderWorkerSet does when a container starts again (restartPolicy).
        pod: Further fields of the pods' spec.
        fields: ``annotations``, and further fields of spec.leaderWorkerTemplate.
    """
    annotations: Mapping[str, str] = fields.pop("annotations", {})
    spec = {
        "terminationGracePeriodSeconds": 5,
        "containers": [main],
        "volumes": [{"name": "work", "emptyDir": {}}],
        **(pod or {}),
    }
    template = {"size": size, "restartPolicy": policy, "workerTemplate": {"spec": spec}, **fields}
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "spec": {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template},
    }


def exclusive() -> dict[str, str]:
    """Give the annotation with which a group has a node pool for itself."""
    return {f"{LWS}/exclusive-topology": "cloud.google.com/gke-nodepool"}


def living(changes: Iterable[Seen]) -> dict[str, Json]:
    """Give the objects that exist after these changes, by UID."""
    objects: dict[str, Json] = {}
    for seen in changes:
        if seen.type == "DELETED":
            objects.pop(seen.object["metadata"]["uid"], None)
        else:
            objects[seen.object["metadata"]["uid"]] = seen.object
    return objects


def main_status(pod: Json) -> Json:
    """Give the status of a pod's main container; empty before the kubelet has looked at it."""
    statuses = pod.get("status", {}).get("containerStatuses", [])
    found: Json = next((status for status in statuses if status["name"] == "main"), {})
    return found


def is_running(pod: Json) -> bool:
    """Say whether the main container runs, and the pod is not being deleted."""
    return "running" in main_status(pod).get("state", {}) and "deletionTimestamp" not in pod["metadata"]


def all_run(changes: Sequence[Seen], hosts: int) -> bool:
    """Say whether so many pods exist, and all of them run."""
    pods = list(living(changes).values())
    return len(pods) == hosts and all(is_running(pod) for pod in pods)


def all_hold(changes: Sequence[Seen], hosts: int) -> bool:
    """Say whether so many pods run again after their first end."""
    pods = list(living(changes).values())
    return all_run(changes, hosts) and all(main_status(pod)["restartCount"] >= 1 for pod in pods)


def env_of(pod: Json) -> dict[str, str]:
    """Give the variables with plain values of the main container."""
    main = next(c for c in pod["spec"]["containers"] if c["name"] == "main")
    return {entry["name"]: entry["value"] for entry in main.get("env", []) if "value" in entry}


def hosts_of(changes: Iterable[Seen]) -> dict[str, Json]:
    """Give the last state of each pod of a group that was ever bound to a node, by name.

    Of several of one name the first: while a group is taken away its StatefulSet may bring a pod back for a moment, which
    is then deleted too.
    """
    found: dict[str, Json] = {}
    for seen in changes:
        labels = seen.object["metadata"].get("labels", {})
        if f"{LWS}/name" in labels and seen.object["spec"].get("nodeName"):
            found[seen.object["metadata"]["uid"]] = seen.object
    return {pod["metadata"]["name"]: pod for pod in reversed(found.values())}


def environment(pod: Json, container: str = "main") -> dict[str, str]:
    """Give a container's variables as its kubelet makes them: labels of the pod and earlier variables put in."""
    found: dict[str, str] = {}
    chosen = next(c for c in pod["spec"]["containers"] if c["name"] == container)
    for entry in chosen.get("env", []):
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        value = pod["metadata"]["labels"][label[1]] if label else entry.get("value", "")
        found[entry["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found.get(name[1], name[0]), value)
    return found


def uids(pods: Iterable[Json]) -> dict[str, str]:
    """Give the UIDs of pods by name."""
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}
