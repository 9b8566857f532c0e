"""Credentials of the surroundings, as transfers take them: what works by itself, and the one message where nothing does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.one_object import run_one_object
from tests.servers.places import Place, move
from tests.servers.proxy import answer, run_proxy
from tests.servers.s3 import S3Server
from tests.servers.tls import server_tls

STS = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>the-session-token</SessionToken>
<SecretAccessKey>the-secret-key</SecretAccessKey><Expiration>2099-01-01T00:00:00Z</Expiration>
<AccessKeyId>the-access-key</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_web_identity(s3_server: S3Server, tmp_path: Path) -> None:
    """A projected token, as EKS gives a pod, is exchanged for keys and a session token, which sign every request."""
    (tmp_path / "token").write_text("the-projected-token")
    context, ca = server_tls(tmp_path)
    exchange = answer("200 OK", STS.encode())
    with run_one_object() as store, run_proxy(s3_server.endpoint, exchange, tls=context) as sts:
        env = {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/train",
            "AWS_ENDPOINT_URL_STS": sts.endpoint,
            "AWS_CA_BUNDLE": str(ca),
            "AWS_ENDPOINT_URL": f"http://{store.host}",
            "AWS_REGION": s3_server.region,
        }
        done = move("fetch", Place(uri="s3://bucket", env=env), {"data": tmp_path / "data"})
    assert (done.code, done.problems) == (0, []), done.output
    assert (tmp_path / "data").read_bytes() == b"abc"
    assert 1 <= sts.requests <= 2  # obstore's clients for objects and for listings ask apart
    for request, _ in sts.done:
        assert "WebIdentityToken=the-projected-token" in request.target
    assert store.requests
    for headers in store.requests:
        assert "Credential=the-access-key/" in headers["authorization"]
        assert headers["x-amz-security-token"] == "the-session-token"
    for secret in ("the-projected-token", "the-secret-key", "the-session-token"):
        assert secret not in done.output


@pytest.mark.parametrize(
    ("uri", "env", "problems"),
    [
        (
            "s3://bucket",
            {"AWS_PROFILE": "work"},
            [
                (
                    "AWS_PROFILE is 'work', but profiles in files are not read.",
                    'eval "$(aws configure export-credentials --format env)"',
                )
            ],
        ),
        (
            "s3://bucket",
            {
                "AWS_WEB_IDENTITY_TOKEN_FILE": "/dev/null",
                "AWS_ROLE_ARN": "arn:aws:iam::1:role/train",
                "AWS_ENDPOINT_URL_STS": "http://sts.train",
            },
            [
                (
                    "AWS_ENDPOINT_URL_STS is 'http://sts.train', and a token is only sent over https.",
                    "give an https:// address; its CA may be named by AWS_CA_BUNDLE",
                )
            ],
        ),
        (
            "minio://bucket",
            {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "sesame"},
            [
                (
                    "has no endpoint: the scheme names none, and AWS_ENDPOINT_URL is not set.",
                    "set AWS_ENDPOINT_URL, or name a Secret in KFP's kfp-launcher ConfigMap",
                )
            ],
        ),
        (
            "gs://bucket",
            {"GOOGLE_APPLICATION_CREDENTIALS": "/no/key.json"},
            [
                (
                    "the file /no/key.json of GOOGLE_APPLICATION_CREDENTIALS cannot be read: No such file or directory.",
                    "put a service account's key there, or bind the pod's service account (workload identity)",
                )
            ],
        ),
    ],
)
def test_nothing_gives_credentials(
    uri: str, env: dict[str, str], problems: list[tuple[str, str]], tmp_path: Path
) -> None:
    """One message with the fix that helps there, and no request."""
    done = move("fetch", Place(uri=uri, env=env), {"data": tmp_path / "data"})
    assert done.code == 65, done.output
    assert [problem[1:] for problem in done.problems] == problems
    assert all(problem[0].startswith(uri) for problem in done.problems)
    assert "sesame" not in done.output


def test_a_machine_that_gives_no_credentials(s3_server: S3Server, tmp_path: Path) -> None:
    """A metadata server that knows no AWS, as on Google's nodes: user code of a pod is told what its pod needs."""
    with run_proxy(s3_server.endpoint, answer("404 Not Found", b"")) as metadata:
        env = {"KFP_POD_NAME": "train-1", "AWS_METADATA_ENDPOINT": metadata.endpoint}
        done = move("fetch", Place(uri="s3://bucket", env=env), {"data": tmp_path / "data"})
    assert done.code == 65, done.output
    assert done.problems == [
        (
            "s3://bucket/data",
            "no credentials could be had from this machine's identity.",
            'give the component env={"AWS_ACCESS_KEY_ID": kr_kfp.Secret(...), '
            '"AWS_SECRET_ACCESS_KEY": kr_kfp.Secret(...)}, or bind its service account to a cloud identity.',
        )
    ]
