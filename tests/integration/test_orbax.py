"""Orbax and Keras with checkpoint_dir in a folder, in Google Cloud Storage and in S3: what they do themselves, and resume.

The Google server of the tests is reached by the variables that the libraries know an emulator by; gcsfs then sends no
token, so this one lets anybody write.

Without postponed annotations: KFP's own decorator cannot read those.
"""

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kr_kfp
import kr_kfp.testing
from kr_kfp_components.training.jax_classifier import jax_classifier
from tests.hosts import until
from tests.local_kit import with_variable
from tests.servers.gcs import GcsServer, run_gcs
from tests.servers.s3 import S3Server

pytestmark = pytest.mark.timeout(900)  # KFP's pip step looks through a long list, on every host, before each training

ROWS, EPOCHS = 64, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where checkpoints go.

    Args:
        root: ``checkpoint_root`` of the step.
        env: How it is reached.
        whole: What ends the name of the file that makes the second checkpoint a whole one.
        names: Gives the names of all files there.
    """

    root: str
    env: Mapping[str, str]
    whole: str
    names: Callable[[], list[str]]


@pytest.fixture(name="open_gcs", scope="module")
def _open_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    with run_gcs(tmp_path_factory.mktemp("gcs"), anonymous="write") as server:
        yield server


@pytest.fixture(name="place", params=["folder", "gcs", "s3"])
def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Give each kind of place in turn."""
    if request.param == "gcs":
        return gcs(request.getfixturevalue("open_gcs"))
    if request.param == "s3":
        return s3(request.getfixturevalue("s3_server"))
    root = tmp_path / "checkpoints"
    return Place(
        root=str(root),
        env={},
        whole="/2/_CHECKPOINT_METADATA",  # written first, under a name of its own; Orbax renames the folder
        # Not Path.rglob, which stops with an error where Orbax renames a folder that is just being read.
        names=lambda: sorted(str(Path(top, n).relative_to(root)) for top, _, ns in os.walk(root) for n in ns),
    )


