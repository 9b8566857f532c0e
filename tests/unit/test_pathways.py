"""Pathways: the manifest field by field, what a declaration must say, and what a broken server amounts to.

No server image can be had here and there is no TPU: values are compared with literal ones from the sources that
:mod:`kr_kfp.spec.pathways` names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kr_kfp
from kr_kfp.authoring.component import component
from kr_kfp.errors import DeclarationError
from kr_kfp.executor_input import take_scratch
from kr_kfp.runtime.bootstrap import split
from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.check_pathways import fits, pinned_jax
from kr_kfp.spec.check_task import check_scratch, check_task_config
from kr_kfp.spec.codec import dump_step, load_step
from kr_kfp.spec.declare import declare
from kr_kfp.spec.launch import Inherited, Launch
from kr_kfp.spec.leaderworkerset import attempt_of, build, restart_patch
from kr_kfp.spec.pathways import jax_of, needed
from kr_kfp.spec.pod import reserved
from kr_kfp.spec.step import RUN_TIME_SCRATCH, Pathways, StepSpec
from kr_kfp.wire import SCRATCH_INPUT, unpack
from tests import crd
from tests.declared import compiled, executor, once, scratch_from_inputs

Json = dict[str, Any]

SETTINGS = Pathways(scratch="gs://bucket/tmp", version="20260423-jax_0.10.0", images="registry.test/pathways")
STEP = StepSpec(
    name="train",
    backend="pathways",
    image="python:3.12",
    shape=resolve("v5p-32"),
    hosts=8,
    slices=2,
    pathways=SETTINGS,
)
ONE_SLICE = replace(STEP, hosts=4, slices=1)
ONE_HOST = replace(STEP, shape=resolve("v5p-8"), hosts=1, slices=1)
LAUNCH = Launch(
    name="train-0123456789",
    run="run-1",
    task="train",
    identity="run-1/train",
    holder="uid",
    payload=("payload",),
    init=("sh", "-c", "provide"),
)
SERVER, PROXY = (
    "registry.test/pathways/server:20260423-jax_0.10.0",
    "registry.test/pathways/proxy_server:20260423-jax_0.10.0",
)


def group(step: StepSpec = STEP, launch: Launch = LAUNCH) -> Json:
    found: Json = build(step, launch)["spec"]["leaderWorkerTemplate"]
    return found


def head(step: StepSpec = STEP, launch: Launch = LAUNCH) -> Json:
    found: Json = group(step, launch)["leaderTemplate"]["spec"]
    return found


def workers(step: StepSpec = STEP, launch: Launch = LAUNCH) -> Json:
    found: Json = group(step, launch)["workerTemplate"]["spec"]
    return found


def by_name(pod: Json) -> dict[str, Json]:
    return {c["name"]: c for c in [*pod.get("initContainers", []), *pod["containers"]]}


def env(container: Json) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


@pytest.mark.parametrize("step", [STEP, ONE_SLICE, ONE_HOST], ids=["two-slices", "one-slice", "one-host"])
def test_the_crd_takes_it(step: StepSpec) -> None:
    """LWS's schema takes every layout, colocated Python and elastic slices too."""
    everything = replace(
        SETTINGS, elastic_slices=1, colocated_python="registry.test/sidecar:1", xla_flags=("--xla_a=b",)
    )
    assert crd.validate(build(step, LAUNCH)) == []
    assert crd.validate(build(replace(step, pathways=everything, spot=True), LAUNCH)) == []


@pytest.mark.parametrize(
    ("step", "size", "policy", "exclusive"),
    [
        (STEP, 9, {"subGroupSize": 4, "subGroupPolicyType": "LeaderExcluded"}, True),
        (ONE_SLICE, 5, {"subGroupSize": 4, "subGroupPolicyType": "LeaderExcluded"}, True),
        (ONE_HOST, 2, None, False),
    ],
    ids=["two-slices", "one-slice", "one-host"],
)
def test_layout(step: StepSpec, size: int, policy: Json | None, exclusive: bool) -> None:
    """A head and the TPU hosts, whose slices are sub-groups without it, each alone on its node pool."""
    manifest = build(step, LAUNCH)
    template = manifest["spec"]["leaderWorkerTemplate"]
    assert (template["size"], template.get("subGroupPolicy"), template["restartPolicy"]) == (size, policy, "None")
    assert manifest["spec"]["startupPolicy"] == "LeaderReady"
    topology = {key: value for key, value in manifest["metadata"]["annotations"].items() if "exclusive-topology" in key}
    name = "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology"
    assert topology == ({name: "cloud.google.com/gke-nodepool"} if exclusive else {})


