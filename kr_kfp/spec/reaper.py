"""The CronJob that deletes left-over groups (``kr-kfp install --reaper``), with an account and a role of its own. Pure.

It runs ``python3 -m kr_kfp.runtime reap``, which the launcher's image has. Its account may delete groups and look at
what decides about them, in its own namespace, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kr_kfp.names import MANAGED_BY_LABEL
from kr_kfp.spec.rights import MANAGER, REAPER, Account, Rule, binding, role

__all__ = ["RULES", "SCHEDULE", "reaper"]

Json = dict[str, Any]

SCHEDULE = "*/10 * * * *"
"""Every ten minutes (``spec.schedule`` of a CronJob, ``batch/v1``)."""

RULES = (
    Rule(group="leaderworkerset.x-k8s.io", resources=("leaderworkersets",), verbs=("get", "list", "delete")),
    Rule(group="argoproj.io", resources=("workflows",), verbs=("get", "list")),
    Rule(resources=("pods",), verbs=("list",)),
    Rule(group="coordination.k8s.io", resources=("leases",), verbs=("get",)),
)
"""What the reaper may do, in the namespace of the groups."""

_USER = 65532
"""The user of the launcher's image (Dockerfile)."""


def reaper(namespaces: Iterable[str], *, image: str, schedule: str = SCHEDULE) -> tuple[Json, ...]:
    """Build the objects of a reaper for each namespace.

    Args:
        namespaces: Where the groups are.
        image: An image with kr_kfp and its client of Kubernetes: the launcher's.
        schedule: When it runs, as cron says it, in the time zone of the cluster's controller.

    Returns:
        Account, role, binding and CronJob, in the order in which they are made.
    """
    made: list[Json] = []
    for namespace in dict.fromkeys(namespaces):
        account = Account(namespace=namespace, name=REAPER)
        made += [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(namespace)},
            role(REAPER, RULES, namespace),
            binding(REAPER, account, f"{REAPER}:{REAPER}", namespace),
            _cron_job(namespace, image, schedule),
        ]
    return tuple(made)


def _metadata(namespace: str) -> Json:
    return {"name": REAPER, "namespace": namespace, "labels": {MANAGED_BY_LABEL: MANAGER}}


def _cron_job(namespace: str, image: str, schedule: str) -> Json:
    # As KFP says it of its own pods: no mesh. A sidecar would keep the job from ending.
    mesh = {"sidecar.istio.io/inject": "false"}
    container = {
        "name": "reap",
        "image": image,
        "command": ["python3", "-m", "kr_kfp.runtime", "reap", namespace],
        # Namespaces with a quota refuse pods that name none. It takes 30 MB and 0.3 s of a processor (measured).
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    pod = {
        "serviceAccountName": REAPER,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "runAsUser": _USER, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    job = {
        "backoffLimit": 0,  # the next one tries again
        "activeDeadlineSeconds": 300,
        "template": {"metadata": {"labels": {**mesh, MANAGED_BY_LABEL: MANAGER}, "annotations": mesh}, "spec": pod},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": _metadata(namespace),
        "spec": {
            "schedule": schedule,
            "concurrencyPolicy": "Forbid",
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {"spec": job},
        },
    }
