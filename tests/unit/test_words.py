"""What is said of a step before it runs, for each kind of shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.declare import declare
from kr_kfp.spec.step import RUN_TIME_SCRATCH, Pathways
from kr_kfp.spec.words import words

SETTINGS = Pathways(scratch="gs://bucket/tmp", version="20260423-jax_0.10.0", images="registry.test/pathways")
LAUNCHES = "the task's pod launches one LeaderWorkerSet of"
ACCOUNT = "pods run as the launcher's service account, without a token for the API server"
POOL = "all hosts of a slice get one node pool for themselves (exclusive topology)"
BY_ITSELF = "JAX finds the other hosts by itself, from what LeaderWorkerSet sets on hosts with TPUs"
TAINT = "nodes with taints of google.com/tpu are tolerated"
PATHWAYS: dict[str, Any] = {"accelerator": "v5p-32", "backend": "pathways", "pathways": SETTINGS}


def said(**given: Any) -> list[str]:
    step, problems = declare(given, name="train", image="python:3.12")
    assert step is not None, problems
    return list(words(step))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            {},
            [
                "backend pod: auto: CPU, 1 host in all",
                "no accelerator, 1 host",
                "the function runs once, in the task's own pod, and sees 1 device",
            ],
        ),
        (
            {"accelerator": "v6e:2x4@ct6e-standard-8t"},
            [
                "backend pod: auto: v6e:2x4@ct6e-standard-8t (v6e, topology 2x4: 8 chips on 1 host), 1 host in all",
                "accelerator v6e:2x4@ct6e-standard-8t: v6e 2x4, 8 chips, 1 host of 8 chips (ct6e-standard-8t)",
                "the function runs once, in the task's own pod, and sees 8 devices",
                "nodes are selected by their machine too, since other machines have label and topology as well",
                TAINT,
            ],
        ),
        (
            {"accelerator": "v5p-16", "slices": 2, "spot": True},
            [
                "backend lws: auto: v5p-16 (v5p, topology 2x2x2: 8 chips on 2 hosts), 4 hosts in all",
                "accelerator v5p-16: 2 slices of v5p 2x2x2, 16 chips in all, 4 hosts of 4 chips (ct5p-hightpu-4t)",
                f"{LAUNCHES} 4 pods; the function runs on every host, JAX counts 16 devices; host 0's outputs count",
                BY_ITSELF,
                "hosts 0 to 1 are slice 0, and so on: process ids follow the slices; MEGASCALE_* tells libtpu of 2 slices",
                POOL,
                TAINT,
                "the hosts run on spot capacity: selected by GKE's label, its taint tolerated",
                ACCOUNT,
                "at most 10 restarts of the whole group after a lost host",
            ],
        ),
        (
            {
                "accelerator": "gb200x4",
                "hosts": 2,
                "framework": "torch",
                "processes_per_host": "gpu",
                "shm": "64Gi",
                "pod_security": "restricted",
                "service_account": "trainer",
                "api_token": True,
            },
            [
                "backend lws: auto: gb200x4 (4 GPUs on each host), 2 hosts in all",
                "accelerator gb200x4: 2 hosts of 4 GPUs (a4x-highgpu-4g), Arm: the image must be built for linux/arm64",
                f"{LAUNCHES} 2 pods; the function runs on every host, in 4 processes each; host 0's outputs count",
                "PyTorch finds MASTER_ADDR (host 0), RANK, WORLD_SIZE, LOCAL_RANK and their like in every process",
                "hosts may lie on any nodes that fit: no exclusive topology",
                "nodes with taints of nvidia.com/gpu and kubernetes.io/arch are tolerated",
                "/dev/shm is memory of the pod, at most 64Gi, in place of the container runtime's 64 MB",
                "every pod passes Kubernetes' restricted profile, as user 1000 where the task names none",
                "pods run as service account trainer, with a token for the API server",
                "at most 3 restarts of the whole group after a lost host",
            ],
        ),
        (
            PATHWAYS,
            [
                "backend pathways: asked for by backend='pathways'",
                "accelerator v5p-32: v5p 2x2x4, 16 chips, 4 hosts of 4 chips (ct5p-hightpu-4t)",
                f"{LAUNCHES} 5 pods: a head without accelerator and 4 workers; the function runs once, on the head, and "
                "JAX shows it 16 devices",
                "beside it on the head, as native sidecars: the resource manager (of tpuv5:2x2x4; 8 cpu, 32G memory) and "
                "the proxy (16 cpu, 100G memory); each worker runs the server",
                "servers registry.test/pathways/server:20260423-jax_0.10.0, for JAX 0.10.0, which is compared with the "
                "step's own before a server is asked",
                "scratch folder of the servers: gs://bucket/tmp",
                "set on the task: resources, env and volumes go to the head, node selector and affinity to the workers, "
                "tolerations to both",
                "on this machine one process with all devices stands for head and workers",
                POOL,
                TAINT,
                "the head goes to any node that it fits on",
                ACCOUNT,
                "at most 3 restarts of the whole group after a lost host or server",
            ],
        ),
    ],
    ids=["cpu", "one-host", "slices", "gpus", "pathways"],
)
def test_words(given: dict[str, Any], expected: list[str]) -> None:
    """Each kind of step says what runs where and why, a sentence each."""
    assert said(**given) == expected


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"version": "latest"},
            "servers registry.test/pathways/server:latest, for a JAX that neither the tag nor pathways.jax tells, so that "
            "nothing is compared",
        ),
        ({"scratch": RUN_TIME_SCRATCH}, "scratch folder of the servers: given by an input of the pipeline"),
        ({"scratch": None}, "scratch folder of the servers: none yet, which is enough on this machine only"),
        ({"elastic_slices": 1}, "up to 1 slice may be missing while the function goes on"),
        (
            {"colocated_python": "registry.test/sidecar:1"},
            "beside each server runs colocated Python, registry.test/sidecar:1",
        ),
        ({"head_selector": {"pool": "cpu", "zone": "a"}}, "the head goes to nodes with pool=cpu, zone=a"),
    ],
)
def test_words_about_pathways(change: dict[str, Any], sentence: str) -> None:
    """Each setting of Pathways that changes something is told."""
    assert sentence in said(**{**PATHWAYS, "pathways": replace(SETTINGS, **change)})


def test_words_about_peers() -> None:
    """How hosts find one another is told for the framework that is, or may be, in use; for none nothing is."""
    given = "JAX is given its coordinator (host 0), the number of processes and that of its own"
    plain = "PyTorch finds MASTER_ADDR (host 0), RANK, WORLD_SIZE, LOCAL_RANK and their like in every process"
    found = {name: set(said(hosts=2, framework=name)) & {given, plain} for name in ("auto", "jax", "torch", "none")}
    assert found == {"auto": {given}, "jax": {given}, "torch": {plain}, "none": set()}


def test_words_about_slices_of_pathways() -> None:
    """The resource manager is told of all slices, the spot capacity of the workers alone."""
    found = said(**PATHWAYS, slices=2, spot=True)
    assert any("the resource manager (of 2 slices of tpuv5:2x2x4;" in sentence for sentence in found)
    assert "the workers run on spot capacity: selected by GKE's label, its taint tolerated" in found