def test_head() -> None:
    """Resource manager and proxy are native sidecars before the user's container, with the arguments of their sources."""
    pod = head()
    assert [c["name"] for c in pod["initContainers"]] == ["kr-kfp", "pathways-rm", "pathways-proxy"]
    assert [c["name"] for c in pod["containers"]] == ["main"]
    found = by_name(pod)
    assert found["pathways-rm"] == {
        "name": "pathways-rm",
        "image": SERVER,
        "args": [
            "--server_port=29001",
            "--gcs_scratch_location=gs://bucket/tmp",
            "--node_type=resource_manager",
            "--instance_count=2",
            "--instance_type=tpuv5:2x2x4",
        ],
        "env": [
            {"name": "HOST_ADDRESS", "value": "$(LWS_LEADER_ADDRESS)"},
            {"name": "TPU_SKIP_MDS_QUERY", "value": "true"},
        ],
        "ports": [{"containerPort": 29001, "protocol": "TCP"}, {"containerPort": 29002, "protocol": "TCP"}],
        "restartPolicy": "Always",
        "resources": {"limits": {"cpu": "8", "memory": "32G"}, "requests": {"cpu": "8", "memory": "32G"}},
    }
    assert found["pathways-proxy"] == {
        "name": "pathways-proxy",
        "image": PROXY,
        "args": [
            "--server_port=29000",
            "--resource_manager_address=$(LWS_LEADER_ADDRESS):29001",
            "--gcs_scratch_location=gs://bucket/tmp",
        ],
        "env": [
            {"name": "PATHWAYS_HEAD", "value": "$(LWS_LEADER_ADDRESS)"},
            {"name": "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "value": "true"},
        ],
        "ports": [{"containerPort": 29000, "protocol": "TCP"}],
        "restartPolicy": "Always",
        "resources": {"limits": {"cpu": "16", "memory": "100G"}, "requests": {"cpu": "16", "memory": "100G"}},
    }


def test_worker() -> None:
    """Workers run the server with the chips of a host, and nothing of the user's or of kr_kfp's code."""
    pod = workers()
    assert "initContainers" not in pod
    assert pod["containers"] == [
        {
            "name": "pathways-worker",
            "image": SERVER,
            "args": [
                "--server_port=29005",
                "--resource_manager_address=$(LWS_LEADER_ADDRESS):29001",
                "--gcs_scratch_location=gs://bucket/tmp",
            ],
            "env": [
                {"name": "KR_KFP_ATTEMPT", "value": "0"},
                {"name": "TPU_MIN_LOG_LEVEL", "value": "0"},
                {"name": "TF_CPP_MIN_LOG_LEVEL", "value": "0"},
                {"name": "XCLOUD_ENVIRONMENT", "value": "GCP"},
                {"name": "PATHWAYS_HEAD", "value": "$(LWS_LEADER_ADDRESS)"},
                {"name": "MEGASCALE_GRPC_ENABLE_XOR_TRACER", "value": "false"},
                {"name": "MEGASCALE_NUM_SLICES", "value": "2"},
                {"name": "MEGASCALE_COORDINATOR_ADDRESS", "value": "$(LWS_LEADER_ADDRESS)"},
                {
                    "name": "MEGASCALE_SLICE_ID",
                    "valueFrom": {
                        "fieldRef": {"fieldPath": "metadata.labels['leaderworkerset.sigs.k8s.io/subgroup-index']"}
                    },
                },
            ],
            "ports": [{"containerPort": port, "protocol": "TCP"} for port in (29005, 29006, 8471, 8080)],
            "volumeMounts": [{"name": "shared-tmp", "mountPath": "/tmp"}],
            "resources": {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}},
        }
    ]
    assert pod["volumes"] == [{"name": "shared-tmp", "emptyDir": {}}]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
    }
    assert pod["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert "payload" not in str(group()["workerTemplate"])


def test_one_slice_has_no_megascale() -> None:
    """MEGASCALE variables are there for two or more slices only."""
    assert [name for name in env(workers(ONE_SLICE)["containers"][0]) if name.startswith("MEGASCALE")] == []
    assert [name for name in env(head()["containers"][0]) if name.startswith("MEGASCALE")] == []


def test_only_user_code_gets_the_proxy() -> None:
    """JAX_PLATFORMS and JAX_BACKEND_TARGET are in the user's container alone (case 15)."""
    found = {
        name: {"JAX_PLATFORMS", "JAX_BACKEND_TARGET"} & {entry["name"] for entry in c.get("env", [])}
        for pod in (head(), workers())
        for name, c in by_name(pod).items()
    }
    assert found == {
        "kr-kfp": set(),
        "pathways-rm": set(),
        "pathways-proxy": set(),
        "pathways-worker": set(),
        "main": {"JAX_PLATFORMS", "JAX_BACKEND_TARGET"},
    }


def test_environment_of_user_code() -> None:
    """The function runs once: one host, all devices, the proxy beside it, no peers of any framework."""
    found = env(head()["containers"][0])
    assert {name: found[name] for name in found if not name.startswith("KR_KFP_")} == {
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": "grpc://localhost:29000",
        "XCLOUD_ENVIRONMENT": "GCP",
        "PATHWAYS_HEAD": "$(LWS_LEADER_ADDRESS)",
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        "PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS": "3600",
    }
    assert (found["KR_KFP_HOSTS"], found["KR_KFP_DEVICES"]) == ("1", "32")
    assert (found["KR_KFP_PATHWAYS"], found["KR_KFP_PATHWAYS_JAX"]) == (SERVER, "0.10.0")


def test_patience_of_the_client() -> None:
    """The client waits as long as the step waits for capacity; the user's own value wins."""
    waits = "PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS"
    assert env(head(replace(STEP, capacity_timeout=None))["containers"][0])[waits] == "604800"
    assert env(head(replace(STEP, env=((waits, "5"),)))["containers"][0])[waits] == "5"


def test_options_of_the_servers() -> None:
    """Elastic slices, XLA flags and colocated Python become arguments of the proxy; the sidecar stands by each worker."""
    settings = replace(
        SETTINGS, elastic_slices=1, xla_flags=("--xla_tpu_a=b",), colocated_python="registry.test/sidecar:tag"
    )
    step = replace(STEP, pathways=settings)
    assert by_name(head(step))["pathways-proxy"]["args"][-3:] == [
        "--num_elastic_slices=1",
        "--sidecar_name=external",
        "--xla_tpu_a=b",
    ]
    pod = workers(step)
    (sidecar,) = pod["initContainers"]
    assert sidecar == {
        "name": "colocated-python-sidecar",
        "image": "registry.test/sidecar:tag",
        "env": [
            {"name": "GRPC_SERVER_ADDRESS", "value": "0.0.0.0:50051"},
            {"name": "CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY", "value": "/pathways-shm"},
        ],
        "ports": [{"containerPort": 50051, "protocol": "TCP"}],
        "restartPolicy": "Always",
        "volumeMounts": [
            {"name": "shared-tmp", "mountPath": "/tmp"},
            {"name": "shared-memory", "mountPath": "/pathways-shm"},
        ],
    }
    (worker,) = pod["containers"]
    assert worker["args"][-1] == "--cloud_pathways_sidecar_shm_directory=/pathways-shm"
    assert env(worker)["CLOUD_PATHWAYS_SIDECAR_SHM_DIRECTORY"] == "/pathways-shm"
    assert pod["volumes"][1] == {"name": "shared-memory", "emptyDir": {"medium": "Memory"}}


def test_where_the_settings_of_the_task_go() -> None:
    """What is about user code goes to the head, what is about nodes to the workers, tolerations to both."""
    affinity: Json = {"nodeAffinity": {}}
    toleration = {"key": "team", "operator": "Exists"}
    config: Json = {
        "env": [{"name": "LEVEL", "value": "debug"}],
        "resources": {"limits": {"memory": "64Gi", "google.com/tpu": "4"}, "requests": {"cpu": "24"}},
        "nodeSelector": {"cloud.google.com/reservation-name": "mine"},
        "affinity": affinity,
        "tolerations": [toleration],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    launch = replace(LAUNCH, task_config=config, inherited=Inherited(pod={"serviceAccountName": "trainer"}))
    step = replace(STEP, spot=True, pathways=replace(SETTINGS, head_selector={"pool": "cpu"}))
    front, back = head(step, launch), workers(step, launch)
    (main,), (worker,) = front["containers"], back["containers"]
    assert env(main)["LEVEL"] == "debug"
    assert "LEVEL" not in env(worker)
    assert main["resources"] == {"limits": {"memory": "64Gi"}, "requests": {"cpu": "24"}}
    assert {"name": "data", "mountPath": "/data"} in main["volumeMounts"]
    assert front["nodeSelector"] == {"pool": "cpu"}
    assert "affinity" not in front
    assert front["tolerations"] == [toleration]
    assert back["affinity"] == affinity
    assert back["nodeSelector"] == {
        "cloud.google.com/reservation-name": "mine",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
        "cloud.google.com/gke-spot": "true",
    }
    assert [t["key"] for t in back["tolerations"]] == ["team", "google.com/tpu", "cloud.google.com/gke-spot"]
    assert (front["serviceAccountName"], back["serviceAccountName"]) == ("trainer", "trainer")


def test_one_tag_for_all_images() -> None:
    """No two servers can have different tags: there is one setting (case 16)."""
    images = {c["image"] for pod in (head(), workers()) for c in by_name(pod).values()} - {"python:3.12"}
    assert images == {SERVER, PROXY}
    assert {image.rpartition(":")[2] for image in images} == {"20260423-jax_0.10.0"}


@pytest.mark.parametrize(
    ("version", "jax", "found"),
    [
        ("jax-0.5.3", None, "0.5.3"),
        ("20260128-jax_0.9.0", None, "0.9.0"),
        ("20260423-python_3.12-jax_0.10.0", None, "0.10.0"),
        ("latest", None, ""),
        ("latest", "0.10.1", "0.10.1"),
        ("jax-0.5.3", "0.6.0", "0.6.0"),
    ],
)
def test_jax_of_a_tag(version: str, jax: str | None, found: str) -> None:
    """The tag says for which JAX the servers are, or the author does."""
    assert jax_of(Pathways(version=version, jax=jax)) == found


@pytest.mark.parametrize(
    ("one", "other", "right"),
    [("0.10.0", "0.10.2", True), ("0.10.2", "0.1.10", False), ("0.10.0", "0.9.0", False), ("0.10", "0.10.1", True)],
)
def test_versions_that_fit(one: str, other: str, right: bool) -> None:
    """The same major and minor version fits, another does not."""
    assert fits(one, other) is right


@pytest.mark.parametrize(
    ("packages", "version"),
    [
        (["jax==0.10.2"], "0.10.2"),
        (["keras", "jax[tpu] == 0.9.0"], "0.9.0"),
        (["jax==0.9.0; python_version>'3.10'"], "0.9.0"),
        (["jax>=0.9,<0.11"], ""),
        (["jaxtyping==0.2.0", "flax==0.10"], ""),
        ([], ""),
    ],
)
def test_pinned_jax(packages: list[str], version: str) -> None:
    """Only an exact pin of jax itself is compared."""
    assert pinned_jax(packages) == version


def test_a_restart_renews_both_templates() -> None:
    """The next attempt's number is in the head and in the workers, and nothing else changes."""
    manifest = build(STEP, LAUNCH)
    patch = restart_patch(manifest, 2)["spec"]["leaderWorkerTemplate"]
    wanted = group(STEP, replace(LAUNCH, attempt=2))
    for role in ("leaderTemplate", "workerTemplate"):
        assert patch[role] == {"spec": {"containers": wanted[role]["spec"]["containers"]}}
        assert attempt_of(wanted[role]["spec"]) == 2
        assert attempt_of(manifest["spec"]["leaderWorkerTemplate"][role]["spec"]) == 0


def test_counts_of_a_step() -> None:
    """Hosts are those with chips; the head is one pod more, and the only one that runs the function."""
    assert (STEP.hosts, STEP.pods, STEP.runners, STEP.devices) == (8, 9, 1, 32)
    lws = replace(STEP, backend="lws", pathways=None)
    assert (lws.hosts, lws.pods, lws.runners, lws.devices) == (8, 8, 8, 32)


def test_it_travels() -> None:
    """The settings survive the way into the component's command and back."""
    step = replace(STEP, pathways=replace(SETTINGS, xla_flags=("--xla_a=b",), head_selector={"pool": "cpu"}))
    assert load_step(dump_step(step)) == step


def test_a_step_without_settings_is_no_pathways_step() -> None:
    """Building servers for another backend is a fault of the caller."""
    with pytest.raises(ValueError, match="step 'train' has backend 'lws' and no pathways settings"):
        needed(replace(STEP, backend="lws", pathways=None))


# --- declarations -----------------------------------------------------------------------------------------------------

RIGHT: Json = {"accelerator": "v5p-32", "backend": "pathways", "pathways": SETTINGS}


def problems(**given: Any) -> list[str]:
    _, found = declare(given, name="train", image="python:3.12", keywords=("packages_to_install",))
    return [str(problem) for problem in found]


def test_a_right_declaration() -> None:
    """Backend, hosts and reason are those of the shape; defaults are as for any group."""
    step, found = declare(RIGHT, name="train", image="python:3.12")
    assert found == ()
    assert step == StepSpec(
        name="train",
        backend="pathways",
        reason="asked for by backend='pathways'",
        image="python:3.12",
        shape=resolve("v5p-32"),
        hosts=4,
        pathways=SETTINGS,
    )


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (
            {"accelerator": "h100x8"},
            "backend: 'pathways' drives TPUs, but this is h100x8. "
            "Fix: give a TPU, such as accelerator='v5p-32', or write backend='lws'.",
        ),
        (
            {"accelerator": None},
            "backend: 'pathways' drives TPUs, but this is no accelerator. "
            "Fix: give a TPU, such as accelerator='v5p-32', or write backend='lws'.",
        ),
        (
            {"accelerator": "v6e-1"},
            "backend: 'pathways' has no instance type for v6e-1 on ct6e-standard-1t. "
            "Fix: write backend='lws', or choose another accelerator.",
        ),
        (
            {"accelerator": "v3-32"},
            "backend: 'pathways' has no instance type for v3-32 on ct3p-hightpu-4t. "
            "Fix: write backend='lws', or choose another accelerator.",
        ),
        (
            {"framework": "torch"},
            "framework: 'torch' cannot run on Pathways, which is a back end of JAX. "
            "Fix: write framework='jax' or leave it out.",
        ),
        (
            {"pathways": None},
            "pathways: it is missing: the servers need an image tag and a scratch folder. Fix: "
            "pathways=kr_kfp.Pathways(scratch='gs://bucket/folder', version='20260423-jax_0.10.0').",
        ),
        (
            {"pathways": {"version": "x"}},
            "pathways: {'version': 'x'} is of type dict. Fix: give a Pathways, such as "
            "pathways=kr_kfp.Pathways(scratch='gs://bucket/folder', version='20260423-jax_0.10.0').",
        ),
        (
            {"pathways": replace(SETTINGS, elastic_slices=2)},
            "pathways.elastic_slices: 2 slices may be missing, but the step has 1. Fix: give at most 1.",
        ),
        (
            {"packages_to_install": ["jax==0.9.1"]},
            "pathways.version: '20260423-jax_0.10.0' is for JAX 0.10.0, but packages_to_install pins JAX 0.9.1. "
            "Fix: take the images for JAX 0.9.1, or install jax==0.10.0.",
        ),
        (
            {"processes_per_host": 2},
            "processes_per_host: 2 means nothing for backend 'pathways', which runs the function once, on a head "
            "without accelerators. Fix: leave it out: one process on the head drives all devices.",
        ),
        (
            {"finish_grace": "1m"},
            "finish_grace: '1m' means nothing for backend 'pathways', which runs the function once, on a head without "
            "accelerators. Fix: leave it out: the function runs on the head alone, and its end is the step's end.",
        ),
        (
            {"logs": "all"},
            "logs: 'all' means nothing for backend 'pathways', which runs the function once, on a head without "
            "accelerators. Fix: leave it out: the function runs once, so that the head's log is all there is of it.",
        ),
        (
            {"env": {"JAX_PLATFORMS": "cpu"}},
            "env['JAX_PLATFORMS']: kr_kfp sets it for Pathways. Fix: choose another name, or leave it out.",
        ),
        (
            {"backend": "lws"},
            f"pathways: {SETTINGS!r} means nothing for backend 'lws', which runs the function on every host. "
            "Fix: write backend='pathways', or leave it out.",
        ),
        (
            {"accelerator": "v5p-8", "backend": "auto"},
            f"pathways: {SETTINGS!r} means nothing for backend 'pod', which is one pod without a launcher. "
            "Fix: write backend='pathways', or leave it out.",
        ),
    ],
)
def test_wrong_declarations(given: Json, problem: str) -> None:
    """What does not fit is named with value and fix."""
    assert problems(**{**RIGHT, **given}) == [problem]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            {"scratch": "s3://bucket/tmp"},
            "pathways.scratch: 's3://bucket/tmp' is no folder of Google Cloud Storage, which is all that the servers "
            "can use. Fix: write 'gs://bucket/folder'; the bucket must exist.",
        ),
        (
            {"version": None},
            "pathways.version: it is missing, and a default would drift away from the step's JAX. "
            "Fix: give the tag of the images for your JAX, such as '20260423-jax_0.10.0'.",
        ),
        (
            {"version": "a b"},
            "pathways.version: 'a b' is no image tag. Fix: give a tag such as '20260423-jax_0.10.0'.",
        ),
        ({"jax": "new"}, "pathways.jax: 'new' is no version of JAX. Fix: give one such as '0.10.0'."),
        (
            {"images": ""},
            "pathways.images: '' is no image name. Fix: give a name such as 'python:3.12'.",
        ),
        (
            {"elastic_slices": -1},
            "pathways.elastic_slices: -1 is less than 0. Fix: give a whole number from 0.",
        ),
        (
            {"colocated_python": "registry.test/sidecar:20260423-python_3.12-jax_0.9.0"},
            "pathways.colocated_python: 'registry.test/sidecar:20260423-python_3.12-jax_0.9.0' is made for JAX 0.9.0, "
            "but the servers' tag '20260423-jax_0.10.0' is for JAX 0.10.0. Fix: take the image for JAX 0.10.0.",
        ),
        (
            {"xla_flags": ("-x",)},
            "pathways.xla_flags[0]: '-x' is no flag of XLA. Fix: write '--xla_<name>=<value>'.",
        ),
        (
            {"proxy": {"gpu": "1"}},
            "pathways.proxy['gpu']: a Pathways server has cpu and memory only. Fix: leave it out.",
        ),
        (
            {"head_selector": {"pool": 1}},
            "pathways.head_selector['pool']: 1 is of type int. Fix: write '1'.",
        ),
    ],
)
def test_wrong_settings(fields: Json, problem: str) -> None:
    """Each field that cannot be is named."""
    assert problems(**{**RIGHT, "pathways": replace(SETTINGS, **fields)}) == [problem]


