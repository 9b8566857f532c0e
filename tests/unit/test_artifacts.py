"""Which artifacts a host fetches and uploads, and what user code may know of their stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kr_kfp.errors import StorageError
from kr_kfp.runtime.artifacts import input_items, output_items, user_env
from kr_kfp.storage.run import Item
from kr_kfp.storage.settings import STORES_ENV, StoreSettings
from kr_kfp.wire import Json, Payload

RUN = "s3://b/root/pipe/run-1"


def artifacts(*entries: Json) -> Json:
    """Give one input or output of ExecutorInput."""
    return {"artifacts": [{"name": "x", "metadata": {}, **entry} for entry in entries]}


def executor_input(inputs: Json, outputs: Json) -> Json:
    """Give an ExecutorInput with these artifacts."""
    return {"inputs": {"artifacts": inputs}, "outputs": {"artifacts": outputs}}


def test_inputs_go_where_kfp_looks() -> None:
    """Every store has its mount, a list its numbers, a place is fetched once; what KFP itself brings is left alone."""
    given = executor_input(
        {
            "data": artifacts({"uri": f"{RUN}/a/data"}),
            "many": artifacts({"uri": "gs://b/one"}, {"uri": "minio://b/two?region=x"}),
            "again": artifacts({"uri": f"{RUN}/a/data"}),
            "local": artifacts({"uri": "/tmp/data"}, {"uri": "file:///tmp/other"}),
            "image": artifacts({"uri": "oci://registry/model:1"}),
            "shared": artifacts({"uri": f"{RUN}/a/shared", "metadata": {"_kfp_workspace": True}}),
            "own": artifacts({"uri": f"{RUN}/a/own", "customPath": "/data/own"}),
            "large": artifacts({"uri": f"{RUN}/a/large"}),
        },
        {},
    )
    assert input_items(given, root="/w", stream=("large",)) == (
        Item(uri=f"{RUN}/a/data", path="/w/s3/b/root/pipe/run-1/a/data", name="data"),
        Item(uri="gs://b/one", path="/w/gcs/b/one", name="many[0]"),
        Item(uri="minio://b/two?region=x", path="/w/minio/b/two?region=x", name="many[1]"),
        Item(uri=f"{RUN}/a/own", path="/data/own", name="own"),
    )
    assert input_items(given, root="")[0].path == "/s3/b/root/pipe/run-1/a/data"
    assert input_items({}, root="") == ()


def outputs_of(tmp_path: Path, **changes: Json) -> tuple[tuple[Item, ...], list[str]]:
    """Look at outputs model, metrics and report of attempt 2, of which the executor wrote what is given."""
    given = executor_input({}, {name: artifacts({"uri": f"{RUN}/t/{name}"}) for name in ("model", "metrics", "report")})
    written = {
        name: artifacts({"uri": f"{RUN}/t/{name}-r2", **changes.get(name, {})})
        for name in ("model", "metrics", "report")
    }
    return output_items(given, {"executorOutput": {"artifacts": written}}, attempt=2, root=str(tmp_path))


def folder(tmp_path: Path) -> Path:
    """Give the local folder of the task's outputs."""
    made = tmp_path / "s3/b/root/pipe/run-1/t"
    made.mkdir(parents=True)
    return made


def test_outputs_go_to_the_uris_of_their_attempt(tmp_path: Path) -> None:
    """What has a file is uploaded, what has metadata is complete, what has neither is named."""
    (folder(tmp_path) / "model-r2").mkdir()
    items, untouched = outputs_of(tmp_path, metrics={"metadata": {"loss": 1.0}})
    assert items == (
        Item(uri=f"{RUN}/t/model-r2", path=str(tmp_path / "s3/b/root/pipe/run-1/t/model-r2"), name="model"),
    )
    assert untouched == ["report"]


