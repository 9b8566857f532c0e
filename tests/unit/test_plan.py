"""The plan of a pipeline: what would run where, in words and as manifests."""

import json
from typing import Any

import pytest
from google.protobuf import json_format
from kfp import components, dsl

import kr_kfp
from kr_kfp.authoring.component import component
from kr_kfp.authoring.plan import StepPlan, plan
from tests import crd


def train(epochs: int) -> float:
    return epochs / 2


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def plain(value: float) -> float:
    """Pass a value on."""
    return value


ON_HOSTS = component(train, accelerator="v5litepod-16", env={"PRICE": "5 $$"}, max_restarts=1, base_image="image:1")
ON_ONE = ON_HOSTS.options(accelerator="v5litepod-4")
ON_GPUS = component(train, accelerator="h100x8", hosts=2)
ON_CPU = component(train)


@dsl.pipeline(name="inner")
def inner(epochs: int) -> float:
    """Hold a step of its own."""
    value: float = ON_CPU(epochs=epochs).output
    return value


@dsl.pipeline(name="many")
def many(epochs: int = 1) -> None:
    """Run steps of all sorts one after the other, in an order that their names do not have."""
    last = plain(value=1.5)
    first = inner(epochs=epochs)
    one = ON_ONE(epochs=epochs).after(first).set_display_name("one")
    group = ON_HOSTS(epochs=epochs).after(one)
    with dsl.If(group.output > 0.0):
        ON_GPUS(epochs=epochs)
    last.after(group)


@pytest.fixture(name="steps", scope="module")
def planned_steps() -> tuple[StepPlan, ...]:
    """Plan the pipeline once."""
    return plan(many)


def env_of(step: StepPlan) -> dict[str, Any]:
    """Give the variables of a group's containers."""
    template = step.manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return {entry["name"]: entry.get("value") for entry in template["spec"]["containers"][0]["env"]}


def test_order(steps: tuple[StepPlan, ...]) -> None:
    """Steps come as they run, those of inner pipelines and conditions in their places."""
    assert [(step.step.backend if step.step else "plain") for step in steps] == ["pod", "pod", "lws", "lws", "plain"]
    assert [step.step.hosts if step.step else 0 for step in steps] == [1, 1, 4, 2, 0]


def test_words(steps: tuple[StepPlan, ...]) -> None:
    """Each step says backend, shape and devices in words."""
    assert [step.words for step in steps] == [
        (
            "backend pod: auto: CPU, 1 host in all",
            "no accelerator, 1 host",
            "the function runs once, in the task's own pod, and sees 1 device",
        ),
        (
            "backend pod: auto: v5litepod-4 (v5e, topology 2x2: 4 chips on 1 host), 1 host in all",
            "accelerator v5litepod-4: v5e 2x2, 4 chips, 1 host of 4 chips (ct5lp-hightpu-4t)",
            "the function runs once, in the task's own pod, and sees 4 devices",
            "nodes with taints of google.com/tpu are tolerated",
        ),
        (
            "backend lws: auto: v5litepod-16 (v5e, topology 4x4: 16 chips on 4 hosts), 4 hosts in all",
            "accelerator v5litepod-16: v5e 4x4, 16 chips, 4 hosts of 4 chips (ct5lp-hightpu-4t)",
            "the task's pod launches one LeaderWorkerSet of 4 pods; the function runs on every host, "
            "JAX counts 16 devices; host 0's outputs count",
            "JAX finds the other hosts by itself, from what LeaderWorkerSet sets on hosts with TPUs",
            "all hosts of a slice get one node pool for themselves (exclusive topology)",
            "nodes with taints of google.com/tpu are tolerated",
            "pods run as the launcher's service account, without a token for the API server",
            "at most 1 restart of the whole group after a lost host",
        ),
        (
            "backend lws: auto: h100x8 (8 GPUs on each host), 2 hosts in all",
            "accelerator h100x8: 2 hosts of 8 GPUs (a3-highgpu-8g)",
            "the task's pod launches one LeaderWorkerSet of 2 pods; the function runs on every host, "
            "JAX counts 16 devices; host 0's outputs count",
            "JAX is given its coordinator (host 0), the number of processes and that of its own",
            "hosts may lie on any nodes that fit: no exclusive topology",
            "nodes are selected by their machine too, since other machines have the label as well",
            "nodes with taints of nvidia.com/gpu are tolerated",
            "/dev/shm is memory of the pod, up to the pod's memory limit, in place of the container runtime's 64 MB",
            "pods run as the launcher's service account, without a token for the API server",
            "at most 3 restarts of the whole group after a lost host",
        ),
        ("a plain KFP step in one pod, image python:3.12",),
    ]


