"""The manifest of a group, field by field, and the patches of a restart (cases 8, 9, 10 and 11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.launch import Inherited, Launch, Ports
from kr_kfp.spec.leaderworkerset import attempt_of, build, restart_patch, stop_patch
from kr_kfp.spec.pod import env_entry, reserved, training_pod
from kr_kfp.spec.step import ConfigKey, Secret, StepSpec
from tests import crd

NAME = "train-0123456789"
POOL = "cloud.google.com/gke-nodepool"
LAUNCH = Launch(
    name=NAME,
    run="run-1",
    task="p-x.root.train",
    identity="run-1/p-x.root.train",
    holder="holder-uid",
    payload=("first", "second"),
    checkpoint_dir="gs://bucket/checkpoints",
)
CPU = StepSpec(name="train", backend="lws", image="python:3.12", hosts=1)
SLICE = replace(CPU, shape=resolve("v5litepod-16"), hosts=4)
SLICES = replace(SLICE, hosts=8, slices=2)
GPUS = replace(CPU, shape=resolve("h100x8"), hosts=2)
ONE_TPU_HOST = replace(CPU, shape=resolve("v5e:2x4@ct5lp-hightpu-8t"))

TASK_CONFIG: dict[str, Any] = {
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]
            }
        }
    },
    "env": [
        {"name": "LEVEL", "value": "task"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}},
    ],
    "nodeSelector": {"zone": "a", "cloud.google.com/gke-tpu-topology": "1x1"},
    "resources": {"limits": {"memory": "64Gi", "cpu": "8"}, "requests": {"memory": "32Gi"}},
    "tolerations": [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
}
"""As KFP's driver sends it (backend/src/v2/driver/driver.go)."""

