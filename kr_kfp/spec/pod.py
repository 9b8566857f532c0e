"""The training pod: container, environment, volumes and placement, shared by leader and workers.

Later sources win: what the launcher's own pod has, the component's declaration, then what was set on the task (KFP's
TaskConfig), then what kr_kfp must set itself. A user value under a name of ours never gets this far:
:func:`reserved` is checked before, at declaration and, for the task's settings, at launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kr_kfp.names import MANAGED_BY_LABEL, RUN_LABEL, TASK_LABEL, label_value
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.pathways import USER_VARIABLES, sidecars, user_environment
from kr_kfp.spec.placement import runner_placement, runner_tolerations
from kr_kfp.spec.security import secure
from kr_kfp.spec.step import ConfigKey, EnvVar, Secret, StepSpec
from kr_kfp.wire import OUTCOME_FILE

__all__ = [
    "CONTAINER",
    "FOLDER",
    "LIBRARY",
    "SHM",
    "SHM_VOLUME",
    "VOLUME",
    "WORK",
    "env_entry",
    "reserved",
    "training_pod",
]

Json = dict[str, Any]

CONTAINER = "main"
"""Name of the user's container; statuses are read by this name, never by position."""

FOLDER = "/kr-kfp"
"""Mount of the shared emptyDir."""

LIBRARY = f"{FOLDER}/lib"
"""Where the init container puts kr_kfp."""

WORK = f"{FOLDER}/work"
"""KR_KFP_WORK: marker, outputs and what else the runner keeps."""

VOLUME = "kr-kfp"

SHM, SHM_VOLUME = "/dev/shm", "kr-kfp-shm"  # noqa: S108 - where every program looks for it
"""Shared memory of the pod's own: counts as memory of the pod, and has no size but its limit."""

_HOLD = (
    "trap 'exit 143' TERM; "
    f'if cat "$KR_KFP_WORK/{OUTCOME_FILE}" 2>/dev/null; '
    "then trap 'exit 0' TERM; while sleep 86400 & wait $!; do :; done; fi; "
    'exec "$0" "$@"'
)
"""Before Python: a host that has run prints its outcome and holds until SIGTERM, else this becomes the program that
follows. A shell hears SIGTERM within a millisecond of its start: the group is deleted while the kubelet starts its
hosts again, and the kernel drops a signal for process 1 that has no handler yet, which would cost the whole grace."""

_START = (
    "import os, signal, sys; signal.signal(signal.SIGTERM, lambda *_: os._exit(143)); "
    f"sys.path.insert(0, {LIBRARY!r}); from kr_kfp.runtime.__main__ import main; sys.exit(main(sys.argv[1:]))"
)
"""Before anything else SIGTERM gets a handler here too, for a pod that is deleted while its runner starts."""

_INJECTED = frozenset(
    {
        "LWS_LEADER_ADDRESS",
        "LWS_GROUP_SIZE",
        "LWS_WORKER_INDEX",
        # LWS injects none of its TPU variables if one of the first two is set (lws pkg/utils/accelerators/tpu.go).
        "TPU_WORKER_ID",
        "TPU_WORKER_HOSTNAMES",
        "TPU_NAME",
        "TPU_PROCESS_ADDRESSES",
    }
)
_OURS = frozenset(
    {
        "CLUSTER_SPEC",
        "JAX_COORDINATOR_ADDRESS",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "MEGASCALE_COORDINATOR_ADDRESS",
        "MEGASCALE_NUM_SLICES",
        "MEGASCALE_SLICE_ID",
        "NNODES",
        "NODE_RANK",
        "RANK",
        "WORLD_SIZE",
    }
)


_PATIENCE = 7 * 24 * 3600.0
"""Seconds that Pathways' client waits for its servers where the step waits for capacity without limit."""


def reserved(name: str, backend: str = "lws") -> str:
    """Say who sets this environment variable on hosts of a group; empty if the user may."""
    if name in _INJECTED:
        return "LeaderWorkerSet sets it on every host"
    if backend == "pathways" and name in USER_VARIABLES:
        return "kr_kfp sets it for Pathways"
    if name in _OURS or name.startswith(("KR_KFP_", "KERAS_DISTRIBUTION_")):
        return "kr_kfp sets it on every host"
    return ""


def env_entry(variable: EnvVar) -> Json:
    """Give one entry of ``container.env``."""
    name, value = variable
    if isinstance(value, Secret):
        return {"name": name, "valueFrom": {"secretKeyRef": {"name": value.name, "key": value.key}}}
    if isinstance(value, ConfigKey):
        return {"name": name, "valueFrom": {"configMapKeyRef": {"name": value.name, "key": value.key}}}
    # Kubernetes expands $(NAME) and $$ in values; the author's text shall arrive as it was written.
    return {"name": name, "value": value.replace("$", "$$")}


