"""What a step would run where, and why: a sentence each, for people. Pure; says what the builders do, and no more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kr_kfp.spec.pathways import instance_type, jax_of, needed, server_image
from kr_kfp.spec.placement import shape_tolerations
from kr_kfp.spec.pod import SHM
from kr_kfp.spec.security import USER
from kr_kfp.spec.step import RUN_TIME_SCRATCH, StepSpec

__all__ = ["words"]


def words(step: StepSpec) -> tuple[str, ...]:
    """Describe a step: backend and reason, accelerator, pods, placement, peers, devices, security, restarts."""
    return tuple(_words(step))


def _words(step: StepSpec) -> Iterator[str]:
    yield f"backend {step.backend}: {step.reason}" if step.reason else f"backend {step.backend}"
    yield _accelerator(step)
    if step.backend == "pod":
        devices = _count(step.devices_per_host or 1, "device")
        yield f"the function runs once, in the task's own pod, and sees {devices}"
    elif step.backend == "pathways":
        yield from _pathways(step)
    else:
        yield from _hosts(step)
    yield from _placement(step)
    if step.shm:
        size = f", at most {step.shm_size}" if step.shm_size else ", up to the pod's memory limit"
        yield f"{SHM} is memory of the pod{size}, in place of the container runtime's 64 MB"
    if step.backend != "pod":
        yield from _rights(step)
        what = "host" if step.backend == "lws" else "host or server"
        yield f"at most {_count(step.max_restarts, 'restart')} of the whole group after a lost {what}"


def _accelerator(step: StepSpec) -> str:
    shape, hosts = step.shape, _count(step.hosts, "host")
    if shape is None:
        return f"no accelerator, {hosts}"
    machine = f" ({shape.machine})" if shape.machine else ""
    arm = ", Arm: the image must be built for linux/arm64" if shape.arch else ""
    if shape.kind == "gpu":
        return f"accelerator {shape.name}: {hosts} of {_count(shape.chips_per_host, 'GPU')}{machine}{arm}"
    slices = f"{step.slices} slices of " if step.slices > 1 else ""
    chips = _count(shape.chips * step.slices, "chip") + (" in all" if step.slices > 1 else "")
    per_host = _count(shape.chips_per_host, "chip")
    return f"accelerator {shape.name}: {slices}{shape.family} {shape.topology}, {chips}, {hosts} of {per_host}{machine}"


def _hosts(step: StepSpec) -> Iterator[str]:
    devices = (step.devices_per_host or 1) * step.hosts
    several = step.processes_per_host > 1
    counts = f"in {step.processes_per_host} processes each" if several else f"JAX counts {_count(devices, 'device')}"
    yield (
        f"the task's pod launches one LeaderWorkerSet of {_count(step.pods, 'pod')}; the function runs on every host, "
        f"{counts}; host 0's outputs count"
    )
    yield from _peers(step)
    if step.slices > 1:
        last = step.hosts_per_slice - 1
        yield (
            f"hosts 0 to {last} are slice 0, and so on: process ids follow the slices; MEGASCALE_* tells libtpu of "
            f"{step.slices} slices"
        )


def _peers(step: StepSpec) -> Iterator[str]:
    """Say how the processes of all hosts find one another."""
    if step.framework in ("auto", "jax") and step.processes_per_host == 1:
        if step.shape and step.shape.kind == "tpu":
            yield "JAX finds the other hosts by itself, from what LeaderWorkerSet sets on hosts with TPUs"
        else:
            yield "JAX is given its coordinator (host 0), the number of processes and that of its own"
    if step.framework == "torch" or (step.framework == "auto" and step.processes_per_host > 1):
        yield "PyTorch finds MASTER_ADDR (host 0), RANK, WORLD_SIZE, LOCAL_RANK and their like in every process"


def _pathways(step: StepSpec) -> Iterator[str]:
    settings = needed(step)
    slices = f"{step.slices} slices of " if step.slices > 1 else ""
    yield (
        f"the task's pod launches one LeaderWorkerSet of {_count(step.pods, 'pod')}: a head without accelerator and "
        f"{_count(step.hosts, 'worker')}; the function runs once, on the head, and JAX shows it "
        f"{_count(step.devices, 'device')}"
    )
    yield (
        f"beside it on the head, as native sidecars: the resource manager (of {slices}{instance_type(step)}; "
        f"{_amounts(settings.resource_manager)}) and the proxy ({_amounts(settings.proxy)}); each worker runs the "
        "server"
    )
    jax = jax_of(settings)
    yield f"servers {server_image(settings)}, for " + (
        f"JAX {jax}, which is compared with the step's own before a server is asked"
        if jax
        else "a JAX that neither the tag nor pathways.jax tells, so that nothing is compared"
    )
    given = "given by an input of the pipeline" if settings.scratch == RUN_TIME_SCRATCH else settings.scratch
    yield f"scratch folder of the servers: {given or 'none yet, which is enough on this machine only'}"
    if settings.elastic_slices:
        yield f"up to {_count(settings.elastic_slices, 'slice')} may be missing while the function goes on"
    if settings.colocated_python:
        yield f"beside each server runs colocated Python, {settings.colocated_python}"
    yield (
        "set on the task: resources, env and volumes go to the head, node selector and affinity to the workers, "
        "tolerations to both"
    )
    yield "on this machine one process with all devices stands for head and workers"


def _amounts(given: Mapping[str, str]) -> str:
    return ", ".join(f"{amount} {name}" for name, amount in given.items())


def _placement(step: StepSpec) -> Iterator[str]:
    shape = step.shape
    if shape and shape.kind == "tpu" and shape.hosts > 1:
        yield "all hosts of a slice get one node pool for themselves (exclusive topology)"
    elif step.hosts > 1:
        yield "hosts may lie on any nodes that fit: no exclusive topology"
    if shape and shape.select_machine:
        what = "label and topology" if shape.kind == "tpu" else "the label"
        yield f"nodes are selected by their machine too, since other machines have {what} as well"
    if shape:
        taints = " and ".join(toleration["key"] for toleration in shape_tolerations(shape))
        yield f"nodes with taints of {taints} are tolerated"
    if step.pathways is not None:
        chosen = _pairs(step.pathways.head_selector)
        yield f"the head goes to nodes with {chosen}" if chosen else "the head goes to any node that it fits on"
    if step.spot:
        who = "the workers" if step.pathways is not None else "the hosts"
        yield f"{who} run on spot capacity: selected by GKE's label, its taint tolerated"


def _pairs(given: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in given.items())


def _rights(step: StepSpec) -> Iterator[str]:
    if step.pod_security == "restricted":
        yield f"every pod passes Kubernetes' restricted profile, as user {USER} where the task names none"
    account = f"service account {step.service_account}" if step.service_account else "the launcher's service account"
    token = "with" if step.api_token else "without"
    yield f"pods run as {account}, {token} a token for the API server"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
