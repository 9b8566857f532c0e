"""Settings as obstore's stores: endpoints, regions, credentials, and what is wrong before any request."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from obstore.store import GCSStore, S3Store

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.settings import StoreSettings
from kr_kfp.storage.stores import Kind, open_store

KEYS: dict[str, Any] = {"access_key_env": "A", "secret_key_env": "S"}
ENV = {"A": "id", "S": "sesame"}


@pytest.fixture(autouse=True)
def _no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("settings", "env", "config"),
    [
        ({}, {}, {}),
        ({"region": "eu"}, {"AWS_REGION": "us"}, {"region": "eu"}),
        ({}, {"AWS_DEFAULT_REGION": "us"}, {"region": "us"}),
        (
            {"endpoint": "seaweedfs.kubeflow:9000", "disable_ssl": True, "region": "minio"},
            {},
            {"endpoint_url_s3": "http://seaweedfs.kubeflow:9000", "region": "minio"},
        ),
        ({"endpoint": "host/"}, {}, {"endpoint_url_s3": "https://host"}),
        ({}, {"AWS_ENDPOINT_URL": "http://other:9"}, {"endpoint_url_s3": "http://other:9"}),
        ({"endpoint": "host"}, {"AWS_ENDPOINT_URL_S3": "http://other:9"}, {"endpoint_url_s3": "https://host"}),
        (
            {"endpoint": "https://host:9", "path_style": False},
            {},
            {"endpoint_url_s3": "https://bucket.host:9", "virtual_hosted_style_request": "true"},
        ),
        ({"endpoint": "http://10.0.0.1:9", "path_style": False}, {}, {"endpoint_url_s3": "http://10.0.0.1:9"}),
        (
            {"encryption": "aws:kms", "encryption_key": "key"},
            {},
            {"server_side_encryption": "aws:kms", "sse_kms_key_id": "key"},
        ),
    ],
)
def test_s3(settings: dict[str, Any], env: dict[str, str], config: dict[str, str]) -> None:
    """Endpoint, scheme, region, style and encryption; the settings' own before the surroundings'."""
    store = open_store(StoreSettings(scheme="s3", **KEYS, **settings), "bucket", Limits(), {**ENV, **env})
    assert isinstance(store, S3Store)
    found = dict(store.config)
    if found.get("virtual_hosted_style_request") == "false":
        del found["virtual_hosted_style_request"]
    assert found == {"bucket": "bucket", **config}


def test_s3_keys_come_from_the_named_variables_alone() -> None:
    """Each variable that the settings name is read, and a session token only if they name one."""
    env = {**ENV, "T": "token", "AWS_SESSION_TOKEN": "foreign"}
    for token, expected in (("", None), ("T", "token"), ("MISSING", None)):
        settings = StoreSettings(scheme="minio", **KEYS, session_token_env=token)
        store = open_store(settings, "bucket", Limits(), env)
        assert store.credential_provider is not None
        assert store.credential_provider() == {
            "access_key_id": "id",
            "secret_access_key": "sesame",
            "token": expected,
            "expires_at": None,
        }


def test_anonymous() -> None:
    """Nothing is signed, and no credentials are asked for, not even of the machine."""
    for scheme, kind in (("s3", S3Store), ("gs", GCSStore)):
        store = open_store(StoreSettings(scheme=scheme, anonymous=True), "bucket", Limits(), {})
        assert isinstance(store, kind)
        assert dict(store.config) == {"bucket": "bucket", "skip_signature": "true"}


@pytest.mark.parametrize("host", ["http://localhost:9023", "localhost:9023"])
def test_google_emulator(host: str) -> None:
    """STORAGE_EMULATOR_HOST, as Google's own clients know it, needs no credentials; obstore wants a token all the same."""
    store = open_store(StoreSettings(scheme="gs"), "bucket", Limits(), {"STORAGE_EMULATOR_HOST": host})
    assert dict(store.config) == {"bucket": "bucket", "base_url": "http://localhost:9023"}
    provider = store.credential_provider
    assert callable(provider)
    assert provider() == {"token": "emulator", "expires_at": None}


