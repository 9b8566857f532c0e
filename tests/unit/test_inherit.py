"""What training pods take over from the launcher's own pod, and what they must not."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kr_kfp.errors import Problem
from kr_kfp.spec.inherit import check_own_pod, inherit, owners
from kr_kfp.spec.launch import Inherited, Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.step import StepSpec

Json = dict[str, Any]

STEP = StepSpec(name="train", backend="lws", hosts=2, image="python:3.12")
LAUNCH = Launch(name="train-x", run="r1", task="train", identity="r1/train", holder="l1", payload=("p",), init=("sh",))

# A pod of KFP 2.17 as Argo 4.0 makes it (kubeflow/pipelines backend/src/v2/compiler/argocompiler/container.go).
PLAIN: Json = {
    "metadata": {
        "name": "digits-fzm5n-system-container-impl-1",
        "uid": "l1",
        "labels": {
            "pipeline/runid": "r1",
            "pipelines.kubeflow.org/v2_component": "true",
            "workflows.argoproj.io/completed": "false",
            "workflows.argoproj.io/workflow": "digits-fzm5n",
            "sidecar.istio.io/inject": "false",
            "topology.kubernetes.io/zone": "a",
        },
        "annotations": {
            "kr-kfp.dev/source": "train.py:7",
            "kubectl.kubernetes.io/default-container": "main",
            "kubernetes.io/limit-ranger": "LimitRanger plugin set: cpu",
            "workflows.argoproj.io/kill-cmd-main": '["sh"]',
            "workflows.argoproj.io/node-name": "digits-fzm5n(0).root(0).train(0).executor(0)",
        },
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c1"},
            {
                "apiVersion": "argoproj.io/v1alpha1",
                "kind": "Workflow",
                "name": "digits-fzm5n",
                "uid": "w1",
                "controller": True,
                "blockOwnerDeletion": True,
            },
        ],
    },
    "spec": {
        "containers": [
            {"name": "wait", "image": "argoexec", "securityContext": {"runAsUser": 8737}},
            {
                "name": "main",
                "image": "python:3.12",
                "resources": {},
                "volumeMounts": [
                    {"name": "kfp-launcher", "mountPath": "/kfp-launcher"},
                    {"name": "gcs-scratch", "mountPath": "/gcs"},
                    {"name": "var-run-argo", "mountPath": "/var/run/argo"},
                    {"name": "kube-api-access", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
                ],
            },
        ],
        "volumes": [
            {"name": "var-run-argo", "emptyDir": {}},
            {"name": "kfp-launcher", "emptyDir": {}},
            {"name": "gcs-scratch", "emptyDir": {}},
            {"name": "kube-api-access", "projected": {"sources": []}},
        ],
    },
}


def own(**changes: Any) -> Json:
    """The plain pod with changes: ``spec``, ``main`` and ``metadata``."""
    pod = copy.deepcopy(PLAIN)
    for key, value in changes.get("metadata", {}).items():
        pod["metadata"][key] |= value
    pod["spec"] |= changes.get("spec", {})
    main = pod["spec"]["containers"][1]
    mounts = changes.get("main", {}).pop("volumeMounts", [])
    main |= changes.get("main", {})
    main["volumeMounts"] = [*main["volumeMounts"], *mounts]
    pod["spec"]["volumes"] = [*pod["spec"]["volumes"], *changes.get("volumes", [])]
    return pod


SET = own(
    spec={
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "registry"}, {"name": "other"}],
        "securityContext": {"fsGroup": 100},
        "tolerations": [{"key": "node.kubernetes.io/not-ready"}],
        "priority": 0,
    },
    main={
        "image": "mine:2",
        "imagePullPolicy": "Always",
        "securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}},
        "env": [{"name": "KFP_POD_NAME", "value": "x"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    },
    metadata={"labels": {"team": "vision"}, "annotations": {"cost/centre": "7"}},
    volumes=[{"name": "scratch", "emptyDir": {"medium": "Memory"}}, {"name": "pvc", "persistentVolumeClaim": {}}],
)


def test_a_pod_with_nothing_set_gives_nothing() -> None:
    """What KFP, Argo and the cluster wrote is not the user's; the image is the component's own."""
    assert inherit(PLAIN, STEP) == Inherited(launcher_image="python:3.12")


def test_everything_that_the_user_set_is_inherited() -> None:
    """All of it, and nothing else, with words for the log."""
    assert inherit(SET, STEP) == Inherited(
        pod={
            "serviceAccountName": "trainer",
            "imagePullSecrets": [{"name": "registry"}, {"name": "other"}],
            "securityContext": {"fsGroup": 100},
        },
        container={
            "image": "mine:2",
            "imagePullPolicy": "Always",
            "securityContext": {"runAsUser": 1000, "capabilities": {"drop": ["ALL"]}},
        },
        launcher_image="mine:2",
        labels={"team": "vision"},
        annotations={"cost/centre": "7"},
        volumes=({"name": "scratch", "emptyDir": {"medium": "Memory"}},),
        mounts=({"name": "scratch", "mountPath": "/scratch"},),
        told=(
            "service account trainer",
            "image pull secrets registry, other",
            "security context",
            "image mine:2",
            "image pull policy Always",
            "label team",
            "annotation cost/centre",
            "emptyDir scratch",
        ),
    )


def test_an_own_launcher_image_is_not_taken_for_training() -> None:
    """With ``launcher_image`` the launcher's image differs from the training's by declaration."""
    step = StepSpec(name="train", hosts=2, image="train:1", launcher_image="launcher:1")
    found = inherit(own(main={"image": "launcher:1"}), step)
    assert (found.container, found.launcher_image, found.told) == ({}, "launcher:1", ())


def test_inherited_settings_reach_the_pods() -> None:
    """Pod fields on the pod, container fields on ``main`` and on the init container, which runs the launcher's image."""
    spec = build(STEP, LAUNCH_SET)["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    main, init = spec["spec"]["containers"][0], spec["spec"]["initContainers"][0]
    assert spec["metadata"]["labels"]["team"] == "vision"
    assert spec["metadata"]["annotations"]["cost/centre"] == "7"
    assert spec["spec"]["serviceAccountName"] == "trainer"
    assert spec["spec"]["securityContext"] == {"fsGroup": 100}
    assert spec["spec"]["volumes"][1] == {"name": "scratch", "emptyDir": {"medium": "Memory"}}
    assert (main["name"], main["image"], main["imagePullPolicy"]) == ("main", "mine:2", "Always")
    assert main["securityContext"] == {
        "runAsUser": 1000,
        "capabilities": {"drop": ["ALL"]},
        "allowPrivilegeEscalation": False,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert main["volumeMounts"][:2] == [
        {"name": "kr-kfp", "mountPath": "/kr-kfp"},
        {"name": "scratch", "mountPath": "/scratch"},
    ]
    assert (init["name"], init["image"], init["imagePullPolicy"]) == ("kr-kfp", "mine:2", "Always")
    assert init["securityContext"] == main["securityContext"]


LAUNCH_SET = Launch(
    name="train-x",
    run="r1",
    task="train",
    identity="r1/train",
    holder="l1",
    payload=("p",),
    init=("sh",),
    inherited=inherit(SET, STEP),
    owners=owners(SET),
)


def test_the_component_wins_over_what_is_inherited() -> None:
    """Labels and annotations that the component declares stay as it says."""
    step = StepSpec(name="train", hosts=2, image="i", labels=(("team", "speech"),), annotations=(("cost/centre", "8"),))
    metadata = build(step, LAUNCH_SET)["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]
    assert metadata["labels"]["team"] == "speech"
    assert metadata["annotations"]["cost/centre"] == "8"


def test_without_a_pod_nothing_changes() -> None:
    """Outside of a KFP pod the pods are what the component says."""
    spec = build(STEP, LAUNCH)["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert sorted(spec["containers"][0]) == [
        "args",
        "command",
        "env",
        "image",
        "name",
        "securityContext",
        "volumeMounts",
    ]
    assert spec["initContainers"][0]["image"] == "python:3.12"


def test_the_owner_is_the_pods_controller() -> None:
    """Argo's Workflow owns the group, without blocking its deletion; a pod without a controller gives no owner."""
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "digits-fzm5n", "uid": "w1"}
    assert owners(PLAIN) == (owner,)
    assert build(STEP, LAUNCH_SET)["metadata"]["ownerReferences"] == [owner]
    assert owners({"metadata": {"name": "p"}}) == ()


@pytest.mark.parametrize(
    "resource",
    [
        "google.com/tpu",
        "nvidia.com/gpu",
        "nvidia.com/mig-1g.5gb",
        "amd.com/gpu",
        "habana.ai/gaudi",
        "gpu.intel.com/xe-gpu",
    ],
)
def test_an_accelerator_on_the_launcher_is_refused(resource: str) -> None:
    """The component was loaded by plain KFP, which puts the accelerator on the wrong pod."""
    assert check_own_pod(own(main={"resources": {"limits": {resource: "4"}, "requests": {resource: "4"}}})) == (
        Problem(
            f"resource {resource!r}",
            "4 on the launcher's own pod: the component was loaded without kr_kfp.",
            "Load it with kr_kfp.load_component, and leave the accelerator to accelerator=.",
        ),
    )


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"cpu": "1", "memory": "2Gi", "ephemeral-storage": "1Gi", "hugepages-2Mi": "4Mi"}},
        {"limits": {"smarter-devices/fuse": "1", "networking.gke.io.networks/rdma": "1"}},
        {"limits": {"nvidia.com/gpu": "0"}},
        {"limits": None},
    ],
)
def test_other_resources_of_the_launcher_are_its_own(resources: Json) -> None:
    """``launcher_resources`` and what webhooks add are no accelerators."""
    assert check_own_pod(own(main={"resources": resources})) == ()