def test_all_problems_at_once() -> None:
    """Shape, framework, settings and misplaced arguments are all reported together."""
    wrong = Pathways(scratch="nowhere", elastic_slices=3)
    found = problems(accelerator="h100x8", backend="pathways", pathways=wrong, framework="none", logs="all", slices=2)
    assert [text.partition(":")[0] for text in found] == [
        "backend",
        "pathways.scratch",
        "pathways.version",
        "framework",
        "logs",
        "slices",
    ]


def test_reserved_names() -> None:
    """Names that only Pathways needs are the user's elsewhere."""
    assert (reserved("JAX_PLATFORMS", "pathways"), reserved("JAX_PLATFORMS")) == ("kr_kfp sets it for Pathways", "")


def test_settings_of_a_task_are_checked() -> None:
    """A task may not set the proxy, nor another count of chips."""
    config = {"env": [{"name": "JAX_BACKEND_TARGET"}], "resources": {"limits": {"google.com/tpu": "8"}}}
    assert [problem.path for problem in check_task_config(STEP, config)] == [
        "env 'JAX_BACKEND_TARGET'",
        "resource 'google.com/tpu'",
    ]


# --- a scratch location that a pipeline gives ---------------------------------------------------------------------------


def train(epochs: int) -> int:
    return epochs


