"""Whether hosts would reach the object store."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from kr_kfp.spec.facts import ADMINISTRATOR, Finding, Unknown
from kr_kfp.storage.check import check_store

KEYS = ("accesskey", "secretkey")
S3 = """
s3:
  default:
    endpoint: s3.amazonaws.com
    region: us-east-1
    credentials:
      fromEnv: {env}
      secretRef:
        secretName: mine
        accessKeyKey: id
        secretKeyKey: key
"""


def lines(
    config: Mapping[str, str] | Unknown | None, secrets: Mapping[str, tuple[str, ...] | Unknown | None] | None = None
) -> list[Finding]:
    """Check a namespace ``ml``."""
    return list(check_store(config, "ml", (secrets or {}).get))


def test_the_store_of_kfp() -> None:
    """Without configuration KFP's own store counts, with its Secret."""
    assert lines(None, {"mlpipeline-minio-artifact": KEYS}) == [
        Finding(
            "store",
            "pass",
            "artifacts are kept below minio://mlpipeline/v2/artifacts, by KFP's defaults (there is no ConfigMap kfp-launcher)",
        ),
        Finding("store", "pass", "Secret mlpipeline-minio-artifact has accesskey, secretkey"),
    ]


def test_a_store_of_ones_own() -> None:
    """The pipeline root of the ConfigMap decides which section and Secret count."""
    config = {"defaultPipelineRoot": "s3://bucket/runs", "providers": S3.format(env="false")}
    assert [f.message for f in lines(config, {"mine": ("id", "key")})] == [
        "artifacts are kept below s3://bucket/runs, by ConfigMap kfp-launcher",
        "Secret mine has id, key",
    ]


@pytest.mark.parametrize(
    "config",
    [
        {"defaultPipelineRoot": "gs://bucket/runs"},
        {"defaultPipelineRoot": "s3://bucket/runs", "providers": S3.format(env="true")},
    ],
)
def test_an_identity_needs_no_secret(config: Mapping[str, str]) -> None:
    """Where none is named, the service account's identity counts."""
    assert lines(config)[1:] == [
        Finding("store", "pass", "no Secret is named: hosts use the identity of their service account")
    ]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (
            None,
            Finding(
                "store",
                "fail",
                "there is no Secret mlpipeline-minio-artifact, from which hosts get their credentials",
                "Make it in namespace ml, or name another one in ConfigMap kfp-launcher",
            ),
        ),
        (
            ("accesskey", "other"),
            Finding(
                "store",
                "fail",
                "Secret mlpipeline-minio-artifact has no key secretkey",
                "Add it, or name the right keys in ConfigMap kfp-launcher; it has: accesskey, other",
            ),
        ),
        (
            Unknown("no"),
            Finding(
                "store",
                "warn",
                "whether Secret mlpipeline-minio-artifact has what it should is not known: no",
                ADMINISTRATOR,
            ),
        ),
    ],
)
def test_a_secret_that_does_not_do(keys: tuple[str, ...] | Unknown | None, expected: Finding) -> None:
    """It has to be there, with the keys that are named."""
    assert lines({}, {"mlpipeline-minio-artifact": keys})[1:] == [expected]


def test_a_configuration_that_cannot_be_read() -> None:
    """What is wrong inside is a fault, not being allowed to look is a warning."""
    (found,) = lines({"providers": "minio: ["})
    assert (found.state, found.fix) == ("fail", "Correct it in ConfigMap kfp-launcher")
    (found,) = lines(Unknown("ada may not get configmaps"))
    assert (found.state, found.message) == (
        "warn",
        "ConfigMap kfp-launcher cannot be read: ada may not get configmaps",
    )
