"""Pathways on this machine: one process with all devices stands for head and workers, on the launcher's one code path."""

from __future__ import annotations

from pathlib import Path

from kfp import local

import kr_kfp.testing
from kr_kfp.cluster.local import LocalCluster
from kr_kfp_pipelines.training.pathways_train import pathways_train
from kr_kfp_pipelines.training.pathways_train.pipeline import train_rings
from tests.local_kit import local_root_fixture, until
from tests.steps import launching, left_over, sees_all, starts_of

__all__ = ["local_root_fixture"]


def test_the_pipeline_trains(tmp_path: Path) -> None:
    """pathways_train runs through kfp.local: one process, 16 devices, a history per epoch that gets better."""
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path), raise_on_error=True)
    outputs = pathways_train(scratch="gs://bucket/pathways", epochs=3).outputs
    history = outputs["history"]
    assert sorted(history) == ["accuracy", "loss"]
    assert [len(values) for values in history.values()] == [3, 3]
    assert history["accuracy"][-1] > 0.9 > history["accuracy"][0]
    assert (Path(outputs["model"].path) / "model.keras").is_file()
    assert outputs["model"].metadata == {"framework": "keras", "devices": 16, "processes": 1}


def test_a_wrong_batch_is_told(tmp_path: Path) -> None:
    """The function's own error comes back as from any step."""
    result = kr_kfp.testing.run(train_rings, root=tmp_path, check=False, batch=100)
    assert result.exit_code == 1
    assert "ValueError: batch=100: give a multiple of the 16 devices" in result.log


def test_the_function_runs_once(tmp_path: Path, local_root: Path) -> None:
    """Two slices of two hosts are five pods, one process of user code, one host of context, and sixteen devices."""
    with launching(sees_all, tmp_path / "task", {"mark": str(tmp_path / "mark"), "seconds": 0.0}) as launch:
        assert launch.wait() == 0
        log = launch.text()
        seen = launch.output()["parameterValues"]["Output"]
    assert seen == {
        "devices": 16,
        "processes": 1,
        "hosts": 1,
        "host": 0,
        "slices": 2,
        "platform": "cpu",
        "coordinator": "",
        "keras": "jax",
    }
    assert starts_of(tmp_path / "mark") == ["start host=0 attempt=0"]
    assert "4 hosts of v5p-16, 4 chips each, topology 2x2x2, and a head without accelerator" in log
    assert "all 5 pods run after" in log
    assert "the function runs once and sees 16 devices" in log
    assert left_over(str(local_root)) == []


def test_a_lost_worker_restarts_the_group(tmp_path: Path, local_root: Path) -> None:
    """A worker's pod that goes away is infrastructure loss: the function starts once more, as attempt 1."""
    with launching(sees_all, tmp_path / "task", {"mark": str(tmp_path / "mark"), "seconds": 600.0}) as launch:
        until(lambda: starts_of(tmp_path / "mark"), "the function")
        cluster = LocalCluster()
        (group,) = (path.name for path in local_root.iterdir() if not path.name.startswith("."))
        pod = next(p for p in cluster.list_pods(group) if p["metadata"]["name"] == f"{group}-0-3")
        cluster.delete_pod(pod["metadata"]["name"], uid=pod["metadata"]["uid"])
        assert launch.wait() == 0
        log = launch.text()
    assert "Pathways worker 2 was lost: pod" in log
    assert starts_of(tmp_path / "mark") == ["start host=0 attempt=0", "start host=0 attempt=1"]
    assert left_over(str(local_root)) == []
