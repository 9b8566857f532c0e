"""The arguments of ``kr_kfp.component`` beside those of ``dsl.component``: one table of defaults, meaning and reach."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from kr_kfp.spec.step import Backend, ConfigKey, Framework, Gpu, Logs, Pathways, PodSecurity, Secret, Tpu

__all__ = ["DEFAULTS", "MAX_RESTARTS", "MAX_RESTARTS_SPOT", "OPTIONS", "DslOptions", "Option", "Options"]

MAX_RESTARTS = 3
MAX_RESTARTS_SPOT = 10
"""Spot hosts are taken away as a matter of course, others are not."""

_SET_RETRY = "leave it out, and call set_retry(...) on the task"
_PATHWAYS = "write backend='pathways', or leave it out"
_NO_LAUNCHER = "leave it out: a pod step has no launcher"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One argument of the decorator.

    Args:
        default: What holds when it is not given; None where it depends on other arguments or is without limit.
        meaning: One sentence for people; goes into ``help()`` and the documentation.
        not_for_pod: The fix to offer where the backend is ``pod`` and the argument means nothing; empty if it means
            something there.
        not_for_lws: The same for ``lws``.
        not_for_pathways: The same for ``pathways``.
        none: Whether None may be given, as "not given" or "without limit".
    """

    default: Any = None
    meaning: str = ""
    not_for_pod: str = ""
    not_for_lws: str = ""
    not_for_pathways: str = ""
    none: bool = False


OPTIONS: Mapping[str, Option] = {
    "accelerator": Option(none=True, meaning="TPU slice or GPUs of each host; None is CPU."),
    "hosts": Option(none=True, meaning="Hosts for CPU and GPU (1); for TPU they follow from the topology."),
    "slices": Option(default=1, meaning="TPU slices joined over the data-centre network."),
    "backend": Option(default="auto", meaning="pod, lws, pathways, or auto: one host is pod, more are lws."),
    "framework": Option(default="auto", meaning="What is initialised before user code: jax, torch, none or auto."),
    "processes_per_host": Option(
        default=1,
        meaning="User processes on each host, or 'gpu' for one on each GPU; more than one is for PyTorch.",
        not_for_pod="leave it out, or add backend='lws', which starts several processes on one host too",
        not_for_pathways="leave it out: one process on the head drives all devices",
    ),
    "env": Option(default=(), meaning="Environment of the training pods: texts, Secret or ConfigKey."),
    "timeout": Option(
        none=True,
        meaning="Running time summed over attempts, waiting not counted; None is without limit.",
        not_for_pod="leave it out, and call kfp.kubernetes.set_timeout(task, seconds) on the task",
    ),
    "capacity_timeout": Option(
        default="1h",
        none=True,
        meaning="Until all hosts run; None is without limit.",
        not_for_pod="leave it out: a pod step waits for its node as any KFP task does",
    ),
    "start_grace": Option(
        none=True,
        meaning="How long a host may wait for what waiting does not cure, such as a wrong image name; None is 2m.",
        not_for_pod="leave it out: a pod step waits as any KFP task does",
    ),
    "finish_grace": Option(
        default="5m",
        meaning="How long other hosts may still run after the first ended well.",
        not_for_pod="leave it out: a pod step has no other hosts to wait for",
        not_for_pathways="leave it out: the function runs on the head alone, and its end is the step's end",
    ),
    "terminate_grace": Option(
        default="60s",
        meaning="How long the launcher waits for the group to be gone after a terminate.",
        not_for_pod="leave it out: a pod step has no group to delete",
    ),
    "max_restarts": Option(
        none=True,
        meaning=f"Restarts of the whole group after a lost host ({MAX_RESTARTS}; {MAX_RESTARTS_SPOT} with spot).",
        not_for_pod=_SET_RETRY,
    ),
    "retry_on": Option(
        default=(),
        meaning="User failures worth a restart: 'oom', exit codes, exception names.",
        not_for_pod=_SET_RETRY,
    ),
    "spot": Option(default=False, meaning="Whether the hosts run on spot capacity."),
    "logs": Option(
        default="leader",
        meaning="Whose log the launcher prints: leader, all or none.",
        not_for_pod="leave it out: the log of a pod step is the task's own log",
        not_for_pathways="leave it out: the function runs once, so that the head's log is all there is of it",
    ),
    "cluster": Option(
        none=True,
        meaning="kubeconfig[:context], gke:project/location/name or local; None decides by the surroundings.",
        not_for_pod="leave it out: a pod step runs where KFP runs it",
    ),
    "launcher_image": Option(none=True, meaning="Image of the launcher; None is base_image.", not_for_pod=_NO_LAUNCHER),
    "launcher_resources": Option(
        none=True,
        meaning="cpu and memory of the launcher pod, for namespaces with a quota; needs passthrough=False.",
        not_for_pod="leave it out, and call set_cpu_limit(...) and set_memory_limit(...) on the task",
    ),
    "checkpoint_root": Option(none=True, meaning="URI for checkpoints of a step without artifact outputs."),
    "stream_inputs": Option(
        default=(),
        meaning="Input artifacts that hosts do not fetch: the function reads them by their .uri.",
        not_for_pod="leave it out: KFP itself brings the inputs to a pod step",
    ),
    "shm": Option(
        none=True,
        meaning="Memory for /dev/shm: True, a limit such as '16Gi', or False; None is True for GPUs alone.",
    ),
    "pod_security": Option(
        default="kfp",
        meaning="kfp: as KFP's own executors; restricted: as Kubernetes' profile of that name, on every pod.",
        not_for_pod="leave it out, and call kfp.kubernetes.set_security_context(task, run_as_user=...) on the task",
    ),
    "service_account": Option(
        none=True,
        meaning="Service account of the training pods; None is the launcher's.",
        not_for_pod="leave it out: KFP runs the pods of a run with the account that the run is given",
    ),
    "api_token": Option(
        default=False,
        meaning="Whether training pods get the account's token for the Kubernetes API.",
        not_for_pod="leave it out: KFP mounts the token into the pods of its own steps",
    ),
    "labels": Option(default=(), meaning="Labels of the training pods and their group."),
    "annotations": Option(default=(), meaning="Annotations of the training pods."),
    "passthrough": Option(
        default=True,
        meaning="Whether settings made on the task reach the training pods (KFP back end 2.15 or later).",
        not_for_pod="leave it out: what is set on the task of a pod step reaches its pod as it is",
    ),
    "pathways": Option(
        none=True,
        meaning="Image tag, scratch folder and more for the servers of backend='pathways'.",
        not_for_pod=_PATHWAYS,
        not_for_lws=_PATHWAYS,
    ),
    "install_kr_kfp_package": Option(default=True, meaning="Whether pip installs kr_kfp where the image has none."),
    "kr_kfp_package_path": Option(none=True, meaning="What pip installs then; None follows the author's own kr_kfp."),
}

