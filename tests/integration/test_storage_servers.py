"""The servers and the proxy that the other tests of the storage rely on: do they check, and do they break?"""

from __future__ import annotations

import dataclasses
import http.client
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import obstore
import obstore.exceptions
import obstore.store
import pytest

from tests.servers import build, sigv4
from tests.servers.gcs import GcsServer, run_gcs
from tests.servers.proxy import KINDS, Fault, Request, answer, run_proxy, seeded
from tests.servers.s3 import S3Server, User


def _s3(server: S3Server, bucket: str, user: User | None = None, endpoint: str = "", **options: Any) -> Any:
    user = user or server.writer
    return obstore.store.S3Store(
        bucket,
        endpoint=endpoint or server.endpoint,
        region=server.region,
        access_key_id=user.access_key,
        secret_access_key=user.secret_key,
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
        **options,
    )


def _gcs(bucket: str, **config: Any) -> Any:
    return obstore.store.GCSStore(
        bucket,
        config=config,  # type: ignore[arg-type] # GCSConfig's own keys
        client_options={"allow_http": True},
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
    )


def _store(server: S3Server | GcsServer, bucket: str) -> Any:
    if isinstance(server, S3Server):
        return _s3(server, bucket)
    return _gcs(bucket, service_account_key=server.writer)


@pytest.fixture(params=["s3", "gcs"])
def server(request: pytest.FixtureRequest) -> S3Server | GcsServer:
    """Give each server in turn."""
    chosen: S3Server | GcsServer = request.getfixturevalue(f"{request.param}_server")
    return chosen


def test_obstore_works_with_the_servers(server: S3Server | GcsServer) -> None:
    """Objects, ranges, multipart uploads, pages of a listing, copies and conditions work as obstore expects."""
    bucket = server.make_bucket()
    store = _store(server, bucket)
    name, parts = "a b/ünï.txt", bytes(range(256)) * 40960  # 10 MiB
    obstore.put(store, name, b"hello", use_multipart=False)
    obstore.put(store, "empty", b"", use_multipart=False)
    obstore.put(store, "parts", parts, use_multipart=True, chunk_size=5 << 20)
    for number in range(5):
        obstore.put(store, f"many/{number}", b"x")
    assert bytes(obstore.get(store, name).bytes()) == b"hello"
    assert bytes(obstore.get_range(store, "parts", start=6_000_000, length=1000)) == parts[6_000_000:6_001_000]
    assert bytes(obstore.get(store, "parts").bytes()) == parts
    assert obstore.head(store, "empty")["size"] == 0
    obstore.copy(store, "parts", "copy")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "copy", b"", mode="create")
    obstore.delete(store, ["many/0", "many/1"])
    sizes = {name: 5, "empty": 0, "parts": len(parts), "copy": len(parts), "many/2": 1, "many/3": 1, "many/4": 1}
    assert {entry["path"]: entry["size"] for page in obstore.list(store) for entry in page} == sizes
    assert server.objects(bucket) == sizes
    assert server.unfinished(bucket) == []
    assert server.get(bucket, name) == b"hello"


def test_a_listing_has_pages(server: S3Server | GcsServer) -> None:
    """More names than a page holds come whole."""
    bucket = server.make_bucket()
    for number in range(1100):
        server.put(bucket, f"file-{number:04d}", b"")
    listed = [entry["path"] for page in obstore.list(_store(server, bucket)) for entry in page]
    assert listed == [f"file-{number:04d}" for number in range(1100)]