def test_all_problems_of_the_own_pod_at_once() -> None:
    """A timeout, a volume and a mount of ours, and an accelerator are told together, each with its fix."""
    pod = own(
        spec={"activeDeadlineSeconds": 3600},
        main={
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
            "volumeMounts": [{"name": "kr-kfp", "mountPath": "/kr-kfp/"}],
        },
        volumes=[{"name": "kr-kfp", "emptyDir": {}}],
    )
    assert check_own_pod(pod) == (
        Problem(
            "resource 'nvidia.com/gpu'",
            "1 on the launcher's own pod: the component was loaded without kr_kfp.",
            "Load it with kr_kfp.load_component, and leave the accelerator to accelerator=.",
        ),
        Problem(
            "set_timeout",
            "3600 s (activeDeadlineSeconds): it would end the launcher and not the training.",
            'Use timeout="3600s" of the component.',
        ),
        Problem("emptyDir 'kr-kfp'", "kr_kfp has a volume of this name.", "Rename yours."),
        Problem("mount '/kr-kfp'", "kr_kfp has /kr-kfp for itself.", "Mount it elsewhere."),
    )


def test_a_plain_pod_has_no_problems() -> None:
    """A pod as KFP makes it is right."""
    assert check_own_pod(PLAIN) == ()
    assert check_own_pod({"metadata": {"name": "p"}}) == ()