def training_pod(step: StepSpec, launch: Launch) -> Json:
    """Build the pod template (``metadata`` and ``spec``) of the pods in which the function runs."""
    inherited = launch.inherited
    labels = {
        **inherited.labels,
        **dict(step.labels),
        **_identity_labels(step, launch),
        "sidecar.istio.io/inject": "false",
    }
    annotations = {**inherited.annotations, **dict(step.annotations), "sidecar.istio.io/inject": "false"}
    config = launch.task_config
    spec: Json = {
        **inherited.pod,
        "automountServiceAccountToken": step.api_token,
        "terminationGracePeriodSeconds": 30,
        "containers": [_container(step, launch)],
        "volumes": [
            {"name": VOLUME, "emptyDir": {}},
            *_shm_volumes(step, launch),
            *inherited.volumes,
            *(config.get("volumes") or []),
        ],
    }
    node_selector = runner_placement(step, config.get("nodeSelector") or {})
    tolerated = [*(config.get("tolerations") or []), *runner_tolerations(step)]
    if node_selector:
        spec["nodeSelector"] = node_selector
    if tolerated:
        spec["tolerations"] = tolerated
    if config.get("affinity") and step.pathways is None:
        spec["affinity"] = config["affinity"]
    if launch.init:
        spec["initContainers"] = [
            {
                # Image pull policy and security context, as the launcher has them itself.
                **inherited.container,
                "name": VOLUME,
                "image": inherited.launcher_image or step.launcher_image or step.image,
                "command": list(launch.init),
                "volumeMounts": [{"name": VOLUME, "mountPath": FOLDER}],
            }
        ]
    if step.pathways is not None:
        spec["initContainers"] = [*spec.get("initContainers", []), *sidecars(step, launch)]
    if step.service_account:
        spec["serviceAccountName"] = step.service_account
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": secure(step, spec, users=(CONTAINER, VOLUME)),
    }


def _shm_volumes(step: StepSpec, launch: Launch) -> list[Json]:
    """Give the volume of ``/dev/shm``; none where the task brings one, by its settings or on the launcher's pod."""
    mounts = [*launch.inherited.mounts, *(launch.task_config.get("volumeMounts") or ())]
    taken = any(str(mount.get("mountPath", "")).rstrip("/") == SHM for mount in mounts)
    if not step.shm or taken:
        return []
    limit = {"sizeLimit": step.shm_size} if step.shm_size else {}
    return [{"name": SHM_VOLUME, "emptyDir": {"medium": "Memory", **limit}}]


def _identity_labels(step: StepSpec, launch: Launch) -> dict[str, str]:
    return {
        MANAGED_BY_LABEL: "kr-kfp",
        RUN_LABEL: label_value(launch.run),
        TASK_LABEL: label_value(launch.task or step.name),
    }


def _container(step: StepSpec, launch: Launch) -> Json:
    config = launch.task_config
    container: Json = {
        "image": step.image,
        **launch.inherited.container,
        "name": CONTAINER,
        # Not by PYTHONPATH, which would hide the image's own.
        "command": ["sh", "-c", _HOLD, "python3", "-c", _START, "host"],
        "args": list(launch.payload),
        "env": _environment(step, launch),
        "volumeMounts": [
            {"name": VOLUME, "mountPath": FOLDER},
            *({"name": volume["name"], "mountPath": SHM} for volume in _shm_volumes(step, launch)),
            *launch.inherited.mounts,
            *(config.get("volumeMounts") or []),
        ],
    }
    resources = _resources(step, config.get("resources") or {})
    if resources:
        container["resources"] = resources
    return container


def _environment(step: StepSpec, launch: Launch) -> list[Json]:
    """Order matters: ``$(LWS_...)`` expands since the LWS webhook puts its variables first (lws pod_utils.go)."""
    ours: list[tuple[str, str]] = [
        ("KR_KFP_RUN", launch.run),
        ("KR_KFP_TASK", launch.task),
        ("KR_KFP_FUNCTION", step.name),
        ("KR_KFP_ATTEMPT", str(launch.attempt)),
        ("KR_KFP_HOSTS", str(step.runners)),
        ("KR_KFP_DEVICES", str(step.devices // step.runners)),
        ("KR_KFP_CHECKPOINT_DIR", launch.checkpoint_dir),
        ("KR_KFP_WORK", WORK),
        ("KR_KFP_LIBRARY", LIBRARY),
        *_peers(step, launch),
    ]
    entries = [env_entry(variable) for variable in step.env]
    entries += launch.task_config.get("env") or []
    result = list({entry["name"]: entry for entry in entries}.values())
    names = {entry["name"] for entry in result}
    # Names of ours that a user may set too are those of which only the default is ours.
    result += [{"name": name, "value": value} for name, value in ours if name not in names]
    result += launch.env
    if step.slices > 1 and step.backend != "pathways":
        label = "metadata.labels['leaderworkerset.sigs.k8s.io/subgroup-index']"
        result.append({"name": "MEGASCALE_SLICE_ID", "valueFrom": {"fieldRef": {"fieldPath": label}}})
    return result


def _peers(step: StepSpec, launch: Launch) -> list[tuple[str, str]]:
    """Give what leads a host to the others: for Pathways the proxy, else one leader for each framework."""
    if step.backend == "pathways":
        return user_environment(step, step.capacity_timeout or _PATIENCE)
    peers = [
        ("JAX_COORDINATOR_ADDRESS", f"$(LWS_LEADER_ADDRESS):{launch.ports.jax}"),
        ("MASTER_ADDR", "$(LWS_LEADER_ADDRESS)"),
        ("MASTER_PORT", str(launch.ports.torch)),
    ]
    if step.slices > 1:
        peers += [
            ("MEGASCALE_NUM_SLICES", str(step.slices)),
            ("MEGASCALE_COORDINATOR_ADDRESS", f"$(LWS_LEADER_ADDRESS):{launch.ports.megascale}"),
        ]
    return peers


def _resources(step: StepSpec, given: Mapping[str, Any]) -> Json:
    resources: Json = {kind: dict(values) for kind, values in given.items() if values}
    if step.pathways is not None:
        # The head has no accelerator; a count on the task was compared with the shape's before.
        for values in resources.values():
            values.pop(step.shape.resource if step.shape else "", None)
    elif step.shape:
        for kind in ("limits", "requests"):
            resources.setdefault(kind, {})[step.shape.resource] = str(step.shape.chips_per_host)
    return resources
