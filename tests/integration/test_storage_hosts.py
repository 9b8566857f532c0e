"""Hosts of a group whose artifacts lie in object stores: real runners, real servers that check signatures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

import kr_kfp
import kr_kfp.testing
from kr_kfp.storage.settings import StoreSettings
from tests.servers.gcs import run_gcs
from tests.servers.s3 import S3Server


@kr_kfp.component(hosts=2, install_kfp_package=False, framework="none", logs="all")
def train(
    data: dsl.Input[dsl.Dataset],
    model: dsl.Output[dsl.Model],
    folder: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    direct: dsl.Output[dsl.Artifact],
    mode: str = "ok",
) -> str:
    """Read the data on every host and write on the leader."""
    from pathlib import Path

    import kr_kfp

    text = Path(data.path, "part 1.txt").read_text()
    ctx = kr_kfp.context()
    print("host", ctx.host, "read", text, "of", data.uri, flush=True)
    if ctx.is_leader:
        Path(model.path).write_text(f"weights of {text}")
        Path(folder.path, "nested").mkdir(parents=True)
        Path(folder.path, "nested", "ä.txt").write_text("x")
        model.metadata["loss"] = 0.5
        metrics.log_metric("accuracy", 0.75)
        if mode == "moved":
            model.uri = "s3://elsewhere/model"
    return text


def s3_env(server: S3Server) -> dict[str, str]:
    """Give the surroundings' credentials for the S3 server."""
    return {**server.variables(), "AWS_ALLOW_HTTP": "true"}


def test_signed_s3(s3_server: S3Server, tmp_path: Path) -> None:
    """Every host fetches the input; the leader's outputs are at their URIs; metrics are metadata; what got nothing is named."""
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "in/data/part 1.txt", b"seven")
    result = kr_kfp.testing.run(
        train, root=tmp_path, artifacts=f"s3://{bucket}/out", env=s3_env(s3_server), data=f"s3://{bucket}/in/data"
    )
    assert result.output == "seven"
    for host in (0, 1):
        assert f"host {host} read seven of s3://{bucket}/in/data" in result.log
    assert result.outputs["model"].uri == f"s3://{bucket}/out/train/model"
    assert result.outputs["model"].metadata == {"loss": 0.5}
    assert result.outputs["metrics"].metadata == {"accuracy": 0.75}
    assert sorted(s3_server.objects(bucket)) == [
        "in/data/part 1.txt",
        "out/train/folder/nested/ä.txt",
        "out/train/model",
    ]
    assert s3_server.get(bucket, "out/train/model") == b"weights of seven"
    assert "output 'direct' got neither a file nor metadata" in result.log
    assert "output 'metrics'" not in result.log
    assert s3_server.writer.secret_key not in result.log


def test_gcs(tmp_path: Path) -> None:
    """The same in Google Cloud Storage, by the variable that Google's own clients know an emulator by."""
    with run_gcs(tmp_path / "gcs") as server:
        bucket = server.make_bucket()
        server.put(bucket, "in/data/part 1.txt", b"seven")
        result = kr_kfp.testing.run(
            train,
            root=tmp_path / "root",
            artifacts=f"gs://{bucket}/out",
            env={"STORAGE_EMULATOR_HOST": server.endpoint, "GOOGLE_BEARER_TOKEN": server.token},
            data=f"gs://{bucket}/in/data",
        )
        assert result.output == "seven"
        assert server.get(bucket, "out/train/model") == b"weights of seven"
        assert sorted(server.objects(bucket)) == [
            "in/data/part 1.txt",
            "out/train/folder/nested/ä.txt",
            "out/train/model",
        ]


def failing(server: S3Server, root: Path, env: Mapping[str, str], **arguments: Any) -> str:
    """Run the step and give the last lines of its failure."""
    result = kr_kfp.testing.run(train, root=root, check=False, env={**s3_env(server), **env}, **arguments)
    assert result.exit_code == 1
    assert server.writer.secret_key not in result.log
    return "\n".join(result.log.splitlines()[-8:])


def test_missing_input_is_named(s3_server: S3Server, tmp_path: Path) -> None:
    """No user code runs; the failure names host, input and URI."""
    bucket = s3_server.make_bucket()
    text = failing(s3_server, tmp_path, {}, artifacts=f"s3://{bucket}/out", data=f"s3://{bucket}/in/nothing")
    assert "inputs could not be fetched" in text
    assert f"s3://{bucket}/in/nothing" in text
    assert "read" not in text


def test_read_only_bucket_fails_the_step(s3_server: S3Server, tmp_path: Path) -> None:
    """An upload that is refused fails the step with the reason, and nothing looks finished."""
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "in/data/part 1.txt", b"seven")
    reader = {"AWS_ACCESS_KEY_ID": s3_server.reader.access_key, "AWS_SECRET_ACCESS_KEY": s3_server.reader.secret_key}
    text = failing(s3_server, tmp_path, reader, artifacts=f"s3://{bucket}/out", data=f"s3://{bucket}/in/data")
    assert "the function returned, but its outputs could not be written" in text
    assert f"s3://{bucket}/out/train" in text
    assert list(s3_server.objects(bucket)) == ["in/data/part 1.txt"]


def test_uri_outside_of_the_run(s3_server: S3Server, tmp_path: Path) -> None:
    """A changed URI that KFP would refuse is refused here, with what to do."""
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "in/data/part 1.txt", b"seven")
    text = failing(s3_server, tmp_path, {}, artifacts=f"s3://{bucket}/out", data=f"s3://{bucket}/in/data", mode="moved")
    assert "output 'model': its .uri was changed to s3://elsewhere/model, outside of this run's folder." in text
    assert f"write below s3://{bucket}/out/train" in text


@pytest.mark.parametrize("stream", [("data",), ()])
def test_streamed_input_is_not_fetched(stream: tuple[str, ...], s3_server: S3Server, tmp_path: Path) -> None:
    """``stream_inputs`` leaves an input where it is."""
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "in/data", b"seven")

    @kr_kfp.component(hosts=2, stream_inputs=stream, install_kfp_package=False, framework="none")
    def look(data: dsl.Input[dsl.Dataset]) -> str:
        from pathlib import Path

        return f"{data.uri} {Path(data.path).exists()}"

    result = kr_kfp.testing.run(
        look, root=tmp_path, artifacts=f"s3://{bucket}/out", env=s3_env(s3_server), data=f"s3://{bucket}/in/data"
    )
    assert result.output == f"s3://{bucket}/in/data {not stream}"


def test_settings_travel_without_secrets() -> None:
    """What a host is told of a store names variables and no values."""
    store = StoreSettings(scheme="s3", access_key_env="A", secret_key_env="B", secret_name="mlpipeline-minio-artifact")
    assert json.loads(json.dumps(store.to_json())) == {
        "scheme": "s3",
        "access_key_env": "A",
        "secret_key_env": "B",
        "secret_name": "mlpipeline-minio-artifact",
    }
