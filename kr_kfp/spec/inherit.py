"""What training pods take over from the launcher's own pod. Pure.

KFP puts some settings of a task on the pod of its own without telling anyone: service account, image pull secrets,
image, security context, labels, annotations, emptyDirs (tried with KFP 2.17). The user means the training, so the
training pods get them; what Argo and KFP put there themselves stays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kr_kfp.errors import Problem
from kr_kfp.spec.launch import Inherited
from kr_kfp.spec.pod import FOLDER, VOLUME
from kr_kfp.spec.step import StepSpec

__all__ = ["check_own_pod", "inherit", "owners"]

Json = Mapping[str, Any]

_MAIN = "main"
"""The user's container in a pod of Argo (argo-workflows ``workflow/common/common.go``, MainContainerName)."""

_NOT_THE_USERS = (
    # What KFP and Argo write, ours included, in case of which a launcher runs beneath a launcher.
    "kr-kfp.dev/",
    "pipeline/",
    "pipelines.kubeflow.org/",
    "scheduledworkflows.kubeflow.org/",
    "workflows.argoproj.io/",
    # What was written when this one pod was admitted, scheduled and connected.
    "cni.projectcalico.org/",
    "k8s.ovn.org/",
    "k8s.v1.cni.cncf.io/",
    "kubectl.kubernetes.io/",
    "kubernetes.io/",
    "leaderworkerset.sigs.k8s.io/",
    "openshift.io/",
    "topology.kubernetes.io/",
    # kr_kfp keeps Istio away from training pods, see kr_kfp.spec.pod.
    "istio.io/",
    "security.istio.io/",
    "service.istio.io/",
    "sidecar.istio.io/",
)

_SCRATCH = frozenset(
    {
        # kubeflow/pipelines backend/src/v2/compiler/argocompiler/container.go
        "dot-cache-scratch",
        "dot-config-scratch",
        "dot-local-scratch",
        "gcs-scratch",
        "kfp-launcher",
        "minio-scratch",
        "s3-scratch",
        # argo-workflows workflow/common/common.go
        "argo-staging",
        "input-artifacts",
        "tmp-dir-argo",
        "var-run-argo",
    }
)
"""EmptyDirs of KFP and Argo."""

_ACCELERATOR = re.compile(r".+/(.*[-.])?(gpu|tpu|gaudi|neuron|neuroncore|npu|xpu|mig-.+)([-.].*)?$", re.IGNORECASE)
"""Names of accelerators as device plugins register them: google.com/tpu, nvidia.com/gpu, nvidia.com/mig-1g.5gb ..."""


def owners(pod: Json) -> tuple[dict[str, Any], ...]:
    """Give the owner references of a group: those of the controller of the launcher's pod, Argo's Workflow.

    Deleting the run then collects the group, and losing the launcher's pod does not. ``blockOwnerDeletion`` is left
    out: it would need a right on the owner's finalizers.
    """
    return tuple(
        {key: owner[key] for key in ("apiVersion", "kind", "name", "uid")}
        for owner in pod["metadata"].get("ownerReferences") or ()
        if owner.get("controller")
    )


def check_own_pod(pod: Json) -> tuple[Problem, ...]:
    """Name what is set on the launcher's own pod and cannot be meant for it.

    Returns:
        A problem for each accelerator, and one for a timeout.
    """
    problems = []
    requested: dict[str, Any] = {}
    for values in (_main(pod).get("resources") or {}).values():
        requested |= values if isinstance(values, Mapping) else {}
    for name, count in sorted(requested.items()):
        if _ACCELERATOR.match(name) and str(count) != "0":
            message = f"{count} on the launcher's own pod: the component was loaded without kr_kfp."
            fix = "Load it with kr_kfp.load_component, and leave the accelerator to accelerator=."
            problems.append(Problem(f"resource {name!r}", message, fix))
    deadline = (pod.get("spec") or {}).get("activeDeadlineSeconds")
    if deadline is not None:
        message = f"{deadline} s (activeDeadlineSeconds): it would end the launcher and not the training."
        problems.append(Problem("set_timeout", message, f'Use timeout="{deadline}s" of the component.'))
    if any(volume["name"] == VOLUME for volume in _user_volumes(pod)):
        problems.append(Problem(f"emptyDir {VOLUME!r}", "kr_kfp has a volume of this name.", "Rename yours."))
    for mount in _user_mounts(pod):
        path = str(mount.get("mountPath", "")).rstrip("/")
        if path == FOLDER or path.startswith(f"{FOLDER}/"):
            problems.append(Problem(f"mount {path!r}", f"kr_kfp has {FOLDER} for itself.", "Mount it elsewhere."))
    return tuple(problems)


def inherit(pod: Json, step: StepSpec) -> Inherited:
    """Give what training pods take over.

    Args:
        pod: The launcher's own pod.
        step: The step; what its component says itself wins, when the pods are built.
    """
    spec, main = pod.get("spec") or {}, _main(pod)
    told: list[str] = []
    fields = {}
    if spec.get("serviceAccountName"):
        fields["serviceAccountName"] = spec["serviceAccountName"]
        told.append(f"service account {spec['serviceAccountName']}")
    if spec.get("imagePullSecrets"):
        fields["imagePullSecrets"] = list(spec["imagePullSecrets"])
        told.append("image pull secrets " + ", ".join(secret.get("name", "") for secret in spec["imagePullSecrets"]))
    if spec.get("securityContext"):
        fields["securityContext"] = spec["securityContext"]
    container = {key: main[key] for key in ("imagePullPolicy", "securityContext") if main.get(key)}
    if "securityContext" in fields or "securityContext" in container:
        told.append("security context")
    image = str(main.get("image") or "")
    if image and image != (step.launcher_image or step.image):
        container["image"] = image
        told.append(f"image {image}")
    if "imagePullPolicy" in container:
        told.append(f"image pull policy {container['imagePullPolicy']}")
    labels, annotations = _users(pod, "labels"), _users(pod, "annotations")
    told += [f"{what} {key}" for what, found in (("label", labels), ("annotation", annotations)) for key in found]
    volumes, mounts = _user_volumes(pod), _user_mounts(pod)
    told += [f"emptyDir {volume['name']}" for volume in volumes]
    return Inherited(
        pod=fields,
        container=container,
        launcher_image=image,
        labels=labels,
        annotations=annotations,
        volumes=tuple(volumes),
        mounts=tuple(mounts),
        told=tuple(told),
    )


def _main(pod: Json) -> Json:
    for container in (pod.get("spec") or {}).get("containers") or ():
        if container.get("name") == _MAIN:
            found: Json = container
            return found
    return {}


def _users(pod: Json, key: str) -> dict[str, str]:
    """Give the labels or annotations that neither KFP nor Argo nor the cluster wrote."""
    found = pod["metadata"].get(key) or {}
    return {name: value for name, value in sorted(found.items()) if not name.startswith(_NOT_THE_USERS)}


def _user_volumes(pod: Json) -> list[dict[str, Any]]:
    """Give the emptyDirs that the user asked for; other volumes come with KFP's TaskConfig."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return [dict(volume) for volume in volumes if "emptyDir" in volume and volume["name"] not in _SCRATCH]


def _user_mounts(pod: Json) -> list[dict[str, Any]]:
    names = {volume["name"] for volume in _user_volumes(pod)}
    return [dict(mount) for mount in _main(pod).get("volumeMounts") or () if mount.get("name") in names]
