"""(StepSpec, Launch) -> LeaderWorkerSet, as ``leaderworkerset.x-k8s.io/v1``.

Source of all fields and labels: kubernetes-sigs/lws, ``api/leaderworkerset/v1/leaderworkerset_types.go``.

``restartPolicy: None``: pods of a StatefulSet restart for ever, and with any other policy LWS makes the whole group
anew when a training that has finished is restarted by the kubelet (measured: four complete runs in 12 s). The launcher
alone decides about restarts. ``replicas: 1``: one group is one training.
"""

from __future__ import annotations

from typing import Any

from kr_kfp.names import ATTEMPT_ENV, HOLDER_ANNOTATION, IDENTITY_ANNOTATION
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.pathways import WORKER, worker_pod
from kr_kfp.spec.pod import CONTAINER, training_pod
from kr_kfp.spec.step import StepSpec

__all__ = [
    "API_VERSION",
    "KIND",
    "LABEL",
    "NODE_POOL",
    "OLDEST",
    "attempt_of",
    "build",
    "leaders_of",
    "restart_patch",
    "stop_patch",
]

Json = dict[str, Any]

API_VERSION = "leaderworkerset.x-k8s.io/v1"
KIND = "LeaderWorkerSet"

OLDEST = "0.7.0"
"""Oldest LeaderWorkerSet that can run a step: 0.4.0 brought ``restartPolicy: None`` and LWS_GROUP_SIZE, 0.6.0
LWS_WORKER_INDEX and ``subGroupPolicyType``, 0.7.0 a controller that leaves a group alone which is being deleted
(kubernetes-sigs/lws, tags; api/leaderworkerset/v1, pkg/controllers/leaderworkerset_controller.go ``Reconcile``). Under
0.6.0 a deletion in the foreground never ends: pods are made and deleted for ever (seen on Kubernetes 1.36)."""

LABEL = "leaderworkerset.sigs.k8s.io"
"""Prefix of all labels and annotations of LWS (lws api/leaderworkerset/v1/leaderworkerset_types.go)."""

NODE_POOL = "cloud.google.com/gke-nodepool"


def build(step: StepSpec, launch: Launch) -> Json:
    """Build the manifest of one group.

    Hosts of one TPU slice share one node pool alone (exclusive topology): a multi-host TPU node pool is one slice, a
    single-host one holds many. Slices of a multislice group are sub-groups, each exclusive on its own pool. Pathways'
    head is in no sub-group, since it has no place in a pool of TPUs.
    """
    template = training_pod(step, launch)
    labels = template["metadata"]["labels"]
    annotations = {IDENTITY_ANNOTATION: launch.identity, HOLDER_ANNOTATION: launch.holder}
    single = step.backend == "pathways"
    in_subgroups = step.hosts_per_slice > 1 and (step.slices > 1 or single)
    if step.shape and step.shape.kind == "tpu" and step.hosts_per_slice > 1:
        prefix = "subgroup-exclusive-topology" if in_subgroups else "exclusive-topology"
        annotations[f"{LABEL}/{prefix}"] = NODE_POOL
    group: Json = {"size": step.pods, "restartPolicy": "None", "workerTemplate": template}
    if single:
        group["leaderTemplate"] = template
        group["workerTemplate"] = worker_pod(step, launch, template["metadata"])
    if in_subgroups and not single:
        # LWS 0.9.0 marks workers only: an unmarked leader gets TPU_WORKER_ID=-1 (lws pkg/utils/accelerators/tpu.go).
        template["metadata"]["annotations"][f"{LABEL}/leader-requests-tpus"] = "true"
    if in_subgroups:
        kind = "LeaderExcluded" if single else "LeaderWorker"
        group["subGroupPolicy"] = {"subGroupSize": step.hosts_per_slice, "subGroupPolicyType": kind}
    # Workers of Pathways look for their resource manager at once. Hosts that run the function need one another.
    startup = "LeaderReady" if single else "LeaderCreated"
    metadata: Json = {"name": launch.name, "labels": labels, "annotations": annotations}
    if launch.owners:
        metadata["ownerReferences"] = list(launch.owners)
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata,
        "spec": {"replicas": 1, "startupPolicy": startup, "leaderWorkerTemplate": group},
    }


def attempt_of(pod_spec: Json) -> int:
    """Read the attempt that a pod belongs to from its own spec; 0 if it says none."""
    for container in pod_spec.get("containers") or ():
        if container.get("name") in (CONTAINER, WORKER):
            for entry in container.get("env") or ():
                if entry.get("name") == ATTEMPT_ENV:
                    return int(entry.get("value") or 0)
    return 0


def leaders_of(group: Json) -> int:
    """Give how many leaders LeaderWorkerSet's controller counts (``status.replicas``).

    While it counts one its StatefulSet may bring it back: a controller that was down when the group was stopped has not
    scaled it. After that it counts none from before the last worker is gone (measured, LWS 0.9.0).
    """
    return int((group.get("status") or {}).get("replicas") or 0)


def stop_patch() -> Json:
    """Give the merge patch that takes all pods of the group away and keeps the group: first half of a restart."""
    return {"spec": {"replicas": 0}}


def restart_patch(group: Json, attempt: int) -> Json:
    """Give the merge patch that starts attempt ``attempt``: second half of a restart, when all pods are gone.

    The number goes into the pod template, so that every host knows its attempt from its first moment, and every pod
    tells by its own spec which attempt it belongs to.
    """
    given = group["spec"]["leaderWorkerTemplate"]
    templates = {
        role: {"spec": {"containers": [_in_attempt(c, attempt) for c in given[role]["spec"]["containers"]]}}
        for role in ("leaderTemplate", "workerTemplate")
        if given.get(role)
    }
    return {"spec": {"replicas": 1, "leaderWorkerTemplate": templates}}


def _in_attempt(container: Json, attempt: int) -> Json:
    env = [
        {"name": ATTEMPT_ENV, "value": str(attempt)} if entry.get("name") == ATTEMPT_ENV else entry
        for entry in container.get("env") or ()
    ]
    return {**container, "env": env} if env else container
