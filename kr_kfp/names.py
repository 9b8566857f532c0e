"""Names and labels of the objects that a step makes.

Pure: the same run and task always give the same name, so that a launcher that starts again finds what its
predecessor made. LWS derives pod names, a service, StatefulSets and labels from the name of the LeaderWorkerSet;
it breaks above 51 characters, and above 39 together with Kueue (kubernetes-sigs/lws#410, kubernetes-sigs/kueue#10032).
"""

from __future__ import annotations

import hashlib
import re

__all__ = [
    "ATTEMPT_ENV",
    "GROUP_NAME_LIMIT",
    "HOLDER_ANNOTATION",
    "IDENTITY_ANNOTATION",
    "MANAGED_BY_LABEL",
    "PATHWAYS_ENV",
    "PODS_ANNOTATION",
    "RAN_ANNOTATION",
    "RUN_LABEL",
    "TASK_LABEL",
    "group_name",
    "is_dns1035",
    "label_value",
]

GROUP_NAME_LIMIT = 39
_HASH_LENGTH = 10

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
RAN_ANNOTATION = "kr-kfp.dev/ran-seconds"
RUN_LABEL = "kr-kfp.dev/run"
TASK_LABEL = "kr-kfp.dev/task"
IDENTITY_ANNOTATION = "kr-kfp.dev/identity"
HOLDER_ANNOTATION = "kr-kfp.dev/holder"
PODS_ANNOTATION = "kr-kfp.dev/pods"

ATTEMPT_ENV = "KR_KFP_ATTEMPT"

PATHWAYS_ENV = "KR_KFP_PATHWAYS"
"""Server image with its tag, where the function runs on Pathways."""


def group_name(task: str, identity: str) -> str:
    """Name the LeaderWorkerSet of one task of one run.

    Args:
        task: The task's own name, for people to recognise; cut to what fits.
        identity: What makes the task unique (run and node); only its hash goes into the name.

    Returns:
        A DNS-1035 label of at most 39 characters that ends in ten characters of the hash of both.
    """
    digest = hashlib.sha256(f"{task}\0{identity}".encode()).hexdigest()[:_HASH_LENGTH]
    head = re.sub(r"[^a-z0-9]+", "-", task.lower()).strip("-")
    if not head[:1].isalpha():
        head = f"t-{head}".rstrip("-")
    room = GROUP_NAME_LIMIT - _HASH_LENGTH - 1
    return f"{head[:room].rstrip('-')}-{digest}"


def is_dns1035(name: str, limit: int = GROUP_NAME_LIMIT) -> bool:
    """Tell whether a name is a DNS-1035 label of at most ``limit`` characters."""
    return len(name) <= limit and re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) is not None


def label_value(text: str) -> str:
    """Turn any text into a Kubernetes label value: at most 63 characters, letters and digits at both ends."""
    clean = re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-_.")
    if len(clean) <= 63:
        return clean
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{clean[:54].rstrip('-_.')}-{digest}"
