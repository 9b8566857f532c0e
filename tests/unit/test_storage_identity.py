"""What the surroundings must give where settings name no credentials, and what is said if they do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kr_kfp.errors import Problem
from kr_kfp.storage import identity
from kr_kfp.storage.settings import StoreSettings

NOTHING = "there are no {} credentials: no variable names them and this machine has no identity of its own."
EXPORT = 'eval "$(aws configure export-credentials --format env)"'
POD = {"KFP_POD_NAME": "train-1", "KR_KFP_TASK": "train"}
PAIR = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "sesame"}


@pytest.fixture(autouse=True)
def _no_metadata_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens at port 1 of the loopback."""
    monkeypatch.setattr(identity, "_METADATA", dict.fromkeys(("s3", "gs"), ("127.0.0.1", 1)))


def missing(scheme: str, env: dict[str, str]) -> list[Problem]:
    return identity.missing(StoreSettings(scheme=scheme), env, f"{scheme}://b")


@pytest.mark.parametrize(
    "env",
    [
        PAIR,
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"},
        {**PAIR, "AWS_PROFILE": "work"},
    ],
)
def test_aws_credentials_in_variables(env: dict[str, str]) -> None:
    """A key pair, before any profile, or a container's credentials are enough."""
    assert missing("s3", env) == []


@pytest.mark.parametrize(
    ("env", "message", "fix"),
    [
        (
            {},
            NOTHING.format("AWS"),
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a Secret in KFP's kfp-launcher ConfigMap",
        ),
        (
            POD,
            NOTHING.format("AWS"),
            'give the component env={"AWS_ACCESS_KEY_ID": kr_kfp.Secret(...), '
            '"AWS_SECRET_ACCESS_KEY": kr_kfp.Secret(...)}, or bind its service account to a cloud identity',
        ),
        ({"AWS_PROFILE": "work"}, "AWS_PROFILE is 'work', but profiles in files are not read.", EXPORT),
        (
            {"AWS_ACCESS_KEY_ID": "id"},
            "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not.",
            "set AWS_SECRET_ACCESS_KEY too",
        ),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/dev/null"},
            "AWS_WEB_IDENTITY_TOKEN_FILE is set, and AWS_ROLE_ARN is not.",
            "set AWS_ROLE_ARN too",
        ),
        (
            {"AWS_WEB_IDENTITY_TOKEN_FILE": "/no/token", "AWS_ROLE_ARN": "arn"},
            "the file /no/token of AWS_WEB_IDENTITY_TOKEN_FILE cannot be read.",
            "look at the pod's projected token, and at the user it is for",
        ),
    ],
)
def test_aws_credentials_that_are_not_there(env: dict[str, str], message: str, fix: str) -> None:
    """One sentence says what is missing, and the fix is one that helps where the code runs."""
    assert missing("s3", env) == [Problem("s3://b", message, fix)]


def test_profiles_in_files_are_named(tmp_path: Path) -> None:
    """Whoever has credentials in AWS's own file is told that it is not read, and how to have them in variables."""
    (tmp_path / ".aws").mkdir()
    file = tmp_path / ".aws" / "credentials"
    file.write_text("[default]\naws_access_key_id = id\naws_secret_access_key = sesame\n")
    fix = f"{EXPORT}, since profiles in files ({file}) are not read"
    assert missing("s3", {"HOME": str(tmp_path)}) == [Problem("s3://b", NOTHING.format("AWS"), fix)]
    named = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "HOME": "/nonexistent"}
    assert missing("s3", named) == [Problem("s3://b", NOTHING.format("AWS"), fix)]


def test_minio_without_an_endpoint() -> None:
    """The scheme names no store: without an endpoint its keys would be sent to AWS."""
    text = "has no endpoint: the scheme names none, and AWS_ENDPOINT_URL is not set."
    fix = 'give the component env={"AWS_ENDPOINT_URL": "http://..."}'
    assert missing("minio", {**POD, **PAIR}) == [Problem("minio://b", text, fix)]
    assert [problem.message for problem in missing("minio", POD)] == [text, NOTHING.format("AWS")]
    assert missing("minio", {**POD, **PAIR, "AWS_ENDPOINT_URL": "http://store:9000"}) == []


@pytest.mark.parametrize("kind", ["service_account", "authorized_user"])
def test_google_files(kind: str, tmp_path: Path) -> None:
    """A key file that is named, or gcloud's own, is enough."""
    file = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"type": kind}))
    assert missing("gs", {"GOOGLE_APPLICATION_CREDENTIALS": str(file)}) == []
    assert missing("gs", {"HOME": str(tmp_path)}) == []
    assert missing("gs", {"GOOGLE_BEARER_TOKEN": "sesame"}) == []


def test_google_credentials_that_are_not_there(tmp_path: Path) -> None:
    """Nothing, a file that is not there, and one of a kind that obstore does not know are told apart."""
    named = tmp_path / "key.json"
    env = {"GOOGLE_APPLICATION_CREDENTIALS": str(named)}
    where = f"the file {named} of GOOGLE_APPLICATION_CREDENTIALS"
    fix = "put a service account's key there, or bind the pod's service account (workload identity)"
    assert missing("gs", env) == [Problem("gs://b", f"{where} cannot be read: No such file or directory.", fix)]
    named.write_text('{"type": "external_account"}')
    assert missing("gs", env) == [
        Problem("gs://b", f"{where} holds Google credentials of type 'external_account'.", fix)
    ]
    named.write_text("sesame")
    assert missing("gs", env) == [Problem("gs://b", f"{where} is not a Google credentials JSON.", fix)]
    assert missing("gs", {}) == [
        Problem(
            "gs://b",
            NOTHING.format("Google"),
            "set GOOGLE_APPLICATION_CREDENTIALS, or name a Secret in KFP's kfp-launcher ConfigMap",
        )
    ]
    fix = "bind the step's service account to a Google identity (workload identity)"
    assert missing("gs", POD) == [Problem("gs://b", NOTHING.format("Google"), fix)]