DEFAULTS: Mapping[str, Any] = {name: option.default for name, option in OPTIONS.items()}
"""The user-facing default of every argument."""


class DslOptions(TypedDict, total=False):
    """The keywords of ``dsl.component`` (kfp 2.17) that are handed on as they are."""

    base_image: str
    target_image: str | None
    packages_to_install: list[str] | None
    pip_index_urls: list[str] | None
    output_component_file: str | None
    install_kfp_package: bool
    kfp_package_path: str | None
    pip_trusted_hosts: list[str] | None
    use_venv: bool
    additional_funcs: list[Callable[..., Any]] | None
    embedded_artifact_path: str | None


class Options(DslOptions, total=False):
    """Everything that ``kr_kfp.component`` and ``Component.options`` take; meanings are in :data:`OPTIONS`."""

    accelerator: str | Tpu | Gpu | None
    hosts: int | None
    slices: int
    backend: Literal["auto"] | Backend
    framework: Framework
    processes_per_host: int | Literal["gpu"]
    env: Mapping[str, str | Secret | ConfigKey]
    timeout: str | float | None
    capacity_timeout: str | float | None
    start_grace: str | float | None
    finish_grace: str | float
    terminate_grace: str | float
    max_restarts: int | None
    retry_on: Collection[str | int | type[BaseException]]
    spot: bool
    logs: Logs
    cluster: str | None
    launcher_image: str | None
    launcher_resources: Mapping[str, str] | None
    checkpoint_root: str | None
    stream_inputs: Collection[str]
    shm: bool | str | None
    pod_security: PodSecurity
    service_account: str | None
    api_token: bool
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    passthrough: bool
    pathways: Pathways | None
    install_kr_kfp_package: bool
    kr_kfp_package_path: str | None