def test_selectors(steps: tuple[StepPlan, ...]) -> None:
    """Node selectors are those of the shape."""
    v5e = "tpu-v5-lite-podslice"
    assert [step.selectors for step in steps] == [
        {},
        {"cloud.google.com/gke-tpu-accelerator": v5e, "cloud.google.com/gke-tpu-topology": "2x2"},
        {"cloud.google.com/gke-tpu-accelerator": v5e, "cloud.google.com/gke-tpu-topology": "4x4"},
        {
            "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
            "node.kubernetes.io/instance-type": "a3-highgpu-8g",
        },
        {},
    ]


def test_group(steps: tuple[StepPlan, ...]) -> None:
    """The manifest of a group is a LeaderWorkerSet that the CRD takes, with what only the run knows in brackets."""
    group = steps[2]
    template = group.manifest["spec"]["leaderWorkerTemplate"]
    spec = template["workerTemplate"]["spec"]
    main = spec["containers"][0]
    assert crd.validate(dict(group.manifest)) == []
    assert crd.validate(dict(steps[3].manifest)) == []
    assert (group.manifest["kind"], template["size"], template["restartPolicy"]) == ("LeaderWorkerSet", 4, "None")
    assert group.manifest["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/exclusive-topology"] == (
        "cloud.google.com/gke-nodepool"
    )
    assert spec["nodeSelector"] == group.selectors
    assert main["image"] == "image:1"
    assert main["resources"]["limits"] == {"google.com/tpu": "4"}
    assert main["args"] == [f"<payload: {group.payload_bytes} bytes and the arguments>"]
    assert 300 < group.payload_bytes < 3000


def test_env(steps: tuple[StepPlan, ...]) -> None:
    """All variables that would be set are shown, the user's with what Kubernetes would expand written twice."""
    env = env_of(steps[2])
    assert {name: env[name] for name in ("KR_KFP_RUN", "KR_KFP_HOSTS", "KR_KFP_DEVICES", "MASTER_ADDR", "PRICE")} == {
        "KR_KFP_RUN": "<run>",
        "KR_KFP_HOSTS": "4",
        "KR_KFP_DEVICES": "4",
        "MASTER_ADDR": "$(LWS_LEADER_ADDRESS)",
        "PRICE": "5 $$$$",
    }
    assert env["KR_KFP_CHECKPOINT_DIR"] == "<pipeline root>/<pipeline>/<run>/<task>/kr-kfp-checkpoints"


def test_pod(steps: tuple[StepPlan, ...]) -> None:
    """A pod step shows its container, in a fixed order and with long texts cut, and its Kubernetes settings."""
    container = steps[1].manifest["container"]
    assert list(container)[:3] == ["image", "command", "args"]
    assert container["image"] == "image:1"
    assert max(len(part) for part in container["command"][:8]) <= 200
    assert steps[1].manifest["kubernetes"]["nodeSelector"]["labels"] == steps[1].selectors


def test_plain(steps: tuple[StepPlan, ...]) -> None:
    """A step of others has its container and nothing else."""
    assert steps[4].step is None
    assert list(steps[4].manifest) == ["container"]
    assert steps[4].manifest["container"]["image"] == "python:3.12"


def test_compiled_text() -> None:
    """The plan of what was compiled and loaded again is the same."""
    documents = [json_format.MessageToJson(many.pipeline_spec), json_format.MessageToJson(many.platform_spec)]
    loaded = components.load_component_from_text("\n---\n".join(documents))
    assert plan(loaded) == plan(many)


def test_one_component() -> None:
    """A component alone is a plan of one step, and the plan is JSON once its parts are plain."""
    (step,) = plan(kr_kfp.component(train, hosts=2))
    assert step.name == "train"
    assert json.loads(json.dumps(step.manifest)) == step.manifest
