"""Settings of stores: what travels, which of them applies, and the Secrets that pods get."""

from __future__ import annotations

import dataclasses

import pytest

from kr_kfp.errors import WireError
from kr_kfp.storage.settings import StoreSettings, ambient, choose, env_entries, numbered, secret_names

FULL = StoreSettings(
    scheme="s3",
    prefixes=("s3://a", "s3://b/c"),
    endpoint="host:9000",
    region="eu",
    path_style=False,
    disable_ssl=True,
    ca_file="/ca.pem",
    access_key_env="A",
    secret_key_env="S",
    session_token_env="T",
    gcs_json_env="G",
    secret_name="secret",
    access_key_key="a",
    secret_key_key="s",
    session_token_key="t",
    gcs_json_key="g",
    anonymous=True,
    encryption="aws:kms",
    encryption_key="key",
)


@pytest.mark.parametrize("store", [FULL, ambient("gs"), StoreSettings(scheme="minio", prefixes=("minio://b",))])
def test_settings_travel(store: StoreSettings) -> None:
    """JSON and back gives the same value."""
    assert StoreSettings.from_json(store.to_json()) == store


def test_every_field_is_tested() -> None:
    """FULL has no field at its default, so none can be lost on the way unseen."""
    defaults = {field.name: field.default for field in dataclasses.fields(StoreSettings)}
    assert [name for name, value in defaults.items() if getattr(FULL, name) == value] == []


def test_defaults_do_not_travel() -> None:
    """What is at its default is left out."""
    assert ambient("gs").to_json() == {"scheme": "gs"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"scheme": "gs", "password": "x"}, "not the settings of a store: unknown password"),
        ({}, "not the settings of a store: no scheme"),
    ],
)
def test_other_data_are_refused(data: dict[str, str], message: str) -> None:
    """An unknown field is an error, and so is a missing scheme."""
    with pytest.raises(WireError) as caught:
        StoreSettings.from_json(data)
    assert str(caught.value) == message


def test_the_longest_prefix_decides() -> None:
    """Of several settings that hold a URI, those with the longest prefix apply; else the surroundings' own."""
    whole = StoreSettings(scheme="s3", prefixes=("s3://b",), region="whole")
    part = StoreSettings(scheme="s3", prefixes=("s3://x", "s3://b/part"), region="part")
    assert choose((whole, part), "s3://b/part/a") == part
    assert choose((part, whole), "s3://b/party") == whole
    assert choose((whole, part), "s3://c/a") == ambient("s3")
    assert choose((whole, part), "gs://b/part") == ambient("gs")
    everything = StoreSettings(scheme="s3", region="everything")
    assert choose((everything, part), "s3://c/a") == everything


def test_pods_get_references_to_secrets() -> None:
    """Each credential comes by secretKeyRef under a name of its own; a session token may be missing."""
    keys = StoreSettings(
        scheme="s3", secret_name="keys", access_key_key="id", secret_key_key="key", session_token_key="token"
    )
    google = StoreSettings(scheme="gs", secret_name="google", gcs_json_key="json")
    stores = numbered([ambient("s3"), keys, google])
    assert env_entries(stores) == [
        {"name": "KR_KFP_STORE_1_ACCESS_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "id"}}},
        {"name": "KR_KFP_STORE_1_SECRET_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "key"}}},
        {
            "name": "KR_KFP_STORE_1_SESSION_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token", "optional": True}},
        },
        {"name": "KR_KFP_STORE_2_GCS_JSON", "valueFrom": {"secretKeyRef": {"name": "google", "key": "json"}}},
    ]
    assert stores[0] == ambient("s3")
    assert secret_names(stores) == (
        "KR_KFP_STORE_1_ACCESS_KEY",
        "KR_KFP_STORE_1_SECRET_KEY",
        "KR_KFP_STORE_1_SESSION_TOKEN",
        "KR_KFP_STORE_2_GCS_JSON",
    )


def test_variables_that_are_set_already_need_no_secret() -> None:
    """Settings that name variables but no Secret put nothing into the pod, and are secrets all the same."""
    store = StoreSettings(scheme="s3", access_key_env="A", secret_key_env="S")
    assert numbered([store]) == (store,)
    assert env_entries([store]) == []
    assert secret_names([store]) == ("A", "S")
