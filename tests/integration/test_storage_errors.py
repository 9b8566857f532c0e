"""What goes wrong between a step and its store is said once, with the URI and what to do, and without any secret."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from kr_kfp.storage.limits import MIB, Limits
from tests.servers.gcs import GcsServer, run_gcs
from tests.servers.places import Done, Place, gcs_place, move, s3_place
from tests.servers.proxy import answer, run_proxy
from tests.servers.s3 import S3Server, run_s3

KEYS = "correct the Secret that KFP's kfp-launcher ConfigMap names, or the account that the pod runs as."
BUCKET = "create it, or correct the pipeline root, endpoint or region."
READ = "grant read and list (s3:GetObject, s3:ListBucket; roles/storage.objectViewer) to the step's account."
WRITE = "grant write (s3:PutObject, s3:AbortMultipartUpload; roles/storage.objectUser) to the step's account."
NO_WRITE = "the credentials may not write there (a read-only bucket or account) (AccessDenied)."
DISK = "give the step more ephemeral storage or a larger volume"

Verb = Literal["fetch", "put"]
Where = Callable[[S3Server, GcsServer], Place]


def _bucket(server: S3Server | GcsServer) -> str:
    bucket = server.make_bucket()
    server.put(bucket, "artifact", b"1")
    return bucket


def _user(**changes: str) -> Where:
    return lambda s3, _: s3_place(s3, bucket=_bucket(s3), user=dataclasses.replace(s3.writer, **changes))


def _region(s3: S3Server, _: GcsServer) -> Place:
    place = s3_place(s3, bucket=_bucket(s3))
    return dataclasses.replace(place, stores=(dataclasses.replace(place.stores[0], region="mars-1"),))


def _foreign_key(_: S3Server, gcs: GcsServer) -> Place:
    key = json.loads(gcs.writer) | {"private_key": json.loads(gcs.reader)["private_key"]}
    return gcs_place(gcs, bucket=_bucket(gcs), key=json.dumps(key))


def _check(done: Done, place: Place, name: str, what: str, fix: str) -> None:
    """Check that there is one problem, and no secret in anything."""
    assert (done.code, done.problems) == (65, [(f"{place.uri}/{name}", what, fix)]), done.output
    shown = done.output + json.dumps(done.result)
    assert [secret for secret in place.secrets if secret in shown] == []
    assert done.seconds < 0.8 * Limits().patience, "what no repeating mends is not repeated"


def _run(place: Place, verb: Verb, tmp_path: Path, size: int = 1) -> Done:
    local = tmp_path / "local"
    if verb == "put":
        local.write_bytes(bytes(size))
    done = move(verb, place, {"artifact": local})
    assert verb == "put" or list(tmp_path.iterdir()) == []
    return done


@pytest.mark.parametrize(
    ("where", "verb", "what", "fix"),
    [
        pytest.param(
            _user(secret_key="wrong/secret+key"),
            verb,
            "the secret key does not belong to the access key (SignatureDoesNotMatch).",
            KEYS,
            id=f"s3 wrong secret {verb}",
        )
        for verb in ("fetch", "put")
    ]
    + [
        pytest.param(
            _user(access_key="UNKNOWNACCESSKEY", secret_key="wrong/secret+key"),
            verb,
            "the store does not know the access key (InvalidAccessKeyId).",
            KEYS,
            id=f"s3 wrong key {verb}",
        )
        for verb in ("fetch", "put")
    ]
    + [
        pytest.param(
            _region,
            verb,
            "the region is not the bucket's (AuthorizationHeaderMalformed).",
            "name it in the kfp-launcher ConfigMap.",
            id=f"s3 wrong region {verb}",
        )
        for verb in ("fetch", "put")
    ]
    + [
        pytest.param(
            where,
            verb,
            "the bucket does not exist (NoSuchBucket).",
            BUCKET,
            id=f"{name} missing bucket {verb}",
        )
        for name, where in (
            ("s3", lambda s3, _: s3_place(s3, bucket="no-such-bucket")),
            ("gcs", lambda _, gcs: gcs_place(gcs, bucket="no-such-bucket")),
        )
        for verb in ("fetch", "put")
    ]
    + [
        pytest.param(
            lambda s3, _: s3_place(s3, bucket=_bucket(s3), user=s3.stranger),
            "fetch",
            "the credentials may not read or list there (403 AccessDenied).",
            READ,
            id="s3 unreadable bucket",
        ),
        pytest.param(
            lambda s3, _: s3_place(s3, bucket=_bucket(s3), user=s3.reader), "put", NO_WRITE, WRITE, id="s3 read-only"
        ),
        pytest.param(
            lambda _, gcs: gcs_place(gcs, bucket=_bucket(gcs), key=gcs.reader),
            "put",
            NO_WRITE,
            WRITE,
            id="gcs read-only",
        ),
    ]
    + [
        pytest.param(
            _foreign_key,
            verb,
            f"the store does not accept the credentials: they are wrong, or have expired ({code}).",
            KEYS,
            id=f"gcs wrong key {verb}",
        )
        for verb, code in (("fetch", "401 AuthenticationRequired"), ("put", "AuthenticationRequired"))
    ]
    + [
        pytest.param(
            lambda s3, _: s3_place(s3, bucket=_bucket(s3), token="some/session+token"),
            verb,
            "the session token is not valid (InvalidToken).",
            KEYS,
            id=f"s3 wrong token {verb}",
        )
        for verb in ("fetch", "put")
    ],
)
def test_what_is_refused_is_said_clearly(
    s3_server: S3Server,
    gcs_server: GcsServer,
    tmp_path: Path,
    where: Where,
    verb: Verb,
    what: str,
    fix: str,
) -> None:
    """One message with the URI and the likely fix, for files in one request and in parts; never a secret."""
    place = where(s3_server, gcs_server)
    for size in [1] if verb == "fetch" else [1, 12 * MIB]:
        _check(_run(place, verb, tmp_path, size), place, "artifact", what, fix)


@pytest.mark.parametrize("verb", ["fetch", "put"])
def test_an_expired_session_token(s3_server: S3Server, tmp_path: Path, verb: Verb) -> None:
    """S3's answer to a temporary key whose time is over; the proxy gives it, since the server knows no such keys."""
    body = b"<?xml version='1.0'?><Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    with run_proxy(s3_server.endpoint, answer("400 Bad Request", body)) as proxy:
        place = s3_place(s3_server, bucket=_bucket(s3_server), endpoint=proxy.endpoint, token="some/session+token")
        done = _run(place, verb, tmp_path)
    what = "the session token has expired (ExpiredToken)."
    _check(done, place, "artifact", what, "renew it, or use lasting keys or pod identity.")


