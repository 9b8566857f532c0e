"""What was set on a task (KFP's TaskConfig) against what kr_kfp and LeaderWorkerSet set themselves. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kr_kfp.errors import Problem
from kr_kfp.spec.check_pathways import is_gs
from kr_kfp.spec.pod import FOLDER, SHM_VOLUME, VOLUME, reserved
from kr_kfp.spec.security import SCRATCH
from kr_kfp.spec.step import RUN_TIME_SCRATCH, StepSpec

__all__ = ["check_scratch", "check_task_config"]


def check_task_config(step: StepSpec, config: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Name every setting of a task that collides with what a group of hosts needs.

    Args:
        step: The step.
        config: KFP's TaskConfig as camelCase JSON.

    Returns:
        All problems; they can be known at launch only, since KFP resolves the settings then.
    """
    names = [entry["name"] for entry in config.get("env") or ()]
    problems = [
        Problem(f"env {name!r}", f"{setter}.", "Do not set it on the task.")
        for name in names
        if (setter := reserved(name, step.backend))
    ]
    names = [volume.get("name") for volume in config.get("volumes") or ()]
    problems += [
        Problem(f"volume {name!r}", "kr_kfp has a volume of this name.", "Rename yours.")
        for name in (VOLUME, SHM_VOLUME, *SCRATCH)
        if name in names
    ]
    for mount in config.get("volumeMounts") or ():
        path = str(mount.get("mountPath", "")).rstrip("/")
        if path == FOLDER or path.startswith(f"{FOLDER}/"):
            problems.append(Problem(f"mount {path!r}", f"kr_kfp has {FOLDER} for itself.", "Mount it elsewhere."))
    problems += _accelerator(step, config.get("resources") or {})
    return tuple(problems)


def check_scratch(step: StepSpec, given: str, *, needed: bool) -> tuple[Problem, ...]:
    """Check the scratch location that Pathways' servers will get.

    Args:
        step: The step.
        given: What a pipeline input gave; empty if none did.
        needed: Whether servers will run, which is so everywhere but on the local cluster.
    """
    if step.pathways is None or not needed:
        return ()
    own = step.pathways.scratch
    scratch = given or ("" if own in (None, RUN_TIME_SCRATCH) else str(own))
    if is_gs(scratch):
        return ()
    what = f"{scratch!r} is no folder of Google Cloud Storage." if scratch else "there is none."
    fix = "Give 'gs://bucket/folder' in a bucket that exists, by kr_kfp.Pathways(scratch=...)."
    return (Problem("pathways.scratch", what, fix),)


def _accelerator(step: StepSpec, resources: Mapping[str, Mapping[str, Any]]) -> list[Problem]:
    """Refuse another count of the accelerator than the shape has: the group would never fit its nodes."""
    if step.shape is None:
        return []
    given = {str(values[step.shape.resource]) for values in resources.values() if step.shape.resource in (values or {})}
    wanted = str(step.shape.chips_per_host)
    return [
        Problem(
            f"resource {step.shape.resource!r}",
            f"{count} on the task, but a host of {step.shape.name} has {wanted}.",
            "Leave it to accelerator=.",
        )
        for count in sorted(given - {wanted})
    ]