def test_the_s3_server_refuses_who_may_not(s3_server: S3Server) -> None:
    """Wrong keys, foreign regions, strangers and writing readers are refused, each with S3's own code."""
    bucket = s3_server.make_bucket()
    s3_server.put(bucket, "file", b"1")
    wrong = dataclasses.replace(s3_server.writer, secret_key="wrong")
    unknown = User(access_key="unknown", secret_key="wrong")

    def code(method: str, user: User, region: str = s3_server.region) -> tuple[int, bytes]:
        status, body = sigv4.request(
            method,
            s3_server.endpoint,
            f"/{bucket}/file",
            key=user.access_key,
            secret=user.secret_key,
            region=region,
            body=b"2" if method == "PUT" else b"",
        )
        return status, body.partition(b"<Code>")[2].partition(b"</Code>")[0]

    assert code("GET", s3_server.writer) == (200, b"")
    assert code("GET", s3_server.reader) == (200, b"")
    assert code("PUT", s3_server.reader) == (403, b"AccessDenied")
    assert code("GET", s3_server.stranger) == (403, b"AccessDenied")
    assert code("GET", wrong) == (403, b"SignatureDoesNotMatch")
    assert code("GET", unknown) == (403, b"InvalidAccessKeyId")
    assert code("GET", s3_server.writer, "mars-1") == (400, b"AuthorizationHeaderMalformed")
    assert s3_server.get(bucket, "file") == b"1"


def test_the_gcs_server_refuses_who_may_not(gcs_server: GcsServer) -> None:
    """Wrong keys, no token, expired tokens and writing readers are refused."""
    bucket = gcs_server.make_bucket()
    gcs_server.put(bucket, "file", b"1")
    wrong = json.loads(gcs_server.writer) | {"private_key": json.loads(gcs_server.reader)["private_key"]}
    base = {"base_url": gcs_server.endpoint}

    def outcome(store: Any, content: bytes = b"") -> str:
        try:
            return str(obstore.put(store, "new", content) if content else obstore.head(store, "file")["size"])
        except (obstore.exceptions.BaseError, FileNotFoundError) as problem:
            return type(problem).__name__

    assert outcome(_gcs(bucket, service_account_key=gcs_server.reader)) == "1"
    assert outcome(_gcs(bucket, service_account_key=gcs_server.reader), b"2") == "PermissionDeniedError"
    assert outcome(_gcs(bucket, service_account_key=json.dumps(wrong))) == "UnauthenticatedError"
    assert outcome(_gcs(bucket, bearer_token=gcs_server.token, **base)) == "1"
    assert outcome(_gcs(bucket, bearer_token=gcs_server.expired_token, **base)) == "UnauthenticatedError"
    assert outcome(_gcs(bucket, bearer_token="unknown", **base)) == "UnauthenticatedError"
    assert outcome(_gcs(bucket, skip_signature=True, **base)) == "UnauthenticatedError"
    assert outcome(_gcs("no-such-bucket", service_account_key=gcs_server.writer)) == "FileNotFoundError"
    assert gcs_server.objects(bucket) == {"file": 1}