SCRATCH = {
    "gcs-scratch": "/gcs",
    "s3-scratch": "/s3",
    "minio-scratch": "/minio",
    "dot-local-scratch": "/.local",
    "dot-cache-scratch": "/.cache",
    "dot-config-scratch": "/.config",
}
SCRATCH_VOLUMES: list[dict[str, Any]] = [{"name": name, "emptyDir": {}} for name in SCRATCH]
SCRATCH_MOUNTS = [{"name": name, "mountPath": path} for name, path in SCRATCH.items()]
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""What KFP gives its own executors (backend/src/v2/compiler/argocompiler)."""

OWNERS = ({"apiVersion": "v1", "kind": "Pod", "name": "launcher", "uid": "launcher-uid"},)

COMMON_ENV = [
    ("KR_KFP_RUN", "run-1"),
    ("KR_KFP_TASK", "p-x.root.train"),
    ("KR_KFP_FUNCTION", "train"),
    ("KR_KFP_ATTEMPT", "0"),
]
ADDRESSES = [
    ("KR_KFP_CHECKPOINT_DIR", "gs://bucket/checkpoints"),
    ("KR_KFP_WORK", "/kr-kfp/work"),
    ("KR_KFP_LIBRARY", "/kr-kfp/lib"),
    ("JAX_COORDINATOR_ADDRESS", "$(LWS_LEADER_ADDRESS):8482"),
    ("MASTER_ADDR", "$(LWS_LEADER_ADDRESS)"),
    ("MASTER_PORT", "29400"),
]


def template(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = manifest["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return found


def pod(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template(manifest)["spec"]
    return found


def container(manifest: dict[str, Any]) -> dict[str, Any]:
    (found,) = pod(manifest)["containers"]
    assert isinstance(found, dict)
    return found


def env(manifest: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(entry["name"], entry.get("value", entry.get("valueFrom"))) for entry in container(manifest)["env"]]


FULL = replace(
    LAUNCH,
    task_config=TASK_CONFIG,
    owners=OWNERS,
    inherited=Inherited(pod={"serviceAccountName": "trainer", "imagePullSecrets": [{"name": "registry"}]}),
    init=("sh", "-c", "script", "kr-kfp", "provide", "0", "python3", "--", "/kr-kfp/lib"),
)


@pytest.mark.parametrize("launch", [LAUNCH, FULL], ids=["bare", "task-config"])
@pytest.mark.parametrize("step", [CPU, SLICE, SLICES, GPUS, ONE_TPU_HOST], ids=["cpu", "v5e", "v5e-2", "gpu", "host"])
def test_every_manifest_fits_the_crd(step: StepSpec, launch: Launch) -> None:
    """The real LWS would take every manifest without pruning a field."""
    full = replace(
        step,
        spot=True,
        env=(("LEVEL", "step"), ("KEY", Secret("s", "k")), ("MODE", ConfigKey("c", "k"))),
        labels=(("team", "ml"),),
        annotations=(("note", "text"),),
    )
    assert crd.validate(build(step, launch)) == []
    assert crd.validate(build(full, launch)) == []


def test_group_of_one() -> None:
    """One host on CPU is a whole LeaderWorkerSet of size one, literally (case 10)."""
    labels = {
        "app.kubernetes.io/managed-by": "kr-kfp",
        "kr-kfp.dev/run": "run-1",
        "kr-kfp.dev/task": "p-x.root.train",
        "sidecar.istio.io/inject": "false",
    }
    manifest = build(CPU, LAUNCH)
    assert manifest == {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {
            "name": NAME,
            "labels": labels,
            "annotations": {"kr-kfp.dev/identity": "run-1/p-x.root.train", "kr-kfp.dev/holder": "holder-uid"},
        },
        "spec": {
            "replicas": 1,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": 1,
                "restartPolicy": "None",
                "workerTemplate": {
                    "metadata": {"labels": labels, "annotations": {"sidecar.istio.io/inject": "false"}},
                    "spec": {
                        "automountServiceAccountToken": False,
                        "terminationGracePeriodSeconds": 30,
                        "containers": [
                            {
                                "name": "main",
                                "image": "python:3.12",
                                "command": [
                                    "sh",
                                    "-c",
                                    "trap 'exit 143' TERM; if cat \"$KR_KFP_WORK/outcome\" 2>/dev/null; "
                                    "then trap 'exit 0' TERM; while sleep 86400 & wait $!; do :; done; fi; "
                                    'exec "$0" "$@"',
                                    "python3",
                                    "-c",
                                    "import os, signal, sys; "
                                    "signal.signal(signal.SIGTERM, lambda *_: os._exit(143)); "
                                    "sys.path.insert(0, '/kr-kfp/lib'); from kr_kfp.runtime.__main__ import main; sys.exit(main(sys.argv[1:]))",
                                    "host",
                                ],
                                "args": ["first", "second"],
                                "env": [
                                    {"name": name, "value": value}
                                    for name, value in [
                                        *COMMON_ENV,
                                        ("KR_KFP_HOSTS", "1"),
                                        ("KR_KFP_DEVICES", "0"),
                                        *ADDRESSES,
                                    ]
                                ],
                                "volumeMounts": [{"name": "kr-kfp", "mountPath": "/kr-kfp"}, *SCRATCH_MOUNTS],
                                "securityContext": CONFINED,
                            }
                        ],
                        "volumes": [{"name": "kr-kfp", "emptyDir": {}}, *SCRATCH_VOLUMES],
                    },
                },
            },
        },
    }


def test_slice_of_four_hosts() -> None:
    """v5litepod-16 is four hosts with four chips each, alone on their node pool."""
    manifest = build(SLICE, LAUNCH)
    assert manifest["spec"]["leaderWorkerTemplate"]["size"] == 4
    assert "subGroupPolicy" not in manifest["spec"]["leaderWorkerTemplate"]
    assert manifest["metadata"]["annotations"] == {
        "kr-kfp.dev/identity": "run-1/p-x.root.train",
        "kr-kfp.dev/holder": "holder-uid",
        "leaderworkerset.sigs.k8s.io/exclusive-topology": POOL,
    }
    assert pod(manifest)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert pod(manifest)["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert container(manifest)["resources"] == {"limits": {"google.com/tpu": "4"}, "requests": {"google.com/tpu": "4"}}
    assert env(manifest) == [*COMMON_ENV, ("KR_KFP_HOSTS", "4"), ("KR_KFP_DEVICES", "4"), *ADDRESSES]


def test_two_slices() -> None:
    """Two slices are sub-groups of four hosts; only they get the MEGASCALE variables, last."""
    manifest = build(SLICES, LAUNCH)
    group = manifest["spec"]["leaderWorkerTemplate"]
    assert group["size"] == 8
    assert group["subGroupPolicy"] == {"subGroupSize": 4, "subGroupPolicyType": "LeaderWorker"}
    assert (
        group["workerTemplate"]["metadata"]["annotations"]["leaderworkerset.sigs.k8s.io/leader-requests-tpus"] == "true"
    )
    assert manifest["metadata"]["annotations"] == {
        "kr-kfp.dev/identity": "run-1/p-x.root.train",
        "kr-kfp.dev/holder": "holder-uid",
        "leaderworkerset.sigs.k8s.io/subgroup-exclusive-topology": POOL,
    }
    assert env(manifest) == [
        *COMMON_ENV,
        ("KR_KFP_HOSTS", "8"),
        ("KR_KFP_DEVICES", "4"),
        *ADDRESSES,
        ("MEGASCALE_NUM_SLICES", "2"),
        ("MEGASCALE_COORDINATOR_ADDRESS", "$(LWS_LEADER_ADDRESS):8080"),
        (
            "MEGASCALE_SLICE_ID",
            {"fieldRef": {"fieldPath": "metadata.labels['leaderworkerset.sigs.k8s.io/subgroup-index']"}},
        ),
    ]


def test_gpu_hosts() -> None:
    """GPU hosts may lie anywhere: no exclusive topology, the machine named since its label has several."""
    manifest = build(GPUS, LAUNCH)
    assert set(manifest["metadata"]["annotations"]) == {"kr-kfp.dev/identity", "kr-kfp.dev/holder"}
    assert pod(manifest)["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
        "node.kubernetes.io/instance-type": "a3-highgpu-8g",
    }
    assert pod(manifest)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert container(manifest)["resources"] == {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}}
    assert env(manifest) == [*COMMON_ENV, ("KR_KFP_HOSTS", "2"), ("KR_KFP_DEVICES", "8"), *ADDRESSES]


@pytest.mark.parametrize(("size", "limit"), [("", {}), ("16Gi", {"sizeLimit": "16Gi"})])
def test_shared_memory(size: str, limit: dict[str, str]) -> None:
    """/dev/shm is the pod's own memory, with a limit if one is named; a mount of the task's there replaces it."""
    step = replace(GPUS, shm=True, shm_size=size)
    assert pod(build(step, LAUNCH))["volumes"][1] == {
        "name": "kr-kfp-shm",
        "emptyDir": {"medium": "Memory", **limit},
    }
    assert container(build(step, LAUNCH))["volumeMounts"][1] == {"name": "kr-kfp-shm", "mountPath": "/dev/shm"}
    assert crd.validate(build(step, LAUNCH)) == []
    config: dict[str, Any] = {
        "volumes": [{"name": "mine", "emptyDir": {}}],
        "volumeMounts": [{"name": "mine", "mountPath": "/dev/shm/"}],
    }
    own = build(step, replace(LAUNCH, task_config=config))
    assert [volume["name"] for volume in pod(own)["volumes"]] == ["kr-kfp", "mine", *SCRATCH]
    inherited = Inherited(volumes=tuple(config["volumes"]), mounts=tuple(config["volumeMounts"]))
    from_the_launcher = build(step, replace(LAUNCH, inherited=inherited))
    assert pod(from_the_launcher)["volumes"] == pod(own)["volumes"]
    assert container(from_the_launcher)["volumeMounts"] == container(own)["volumeMounts"]
    assert [mount["name"] for mount in container(own)["volumeMounts"]] == ["kr-kfp", "mine", *SCRATCH]


def test_one_tpu_host_is_not_exclusive() -> None:
    """Single-host TPU node pools hold many slices: a host must not claim the pool."""
    manifest = build(ONE_TPU_HOST, LAUNCH)
    assert set(manifest["metadata"]["annotations"]) == {"kr-kfp.dev/identity", "kr-kfp.dev/holder"}
    assert pod(manifest)["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "2x4",
        "node.kubernetes.io/instance-type": "ct5lp-hightpu-8t",
    }


def test_task_config_reaches_the_training_pods() -> None:
    """All that was set on the task is in the template; where it contradicts the accelerator, the accelerator wins."""
    spec = pod(build(SLICE, FULL))
    assert spec["affinity"] == TASK_CONFIG["affinity"]
    assert spec["nodeSelector"] == {
        "zone": "a",
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x4",
    }
    assert spec["tolerations"] == [
        {"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
        {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"},
    ]
    assert spec["volumes"] == [
        {"name": "kr-kfp", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        *SCRATCH_VOLUMES,
    ]
    (main,) = spec["containers"]
    assert main["volumeMounts"] == [
        {"name": "kr-kfp", "mountPath": "/kr-kfp"},
        {"name": "data", "mountPath": "/data"},
        *SCRATCH_MOUNTS,
    ]
    assert main["resources"] == {
        "limits": {"memory": "64Gi", "cpu": "8", "google.com/tpu": "4"},
        "requests": {"memory": "32Gi", "google.com/tpu": "4"},
    }


def test_task_config_is_left_as_it_is() -> None:
    """Building twice from one TaskConfig gives the same manifest: nothing is written into the input."""
    assert build(SLICE, FULL) == build(SLICE, FULL)
    assert TASK_CONFIG["resources"] == {"limits": {"memory": "64Gi", "cpu": "8"}, "requests": {"memory": "32Gi"}}


def test_env_of_the_task_wins_over_the_step() -> None:
    """A variable is there once; the task's value replaces the decorator's in its place, secrets stay references."""
    step = replace(CPU, env=(("LEVEL", "step"), ("HOME_DIR", "/work"), ("KEY", Secret("s", "k"))))
    assert env(build(step, FULL))[:5] == [
        ("LEVEL", "task"),
        ("HOME_DIR", "/work"),
        ("KEY", {"secretKeyRef": {"name": "s", "key": "k"}}),
        ("TOKEN", {"secretKeyRef": {"name": "keys", "key": "token"}}),
        ("KR_KFP_RUN", "run-1"),
    ]


def test_owners_and_inherited_fields() -> None:
    """The group belongs to the launcher's pod, and its pods run as the launcher does, without an API token."""
    manifest = build(CPU, FULL)
    assert manifest["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Pod", "name": "launcher", "uid": "launcher-uid"}
    ]
    spec = pod(manifest)
    assert spec["serviceAccountName"] == "trainer"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["automountServiceAccountToken"] is False
    assert "ownerReferences" not in build(CPU, LAUNCH)["metadata"]


