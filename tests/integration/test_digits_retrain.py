"""The main job on the local cluster: real data, four processes, sixteen devices, and a host that is lost on the way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import kr_kfp.testing
from kr_kfp_components.data.digits import digits
from kr_kfp_components.training.keras_classifier import keras_classifier
from tests.servers.gcs import run_gcs
from tests.servers.s3 import S3Server
from tests.steps import launching, left_over


@pytest.fixture(name="data", scope="module")
def _data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the training half of the digits, made by its own step."""
    result = kr_kfp.testing.run(digits, root=tmp_path_factory.mktemp("digits"))
    return Path(result.outputs["train"].uri)


def facts(log: str) -> list[dict[str, Any]]:
    """Give what each host printed about itself at the end, by host."""
    lines = [line.partition("] ")[2] for line in log.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith("{") and "weights_sha256" in line]
    return sorted(found, key=lambda fact: int(fact["host"]))


def test_four_hosts_train_one_model(data: Path, tmp_path: Path) -> None:
    """Equal digests of the weights on all hosts, a quarter of the global batch on each, 16 devices, accuracy 0.95."""
    step = keras_classifier.options(logs="all")
    result = kr_kfp.testing.run(step, root=tmp_path, train=data, global_batch=128)
    hosts = facts(result.log)
    assert [host["host"] for host in hosts] == [0, 1, 2, 3]
    assert {host["devices"] for host in hosts} == {16}
    assert {host["local_devices"] for host in hosts} == {4}
    assert {host["processes"] for host in hosts} == {4}
    assert {(host["global_batch"], host["local_batch"]) for host in hosts} == {(128, 32)}
    assert len({host["weights_sha256"] for host in hosts}) == 1
    assert result.outputs["accuracy"] >= 0.95
    model = result.outputs["model"]
    assert model.metadata["devices"] == 16
    assert model.metadata["weights_sha256"] == hosts[0]["weights_sha256"]


def test_lost_host_resumes_from_the_checkpoint(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host killed once: the group restarts and goes on after the last epoch; the result is that of one run."""
    monkeypatch.setenv("KR_KFP_LOCAL_ROOT", str(tmp_path / "c"))
    step = keras_classifier.options(logs="all")
    arguments: dict[str, Any] = {"train": data, "epochs": 5}
    with launching(step, tmp_path / "task", arguments) as launch:
        launch.until("epoch 2/5")
        os.kill(_runner_of(tmp_path / "c", 2), signal.SIGKILL)
        assert launch.wait() == 0
        log, output = launch.text(), launch.output()
    assert "host 2 was lost" in log
    resumed = [line for line in log.splitlines() if "resuming from epoch" in line]
    assert len(resumed) == 4, "every host says from which epoch it goes on"
    assert all("resuming from epoch 1" not in line for line in resumed)
    assert output["artifacts"]["model"]["artifacts"][0]["uri"] == str(tmp_path / "task" / "model-r1")
    assert not (tmp_path / "task" / "model").exists()
    undisturbed = kr_kfp.testing.run(step, root=tmp_path / "other", train=data, epochs=5)
    assert facts(log)[0]["weights_sha256"] == facts(undisturbed.log)[0]["weights_sha256"]
    assert left_over(str(tmp_path / "c")) == []


def test_artifacts_in_signed_s3(data: Path, s3_server: S3Server, tmp_path: Path) -> None:
    """Dataset, model, history and checkpoints in an S3 store that checks signatures: the result of a local run."""
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "data/train", data.read_bytes())
    env = s3_server.variables()
    root = f"s3://{bucket}/run"
    _check_remote(
        data, tmp_path, root, env, given=f"s3://{bucket}/data/train", objects=lambda: s3_server.objects(bucket)
    )


def test_artifacts_in_gcs(data: Path, tmp_path: Path) -> None:
    """The same in Google Cloud Storage."""
    with run_gcs(tmp_path / "gcs") as server:
        bucket = server.make_bucket()
        server.put(bucket, "data/train", data.read_bytes())
        env = {"STORAGE_EMULATOR_HOST": server.endpoint, "GOOGLE_BEARER_TOKEN": server.token}
        root = f"gs://{bucket}/run"
        _check_remote(
            data, tmp_path, root, env, given=f"gs://{bucket}/data/train", objects=lambda: server.objects(bucket)
        )


def _check_remote(
    data: Path, tmp_path: Path, root: str, env: dict[str, str], *, given: str, objects: Callable[[], Mapping[str, int]]
) -> None:
    step = keras_classifier.options(logs="all")
    remote = kr_kfp.testing.run(step, root=tmp_path / "a", artifacts=root, env=env, train=given, epochs=3)
    local = kr_kfp.testing.run(step, root=tmp_path / "b", train=data, epochs=3)
    assert len(facts(remote.log)) == 4
    assert facts(remote.log)[0]["weights_sha256"] == facts(local.log)[0]["weights_sha256"]
    assert remote.outputs["accuracy"] == local.outputs["accuracy"]
    found = [name for name in objects() if "kr-kfp-checkpoints" not in name]
    assert sorted(found) == [
        "data/train",
        "run/keras-classifier/history",
        "run/keras-classifier/model/model.keras",
    ]
    kept = [name for name in objects() if name.endswith(".committed")]
    assert [name.rpartition("/")[2] for name in kept] == ["step-0000000002.committed", "step-0000000003.committed"]


def _runner_of(root: Path, index: int) -> int:
    """Find the runner of a host: the process with this index that is no child of another such process."""
    mark = f"KR_KFP_LOCAL_ROOT={root}".encode()
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            env = (entry / "environ").read_bytes().split(b"\0")
            if mark in env and f"LWS_WORKER_INDEX={index}".encode() in env:
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    return next(pid for pid, parent in found.items() if parent not in found)