def test_changed_uri_within_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function may write elsewhere in its run's folder; files at the path that belongs to it are uploaded there."""
    monkeypatch.setenv("KR_KFP_RUN", "run-1")
    (folder(tmp_path) / "elsewhere").write_text("x")
    items, untouched = outputs_of(
        tmp_path,
        model={"uri": f"{RUN}/t/elsewhere"},
        metrics={"uri": f"{RUN}/shared/metrics"},
        report={"custom_path": str(tmp_path / "mine")},
    )
    assert [item.uri for item in items] == [f"{RUN}/t/elsewhere"]
    assert untouched == ["report"]


@pytest.mark.parametrize(
    "uri",
    ["s3://b/root/pipe/run-10/t/model", "s3://other/root/pipe/run-1/t/model", "gs://b/root/pipe/run-1/x", "/tmp/model"],
)
def test_changed_uri_outside_of_the_run(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KFP would refuse it later and say less; every such output is named at once."""
    monkeypatch.setenv("KR_KFP_RUN", "run-1")
    with pytest.raises(StorageError) as caught:
        outputs_of(tmp_path, model={"uri": uri}, report={"uri": uri})
    assert [str(problem) for problem in caught.value.problems] == [
        f"output '{name}': its .uri was changed to {uri}, outside of this run's folder. "
        f"Fix: write below {RUN}, or give the address as a parameter."
        for name in ("model", "report")
    ]


def test_changed_uri_of_a_run_that_is_not_in_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the path does not name the run, the output's own folder is the limit."""
    monkeypatch.setenv("KR_KFP_RUN", "another")
    assert outputs_of(tmp_path, model={"uri": f"{RUN}/t/else"})[1] == ["metrics", "report"]
    with pytest.raises(StorageError, match=f"Fix: write below {RUN}/t,"):
        outputs_of(tmp_path, model={"uri": f"{RUN}/u/else"})


def payload(*stores: StoreSettings) -> Payload:
    """Give a payload that knows these stores."""
    return Payload(command=(), executor_input={}, options={"stores": [store.to_json() for store in stores]})


STORE = StoreSettings(
    scheme="s3",
    prefixes=("s3://b",),
    endpoint="store:9000",
    region="r",
    disable_ssl=True,
    access_key_env="KR_KFP_STORE_0_ACCESS_KEY",
    secret_key_env="KR_KFP_STORE_0_SECRET_KEY",
)
SECRETS = {"KR_KFP_STORE_0_ACCESS_KEY": "ak", "KR_KFP_STORE_0_SECRET_KEY": "sk"}


def test_user_code_reaches_its_checkpoint_store() -> None:
    """Libraries that know AWS's variables find the store; the settings that are handed on hold no secret."""
    found = user_env(payload(STORE), {**SECRETS, "KR_KFP_CHECKPOINT_DIR": "s3://b/ck"})
    assert json.loads(found.pop(STORES_ENV)) == [STORE.to_json()]
    assert found == {
        "AWS_ACCESS_KEY_ID": "ak",
        "AWS_SECRET_ACCESS_KEY": "sk",
        "AWS_REGION": "r",
        "AWS_ENDPOINT_URL": "http://store:9000",
    }


@pytest.mark.parametrize(
    "env",
    [
        {"AWS_ACCESS_KEY_ID": "mine", "KR_KFP_CHECKPOINT_DIR": "s3://b/ck"},
        {"AWS_PROFILE": "mine", "KR_KFP_CHECKPOINT_DIR": "s3://b/ck"},
        {"KR_KFP_CHECKPOINT_DIR": "gs://b/ck"},
        {"KR_KFP_CHECKPOINT_DIR": "s3://another/ck"},
        {},
    ],
)
def test_the_users_own_credentials_stay(env: dict[str, Any]) -> None:
    """AWS variables are left alone where the user has some, and where the checkpoints lie elsewhere."""
    assert list(user_env(payload(STORE), {**SECRETS, **env})) == [STORES_ENV]


def test_no_stores_no_variables() -> None:
    """The local cluster uses the surroundings' own credentials."""
    assert user_env(payload(), {"KR_KFP_CHECKPOINT_DIR": "s3://b/ck"}) == {}
