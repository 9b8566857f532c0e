"""Kubernetes' Pod Security Standard ``restricted``, as the admission plugin checks it (pod-security-admission v1.36).

Written from the standard's text (kubernetes.io/docs/concepts/security/pod-security-standards), independent of what
kr_kfp sets; the real cluster's namespace that enforces it has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["violations"]

Json = dict[str, Any]

_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
_SECCOMP = {"RuntimeDefault", "Localhost"}


def violations(spec: Json) -> list[str]:
    """Give everything in a pod spec that a namespace with ``enforce: restricted`` refuses."""
    pod = spec.get("securityContext") or {}
    found = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    for volume in spec.get("volumes") or ():
        kinds = set(volume) - {"name"}
        found += [f"volume {volume['name']}: {kind}" for kind in sorted(kinds - _VOLUMES)]
    if pod.get("runAsUser") == 0:
        found.append("the pod runs as user 0")
    found += [f"sysctl {sysctl['name']}" for sysctl in pod.get("sysctls") or ()]
    for key in ("initContainers", "containers"):
        for container in spec.get(key) or ():
            found += [f"{container['name']}: {what}" for what in _container(container, pod)]
    return found


def _container(container: Json, pod: Json) -> Iterator[str]:
    own = container.get("securityContext") or {}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "capabilities are not dropped"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield "capabilities are added"
    if not own.get("runAsNonRoot", pod.get("runAsNonRoot", False)):
        yield "runAsNonRoot is not true"
    if own.get("runAsUser") == 0:
        yield "runs as user 0"
    profile = (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type")
    if profile not in _SECCOMP:
        yield f"seccompProfile is {profile}"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield f"hostPort {port['hostPort']}"
