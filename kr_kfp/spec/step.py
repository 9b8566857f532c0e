"""The step as a value: what the decorator decided, and all that the launcher needs to know.

A :class:`StepSpec` is made once, at decoration, from arguments that were checked; it is frozen, compares by value and
travels inside the component's command as JSON (:mod:`kr_kfp.wire`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "Backend",
    "ConfigKey",
    "EnvVar",
    "Framework",
    "Gpu",
    "Pathways",
    "PodSecurity",
    "Secret",
    "Shape",
    "StepSpec",
    "Tpu",
]

Backend = Literal["pod", "lws", "pathways"]
Framework = Literal["auto", "jax", "torch", "none"]
Logs = Literal["leader", "all", "none"]
PodSecurity = Literal["kfp", "restricted"]

SERVER_IMAGES = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways"
"""Where Google publishes the Pathways images (google/pathways-job @c0cc759 pathwaysjob_controller.go:66-67)."""

RUN_TIME_SCRATCH = "<given by the pipeline>"
"""Stands for a scratch location that a pipeline input or a task output gives when the step runs."""


@dataclass(frozen=True, slots=True)
class Secret:
    """An environment value read from a Kubernetes Secret; becomes ``valueFrom.secretKeyRef``.

    Args:
        name: The Secret's name, in the namespace of the run.
        key: The key in its data.
    """

    name: str
    key: str


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """An environment value read from a ConfigMap; becomes ``valueFrom.configMapKeyRef``.

    Args:
        name: The ConfigMap's name, in the namespace of the run.
        key: The key in its data.
    """

    name: str
    key: str


EnvVar = tuple[str, "str | Secret | ConfigKey"]


@dataclass(frozen=True, slots=True)
class Tpu:
    """A TPU slice without any doubt about naming.

    Args:
        family: ``v3``, ``v4``, ``v5e``, ``v5p``, ``v6e`` or ``tpu7x``.
        topology: Chips per dimension, such as ``4x4`` or ``2x2x4`` (``cloud.google.com/gke-tpu-topology``).
        machine: The machine type where one topology exists on two machines (v5e and v6e ``2x4``).
    """

    family: str
    topology: str
    machine: str | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """GPUs of one kind.

    Args:
        kind: The GPU's name, such as ``h100`` (``cloud.google.com/gke-accelerator`` follows from it).
        per_host: GPUs on each host (``nvidia.com/gpu``).
    """

    kind: str
    per_host: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pathways:
    """What ``backend="pathways"`` needs to know beyond the step: servers, scratch folder, head.

    Args:
        scratch: ``gs://`` folder for the servers (``--gcs_scratch_location``), in a bucket that exists and that the
            step's account may write to (roles/storage.objectAdmin). In a pipeline it may be a pipeline input or a
            task output, or a text with one in it: ``train.options(pathways=kr_kfp.Pathways(scratch=bucket, ...))``.
        version: The one image tag of all servers and the proxy, such as ``20260423-jax_0.10.0``. There is no default:
            the servers must fit the step's JAX, and a tag that moves drifts away from it.
        jax: The JAX version that the images are made for, where the tag does not end in it (``latest``).
        images: Registry path that holds ``server`` and ``proxy_server``.
        elastic_slices: Slices that may be missing while the step goes on (``--num_elastic_slices``); user code must be
            written for it (``pathwaysutils.elastic``). 0 to ``slices``.
        colocated_python: Image of the colocated Python sidecar on the workers; None runs none.
        xla_flags: Flags such as ``--xla_tpu_...`` for the proxy, which compiles.
        head_selector: Node selector of the head pod; empty takes any node that it fits on.
        resource_manager: cpu and memory of the resource manager, as requests and limits.
        proxy: cpu and memory of the proxy, as requests and limits.
    """

    scratch: str | None = None
    version: str | None = None
    jax: str | None = None
    images: str = SERVER_IMAGES
    elastic_slices: int = 0
    colocated_python: str | None = None
    xla_flags: tuple[str, ...] = ()
    head_selector: Mapping[str, str] = field(default_factory=dict)
    # Limits of google/pathways-job @c0cc759 pathwaysjob_controller.go:605 and :647.
    resource_manager: Mapping[str, str] = field(default_factory=lambda: {"cpu": "8", "memory": "32G"})
    proxy: Mapping[str, str] = field(default_factory=lambda: {"cpu": "16", "memory": "100G"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One accelerator shape: a row of the registry, resolved.

    Args:
        name: How people write it, such as ``v5litepod-16`` or ``h100x8``.
        kind: ``tpu`` or ``gpu``.
        family: ``v5e``, ``h100``, ...
        topology: Chips per dimension for TPU; empty for GPU.
        chips: Chips of the whole slice (TPU), or GPUs of one host (GPU).
        hosts: Hosts of one slice (TPU); 1 for GPU, where ``hosts=`` says how many.
        chips_per_host: What each host requests of ``resource``.
        devices_per_host: Devices that JAX counts on each host; tpu7x has two per chip.
        resource: ``google.com/tpu`` or ``nvidia.com/gpu``.
        label: Value of ``cloud.google.com/gke-tpu-accelerator`` or ``cloud.google.com/gke-accelerator``.
        machine: GKE machine type (``node.kubernetes.io/instance-type``).
        select_machine: Whether the selector must name the machine since label and topology leave doubt.
        pathways_type: Instance type prefix for Pathways; empty where there is none.
        vertex_machine: Vertex AI machine type and accelerator, as in the data; empty where there is none.
        arch: ``arm64`` where the hosts are Arm machines (``kubernetes.io/arch``), for which images must be built.
    """

    name: str
    kind: Literal["tpu", "gpu"]
    family: str
    topology: str
    chips: int
    hosts: int
    chips_per_host: int
    devices_per_host: int
    resource: str
    label: str
    machine: str
    select_machine: bool = False
    pathways_type: str = ""
    vertex_machine: str = ""
    arch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """Everything kr_kfp knows about one step. All durations are in seconds.

    Args:
        name: The component function's name.
        backend: The backend after ``auto`` was resolved.
        reason: Why this backend, in words; goes to the log.
        shape: The accelerator, None for CPU.
        hosts: Hosts with accelerators (or CPUs) of the whole group: slices times hosts per slice.
        slices: TPU slices joined over the data-centre network.
        framework: What the executor initialises before user code.
        processes_per_host: User processes on each host.
        env: Environment of the training containers, in order.
        timeout: Running time summed over attempts; None is without limit.
        capacity_timeout: Until all hosts run; None is without limit.
        start_grace: How long a host may wait for what waiting does not cure; None is the launcher's two minutes.
        finish_grace: How long other hosts may still run after the first ended well.
        terminate_grace: How long the launcher waits for the group to be gone after a terminate.
        max_restarts: Restarts of the whole group after infrastructure loss.
        retry_on: User failures worth a restart: ``oom``, exit codes as decimal text, exception class names.
        spot: Whether the hosts run on spot capacity.
        logs: Whose log the launcher prints.
        cluster: ``kubeconfig[:context]``, ``gke:project/location/name`` or ``local``; None decides by surroundings.
        image: Image of the training containers.
        launcher_image: Image of the launcher and of the init container; None is ``image``.
        checkpoint_root: URI for checkpoints of a step that has no artifact output.
        stream_inputs: Input artifacts that hosts do not fetch, since the function reads them by their ``.uri``.
        requirement: What pip installs where kr_kfp is absent; None installs nothing.
        index_urls: pip's index URLs for it, the first as ``--index-url``.
        trusted_hosts: pip's trusted hosts for it; None trusts the index URLs.
        labels: Labels of the group and its pods.
        annotations: Annotations of the group's pods.
        pathways: Servers, scratch folder and head of a ``pathways`` step; None for other backends.
        shm: Whether ``/dev/shm`` is memory of the pod's own, in place of the container runtime's 64 MB.
        shm_size: Its limit (``emptyDir.sizeLimit``); empty is the pod's memory.
        pod_security: ``kfp`` or ``restricted``, see :mod:`kr_kfp.spec.security`.
        service_account: Account of the group's pods; None is the launcher's.
        api_token: Whether the pods of the function get the account's token for the API server.
    """

    name: str
    backend: Backend = "pod"
    reason: str = ""
    shape: Shape | None = None
    hosts: int = 1
    slices: int = 1
    framework: Framework = "auto"
    processes_per_host: int = 1
    env: tuple[EnvVar, ...] = ()
    timeout: float | None = None
    capacity_timeout: float | None = 3600.0
    start_grace: float | None = None
    finish_grace: float = 300.0
    terminate_grace: float = 60.0
    max_restarts: int = 3
    retry_on: tuple[str, ...] = ()
    spot: bool = False
    logs: Logs = "leader"
    cluster: str | None = None
    image: str = ""
    launcher_image: str | None = None
    checkpoint_root: str | None = None
    stream_inputs: tuple[str, ...] = ()
    requirement: str | None = None
    index_urls: tuple[str, ...] = ()
    trusted_hosts: tuple[str, ...] | None = None
    labels: tuple[tuple[str, str], ...] = field(default=())
    annotations: tuple[tuple[str, str], ...] = field(default=())
    pathways: Pathways | None = None
    shm: bool = False
    shm_size: str = ""
    pod_security: PodSecurity = "kfp"
    service_account: str | None = None
    api_token: bool = False

    @property
    def devices_per_host(self) -> int:
        """Accelerator devices that each host sees; 0 on CPU."""
        return self.shape.devices_per_host if self.shape else 0

    @property
    def devices(self) -> int:
        """Accelerator devices of the whole group; 0 on CPU."""
        return self.devices_per_host * self.hosts

    @property
    def pods(self) -> int:
        """Pods of the group: one for each host, and Pathways' head, which has no accelerator."""
        return self.hosts + 1 if self.backend == "pathways" else self.hosts

    @property
    def runners(self) -> int:
        """Pods in which the function runs: all, or Pathways' head alone."""
        return 1 if self.backend == "pathways" else self.hosts

    @property
    def hosts_per_slice(self) -> int:
        """Hosts of one slice."""
        return self.hosts // self.slices
