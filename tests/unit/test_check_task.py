"""Settings of a task that collide with what a group needs."""

from __future__ import annotations

from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.check_task import check_task_config
from kr_kfp.spec.step import StepSpec

STEP = StepSpec(name="train", backend="lws", hosts=4, shape=resolve("v5litepod-16"))


def test_harmless_settings() -> None:
    """Usual settings are no problem, the accelerator's own count included."""
    config = {
        "env": [{"name": "RUN", "value": "x"}],
        "resources": {"limits": {"google.com/tpu": "4", "memory": "2G"}},
        "volumes": [{"name": "data"}],
        "volumeMounts": [{"name": "data", "mountPath": "/kr-kfp-data"}],
    }
    assert check_task_config(STEP, config) == ()


def test_all_collisions_at_once() -> None:
    """Every collision is named with its fix."""
    config = {
        "env": [{"name": "MASTER_PORT", "value": "1"}, {"name": "TPU_WORKER_ID", "value": "0"}],
        "resources": {"limits": {"google.com/tpu": 8}},
        "volumes": [{"name": "kr-kfp"}],
        "volumeMounts": [{"name": "data", "mountPath": "/kr-kfp/work/"}],
    }
    assert [str(problem) for problem in check_task_config(STEP, config)] == [
        "env 'MASTER_PORT': kr_kfp sets it on every host. Fix: Do not set it on the task.",
        "env 'TPU_WORKER_ID': LeaderWorkerSet sets it on every host. Fix: Do not set it on the task.",
        "volume 'kr-kfp': kr_kfp has a volume of this name. Fix: Rename yours.",
        "mount '/kr-kfp/work': kr_kfp has /kr-kfp for itself. Fix: Mount it elsewhere.",
        "resource 'google.com/tpu': 8 on the task, but a host of v5litepod-16 has 4. Fix: Leave it to accelerator=.",
    ]
