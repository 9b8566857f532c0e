"""What is set on a task of several hosts, found on the pods of its group and from inside them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import kr_kfp
from tests.cluster.images import LAUNCHER_IMAGE, TRAIN_IMAGE
from tests.cluster.kfp_run import ACCOUNT
from tests.cluster.launch import Launching, nothing_is_left, shape
from tests.cluster.pools import Pools
from tests.cluster.space import Space

NODE = "node-1"


@kr_kfp.component(
    hosts=2,
    framework="none",
    env={
        "OF_THE_COMPONENT": "costs $5 $(HOME)",
        "OVER": "component",
        "TOKEN": kr_kfp.Secret("keys", "token"),
        "REGION": kr_kfp.ConfigKey("places", "region"),
    },
)
def look(shared: str) -> list:  # type: ignore[type-arg]
    """Tell what each host sees of the settings; host 1 hands its part over in a volume that both have."""
    import json
    import os
    import time
    from pathlib import Path

    ctx = kr_kfp.context()
    names = ("OF_THE_COMPONENT", "OVER", "TOKEN", "REGION", "LEVEL", "KEY", "PLACE")
    limits = [Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    mine = {
        "env": {name: os.environ.get(name) for name in names},
        "user": os.getuid(),
        "groups": sorted(os.getgroups()),
        "memory": [int(path.read_text()) for path in limits if path.exists()],
        "token": Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists(),
        "scratch": os.path.ismount("/scratch"),
    }
    partial = Path(shared, f"host-{ctx.host}.partial")
    partial.write_text(json.dumps(mine))
    partial.rename(partial.with_suffix(".json"))
    found, deadline = [Path(shared, f"host-{host}.json") for host in (0, 1)], time.monotonic() + 30
    while not all(path.exists() for path in found) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [json.loads(path.read_text()) for path in found]


@pytest.fixture(name="claim")
def claim_of_a_shared_folder(space: Space) -> Iterator[str]:
    """Give a bound PersistentVolumeClaim, whose volume is a folder of all nodes."""
    folder, rest = f"/run/{space.name}", space.rest
    space.cluster.corner.run("mkdir", "--mode=0777", folder)
    size = {"storage": "1Mi"}
    spec = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": space.name}
    volume = {"capacity": size, "accessModes": ["ReadWriteMany"], "hostPath": {"path": folder}}
    rest.create("persistentvolumes", None, {"metadata": {"name": space.name}, "spec": volume})
    claim = {"metadata": {"name": "shared"}, "spec": {**spec, "resources": {"requests": size}}}
    space.create_object("persistentvolumeclaims", claim)
    yield "shared"
    rest.delete("persistentvolumes", None, space.name)
    space.cluster.corner.run("rm", "--recursive", folder)


def test_settings_of_the_task(launching: Launching, pools: Pools, claim: str) -> None:
    """Whatever KFP passes through, and whatever it puts on the launcher's pod, is on every pod of the group."""
    space = launching.run.space
    pools.make("vision", [NODE], labels={}, resource="example.com/vision", amount=1)
    space.create_object("serviceaccounts", {"metadata": {"name": "trainer"}})
    space.create_object("secrets", {"metadata": {"name": "keys"}, "stringData": {"token": "t0k3n", "key": "k3y"}})
    space.create_object("configmaps", {"metadata": {"name": "places"}, "data": {"region": "here", "place": "there"}})
    step = shape(
        look, base_image=LAUNCHER_IMAGE, launcher_image=None, service_account="trainer", api_token=True, logs="all"
    )
    pod = launching.pod(step, shared="/shared")
    toleration = {"key": "example.com/vision", "operator": "Exists", "effect": "NoSchedule"}
    affinity = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}}
            ]
        }
    }
    resources = {"limits": {"cpu": "1", "memory": "300Mi"}, "requests": {"cpu": "20m", "memory": "100Mi"}}
    pod.task_config = {
        "env": [
            {"name": "LEVEL", "value": "debug"},
            {"name": "OVER", "value": "task"},
            {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
            {"name": "PLACE", "valueFrom": {"configMapKeyRef": {"name": "places", "key": "place"}}},
        ],
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "tolerations": [toleration],
        "affinity": affinity,
        "resources": resources,
        "volumes": [{"name": "shared", "persistentVolumeClaim": {"claimName": claim}}],
        "volumeMounts": [{"name": "shared", "mountPath": "/shared"}],
    }
    pod.labels, pod.annotations = {"team": "vision"}, {"example.com/note": "by hand"}
    pod.fields = {"imagePullSecrets": [{"name": "registry"}], "securityContext": {"supplementalGroups": [4243]}}
    pod.main = {"image": TRAIN_IMAGE, "imagePullPolicy": "Never", "securityContext": {"runAsUser": 4242}}
    pod.folders = {"scratch": "/scratch"}
    with space.watch("pods") as watch:
        ended = pod.start().wait()
        hosts = [seen.object for seen in watch if seen.name.startswith("look-") and seen.type == "ADDED"]
    log = pod.log()
    assert ended.code == 0, log
    seen = {
        "env": {
            "OF_THE_COMPONENT": "costs $5 $(HOME)",
            "OVER": "task",
            "TOKEN": "t0k3n",
            "REGION": "here",
            "LEVEL": "debug",
            "KEY": "k3y",
            "PLACE": "there",
        },
        "user": 4242,
        "groups": [0, 4243],
        "memory": [300 << 20],
        "token": True,
        "scratch": True,
    }
    assert pod.outputs()["parameterValues"]["Output"] == [seen, seen]
    assert len(hosts) == 2
    for host in hosts:
        spec, metadata = host["spec"], host["metadata"]
        (main,) = spec["containers"]
        assert spec["serviceAccountName"] == "trainer"
        assert spec["imagePullSecrets"] == [{"name": "registry"}]
        assert spec["nodeSelector"] == {"kubernetes.io/hostname": NODE}
        assert toleration in spec["tolerations"]
        assert spec["affinity"]["podAntiAffinity"] == affinity["podAntiAffinity"]
        assert spec["securityContext"] == {"supplementalGroups": [4243]}
        assert (main["image"], main["imagePullPolicy"]) == (TRAIN_IMAGE, "Never")
        assert main["resources"] == resources
        assert main["securityContext"]["runAsUser"] == 4242
        assert metadata["labels"]["team"] == "vision"
        assert metadata["annotations"]["example.com/note"] == "by hand"
    told = next(line for line in log.splitlines() if "hosts inherit from this pod" in line)
    for what in (
        f"service account {ACCOUNT}",
        "image pull secrets registry",
        "security context",
        f"image {TRAIN_IMAGE}",
        "image pull policy Never",
        "label team",
        "annotation example.com/note",
        "emptyDir scratch",
    ):
        assert what in told
    for secret in ("t0k3n", "k3y"):
        assert secret not in log
        assert secret not in json.dumps(hosts)
    nothing_is_left(launching)


def test_collisions_are_refused_at_launch(launching: Launching) -> None:
    """Settings that kr_kfp or LeaderWorkerSet need for themselves are named, all at once, and no group is made."""
    pod = launching.pod(shape(look), shared="/shared")
    pod.task_config = {
        "env": [{"name": "MASTER_ADDR", "value": "x"}, {"name": "TPU_WORKER_ID", "value": "0"}],
        "volumes": [{"name": "kr-kfp", "emptyDir": {}}],
        "volumeMounts": [{"name": "kr-kfp", "mountPath": "/kr-kfp/mine"}],
    }
    ended = pod.start().wait()
    assert ended.code == 1
    assert ended.message.splitlines() == [
        "look: settings of task 'look': 4 problems",
        "  1. env 'MASTER_ADDR': kr_kfp sets it on every host. Fix: Do not set it on the task.",
        "  2. env 'TPU_WORKER_ID': LeaderWorkerSet sets it on every host. Fix: Do not set it on the task.",
        "  3. volume 'kr-kfp': kr_kfp has a volume of this name. Fix: Rename yours.",
        "  4. mount '/kr-kfp/mine': kr_kfp has /kr-kfp for itself. Fix: Mount it elsewhere.",
    ]
    assert launching.groups() == []
