"""What the LeaderWorkerSet controller and its webhook do: a group -> the pods it wants. Pure.

Mirrors kubernetes-sigs/lws at 060ab4d (pkg/webhooks/pod_webhook.go, pkg/utils/pod/pod_utils.go,
pkg/utils/accelerators/tpu.go) for one group (``replicas`` 0 or 1), with this machine in place of every host name.
"""

from __future__ import annotations

import copy
from typing import Any

from kr_kfp.errors import ClusterError

__all__ = [
    "LABEL",
    "MAIN",
    "check",
    "main_container",
    "merge_patch",
    "pod_name",
    "size",
    "stands_idle",
    "wants_pods",
    "webhook_pod",
]

Json = dict[str, Any]

LABEL = "leaderworkerset.sigs.k8s.io"
"""As in kr_kfp.spec.leaderworkerset, whose imports would cost the supervisor a fifth of its start."""

MAIN = "main"
"""Name of the container that is run; others of the pod are not."""

ADDRESS = "127.0.0.1"

_TPU = "google.com/tpu"
_TPU_PORT = 8476


def check(manifest: Json) -> None:
    """Refuse a LeaderWorkerSet that the local cluster cannot run.

    Raises:
        ClusterError: Naming every field that is wrong, with status 422 as an API server does.
    """
    spec = manifest.get("spec") or {}
    template = spec.get("leaderWorkerTemplate") or {}
    wrong = []
    if spec.get("replicas", 1) not in (0, 1):
        wrong.append(f"spec.replicas: {spec['replicas']!r}; the local cluster runs one group")
    count = template.get("size", 1)
    if not isinstance(count, int) or count < 1:
        wrong.append(f"spec.leaderWorkerTemplate.size: {count!r}; must be 1 or more")
    # Workers of a leader with a template of its own may be servers, of which there are no images here.
    role = "leaderTemplate" if template.get("leaderTemplate") else "workerTemplate"
    containers = ((template.get(role) or {}).get("spec") or {}).get("containers") or []
    if all(container.get("name") != MAIN for container in containers):
        wrong.append(f"spec.leaderWorkerTemplate.{role}.spec.containers: none is named {MAIN!r}")
    if wrong:
        raise ClusterError("\n".join(["invalid LeaderWorkerSet:", *wrong]), status=422, reason="Invalid")


def wants_pods(group: Json) -> bool:
    """Tell whether the group is to have pods."""
    return "deletionTimestamp" not in group["metadata"] and bool(group["spec"].get("replicas", 1))


def size(group: Json) -> int:
    """Give the number of pods of a group."""
    return int(group["spec"]["leaderWorkerTemplate"].get("size", 1))


def pod_name(group: str, index: int) -> str:
    """Name a pod: the leader is index 0."""
    return f"{group}-0-{index}" if index else f"{group}-0"


def main_container(pod_spec: Json) -> Json:
    """Give the container that is run."""
    found: Json = next(c for c in pod_spec["containers"] if c.get("name") == MAIN)
    return found


def stands_idle(pod_spec: Json) -> bool:
    """Tell whether a pod has nothing that can be run here, as Pathways' workers: it is shown as running."""
    return all(container.get("name") != MAIN for container in pod_spec["containers"])


def webhook_pod(group: Json, index: int) -> Json:
    """Build the pod that LWS asks for, as it is after LWS's webhook: labels and injected variables included.

    Args:
        group: The LeaderWorkerSet.
        index: 0 for the leader, which has ``leaderTemplate`` if there is one.

    Returns:
        ``metadata`` without UID and times, and ``spec``.
    """
    template = group["spec"]["leaderWorkerTemplate"]
    role = "leaderTemplate" if index == 0 and template.get("leaderTemplate") else "workerTemplate"
    given = copy.deepcopy(template[role])
    metadata, name = given.get("metadata") or {}, group["metadata"]["name"]
    labels = {
        **(metadata.get("labels") or {}),
        f"{LABEL}/name": name,
        f"{LABEL}/group-index": "0",
        f"{LABEL}/worker-index": str(index),
    }
    subgroup = _subgroup(template, index)
    if subgroup is not None:
        labels[f"{LABEL}/subgroup-index"] = str(subgroup)
    spec = {**given["spec"], "nodeName": "local"}
    for container in spec["containers"]:
        container["env"] = _environment(group, container, index)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name(name, index),
            "namespace": "local",
            "labels": labels,
            "annotations": dict(metadata.get("annotations") or {}),
        },
        "spec": spec,
    }


def _subgroup(template: Json, index: int) -> int | None:
    """Give a pod's sub-group; None without ``subGroupPolicy``, and for a leader that is in none."""
    policy = template.get("subGroupPolicy") or {}
    members = policy.get("subGroupSize")
    if not members:
        return None
    if index == 0:
        return None if policy.get("subGroupPolicyType") == "LeaderExcluded" else 0
    count = template.get("size", 1)
    # A leader beside the sub-groups of the workers shifts these by one.
    return int((index - 1) // members if (count - 1) % members == 0 and count % members else index // members)


def _environment(group: Json, container: Json, index: int) -> list[Json]:
    """Put LWS's variables first, so that the user's may refer to them, and the TPU's last."""
    first = {
        "LWS_LEADER_ADDRESS": ADDRESS,
        "LWS_GROUP_SIZE": str(size(group)),
        "LWS_WORKER_INDEX": str(index),
    }
    given: list[Json] = container.get("env") or []
    entries: dict[str, Json] = {name: {"name": name, "value": value} for name, value in first.items()}
    for entry in [*given, *_tpu_variables(group, container, index)]:
        entries.setdefault(entry["name"], entry)
    return list(entries.values())


def _tpu_variables(group: Json, container: Json, index: int) -> list[Json]:
    """Give what tells libtpu its peers; nothing if the user set one of the first two."""
    given = {entry["name"]: entry.get("value", "") for entry in container.get("env") or ()}
    if not _requests_tpu(container) or given.keys() & {"TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"}:
        return []
    members = _tpu_members(group, index)
    # All hosts share one address here, so each needs a port of its own where LWS gives all of them the same.
    port = given.get("TPU_PROCESS_PORT", "")
    ports = [port or str(_TPU_PORT + member) for member in members]
    values = {
        "TPU_WORKER_HOSTNAMES": ",".join(ADDRESS for _ in members),
        "TPU_WORKER_ID": str(members.index(index)),
        "TPU_NAME": pod_name(group["metadata"]["name"], 0),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{ADDRESS}:{port}" for port in ports),
        "TPU_PROCESS_PORT": ports[members.index(index)],
    }
    return [{"name": name, "value": value} for name, value in values.items()]


def _tpu_members(group: Json, index: int) -> list[int]:
    """List the pods of a pod's slice: of its sub-group, or of the group; without a leader that has no TPU."""
    template = group["spec"]["leaderWorkerTemplate"]
    leader = template.get("leaderTemplate") or template["workerTemplate"]
    first = 0 if any(_requests_tpu(container) for container in leader["spec"]["containers"]) else 1
    mine = _subgroup(template, index)
    return [member for member in range(first, size(group)) if _subgroup(template, member) == mine]


def _requests_tpu(container: Json) -> bool:
    resources = container.get("resources") or {}
    return any(str((resources.get(kind) or {}).get(_TPU, "0")) != "0" for kind in ("limits", "requests"))


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386) and give the result; nothing given is changed."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result