def gcs(server: GcsServer) -> Place:
    """Give a new bucket, and the variables for kr_kfp and gcsfs, TensorStore, and Google's own client."""
    bucket = server.make_bucket()
    env = {
        "STORAGE_EMULATOR_HOST": server.endpoint,
        "TENSORSTORE_GCS_HTTP_URL": server.endpoint,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": server.token,
        "GOOGLE_CLOUD_PROJECT": "test",
        # Kinds of buckets that no emulator has would be asked for by gRPC, at Google.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }
    return Place(
        root=f"gs://{bucket}/ck", env=env, whole="/2/commit_success.txt", names=lambda: sorted(server.objects(bucket))
    )


def s3(server: S3Server) -> Place:
    """Give a new bucket, and AWS's variables."""
    bucket = server.make_bucket()
    env = server.variables()
    whole = "/step-0000000002.committed"
    return Place(root=f"s3://{bucket}/ck", env=env, whole=whole, names=lambda: sorted(server.objects(bucket)))


@pytest.fixture(name="data", scope="module")
def _data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Images whose brightest pixel is the label."""
    path = tmp_path_factory.mktemp("data") / "train"
    labels = np.arange(ROWS) % 4
    with path.open("wb") as file:
        np.savez(file, images=np.eye(4, dtype=np.float32)[labels].reshape(ROWS, 2, 2), labels=labels)
    return str(path)


def train(
    folder: Path, data: str, *, root: str, env: Mapping[str, str] | None = None, epochs: int = EPOCHS
) -> kr_kfp.testing.Result:
    """Train on two hosts of this machine."""
    step = jax_classifier.options(accelerator=None, hosts=2, checkpoint_root=root, logs="all")
    return kr_kfp.testing.run(
        step, root=folder, env={"KR_TEST_FOLDER": str(folder), **(env or {})}, train=data, epochs=epochs, timeout=600
    )


@pytest.fixture(name="whole", scope="module")
def _whole(tmp_path_factory: pytest.TempPathFactory, data: str) -> kr_kfp.testing.Result:
    """Train without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    return train(folder, data, root=str(folder / "checkpoints"))


def runner_of(folder: Path, host: int) -> int:
    """Give the process id of a host's runner, as its user process has it."""
    for pid in with_variable(f"KR_TEST_FOLDER={folder}"):
        try:
            entries = Path("/proc", str(pid), "environ").read_text(encoding="utf-8").split("\0")
        except OSError:
            continue  # It has ended meanwhile.
        env = dict(entry.partition("=")[::2] for entry in entries)
        if env.get("LWS_WORKER_INDEX") == str(host) and "KR_KFP_RUNNER_PID" in env:
            return int(env["KR_KFP_RUNNER_PID"])
    msg = f"no runner of host {host} for {folder}"
    raise AssertionError(msg)


def test_orbax_resumes_after_a_host_was_lost(
    place: Place, whole: kr_kfp.testing.Result, data: str, tmp_path: Path
) -> None:
    """Killed in the middle, the group takes up the last whole checkpoint and ends with the very same weights."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(train, tmp_path / "run", data, root=place.root, env=place.env)
        for _ in until(500, "the second checkpoint"):
            if running.done() or any(name.endswith(place.whole) for name in place.names()):
                break
        os.kill(runner_of(tmp_path / "run", 1), signal.SIGKILL)
        result = running.result()
    assert "restarting the group as attempt 1" in result.log
    resumed = int(result.outputs["model"].metadata["resumed_from"])
    assert 2 <= resumed < EPOCHS
    for host in (0, 1):
        assert re.search(rf"host {host}\] resuming from epoch {resumed} \(checkpoint of {place.root}/", result.log)
    assert result.outputs["model"].metadata["weights_sha256"] == whole.outputs["model"].metadata["weights_sha256"]
    assert result.output == whole.output == 1.0


def test_the_last_two_checkpoints_stay(place: Place, data: str, tmp_path: Path) -> None:
    """Older ones are removed, whoever writes them."""
    train(tmp_path / "run", data, root=place.root, env=place.env, epochs=3)
    found = {match[1] for name in place.names() if (match := re.search(r"/(?:step-0*)?(\d+)(?:[-./]|$)", f"/{name}"))}
    assert found == {"2", "3"}


@kr_kfp.component(install_kfp_package=False, framework="none")
def look() -> list:  # type: ignore[type-arg]
    """Look for a checkpoint that something else writes just after a listing."""
    import http.client
    import os

    from etils import epath

    import kr_kfp

    place = epath.Path(kr_kfp.context().checkpoint_dir)
    (place / "1" / "metadata").write_text("{}")
    before = sorted(step.name for step in place.iterdir())
    bucket, _, key = str(place).removeprefix("gs://").partition("/")
    server = http.client.HTTPConnection(os.environ["STORAGE_EMULATOR_HOST"].removeprefix("http://"))
    server.request("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={key}/2/state/d", body=b"x")
    assert server.getresponse().status == 200
    return [before, (place / "2" / "state").exists(), sorted(step.name for step in place.iterdir())]


@pytest.mark.parametrize("hosts", [None, 1], ids=["pod", "group"])
@pytest.mark.parametrize("cached", [False, True], ids=["as-it-is", "cached"])
def test_a_checkpoint_that_was_just_written_is_there(
    open_gcs: GcsServer, tmp_path: Path, hosts: int | None, cached: bool
) -> None:
    """No listings are kept by gcsfs, in which what TensorStore wrote would be missing, unless the user has set it up."""
    place = gcs(open_gcs)
    env = {**place.env, **({"FSSPEC_GCS": "{}"} if cached else {})}
    result = kr_kfp.testing.run(look.options(checkpoint_root=place.root), hosts, root=tmp_path, env=env)
    assert result.output == [["1"], not cached, ["1"] if cached else ["1", "2"]]


@kr_kfp.component(install_kfp_package=False, framework="none")
def fit() -> dict:  # type: ignore[type-arg]
    """Train a Keras model with Keras' own callback for Orbax, and go on after the newest checkpoint."""
    import os

    os.environ["KERAS_BACKEND"] = "jax"
    import keras
    import numpy as np
    import orbax.checkpoint

    import kr_kfp

    place, epochs = kr_kfp.context().checkpoint_dir, int(os.environ["KR_TEST_EPOCHS"])
    keras.utils.set_random_seed(1)
    network = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="head")], name="net")
    network.compile(optimizer=keras.optimizers.Adam(), loss="mse")
    network.optimizer.build(network.trainable_variables)
    before = 0
    with orbax.checkpoint.v1.training.Checkpointer(place) as source:
        if source.latest:
            network.set_state_tree(source.load_checkpointables(source.latest.step)["pytree"])
            before = source.latest.step + 1
    network.fit(
        np.eye(4, dtype="float32"),
        np.ones((4, 2), "float32"),
        initial_epoch=before,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[keras.callbacks.OrbaxCheckpoint(place, monitor="loss", max_to_keep=2)],
    )
    refused = []
    if place.startswith("gs://"):
        for attempt in (
            lambda: network.save_weights(f"{place}/w.weights.h5"),
            lambda: network.save(f"{place}/m.keras"),
            lambda: keras.saving.load_model(place),
        ):
            try:
                attempt()  # type: ignore[no-untyped-call]
            except ValueError as problem:
                refused.append(str(problem).partition(" (")[0])
    return {"before": before, "weights": network.get_weights()[0].tolist(), "refused": refused}


def run_fit(folder: Path, place: Place, epochs: int) -> Any:
    """Run the step in one pod, as far as that can be had here."""
    step = fit.options(checkpoint_root=place.root)
    # Not as an argument: other arguments are another training, with a checkpoint folder of its own.
    env = {**place.env, "JAX_PLATFORMS": "cpu", "KR_TEST_EPOCHS": str(epochs)}
    return kr_kfp.testing.run(step, root=folder, env=env).output


@pytest.mark.parametrize("place", ["folder", "gcs"], indirect=True)
def test_keras_resumes_from_its_own_orbax_checkpoints(place: Place, tmp_path: Path) -> None:
    """Keras' callback saves to gs:// by way of Orbax; its own files there need TensorFlow, and it says so."""
    whole = run_fit(tmp_path / "whole", replace(place, root=f"{place.root}/whole"), 4)
    first, again = (run_fit(tmp_path / "run", place, epochs) for epochs in (2, 4))
    assert (whole["before"], first["before"], again["before"]) == (0, 0, 2)
    assert again["weights"] == whole["weights"] != first["weights"]
    refused = ["Handling remote paths requires installing TensorFlow"] * 3 if place.env else []
    assert again["refused"] == refused
