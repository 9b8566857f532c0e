"""What is kept of a failed test: every object of its namespace, the logs of its containers, and the cluster's own logs.

It lies under build/cluster-failures/<test>/, where it outlives the namespace and the cluster.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from tests.cluster.places import REPOSITORY, Places
from tests.cluster.rest import ApiError, Rest

FOLDER = REPOSITORY / "build" / "cluster-failures"

_RESOURCES = (
    "pods",
    "leaderworkersets",
    "statefulsets",
    "services",
    "events",
    "configmaps",
    "roles",
    "rolebindings",
    "resourcequotas",
    "workflows",
    "leases",
)

_LOG_TAIL = 2_000_000
"""Bytes of each of the cluster's own logs."""


def keep(rest: Rest, namespace: str, test: str, places: Places) -> Path:
    """Write everything of a namespace to a new folder for this test and give it."""
    folder = FOLDER / re.sub(r"[^\w.-]+", "-", test)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for resource in _RESOURCES:
        try:
            items = rest.items(resource, namespace)
        except ApiError as error:
            (folder / f"{resource}.txt").write_text(str(error), encoding="utf-8")
            continue
        if items:
            (folder / f"{resource}.json").write_text(json.dumps(items, indent=1), encoding="utf-8")
    for pod in rest.items("pods", namespace):
        _keep_logs(rest, namespace, pod["metadata"]["name"], pod["spec"], folder)
    keep_cluster_logs(places, folder / "cluster")
    return folder


def keep_cluster_logs(places: Places, folder: Path) -> None:
    """Copy the ends of what the cluster's own processes printed."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in sorted(places.logs.glob("*.log")):
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL))
            (folder / log.name).write_bytes(file.read())


def _keep_logs(rest: Rest, namespace: str, pod: str, spec: dict[str, list[dict[str, str]]], folder: Path) -> None:
    """Write the logs of a pod's containers, of their present start and of the one before."""
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for previous in (False, True):
            try:
                text = rest.logs(namespace, pod, container=container["name"], previous=previous)
            except (ApiError, OSError):
                continue  # it never started, or its node is gone
            name = f"{pod}.{container['name']}{'.previous' if previous else ''}.log"
            (folder / name).write_text(text, encoding="utf-8")