@pytest.mark.parametrize(
    ("kind", "retries", "stall"),
    [("single", 0, 3), ("listing", 1000, 3), ("parts", 1000, 30)],
)
def test_who_repeats(kind: Kind, retries: int, stall: int) -> None:
    """Pages and parts are repeated by obstore; the store for parts waits longer for what puts them together."""
    store = open_store(StoreSettings(scheme="s3", anonymous=True), "b", Limits(stall=3, patience=5), {}, kind=kind)
    assert store.retry_config is not None
    assert store.retry_config["max_retries"] == retries
    if retries:
        assert store.retry_config["retry_timeout"] == timedelta(seconds=5 + stall)
    assert store.client_options is not None
    assert store.client_options["read_timeout"] == f"{stall}s"


@pytest.mark.parametrize(
    ("settings", "env", "problems"),
    [
        (
            {**KEYS, "secret_name": "keys"},
            {"A": "id"},
            [
                Problem(
                    "s3://b",
                    "S is not set.",
                    "look whether Secret keys has the key, and whether the pod lists it in its env",
                )
            ],
        ),
        (
            KEYS,
            {"A": ""},
            [
                Problem(
                    "s3://b",
                    f"{name} is not set.",
                    "set it, or leave it out of the settings to use the surroundings' credentials",
                )
                for name in ("A", "S")
            ],
        ),
        (
            {"access_key_env": "A"},
            ENV,
            [Problem("s3://b", "has one half of a key pair.", "name access key and secret key")],
        ),
        (
            {"ca_file": "/no/such/file", **KEYS},
            ENV,
            [
                Problem(
                    "s3://b",
                    "the CA file /no/such/file cannot be read: No such file or directory.",
                    "name a file with certificates in PEM form",
                )
            ],
        ),
    ],
)
def test_what_is_missing(settings: dict[str, Any], env: dict[str, str], problems: list[Problem]) -> None:
    """Variables and files that the settings name and that are not there are all listed."""
    with pytest.raises(StorageError) as caught:
        open_store(StoreSettings(scheme="s3", **settings), "b", Limits(), env)
    assert list(caught.value.problems) == problems


def test_a_ca_file_without_certificates(tmp_path: Path) -> None:
    """A file that holds something else is refused when the store is opened, and not at the first handshake."""
    (tmp_path / "ca.pem").write_text("nothing")
    settings = StoreSettings(scheme="s3", anonymous=True, ca_file=str(tmp_path / "ca.pem"))
    with pytest.raises(StorageError) as caught:
        open_store(settings, "b", Limits(), {})
    [problem] = caught.value.problems
    assert problem.message.startswith("cannot be opened: No certificates found in ")
    assert problem.fix == "correct its settings: credentials, CA file, endpoint"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json sesame", "G is not a Google credentials JSON."),
        ("[]", "G is not a Google credentials JSON."),
        ('{"type": "external_account"}', "G holds Google credentials of type 'external_account'."),
        ('{"type": "service_account", "private_key": "sesame"}', "cannot be opened: Generic GCS error: "),
    ],
)
def test_google_credentials_of_other_kinds(text: str, message: str) -> None:
    """What obstore cannot use is said at once, without a word of what the variable holds."""
    with pytest.raises(StorageError) as caught:
        open_store(StoreSettings(scheme="gs", gcs_json_env="G"), "b", Limits(), {"G": text})
    [problem] = caught.value.problems
    assert (problem.path, problem.message[: len(message)]) == ("gs://b", message)
    assert "sesame" not in str(caught.value)


def test_google_user_credentials() -> None:
    """What gcloud writes for a user is taken too; the file that obstore reads them from is gone afterwards."""
    text = json.dumps({"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"})
    store = open_store(StoreSettings(scheme="gs", gcs_json_env="G"), "b", Limits(), {"G": text})
    assert not Path(str(dict(store.config)["application_credentials"])).exists()