def test_scratch_from_a_pipeline_input(tmp_path_factory: pytest.TempPathFactory) -> None:
    """An input of the pipeline, alone or inside a text, reaches the step through an input of kr_kfp's own."""
    step = component(train, accelerator="v5p-32")

    pipeline = scratch_from_inputs(step.options, lambda scratch: replace(SETTINGS, scratch=scratch))
    ir, _ = compiled(pipeline, tmp_path_factory)
    first, second = (ir["root"]["dag"]["tasks"][name]["inputs"]["parameters"] for name in ("train", "train-2"))
    assert first[SCRATCH_INPUT] == {"componentInputParameter": "bucket"}
    assert second[SCRATCH_INPUT] == {
        "runtimeValue": {"constant": "{{$.inputs.parameters['pipelinechannel--bucket']}}/more"}
    }
    _, packed, _ = split(executor(ir, "train")["command"])
    assert load_step(unpack(packed)).pathways == replace(SETTINGS, scratch=RUN_TIME_SCRATCH)


def test_scratch_that_is_missing_in_a_pipeline() -> None:
    """A step without a scratch location may run here, but not in a pipeline; nor is it compiled alone."""
    step = component(train, accelerator="v5p-32", backend="pathways", pathways=replace(SETTINGS, scratch=None))
    with pytest.raises(DeclarationError) as caught:
        once(step)
    assert caught.value.problems[0].path == "pathways.scratch"
    with pytest.raises(DeclarationError, match=r"pathways\.scratch: it is missing"):
        _ = step.pipeline_spec


