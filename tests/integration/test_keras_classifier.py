"""keras_classifier on 4 real processes of 4 XLA devices each, without kr_kfp's runtime around it.

The processes run the text that KFP would ship, in a module with the names that KFP puts around it, so a name taken from
the author's file by mistake would show here.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kfp import dsl

import kr_kfp
from kr_kfp import checkpoints
from kr_kfp_components.data.digits import digits
from kr_kfp_components.training.keras_classifier import keras_classifier

HOSTS = 4
BATCH = 128
LIMIT = 400.0  # seconds for one training; it takes about 10 on 2 cores, and 45 beside the cluster's tests

HOST_PROGRAM = """
import json, sys
sys.modules |= {"matplotlib": None, "sklearn": None}  # a training image has neither; Keras imports them where they are
import jax
index, port, folder, train, arguments = int(sys.argv[1]), *sys.argv[2:4], sys.argv[4], json.loads(sys.argv[5])
jax.distributed.initialize(
    f"127.0.0.1:{port}", 4, index, cluster_detection_method="deactivate", initialization_timeout=300
)
from kfp import dsl
from kfp.dsl import *
from typing import *
exec(compile(open(folder + "/../function.py").read(), "function.py", "exec"))
made = {"model": dsl.Model, "history": dsl.Artifact, "metrics": dsl.Metrics}
made = {name: kind(name=name, uri=f"{folder}/{name}") for name, kind in made.items()}
accuracy, curves = keras_classifier(train=dsl.Dataset(uri=train, metadata={"classes": 10.0}), **made, **arguments)
result = {"accuracy": accuracy, "curves": curves, **{name: value.metadata for name, value in made.items()}}
open(folder + "/result.json", "w").write(json.dumps(result))
jax.distributed.shutdown()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What one host left behind.

    Args:
        log: Its standard output and error.
        proof: The JSON line that it printed.
        result: What the function returned, and the metadata of its outputs.
        files: The output files in its own folder.
    """

    log: str
    proof: dict[str, Any]
    result: dict[str, Any]
    files: list[str]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _train(base: Path, name: str, *, train: str, checkpoints: Path, **arguments: Any) -> list[Host]:
    """Train on all hosts at once, and end every process whatever happens."""
    source = textwrap.dedent(inspect.getsource(keras_classifier.python_func))
    place = base / name
    place.mkdir()
    (place / "function.py").write_text(source[re.search(r"^def ", source, re.MULTILINE).start() :])  # type: ignore[union-attr]
    port = str(_free_port())
    package = str(Path(kr_kfp.__file__).parent.parent)
    with ExitStack() as stack:
        processes = []
        for index in range(HOSTS):
            folder = place / str(index)
            folder.mkdir()
            env = {
                "HOME": str(folder),
                "JAX_PLATFORMS": "cpu",
                "KERAS_BACKEND": "jax",
                "KR_KFP_CHECKPOINT_DIR": str(checkpoints),
                "KR_KFP_HOST": str(index),
                "KR_KFP_HOSTS": str(HOSTS),
                "KR_KFP_TASK": "keras-classifier",
                "PATH": os.environ["PATH"],
                "PYTHONPATH": package,
                "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
                "_KFP_RUNTIME": "true",
            }
            log = stack.enter_context((folder / "log").open("w"))
            command = [sys.executable, "-c", HOST_PROGRAM, str(index), port, str(folder), train, json.dumps(arguments)]
            process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT)
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        codes = [process.wait(LIMIT) for process in processes]
    logs = [(place / str(index) / "log").read_text() for index in range(HOSTS)]
    assert codes == [0] * HOSTS, "\n".join(logs)
    return [_host(place / str(index), log) for index, log in enumerate(logs)]


def _host(folder: Path, log: str) -> Host:
    proof = next(json.loads(line) for line in log.splitlines() if line.startswith('{"host":'))
    outputs = [
        path for name in ("model", "history", "metrics") for path in (folder / name, *(folder / name).rglob("*"))
    ]
    return Host(
        log=log,
        proof=proof,
        result=json.loads((folder / "result.json").read_text()),
        files=[str(path.relative_to(folder)) for path in outputs if path.is_file()],
    )


@pytest.fixture(name="data", scope="module")
def _data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("data")
    made = {name: dsl.Dataset(uri=str(base / name)) for name in ("train", "test")}
    digits.python_func(**made)
    return {name: dataset.path for name, dataset in made.items()}


@pytest.fixture(name="straight", scope="module")
def _straight(tmp_path_factory: pytest.TempPathFactory, data: dict[str, str]) -> tuple[Path, list[Host]]:
    """4 epochs without interruption."""
    base = tmp_path_factory.mktemp("straight")
    hosts = _train(base, "run", train=data["train"], checkpoints=base / "checkpoints", epochs=4, global_batch=BATCH)
    return base, hosts


@pytest.fixture(name="resumed", scope="module")
def _resumed(tmp_path_factory: pytest.TempPathFactory, data: dict[str, str]) -> tuple[Path, list[Host], list[Host]]:
    """2 epochs, and then 4 with the same checkpoint folder."""
    base = tmp_path_factory.mktemp("resumed")
    given: dict[str, Any] = {"train": data["train"], "checkpoints": base / "checkpoints", "global_batch": BATCH}
    first = _train(base, "first", epochs=2, **given)
    again = _train(base, "again", epochs=4, **given)
    return base, first, again


def test_hosts_train_one_model_together(straight: tuple[Path, list[Host]]) -> None:
    """All hosts end with the same weights, each fed a quarter of every global batch, on 16 devices."""
    proofs = [host.proof for host in straight[1]]

    assert len({proof["weights_sha256"] for proof in proofs}) == 1
    assert [proof["host"] for proof in proofs] == [0, 1, 2, 3]
    assert [proof["process"] for proof in proofs] == [0, 1, 2, 3]
    for proof in proofs:
        assert (proof["processes"], proof["devices"], proof["local_devices"]) == (4, 16, 4)
        assert (proof["global_batch"], proof["local_batch"]) == (128, 32)
        assert proof["steps_per_epoch"] == 11  # 1,437 rows, 144 of them for validation, in batches of 128


def test_the_leader_reports_the_digests_of_all(straight: tuple[Path, list[Host]]) -> None:
    """The model's metadata holds the digest of each process, as that process printed it."""
    leader = straight[1][0]

    printed = [host.proof["weights_sha256"] for host in straight[1]]
    assert leader.result["model"]["weights_sha256_by_process"] == printed
    assert leader.result["model"]["hosts"] == 4
    assert leader.result["model"]["devices"] == 16
    assert leader.result["metrics"]["local_batch"] == 32


