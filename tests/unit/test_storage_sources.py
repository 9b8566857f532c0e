"""What KFP knows about stores, read as KFP 2.17 reads it."""

from __future__ import annotations

import json

import pytest

from kr_kfp.errors import StorageError
from kr_kfp.storage.settings import StoreSettings, ambient
from kr_kfp.storage.sources import from_kfp_launcher, from_query, from_session_info, in_cluster_default, resolve

DEFAULT = StoreSettings(
    scheme="minio",
    endpoint="seaweedfs.kubeflow:9000",
    region="minio",
    disable_ssl=True,
    secret_name="mlpipeline-minio-artifact",
    access_key_key="accesskey",
    secret_key_key="secretkey",
)

PROVIDERS = """
gs:
  default:
    credentials: {fromEnv: true}
  Overrides:
    - bucketName: private
      keyPrefix: some/path/
      credentials: {fromEnv: false, secretRef: {secretName: google, tokenKey: json}}
s3:
  default:
    endpoint: s3.amazonaws.com
    region: us-east-1
    disableSSL: false
    credentials: {fromEnv: false, secretRef: {secretName: keys, accessKeyKey: id, secretKeyKey: key}}
  overrides:
    - bucketName: bucket
      keyPrefix: a/b
      endpoint: s3.internal:9000
      region: internal
      disableSSL: true
      forcePathStyle: false
      maxRetries: 3
      credentials: {fromEnv: true}
    - bucketName: bucket
      keyPrefix: a
      credentials: {fromEnv: false, secretRef: {secretName: more, accessKeyKey: id2, secretKeyKey: key2}}
minio: {}
"""
CONFIG = {"defaultPipelineRoot": "gs://private/root", "providers": PROVIDERS}


def test_defaults_in_the_cluster() -> None:
    """minio:// is KFP's own store with its Secret; other schemes rest on the pod's identity."""
    assert in_cluster_default("minio://mlpipeline/v2/artifacts") == DEFAULT
    assert in_cluster_default("s3://b/k") == ambient("s3")
    assert in_cluster_default("gs://b/k") == ambient("gs")


@pytest.mark.parametrize(
    ("uri", "params", "store"),
    [
        (
            "s3://b/k",
            {
                "fromEnv": "false",
                "endpoint": "host",
                "region": "eu",
                "disableSSL": "true",
                "forcePathStyle": "false",
                "maxRetries": "5",
                "secretName": "n",
                "accessKeyKey": "a",
                "secretKeyKey": "s",
            },
            StoreSettings(
                scheme="s3",
                endpoint="host",
                region="eu",
                disable_ssl=True,
                path_style=False,
                secret_name="n",
                access_key_key="a",
                secret_key_key="s",
            ),
        ),
        ("s3://b/k", {"fromEnv": "true"}, ambient("s3")),
        (
            "s3://b/k",
            {"fromEnv": "true", "endpoint": "https://s3.amazonaws.com", "region": "eu"},
            StoreSettings(scheme="s3", region="eu"),
        ),
        ("gs://b/k", {"fromEnv": "true"}, ambient("gs")),
        (
            "gs://b/k",
            {"fromEnv": "false", "secretName": "n", "tokenKey": "t"},
            StoreSettings(scheme="gs", secret_name="n", gcs_json_key="t"),
        ),
    ],
)
def test_session_info(uri: str, params: dict[str, str], store: StoreSettings) -> None:
    """The texts of an artifact's session info become settings; AWS's general endpoint is left to the region."""
    assert from_session_info(json.dumps({"Provider": "any", "Params": params}), uri) == store


@pytest.mark.parametrize("text", ["", "null", "{}"])
def test_no_session_info(text: str) -> None:
    """An artifact whose bucket was opened without session info says nothing."""
    assert from_session_info(text, "s3://b/k") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "s3://b/k (store_session_info): is not JSON: "),
        ("[1]", "s3://b/k (store_session_info): is not an object with Provider and Params"),
        (
            '{"Params": {"fromEnv": "false", "secretName": "n"}}',
            "s3://b/k (store_session_info): lacks accessKeyKey, secretKeyKey. Fix: name the Secret and its keys, "
            "or set fromEnv: true for the pod's own identity",
        ),
        (
            '{"Params": {"fromEnv": "yes"}}',
            "2 problems\n  1. s3://b/k (store_session_info): fromEnv is 'yes'. Fix: write true or false\n",
        ),
    ],
)
def test_bad_session_info(text: str, message: str) -> None:
    """What cannot be read is an error that names the artifact."""
    with pytest.raises(StorageError) as caught:
        from_session_info(text, "s3://b/k")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("uri", "store"),
    [
        ("gs://b/k", ambient("gs")),
        ("gs://private/some/path/x", StoreSettings(scheme="gs", secret_name="google", gcs_json_key="json")),
        ("gs://private/some/pathology", ambient("gs")),
        (
            "s3://other/k",
            StoreSettings(
                scheme="s3", region="us-east-1", secret_name="keys", access_key_key="id", secret_key_key="key"
            ),
        ),
        (
            "s3://bucket/a/b/c",
            StoreSettings(
                scheme="s3", endpoint="s3.internal:9000", region="internal", disable_ssl=True, path_style=False
            ),
        ),
        (
            "s3://bucket/a/x",
            StoreSettings(
                scheme="s3", region="us-east-1", secret_name="more", access_key_key="id2", secret_key_key="key2"
            ),
        ),
        ("minio://b/k", None),
    ],
)
def test_kfp_launcher(uri: str, store: StoreSettings | None) -> None:
    """The section of the scheme, with the first override for the bucket and key put over its default."""
    assert from_kfp_launcher(CONFIG, uri) == store