def test_kr_kfps_own_input_cannot_be_passed() -> None:
    """The input for the scratch location is filled by options() alone."""
    with pytest.raises(DeclarationError) as caught:
        component(train, **RIGHT)(epochs=1, kr_kfp_pathways_scratch="gs://bucket/tmp")
    assert caught.value.problems[0].path == SCRATCH_INPUT


def test_taking_the_scratch_location() -> None:
    """The launcher takes it out of the function's arguments."""
    values = {"parameterValues": {"epochs": 1, SCRATCH_INPUT: "gs://bucket/tmp"}}
    rest, scratch = take_scratch({"inputs": values})
    assert (rest, scratch) == ({"inputs": {"parameterValues": {"epochs": 1}}}, "gs://bucket/tmp")
    assert take_scratch({"inputs": {}}) == ({"inputs": {}}, "")


def test_scratch_at_launch() -> None:
    """What was given wins over the step's own; no folder of Google Cloud Storage is refused where servers run."""
    late = replace(STEP, pathways=replace(SETTINGS, scratch=RUN_TIME_SCRATCH))
    assert check_scratch(STEP, "", needed=True) == ()
    assert check_scratch(late, "gs://bucket/x", needed=True) == ()
    assert check_scratch(late, "", needed=False) == ()
    (problem,) = check_scratch(late, "minio://bucket/x", needed=True)
    assert problem.message == "'minio://bucket/x' is no folder of Google Cloud Storage."
    (problem,) = check_scratch(late, "", needed=True)
    assert problem.message == "there is none."
    arguments = by_name(head(late, replace(LAUNCH, scratch="gs://bucket/x")))["pathways-rm"]["args"]
    assert "--gcs_scratch_location=gs://bucket/x" in arguments


def test_options_drop_what_only_pathways_needs() -> None:
    """Another backend of the same step drops the settings; going back takes them anew."""
    step = component(train, **RIGHT)
    other = step.options(backend="lws")
    assert (other.step.backend, other.step.pathways) == ("lws", None)
    assert other.options(backend="pathways").step.pathways == SETTINGS
    assert kr_kfp.Pathways is Pathways
