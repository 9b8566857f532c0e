"""What pods of a group may do: as KFP's own executors by default, or as the ``restricted`` profile demands.

Two profiles:

- ``kfp``: what KFP gives the pods of its own steps (kubeflow/pipelines @7b70c7b95f
  ``backend/src/v2/compiler/argocompiler/security_context.go``, applySecurityContextToExecutorTemplate): no more
  privileges than at the start, no capabilities, the runtime's seccomp profile; the image's own user, which may be root.
  Pathways' servers are no code of a user, and are left as those who publish them run them.
- ``restricted``: Kubernetes' Pod Security Standard of that name, for every container of every pod. A user other than
  root is named, since most images say none.

Neither mounts the root file system read-only, so that ``/tmp`` stays writable. Where a user without a home folder
writes (pip, caches, KFP's local copies of artifacts) KFP mounts emptyDirs; so does this (``container.go``, scratch).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kr_kfp.spec.step import StepSpec

__all__ = ["SCRATCH", "USER", "secure"]

Json = dict[str, Any]

USER = 1000
"""User and group of ``restricted``, where the launcher's pod has none: any but 0 will do."""

SCRATCH = {
    "gcs-scratch": "/gcs",
    "s3-scratch": "/s3",
    "minio-scratch": "/minio",
    "dot-local-scratch": "/.local",
    "dot-cache-scratch": "/.cache",
    "dot-config-scratch": "/.config",
}
"""KFP's emptyDirs and where it mounts them (argocompiler/container.go): a user without an entry in /etc/passwd has / as
home folder, and pip installs into ``~/.local`` there."""

_SECCOMP = {"seccompProfile": {"type": "RuntimeDefault"}}
_CONFINED: Json = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **_SECCOMP}


def secure(step: StepSpec, spec: Json, users: Iterable[str]) -> Json:
    """Give a pod spec with security contexts, and with folders that any user can write to.

    Args:
        step: The step; ``pod_security`` chooses the profile.
        spec: The pod spec; what it says already, as the launcher's pod had it, stays where the profile allows it.
        users: Names of the containers that run code of the user's or of kr_kfp.
    """
    names = set(users)
    restricted = step.pod_security == "restricted"
    secured = dict(spec)
    if restricted:
        secured["securityContext"] = _restricted_pod(spec.get("securityContext") or {})
    for key in ("initContainers", "containers"):
        if spec.get(key):
            secured[key] = [
                _container(container, spec, mine=container["name"] in names, restricted=restricted)
                for container in spec[key]
            ]
    taken = {volume["name"] for volume in spec.get("volumes") or ()}
    if names:
        added = [{"name": name, "emptyDir": {}} for name in SCRATCH if name not in taken]
        secured["volumes"] = [*(spec.get("volumes") or []), *added]
    return secured


def _restricted_pod(given: Json) -> Json:
    ids = {key: given.get(key) or USER for key in ("runAsUser", "runAsGroup", "fsGroup")}
    return {**given, **ids, "runAsNonRoot": True, **_SECCOMP}


def _container(container: Json, spec: Json, *, mine: bool, restricted: bool) -> Json:
    given = container.get("securityContext") or {}
    changes: Json = {}
    if restricted:
        # User 0 and privileges of its own would be refused.
        kept = {key: value for key, value in given.items() if key != "privileged" and (key, value) != ("runAsUser", 0)}
        changes["securityContext"] = {**kept, "runAsNonRoot": True, **_CONFINED}
    elif mine:
        changes["securityContext"] = {**_CONFINED, **given}
    if mine:
        mounts = container.get("volumeMounts") or []
        paths = {str(mount.get("mountPath", "")).rstrip("/") for mount in mounts}
        taken = {volume["name"] for volume in spec.get("volumes") or ()}
        added = [
            {"name": name, "mountPath": path}
            for name, path in SCRATCH.items()
            if path not in paths and name not in taken
        ]
        changes["volumeMounts"] = [*mounts, *added]
    return {**container, **changes}
