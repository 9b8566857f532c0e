"""Pathways in a LeaderWorkerSet: one CPU head that runs the function once, TPU workers that run the server.

```
pod 0, the head (leaderTemplate)                     pods 1..n, the TPU hosts (workerTemplate)
  init container  kr-kfp                               init container  colocated-python-sidecar   if asked for
  native sidecar  pathways-rm     server image         container       pathways-worker            server image
  native sidecar  pathways-proxy  proxy_server image
  container       main            the user's image
```

Native sidecars are init containers with ``restartPolicy: Always``: they start before ``main`` and do not count as its
end. The workers never see user code, nor anything of kr_kfp but the number of the attempt.

Nothing here could be run against real servers: there is no TPU and no public server image where this was written. Every
value was taken field by field from projects that run them, with the place beside it:

- PWJ: google/pathways-job @c0cc759, ``internal/controller/pathwaysjob_controller.go`` (a JobSet)
- XPK: AI-Hypercomputer/xpk @367c838, ``src/xpk/templates/pathways_workload_create.yaml.j2`` (a JobSet)
- PWU: pathwaysutils 0.1.13, ``experimental/gke/jobset.py`` (a JobSet)
- AXL: apple/axlearn @34aed43, ``axlearn/cloud/gcp/pathways_utils.py`` (JobSet and LWS)
- SMP: GoogleCloudPlatform/kubernetes-engine-samples @2b50365, ``ai-ml/llm-serving-tpus-jetstream/pathways`` (LWS)
"""

from __future__ import annotations

import re
from typing import Any

from kr_kfp.names import ATTEMPT_ENV, PATHWAYS_ENV
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.placement import placement, tolerations
from kr_kfp.spec.security import secure
from kr_kfp.spec.step import RUN_TIME_SCRATCH, Pathways, StepSpec

__all__ = [
    "COLOCATED",
    "PROXY",
    "RESOURCE_MANAGER",
    "SIDECARS",
    "USER_VARIABLES",
    "WORKER",
    "instance_type",
    "jax_of",
    "needed",
    "server_image",
    "sidecars",
    "user_environment",
    "worker_pod",
]

Json = dict[str, Any]

RESOURCE_MANAGER = "pathways-rm"
PROXY = "pathways-proxy"
WORKER = "pathways-worker"
COLOCATED = "colocated-python-sidecar"
"""Names of the containers, as XPK-T:66,105,178 and PWU:944 have them."""

SIDECARS = (RESOURCE_MANAGER, PROXY)
"""Containers of the head that run no code of ours: if one of them ends, the group is broken."""

_PROXY_PORT = 29000  # PWJ:58; PWU and XPK-T:96 have the same
_RM_PORT = 29001  # PWJ:59, and 29002 is exposed beside it (PWJ:604)
_WORKER_PORT = 29005  # PWJ:60, and 29006 beside it (PWJ:752); AXL has 29001, which another pod may use too
_TPU_VM_PORT = 8471  # between the hosts of a slice (PWJ:752, XPK-T:236)
_MXLA_PORT = 8080  # MXLA coordinator (PWJ:752, XPK-T:238)
_COLOCATED_PORT = 50051  # PWJ:62,672

_SHARED = "shared-tmp"
"""Volume of /tmp on the workers. PWJ:753-774 mounts the node's /tmp; an emptyDir is shared by the containers of a pod
just as well, and hostPath is forbidden by every pod security profile but ``privileged``."""

_SHARED_MEMORY = "shared-memory"
_SHARED_MEMORY_PATH = "/pathways-shm"
"""Between worker and colocated Python (PWU:944-1010); the folder's name is free."""

_SLICE_LABEL = "metadata.labels['leaderworkerset.sigs.k8s.io/subgroup-index']"

_HEAD = "$(LWS_LEADER_ADDRESS)"
"""The head's name: LWS puts the variable first in every container (lws pkg/utils/pod/pod_utils.go)."""

USER_VARIABLES = frozenset(
    {
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS",
        "JAX_BACKEND_TARGET",
        "JAX_PLATFORMS",
        "PATHWAYS_HEAD",
        "XCLOUD_ENVIRONMENT",
    }
)
"""What kr_kfp sets for user code on the head; the first three are there for no other container but the proxy."""

_JAX_IN_TAG = re.compile(r"jax[-_]v?(\d+\.\d+\.\d+)")


def server_image(pathways: Pathways, name: str = "server") -> str:
    """Name an image; all have the one tag, since client, proxy, manager and workers must fit one another."""
    return f"{pathways.images}/{name}:{pathways.version}"