@pytest.mark.parametrize("data", [{}, {"providers": ""}, {"providers": "other: {}"}, {"providers": "minio: {}"}])
def test_no_providers(data: dict[str, str]) -> None:
    """A ConfigMap that is missing or has no section for the scheme says nothing."""
    assert from_kfp_launcher(data, "minio://b/k") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "ConfigMap kfp-launcher, providers: is not YAML at line 1"),
        ("text", "ConfigMap kfp-launcher, providers: is not a mapping of minio, s3 and gs"),
        (
            "minio: {default: {endpoint: host}}",
            "ConfigMap kfp-launcher, providers.minio.default: has no credentials Fix: set fromEnv: true, or secretRef",
        ),
        (
            "minio: {default: {credentials: {fromEnv: false, secretRef: {secretName: n}}}}",
            "ConfigMap kfp-launcher, providers.minio: lacks accessKeyKey, secretKeyKey. "
            "Fix: name the Secret and its keys, or set fromEnv: true for the pod's own identity",
        ),
        (
            "minio: {default: {credentials: {fromEnv: true}}, overrides: [{bucketName: b, keyPrefix: k}]}",
            "ConfigMap kfp-launcher, providers.minio.overrides[0]: has no credentials "
            "Fix: set fromEnv: true, or secretRef",
        ),
    ],
)
def test_bad_providers(text: str, message: str) -> None:
    """What KFP demands and is not there is an error that names the section."""
    with pytest.raises(StorageError) as caught:
        from_kfp_launcher({"providers": text}, "minio://b/k")
    assert str(caught.value) == message


def test_query() -> None:
    """KFP's parameters behind ? in their older and newer names; the bucket stands in the host's name unless told."""
    assert from_query("s3://b/k") is None
    assert from_query("minio://b/k?region=eu&endpoint=h:9&disableSSL=true&s3ForcePathStyle=true") == StoreSettings(
        scheme="minio", region="eu", endpoint="h:9", disable_ssl=True, path_style=True
    )
    assert from_query("s3://b/k?endpoint=https://h&disable_https=false&awssdk=v2&ssetype=aws:kms&kmskeyid=i") == (
        StoreSettings(scheme="s3", endpoint="https://h", path_style=False, encryption="aws:kms", encryption_key="i")
    )
    assert from_query("gs://b/k?anonymous=true") == StoreSettings(scheme="gs", anonymous=True, path_style=False)


def test_unknown_parameters_are_all_named() -> None:
    """No parameter is ignored: each that means nothing here is listed."""
    with pytest.raises(StorageError) as caught:
        from_query("s3://b/k?profile=me&role=arn:x&disableSSL=perhaps")
    assert [(problem.path, problem.message) for problem in caught.value.problems] == [
        ("s3://b/k?profile=me&role=arn:x&disableSSL=perhaps", "parameter 'profile' is not supported."),
        ("s3://b/k?profile=me&role=arn:x&disableSSL=perhaps", "parameter 'role' is not supported."),
        (
            "s3://b/k?profile=me&role=arn:x&disableSSL=perhaps",
            "parameter 'disableSSL' is 'perhaps', not true or false",
        ),
    ]


def test_resolve_joins_equal_settings() -> None:
    """Query, session info, ConfigMap and defaults in this order; one entry for all URIs that are reached alike."""
    info = json.dumps({"Provider": "gs", "Params": {"fromEnv": "false", "secretName": "s", "tokenKey": "t"}})
    stores = resolve(
        [
            "minio://mlpipeline/v2/a",
            "minio://mlpipeline/v2/b",
            "minio://other/c",
            "gs://data/in",
            "gs://out/model",
            "s3://tmp/x?region=eu",
            "/local/path",
            "oci://registry/image",
        ],
        {"gs://data/in": info},
        {},
    )
    assert stores == (
        StoreSettings(
            scheme="minio",
            prefixes=("minio://mlpipeline", "minio://other"),
            endpoint="seaweedfs.kubeflow:9000",
            region="minio",
            disable_ssl=True,
            secret_name="mlpipeline-minio-artifact",
            access_key_key="accesskey",
            secret_key_key="secretkey",
            access_key_env="KR_KFP_STORE_0_ACCESS_KEY",
            secret_key_env="KR_KFP_STORE_0_SECRET_KEY",
        ),
        StoreSettings(
            scheme="gs",
            prefixes=("gs://data",),
            secret_name="s",
            gcs_json_key="t",
            gcs_json_env="KR_KFP_STORE_1_GCS_JSON",
        ),
        StoreSettings(scheme="gs", prefixes=("gs://out",)),
        StoreSettings(scheme="s3", prefixes=("s3://tmp",), region="eu", path_style=False),
    )


def test_resolve_tells_parts_of_a_bucket_apart() -> None:
    """Where one bucket is reached in two ways, each way applies to its own URIs alone."""
    stores = resolve(["s3://bucket/a/b/c", "s3://bucket/a/x?", "s3://bucket/z"], {}, CONFIG)
    assert [(store.prefixes, store.secret_name) for store in stores] == [
        (("s3://bucket/a/b/c",), ""),
        (("s3://bucket/a/x",), "more"),
        (("s3://bucket/z",), "keys"),
    ]


def test_resolve_lists_all_problems() -> None:
    """Every URI and every session info that cannot be used is named at once."""
    with pytest.raises(StorageError) as caught:
        resolve(["gs://b/..", "s3://b/k?profile=p", "s3://c/k"], {"s3://c/k": "{"}, {})
    assert [problem.path for problem in caught.value.problems] == [
        "gs://b/..",
        "s3://b/k?profile=p",
        "s3://c/k (store_session_info)",
    ]
