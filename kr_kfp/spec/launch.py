"""What one launch adds to a step: names, places, and what the run's surroundings give."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Inherited", "Launch", "Ports"]


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on the leader, equal on all hosts: fixed on Kubernetes, free ones on the local cluster.

    Args:
        jax: JAX coordinator (8482, JAX's own default: jax/_src/clusters/cluster.py).
        torch: MASTER_PORT of PyTorch (29400, torchrun's default).
        megascale: MEGASCALE coordinator (8080, libtpu's default).
    """

    jax: int = 8482
    torch: int = 29400
    megascale: int = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """What training pods take over from the launcher's own pod; nothing, where it has none.

    Args:
        pod: Fields of the pod spec, such as ``serviceAccountName``.
        container: Fields of the container ``main``: ``image``, ``imagePullPolicy``, ``securityContext``.
        launcher_image: The image of the launcher as it runs, for the init container; empty if it is not known.
        labels: Labels that the user set on the task.
        annotations: Annotations that the user set on the task.
        volumes: emptyDirs that the user set on the task.
        mounts: Their mounts.
        told: All of it in words, for the log.
    """

    pod: dict[str, Any] = field(default_factory=dict)
    container: dict[str, Any] = field(default_factory=dict)
    launcher_image: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    volumes: tuple[dict[str, Any], ...] = ()
    mounts: tuple[dict[str, Any], ...] = ()
    told: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Everything that the builders need beside the StepSpec.

    Args:
        name: Name of the LeaderWorkerSet.
        run: KFP's run id.
        task: The task's name in the run.
        identity: What tells this task of this run from every other.
        holder: Identity of the launcher that holds the group.
        payload: The packed payload, in chunks.
        checkpoint_dir: The task's checkpoint folder; empty if it has none.
        attempt: 0-based attempt.
        ports: Ports on the leader.
        task_config: KFP's TaskConfig: ``affinity``, ``env``, ``nodeSelector``, ``resources``, ``tolerations``,
            ``volumeMounts``, ``volumes`` (kubeflow/pipelines backend/src/v2/driver/driver.go).
        inherited: What is taken over from the launcher's own pod.
        owners: Owner references of the group.
        init: Command of the init container that provides kr_kfp.
        env: Entries of ``container.env`` that bring the credentials of object stores from their Secrets.
        scratch: Pathways' scratch location that a pipeline input gave; empty if the step names it.
    """

    name: str
    run: str
    task: str
    identity: str
    holder: str
    payload: tuple[str, ...]
    checkpoint_dir: str = ""
    attempt: int = 0
    ports: Ports = Ports()
    task_config: dict[str, Any] = field(default_factory=dict)
    inherited: Inherited = field(default_factory=Inherited)
    owners: tuple[dict[str, Any], ...] = ()
    init: tuple[str, ...] = ()
    env: tuple[dict[str, Any], ...] = ()
    scratch: str = ""