def jax_of(pathways: Pathways) -> str:
    """Give the JAX version that the servers are made for; empty if neither ``jax`` nor the tag says it.

    Tags are ``jax-0.5.3`` (Google's documentation, SMP) or ``20260128-jax_0.9.0`` (AXL:60-63).
    """
    if pathways.jax:
        return pathways.jax
    found = _JAX_IN_TAG.search(pathways.version or "")
    return found[1] if found else ""


def needed(step: StepSpec) -> Pathways:
    """Give the Pathways settings of a step that has them.

    Raises:
        ValueError: If it has none, which a declared step never does.
    """
    if step.pathways is None:
        msg = f"step {step.name!r} has backend {step.backend!r} and no pathways settings"
        raise ValueError(msg)
    return step.pathways


def _scratch(step: StepSpec, launch: Launch) -> str:
    return launch.scratch or needed(step).scratch or RUN_TIME_SCRATCH


def user_environment(step: StepSpec, patience: float) -> list[tuple[str, str]]:
    """Give what the user container alone gets (PWJ:889-904; the insecure channel within the pod: PWU:871-875).

    Args:
        step: The step.
        patience: Seconds that the client waits for the proxy (pathwaysutils ``proxy_backend.py:27-29``): the workers'
            nodes may come later than the head's.
    """
    return [
        ("JAX_PLATFORMS", "proxy"),
        ("JAX_BACKEND_TARGET", f"grpc://localhost:{_PROXY_PORT}"),
        ("XCLOUD_ENVIRONMENT", "GCP"),
        ("PATHWAYS_HEAD", _HEAD),
        ("IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "true"),
        ("PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS", str(int(patience))),
        (PATHWAYS_ENV, server_image(needed(step))),
        ("KR_KFP_SLICES", str(step.slices)),
        ("KR_KFP_PATHWAYS_JAX", jax_of(needed(step))),
        ("KR_KFP_PATHWAYS_ELASTIC", str(needed(step).elastic_slices)),
        ("KR_KFP_PATHWAYS_COLOCATED", needed(step).colocated_python or ""),
    ]


def sidecars(step: StepSpec, launch: Launch) -> list[Json]:
    """Give resource manager and proxy, the head's native sidecars (PWJ:850-877)."""
    pathways = needed(step)
    scratch = f"--gcs_scratch_location={_scratch(step, launch)}"
    manager = _server(
        RESOURCE_MANAGER,
        server_image(pathways),
        [  # PWJ:573-583
            f"--server_port={_RM_PORT}",
            scratch,
            "--node_type=resource_manager",
            f"--instance_count={step.slices}",
            f"--instance_type={instance_type(step)}",
        ],
        [("HOST_ADDRESS", _HEAD), ("TPU_SKIP_MDS_QUERY", "true")],  # AXL:1349-1358, SMP
        (_RM_PORT, _RM_PORT + 1),
    )
    proxy = _server(
        PROXY,
        server_image(pathways, "proxy_server"),
        [  # PWJ:620-634
            f"--server_port={_PROXY_PORT}",
            f"--resource_manager_address={_HEAD}:{_RM_PORT}",
            scratch,
            *([f"--num_elastic_slices={pathways.elastic_slices}"] if pathways.elastic_slices else []),
            *(["--sidecar_name=external"] if pathways.colocated_python else []),  # AXL:631-632
            *pathways.xla_flags,
        ],
        [("PATHWAYS_HEAD", _HEAD), ("IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "true")],  # PWU:351-366
        (_PROXY_PORT,),
    )
    for container, amounts in ((manager, pathways.resource_manager), (proxy, pathways.proxy)):
        container["restartPolicy"] = "Always"
        container["resources"] = {"limits": dict(amounts), "requests": dict(amounts)}
    return [manager, proxy]


def instance_type(step: StepSpec) -> str:
    """Give what the resource manager calls a slice, such as ``tpuv5:2x2x4`` (PWJ:71-84, PWU:58-71)."""
    return f"{step.shape.pathways_type}:{step.shape.topology}" if step.shape else ""


def worker_pod(step: StepSpec, launch: Launch, metadata: Json) -> Json:
    """Build the pod template of the TPU hosts.

    What was set on the task about nodes (selector, affinity, tolerations) is about them; its resources, environment
    and volumes are about user code, on the head.

    Args:
        step: The step.
        launch: What this launch adds.
        metadata: Labels and annotations, the head's own.
    """
    config = launch.task_config
    pathways = needed(step)
    inherited = dict(launch.inherited.pod)
    if step.pod_security == "kfp":
        # Meant for user code; the servers are left as those who publish them run them.
        inherited.pop("securityContext", None)
    spec: Json = {
        **inherited,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 30,
        "containers": [_worker(step, launch)],
        "volumes": [{"name": _SHARED, "emptyDir": {}}],
        "nodeSelector": {**(config.get("nodeSelector") or {}), **placement(step)},
        "tolerations": [*(config.get("tolerations") or []), *tolerations(step)],
    }
    if config.get("affinity"):
        spec["affinity"] = config["affinity"]
    if pathways.colocated_python:
        spec["initContainers"] = [_colocated(pathways.colocated_python)]
        spec["volumes"].append({"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory"}})
    if step.service_account:
        spec["serviceAccountName"] = step.service_account
    return {"metadata": metadata, "spec": secure(step, spec, users=())}


def _worker(step: StepSpec, launch: Launch) -> Json:
    pathways = needed(step)
    arguments = [  # PWJ:700-704
        f"--server_port={_WORKER_PORT}",
        f"--resource_manager_address={_HEAD}:{_RM_PORT}",
        f"--gcs_scratch_location={_scratch(step, launch)}",
    ]
    env = [
        (ATTEMPT_ENV, str(launch.attempt)),
        # PWJ:717-728; those of JobSet have no counterpart here.
        ("TPU_MIN_LOG_LEVEL", "0"),
        ("TF_CPP_MIN_LOG_LEVEL", "0"),
        ("XCLOUD_ENVIRONMENT", "GCP"),
        ("PATHWAYS_HEAD", _HEAD),
    ]
    if step.slices > 1:
        env += [
            ("MEGASCALE_GRPC_ENABLE_XOR_TRACER", "false"),
            ("MEGASCALE_NUM_SLICES", str(step.slices)),
            ("MEGASCALE_COORDINATOR_ADDRESS", _HEAD),
        ]
    mounts = [{"name": _SHARED, "mountPath": "/tmp"}]  # noqa: S108 - the server's own folder
    if pathways.colocated_python:  # PWU:944-1010
        arguments.append(f"--cloud_pathways_sidecar_shm_directory={_SHARED_MEMORY_PATH}")
        env.append(("CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY", _SHARED_MEMORY_PATH))
        mounts.append({"name": _SHARED_MEMORY, "mountPath": _SHARED_MEMORY_PATH})
    ports = (_WORKER_PORT, _WORKER_PORT + 1, _TPU_VM_PORT, _MXLA_PORT)
    container = _server(WORKER, server_image(pathways), arguments, env, ports)
    if step.slices > 1:
        container["env"].append({"name": "MEGASCALE_SLICE_ID", "valueFrom": {"fieldRef": {"fieldPath": _SLICE_LABEL}}})
    container["volumeMounts"] = mounts
    if step.shape:
        chips = {step.shape.resource: str(step.shape.chips_per_host)}
        container["resources"] = {"limits": chips, "requests": dict(chips)}
    return container


def _colocated(image: str) -> Json:
    """Give the sidecar that runs user functions beside the worker (XPK-T:167-185, PWU:944-1010)."""
    container = _server(
        COLOCATED,
        image,
        [],
        [
            ("GRPC_SERVER_ADDRESS", f"0.0.0.0:{_COLOCATED_PORT}"),
            ("CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY", _SHARED_MEMORY_PATH),
        ],
        (_COLOCATED_PORT,),
    )
    container["restartPolicy"] = "Always"
    container["volumeMounts"] = [
        {"name": _SHARED, "mountPath": "/tmp"},  # noqa: S108 - shared with the server
        {"name": _SHARED_MEMORY, "mountPath": _SHARED_MEMORY_PATH},
    ]
    return container


def _server(name: str, image: str, arguments: list[str], env: list[tuple[str, str]], ports: tuple[int, ...]) -> Json:
    """Give a container of an image whose entry point is the program.

    The pull policy is left to Kubernetes (Always for ``latest``, else IfNotPresent); PWJ:601 always pulls since its
    default tag moves.
    """
    container: Json = {"name": name, "image": image}
    if arguments:
        container["args"] = arguments
    container["env"] = [{"name": key, "value": value} for key, value in env]
    container["ports"] = [{"containerPort": port, "protocol": "TCP"} for port in ports]
    return container