@pytest.mark.parametrize("verb", ["fetch", "put"])
def test_an_expired_identity(tmp_path: Path, verb: Verb) -> None:
    """Google's answer to an access token of the machine's identity whose time is over."""
    with run_gcs(tmp_path / "server", metadata_expired=True) as server:
        place = gcs_place(server, bucket=_bucket(server))
        settings = dataclasses.replace(place.stores[0], gcs_json_env="")
        env = {"GCE_METADATA_HOST": server.endpoint.removeprefix("http://"), "HOME": str(tmp_path)}
        place = Place(uri=place.uri, stores=(settings,), env=env)
        (tmp_path / "local").mkdir()
        done = _run(place, verb, tmp_path / "local")
        code = "401 AuthenticationRequired" if verb == "fetch" else "AuthenticationRequired"
        what = f"the store does not accept the credentials: they are wrong, or have expired ({code})."
        _check(done, place, "artifact", what, KEYS)
        assert server.expired_token not in done.output + json.dumps(done.result)


def test_nothing_there(s3_server: S3Server, gcs_server: GcsServer, tmp_path: Path) -> None:
    """A URI without anything, and a local path without anything."""
    for place in (s3_place(s3_server), gcs_place(gcs_server)):
        done = move("fetch", place, {"artifact": tmp_path / "local"})
        _check(done, place, "artifact", "there is no such object.", "look whether the step before has written it.")
        done = move("put", place, {"artifact": tmp_path / "local"})
        what, fix = "there is no such file or folder on this machine.", "look whether it was written, and where."
        _check(done, place, f"artifact ({tmp_path}/local)", what, fix)