def test_only_the_leader_writes(straight: tuple[Path, list[Host]]) -> None:
    """Workers leave no output behind, in files or in metadata."""
    leader, *workers = straight[1]

    assert leader.files == ["model/model.keras", "history"]
    assert [worker.files for worker in workers] == [[], [], []]
    assert [worker.result["model"] | worker.result["metrics"] for worker in workers] == [{}, {}, {}]


def test_the_model_reads_unseen_digits(
    straight: tuple[Path, list[Host]], data: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved model reads at least 95 % of the 360 digits that were kept apart."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    import keras

    model = keras.saving.load_model(straight[0] / "run" / "0" / "model" / "model.keras")
    with np.load(data["test"]) as file:
        right = model.predict(file["images"], verbose=0).argmax(axis=1) == file["labels"]

    assert len(right) == 360
    assert right.mean() >= 0.95


def test_every_host_says_where_it_resumes(resumed: tuple[Path, list[Host], list[Host]]) -> None:
    """With the checkpoints of 2 epochs each host takes up epoch 2, and 2 more are trained."""
    base, first, again = resumed

    line = f"resuming from epoch 2 (checkpoint of {base}/checkpoints)"
    assert [line in host.log.splitlines() for host in again] == [True, True, True, True]
    assert re.findall(r"^epoch (\d/\d)", first[0].log, re.MULTILINE) == ["1/2", "2/2"]
    assert re.findall(r"^epoch (\d/\d)", again[0].log, re.MULTILINE) == ["3/4", "4/4"]
    assert [host.proof["resumed_from"] for host in again] == [2, 2, 2, 2]
    assert checkpoints.steps(str(base / "checkpoints")) == (3, 4)


def test_a_resumed_training_ends_like_one_without_interruption(
    straight: tuple[Path, list[Host]], resumed: tuple[Path, list[Host], list[Host]]
) -> None:
    """Not one bit of the weights differs, and the curves are those of all 4 epochs."""
    whole, again = straight[1][0], resumed[2][0]

    assert again.proof["weights_sha256"] == whole.proof["weights_sha256"]
    assert again.result["curves"] == whole.result["curves"]
    assert [len(values) for values in again.result["curves"].values()] == [4, 4, 4, 4]
