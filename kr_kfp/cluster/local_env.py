"""What the kubelet makes of a container: its command and environment, with what the local cluster adds. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kr_kfp.cluster.local_lws import ADDRESS, main_container
from kr_kfp.spec import local_devices

__all__ = ["POD_UID", "ConfigError", "Start", "container_start", "expand", "quantity"]

Json = dict[str, Any]

POD_UID = "KR_KFP_POD_UID"
"""Variable that marks every process of a pod."""

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(?:([eE][+-]?\d+)|([munkMGTPE]|[KMGTPE]i)?)")
_SUFFIXES = {
    "": 1.0,
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "k": 1e3,
    **{letter: 10.0 ** (3 * power) for power, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", 1)},
}


class ConfigError(Exception):
    """The container cannot be made; the kubelet's reason for it is CreateContainerConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How to start a container.

    Args:
        command: Program and arguments.
        env: Its whole environment.
        memory_limit: Bytes after which it is out of memory; None is no limit.
        grace: Seconds between SIGTERM and SIGKILL (``terminationGracePeriodSeconds``).
    """

    command: tuple[str, ...]
    env: dict[str, str]
    memory_limit: float | None
    grace: float


def container_start(pod: Json, folder: Path, *, launcher_env: Mapping[str, str], pip_lock: Path) -> Start:
    """Say how the pod's container starts.

    Environment, later ones win: the launcher's own, since hosts run on the launcher's machine; the container's; what
    the local cluster sets. ``$(VAR)`` sees the container's alone, as on Kubernetes.

    Args:
        pod: The pod.
        folder: Its folder; ``cwd`` in it is where it runs.
        launcher_env: Environment of the launcher that made the group.
        pip_lock: Lock under which pip runs once for the group.

    Raises:
        ConfigError: If a value cannot be found here.
    """
    container = main_container(pod["spec"])
    fixed = {
        "KR_KFP_LOCAL": "1",
        "KR_KFP_PIP_LOCK": str(pip_lock),
        POD_UID: pod["metadata"]["uid"],
        "KR_KFP_TERMINATION_LOG": str(folder / "termination-log"),
        "KR_KFP_WORK": str(folder / "work"),
        "KR_KFP_ARTIFACTS": str(folder / "artifacts"),
        "PWD": str(folder / "cwd"),
    }
    own = _variables(pod, container, fixed, launcher_env)
    command = [expand(part, own) for part in (*(container.get("command") or ()), *(container.get("args") or ()))]
    if not container.get("command"):
        msg = "container main has no command, and there is no image here whose entry point could be run"
        raise ConfigError(msg)
    # A shell may come first, with the program as its $0.
    program = 3 if command[:2] == ["sh", "-c"] else 0
    if command[program : program + 1] == ["python3"]:
        command[program] = sys.executable
    env = {**launcher_env, **own, **fixed}
    env |= local_devices.environment(env, int(env.get("KR_KFP_DEVICES", "0")))
    limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
    return Start(
        command=tuple(command),
        env=env,
        memory_limit=None if limit is None else quantity(str(limit)),
        grace=float(pod["spec"].get("terminationGracePeriodSeconds", 30)),
    )


def _variables(pod: Json, container: Json, fixed: Mapping[str, str], launcher_env: Mapping[str, str]) -> dict[str, str]:
    """Resolve ``container.env`` in its order (kubernetes/kubernetes pkg/kubelet/kubelet_pods.go)."""
    values: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        kind = next((key for key in ("secretRef", "configMapRef") if key in source), "")
        if kind and not source[kind].get("optional"):
            msg = f"envFrom names {kind} {source[kind].get('name')!r}, which the local cluster cannot read"
            raise ConfigError(msg)
    for entry in container.get("env") or ():
        name = entry["name"]
        if name in fixed:
            values[name] = fixed[name]
        elif entry.get("valueFrom") and not entry.get("value"):
            value = _value_from(name, entry["valueFrom"], pod, launcher_env)
            if value is not None:
                values[name] = value
        else:
            values[name] = expand(entry.get("value") or "", values)
    return values


def _value_from(name: str, source: Json, pod: Json, launcher_env: Mapping[str, str]) -> str | None:
    """Resolve ``valueFrom``; None leaves an optional variable out."""
    if "fieldRef" in source:
        return _field(name, source["fieldRef"]["fieldPath"], pod)
    for kind, what in (("secretKeyRef", "secret"), ("configMapKeyRef", "config map")):
        if kind in source:
            if name in launcher_env:
                return launcher_env[name]
            if source[kind].get("optional"):
                return None
            msg = (
                f"{name} comes from key {source[kind].get('key')!r} of {what} {source[kind].get('name')!r}, which the "
                f"local cluster cannot read. Set {name} in the environment that the pipeline is run in"
            )
            raise ConfigError(msg)
    msg = f"{name}: the local cluster does not know valueFrom.{next(iter(source), '')}"
    raise ConfigError(msg)


def _field(name: str, path: str, pod: Json) -> str:
    metadata = pod["metadata"]
    keyed = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
    if keyed:
        return str((metadata.get(keyed[1]) or {}).get(keyed[2], ""))
    values = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", "default"),
        "status.hostIP": ADDRESS,
        "status.podIP": ADDRESS,
    }
    if path not in values:
        msg = f"{name}: the local cluster does not know fieldRef {path!r}"
        raise ConfigError(msg)
    return str(values[path])


def expand(text: str, values: Mapping[str, str]) -> str:
    """Expand ``$(NAME)`` and ``$$`` as the kubelet does; an unknown name stays as it is written.

    Source: kubernetes/kubernetes third_party/forked/golang/expansion.
    """

    def put(found: re.Match[str]) -> str:
        return "$" if found[1] is None else values.get(found[1], found[0])

    return _REFERENCE.sub(put, text)


def quantity(text: str) -> float:
    """Read a Kubernetes quantity such as ``512Mi``, ``1.5G`` or ``2e9``.

    Raises:
        ConfigError: If it is none.
    """
    found = _QUANTITY.fullmatch(text.strip())
    if found is None:
        msg = f"{text!r} is no quantity"
        raise ConfigError(msg)
    return float(found[1] + (found[2] or "")) * _SUFFIXES[found[3] or ""]