def test_a_store_that_is_not_there(s3_server: S3Server, tmp_path: Path) -> None:
    """Nobody listens at the endpoint: said after the patience, with what to look at."""
    place = s3_place(s3_server, endpoint="http://127.0.0.1:9")
    done = move("fetch", place, {"artifact": tmp_path / "local"}, limits={"patience": 1})
    fix = "correct the endpoint, and look at network policies between the pod and the store."
    _check(done, place, "artifact", "the store cannot be reached.", fix)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Give a file system with 20 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(folder)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.fail("needs root's right to mount a file system: run in a container with CAP_SYS_ADMIN")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_too_small(s3_server: S3Server, small_disk: Path) -> None:
    """It is said before the first byte how much is needed and how much there is."""
    place = s3_place(s3_server)
    bucket = place.uri.removeprefix("s3://")
    for number in range(5):
        s3_server.put(bucket, f"artifact/{number}", bytes(5 * MIB))
    done = move("fetch", place, {"artifact": small_disk / "local"})
    what = "artifact need 25 MiB, but the disk has only 20 MiB free."
    assert (done.code, done.problems) == (
        65,
        [(str(small_disk / "local"), what, f"{DISK}, or read the input from its .uri")],
    )
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("count", [1, 3], ids=["one file in ranges", "files"])
def test_a_disk_that_fills_up_meanwhile(s3_server: S3Server, small_disk: Path, tmp_path: Path, count: int) -> None:
    """Somebody else took the room that was there at the start: the disk is named, and nothing is left on it."""
    place = s3_place(s3_server)
    bucket = place.uri.removeprefix("s3://")
    for number in range(count):
        s3_server.put(bucket, f"artifact/{number}", bytes(18 * MIB // count))
    # The look at the disk finds room for all; then a file takes half of it.
    script = tmp_path / "taken.py"
    script.write_text(
        "import runpy, sys\n"
        "from kr_kfp.storage import targets\n"
        "begin = targets.Target.begin\n"
        "def taken(self):\n"
        "    begin(self)\n"
        f"    open({str(small_disk / 'other')!r}, 'wb').write(bytes({10 * MIB}))\n"
        "targets.Target.begin = taken\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_module('kr_kfp.storage', run_name='__main__', alter_sys=True)\n",
        encoding="utf-8",
    )
    done = move("fetch", place, {"artifact": small_disk / "local"}, script=script)
    assert done.code == 65, done.output
    [(where, what, fix)] = done.problems
    assert where.startswith(f"{place.uri}/artifact/")
    assert (what, fix) == ("this machine's disk is full.", f"{DISK}.")
    assert [path.name for path in small_disk.iterdir()] == ["other"]


def test_a_store_whose_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    """The store has no room: that is not this machine's disk, and what was written is removed."""
    with run_s3(small_disk / "server") as server:
        place = s3_place(server)
        source = tmp_path / "artifact"
        source.mkdir()
        for number in range(5):
            (source / str(number)).write_bytes(bytes(5 * MIB))
        done = move("put", place, {"artifact": source}, limits={"patience": 2})
        assert done.code == 65, done.output
        assert all(where.startswith(f"{place.uri}/artifact") for where, _, _ in done.problems)
        assert "this machine" not in json.dumps(done.problems)
        assert server.objects(place.uri.removeprefix("s3://")) == {}


def test_files_that_may_not_be_so_large(s3_server: S3Server, tmp_path: Path) -> None:
    """A limit on the size of files, which some clusters set, is an error of the disk like others."""
    place = s3_place(s3_server)
    s3_server.put(place.uri.removeprefix("s3://"), "artifact", bytes(12 * MIB))
    limit = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({MIB},) * 2); os.execvp(sys.argv[1], sys.argv[1:])"
    done = move("fetch", place, {"artifact": tmp_path / "local"}, prefix=[sys.executable, "-c", limit])
    [(where, what, _)] = done.problems
    assert (done.code, where.startswith(f"{place.uri}/artifact")) == (65, True)
    assert what == f"{os.strerror(errno.EFBIG)}."
    assert list(tmp_path.iterdir()) == []