def test_inherited_token_is_not_mounted() -> None:
    """An inherited automountServiceAccountToken does not give training pods a token."""
    launch = replace(LAUNCH, inherited=Inherited(pod={"automountServiceAccountToken": True}))
    assert pod(build(CPU, launch))["automountServiceAccountToken"] is False


def test_init_container_brings_kr_kfp() -> None:
    """The init container runs the launcher's image and writes into the shared volume."""
    spec = pod(build(replace(CPU, launcher_image="launcher:1"), FULL))
    assert spec["initContainers"] == [
        {
            "name": "kr-kfp",
            "image": "launcher:1",
            "command": ["sh", "-c", "script", "kr-kfp", "provide", "0", "python3", "--", "/kr-kfp/lib"],
            "volumeMounts": [{"name": "kr-kfp", "mountPath": "/kr-kfp"}, *SCRATCH_MOUNTS],
            "securityContext": CONFINED,
        }
    ]
    assert pod(build(CPU, FULL))["initContainers"][0]["image"] == "python:3.12"
    assert "initContainers" not in pod(build(CPU, LAUNCH))


def test_spot() -> None:
    """Spot hosts select GKE's spot label and tolerate its taint."""
    spec = pod(build(replace(CPU, spot=True), LAUNCH))
    assert spec["nodeSelector"] == {"cloud.google.com/gke-spot": "true"}
    assert spec["tolerations"] == [
        {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    ]


def test_labels_of_the_step_do_not_hide_ours() -> None:
    """A user's labels and annotations are there; the names by which kr_kfp finds its groups keep their values."""
    step = replace(
        CPU,
        labels=(("team", "ml"), ("kr-kfp.dev/run", "other"), ("sidecar.istio.io/inject", "true")),
        annotations=(("note", "text"),),
    )
    assert template(build(step, LAUNCH))["metadata"] == {
        "labels": {
            "team": "ml",
            "kr-kfp.dev/run": "run-1",
            "sidecar.istio.io/inject": "false",
            "app.kubernetes.io/managed-by": "kr-kfp",
            "kr-kfp.dev/task": "p-x.root.train",
        },
        "annotations": {"note": "text", "sidecar.istio.io/inject": "false"},
    }


def test_label_values_are_cut() -> None:
    """A node name from nested loops is longer than a label may be, and has characters that it may not have (case 9)."""
    task = "a-very-long-pipeline-name-x9z.root(0).train-everything(0).iteration-item(0).it(0)"
    labels = template(build(CPU, replace(LAUNCH, task=task)))["metadata"]["labels"]
    assert labels["kr-kfp.dev/task"] == "a-very-long-pipeline-name-x9z.root-0-.train-everything-fde39572"
    assert crd.validate(build(CPU, replace(LAUNCH, task=task))) == []


def test_label_of_a_launch_without_task() -> None:
    """Without a task name the step's own stands in the label."""
    assert template(build(CPU, replace(LAUNCH, task="")))["metadata"]["labels"]["kr-kfp.dev/task"] == "train"


def test_ports_of_the_local_cluster() -> None:
    """Ports come from the launch: several groups run on one machine."""
    launch = replace(LAUNCH, ports=Ports(jax=1, torch=2, megascale=3))
    found = dict(env(build(SLICES, launch)))
    assert found["JAX_COORDINATOR_ADDRESS"] == "$(LWS_LEADER_ADDRESS):1"
    assert found["MASTER_PORT"] == "2"
    assert found["MEGASCALE_COORDINATOR_ADDRESS"] == "$(LWS_LEADER_ADDRESS):3"


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        ("plain", {"name": "A", "value": "plain"}),
        ("$(HOME) costs 5$", {"name": "A", "value": "$$(HOME) costs 5$$"}),
        ("$$", {"name": "A", "value": "$$$$"}),
        (Secret("s", "k"), {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
        (ConfigKey("c", "k"), {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}),
    ],
)
def test_env_entry(value: str | Secret | ConfigKey, entry: dict[str, Any]) -> None:
    """A dollar arrives as it was written: the kubelet expands ``$(NAME)`` and halves ``$$``."""
    assert env_entry(("A", value)) == entry


@pytest.mark.parametrize(
    ("name", "who"),
    [
        ("LWS_LEADER_ADDRESS", "LeaderWorkerSet sets it on every host"),
        ("LWS_GROUP_SIZE", "LeaderWorkerSet sets it on every host"),
        ("LWS_WORKER_INDEX", "LeaderWorkerSet sets it on every host"),
        ("TPU_WORKER_ID", "LeaderWorkerSet sets it on every host"),
        ("TPU_WORKER_HOSTNAMES", "LeaderWorkerSet sets it on every host"),
        ("TPU_NAME", "LeaderWorkerSet sets it on every host"),
        ("TPU_PROCESS_ADDRESSES", "LeaderWorkerSet sets it on every host"),
        ("CLUSTER_SPEC", "kr_kfp sets it on every host"),
        ("JAX_COORDINATOR_ADDRESS", "kr_kfp sets it on every host"),
        ("KERAS_DISTRIBUTION_PROCESS_ID", "kr_kfp sets it on every host"),
        ("KR_KFP_ANYTHING", "kr_kfp sets it on every host"),
        ("MEGASCALE_SLICE_ID", "kr_kfp sets it on every host"),
        ("RANK", "kr_kfp sets it on every host"),
        ("WORLD_SIZE", "kr_kfp sets it on every host"),
        ("JAX_PLATFORMS", ""),
        ("KERAS_BACKEND", ""),
        ("TPU_RUNTIME_VERSION", ""),
        ("XLA_FLAGS", ""),
    ],
)
def test_reserved(name: str, who: str) -> None:
    """Names that LWS or kr_kfp sets are refused by name; all others are the user's (case 11)."""
    assert reserved(name) == who


@pytest.mark.parametrize("step", [CPU, SLICES], ids=["cpu", "slices"])
def test_all_names_of_ours_are_reserved(step: StepSpec) -> None:
    """What the builder sets a user may not set."""
    assert [name for name, _ in env(build(step, LAUNCH)) if not reserved(name)] == []


def test_stop_patch() -> None:
    """The first half of a restart takes the pods away and keeps the group."""
    assert stop_patch() == {"spec": {"replicas": 0}}


def test_restart_patch_changes_the_attempt_alone() -> None:
    """The second half brings the pods back with the next attempt; the merged group is the one of that attempt."""
    group = build(SLICES, FULL)
    patch = restart_patch(group, 2)
    assert set(patch) == {"spec"}
    assert patch["spec"]["replicas"] == 1
    containers = patch["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    assert containers == pod(build(SLICES, replace(FULL, attempt=2)))["containers"]
    assert attempt_of(pod(group)) == 0


def test_restart_patch_leaves_other_containers() -> None:
    """A container that a webhook put into the template passes through the patch unchanged."""
    group = build(CPU, LAUNCH)
    sidecar = {"name": "sidecar", "image": "s"}
    pod(group)["containers"].append(sidecar)
    patch = restart_patch(group, 1)
    main, other = patch["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"]
    assert {"name": "KR_KFP_ATTEMPT", "value": "1"} in main["env"]
    assert other == {"name": "sidecar", "image": "s"}


def test_attempt_of() -> None:
    """A pod tells its attempt by the main container, wherever it stands; 0 where it says none."""
    spec = training_pod(CPU, replace(LAUNCH, attempt=3))["spec"]
    assert attempt_of(spec) == 3
    spec["containers"].insert(0, {"name": "sidecar", "env": [{"name": "KR_KFP_ATTEMPT", "value": "9"}]})
    assert attempt_of(spec) == 3
    assert attempt_of({"containers": [{"name": "main"}]}) == 0
    assert attempt_of({}) == 0