def test_the_gcs_server_gives_a_machine_its_identity(
    gcs_server: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client without any key gets its token from the metadata server, as under workload identity."""
    bucket = gcs_server.make_bucket()
    gcs_server.put(bucket, "file", b"1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_HOST", gcs_server.endpoint.removeprefix("http://"))
    assert obstore.head(_gcs(bucket, base_url=gcs_server.endpoint), "file")["size"] == 1


def test_the_gcs_server_takes_an_unfinished_part_for_none(gcs_server: GcsServer) -> None:
    """A body that ends before its length is no object, and one with a wrong checksum is refused."""
    bucket = gcs_server.make_bucket()
    host = gcs_server.endpoint.removeprefix("http://")
    for headers, sent in (({"Content-Length": "10"}, b"short"), ({"Content-MD5": "wrong"}, b"whole")):
        connection = http.client.HTTPConnection(host, timeout=10)
        connection.putrequest("PUT", f"/{bucket}/file")
        for name, value in {"Content-Length": "5", "Authorization": f"Bearer {gcs_server.token}", **headers}.items():
            connection.putheader(name, value)
        connection.endheaders(sent)
        if headers.get("Content-Length"):
            connection.close()
        else:
            refused = connection.getresponse()
            assert (refused.status, b"BadDigest" in refused.read()) == (400, True)
            connection.close()
    assert gcs_server.objects(bucket) == {}


def test_a_parallel_server_may_need_no_token(tmp_path: Path) -> None:
    """An emulator for clients that send no credentials can be had too."""
    key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    with run_gcs(tmp_path, anonymous="write") as server:
        bucket = server.make_bucket()
        # With skip_signature obstore 0.12 reads without credentials, but still wants some to write.
        obstore.put(_gcs(bucket, service_account_key=json.dumps(key | {"gcs_base_url": server.endpoint})), "file", b"1")
        assert obstore.head(_gcs(bucket, base_url=server.endpoint, skip_signature=True), "file")["size"] == 1


def test_a_proxy_that_breaks_nothing_is_transparent(server: S3Server | GcsServer) -> None:
    """Signatures and tokens pass, in both directions nothing is changed."""
    bucket = server.make_bucket()
    content = bytes(range(256)) * 40960
    with run_proxy(server.endpoint, lambda request: None) as proxy:
        if isinstance(server, S3Server):
            store = _s3(server, bucket, endpoint=proxy.endpoint)
        else:
            key = json.loads(server.writer) | {"gcs_base_url": proxy.endpoint}
            store = _gcs(bucket, service_account_key=json.dumps(key))
        obstore.put(store, "a b/ü", content, use_multipart=True, chunk_size=5 << 20)
        assert bytes(obstore.get(store, "a b/ü").bytes()) == content
        assert [entry["size"] for page in obstore.list(store) for entry in page] == [len(content)]
        assert proxy.requests == 6
    assert server.get(bucket, "a b/ü") == content


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_is_one(s3_server: S3Server, kind: Any) -> None:
    """A client that asks once sees the fault, and no whole answer; a slow one is only slow."""
    bucket = s3_server.make_bucket()
    content = bytes(range(256)) * 4096
    s3_server.put(bucket, "file", content)
    method = "PUT" if kind == "cut_request" else "GET"

    def plan(request: Request) -> Fault | None:
        return Fault(kind=kind, share=0.6) if request.method == method else None

    with run_proxy(s3_server.endpoint, plan) as proxy:
        store = _s3(s3_server, bucket, endpoint=proxy.endpoint)
        seen: bytes | str
        try:
            if method == "PUT":
                obstore.put(store, "new", content, use_multipart=False)
            seen = bytes(obstore.get(store, "file").bytes())
        except obstore.exceptions.BaseError as problem:
            seen = type(problem).__name__
        assert proxy.faults[kind] >= 1
    assert s3_server.objects(bucket) == {"file": len(content)}
    # What looks whole though it is not is the one that a client has to find out for itself.
    whole = {"slow": content, "short": content[: int(len(content) * 0.6)]}
    assert seen == whole.get(kind, "GenericError")


def test_a_plan_follows_from_its_seed() -> None:
    """Equal seeds give equal plans, and a plan ends after its number of faults."""
    requests = [Request(number=number, method="GET", target="/") for number in range(100)]
    first, second, other = (seeded(seed, count=10, every=2) for seed in (1, 1, 2))
    faults = [first(request) for request in requests]
    assert faults == [second(request) for request in requests]
    assert faults != [other(request) for request in requests]
    assert sum(fault is not None for fault in faults) == 10


def test_a_proxy_can_answer_itself(s3_server: S3Server) -> None:
    """What no server at hand would say can be said by the proxy."""
    body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    with run_proxy(s3_server.endpoint, answer("400 Bad Request", body)) as proxy:
        store = _s3(s3_server, s3_server.make_bucket(), endpoint=proxy.endpoint)
        with pytest.raises(obstore.exceptions.GenericError, match="ExpiredToken"):
            obstore.get(store, "file")


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Go the tests that need a server fail with the reason, instead of being skipped."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(build.BuildError, match="built with Go, which is not on the PATH"):
        build.build()
