"""Transfers over a line that breaks: identical content or a clear failure, never something that only looks whole."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from kr_kfp.cluster.local_processes import start_time
from kr_kfp.errors import StorageError
from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.limits import MIB, Limits
from kr_kfp.storage.put import put
from tests.hosts import until
from tests.servers.gcs import GcsServer
from tests.servers.places import Place, gcs_place, move, s3_place
from tests.servers.proxy import Fault, Proxy, Request, run_proxy, seeded
from tests.servers.s3 import S3Server

Kind = Literal["s3", "gcs"]
PART = 5 * MIB
"""The smallest part that the stores take: as many requests as possible for these bytes."""


@pytest.fixture(params=["s3", "gcs"])
def server(request: pytest.FixtureRequest) -> S3Server | GcsServer:
    """Give each server in turn."""
    chosen: S3Server | GcsServer = request.getfixturevalue(f"{request.param}_server")
    return chosen


def _place(server: S3Server | GcsServer, *, bucket: str = "", endpoint: str = "") -> Place:
    if isinstance(server, S3Server):
        return s3_place(server, bucket=bucket, endpoint=endpoint)
    return gcs_place(server, bucket=bucket, endpoint=endpoint)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make 200 MB: a large file and 200 smaller ones, random so that nothing fits where it does not belong."""
    folder = tmp_path_factory.mktemp("source") / "tree"
    (folder / "shards").mkdir(parents=True)
    chance = random.Random(4)
    (folder / "weights.bin").write_bytes(chance.randbytes(100_000_000))
    for number in range(200):
        (folder / "shards" / f"{number:03d}.bin").write_bytes(chance.randbytes(500_000))
    return folder


def _content(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _stored(server: S3Server | GcsServer, bucket: str, prefix: str) -> dict[str, bytes]:
    keys = [key for key in server.objects(bucket) if key.startswith(f"{prefix}/")]
    return {key.removeprefix(f"{prefix}/"): server.get(bucket, key) for key in keys}


def test_200_faults_on_the_way_up_leave_an_identical_artifact(server: S3Server | GcsServer, source: Path) -> None:
    """Cuts, resets, 429, 503, lost answers and wrong lengths are outlived, and no upload is left unfinished."""
    bucket = server.make_bucket()
    with run_proxy(server.endpoint, seeded(1, count=200, every=1.6)) as proxy:
        place = _place(server, bucket=bucket, endpoint=proxy.endpoint)
        done = move("put", place, {"model": source}, limits={"part": PART})
    assert (done.code, done.problems) == (0, []), done.output
    assert sum(proxy.faults.values()) == 200
    assert _stored(server, bucket, "model") == _content(source)
    _assert_given_up(server, bucket, proxy)


def test_200_faults_on_the_way_down_leave_an_identical_artifact(
    server: S3Server | GcsServer, source: Path, tmp_path: Path
) -> None:
    """The same on the way down; answers that are short but look whole are found out too."""
    bucket = server.make_bucket()
    assert move("put", _place(server, bucket=bucket), {"model": source}).code == 0
    with run_proxy(server.endpoint, seeded(1, count=200, every=1.6)) as proxy:
        place = _place(server, bucket=bucket, endpoint=proxy.endpoint)
        done = move("fetch", place, {"model": tmp_path / "model"}, limits={"part": PART})
    assert (done.code, done.problems) == (0, []), done.output
    assert sum(proxy.faults.values()) == 200
    assert _content(tmp_path / "model") == _content(source)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def _assert_given_up(server: S3Server | GcsServer, bucket: str, proxy: Proxy) -> None:
    """Check that no upload in parts is left, but for those of which nobody heard that they were begun.

    Their id was in the answer that did not arrive. They are no objects; a lifecycle rule removes them (docs/storage.md).
    """
    unheard = [
        request.target
        for request, _ in proxy.done
        if "uploads" in request.target or (request.method == "DELETE" and "uploadId" in request.target)
    ]
    assert len(server.unfinished(bucket)) <= len(unheard), [request.target for request, _ in proxy.done]


def _small(folder: Path) -> dict[str, bytes]:
    """Make a tree with a file in parts, small and empty ones."""
    chance = random.Random(7)
    tree = {
        "large": chance.randbytes(PART + 1000),
        "a/small": b"small",
        "a/b/other": chance.randbytes(70_000),
        "e": b"",
    }
    for path, content in tree.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return tree


def test_a_transfer_that_gives_up_leaves_nothing_that_looks_whole(server: S3Server | GcsServer, tmp_path: Path) -> None:
    """With faults without end and little patience: all of it or none of it, and a reason with the URI for none."""
    tree = _small(tmp_path / "source")

    def attempt(case: tuple[int, float]) -> None:
        seed, every = case
        bucket, folder = server.make_bucket(), tmp_path / f"{seed}-{every}"
        folder.mkdir()
        with run_proxy(server.endpoint, seeded(seed, count=10_000, every=every)) as proxy:
            _try_up(server, bucket, proxy, tmp_path / "source", tree)
            for path, content in tree.items():
                server.put(bucket, f"other/{path}", content)
            _try_down(server, bucket, proxy, folder, tree)

    # They wait more than they work: all at the same time.
    with _place(server).environment(), ThreadPoolExecutor(8) as pool:
        list(pool.map(attempt, itertools.product([0, 1], [1.1, 1.5, 2.0, 3.0])))


# Nothing here stands still for long but a busy machine, which shall not count as a fault.
_HASTY = Limits(part=PART, patience=1.5, stall=60)


def _assert_about(error: StorageError, uri: str) -> None:
    assert all(problem.path.startswith(uri) for problem in error.problems), error


def _try_up(server: S3Server | GcsServer, bucket: str, proxy: Proxy, source: Path, tree: dict[str, bytes]) -> None:
    place = _place(server, bucket=bucket, endpoint=proxy.endpoint)
    uri = f"{place.uri}/model"
    try:
        put(str(source), uri, stores=place.stores, limits=_HASTY)
    except StorageError as error:
        _assert_about(error, uri)
    else:
        assert _stored(server, bucket, "model") == tree
    _assert_given_up(server, bucket, proxy)


def _try_down(server: S3Server | GcsServer, bucket: str, proxy: Proxy, folder: Path, tree: dict[str, bytes]) -> None:
    place = _place(server, bucket=bucket, endpoint=proxy.endpoint)
    uri = f"{place.uri}/other"
    try:
        fetch(uri, str(folder / "target"), stores=place.stores, limits=_HASTY)
    except StorageError as error:
        _assert_about(error, uri)
        assert list(folder.iterdir()) == []
    else:
        assert _content(folder / "target") == tree


def test_a_server_that_is_overloaded_is_given_time(s3_server: S3Server, tmp_path: Path) -> None:
    """Three seconds of 429 are outlived, with a few requests in that time and not with hundreds."""
    (tmp_path / "file").write_bytes(b"content")
    refused = Fault(kind="answer", status="429 Too Many Requests", headers=("Retry-After: 3",))
    came: list[float] = []

    def plan(request: Request) -> Fault | None:
        came.append(request.at)
        return refused if request.at < came[0] + 3 else None

    with run_proxy(s3_server.endpoint, plan) as proxy:
        done = move("put", s3_place(s3_server, endpoint=proxy.endpoint), {"file": tmp_path / "file"})
        assert (done.code, done.problems) == (0, []), done.output
        assert 1 <= proxy.faults["answer"] <= 12


@pytest.fixture
def slow(server: S3Server | GcsServer) -> Iterator[tuple[S3Server | GcsServer, Place, str]]:
    """Give a place behind a proxy where all takes a second longer."""
    bucket = server.make_bucket()
    with run_proxy(server.endpoint, lambda request: Fault(kind="slow")) as proxy:
        yield server, _place(server, bucket=bucket, endpoint=proxy.endpoint), bucket


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_download_leaves_nothing(
    slow: tuple[S3Server | GcsServer, Place, str], tmp_path: Path, number: signal.Signals
) -> None:
    """Whoever is killed in the middle of a download leaves no file of the target's name; SIGTERM leaves none at all."""
    server, place, bucket = slow
    for index in range(20):
        server.put(bucket, f"model/{index}", bytes(PART))
    command = ["timeout", "--signal", str(number.value), "1.5"]
    done = move("fetch", place, {"model": tmp_path / "model"}, prefix=command)
    left = [entry.name for entry in tmp_path.iterdir()]
    assert done.code != 0
    assert "model" not in left
    if number == signal.SIGTERM:
        assert left == []
    # Whoever comes next clears away what is left, and gets it all.
    again = move("fetch", replace(place, stores=_place(server, bucket=bucket).stores), {"model": tmp_path / "model"})
    assert again.code == 0, again.output
    assert _content(tmp_path / "model") == {str(index): bytes(PART) for index in range(20)}
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_a_stopped_upload_is_undone(slow: tuple[S3Server | GcsServer, Place, str], tmp_path: Path) -> None:
    """SIGTERM in the middle of an upload: its objects are deleted, its uploads in parts are given up."""
    server, place, bucket = slow
    source = tmp_path / "model"
    (source / "shards").mkdir(parents=True)
    (source / "large").write_bytes(bytes(4 * PART))
    for index in range(100):
        (source / "shards" / str(index)).write_bytes(b"x" * 1000)
    done = move("put", place, {"model": source}, limits={"part": PART}, prefix=["timeout", "2.5"])
    assert done.code != 0, done.output
    assert server.objects(bucket) == {}
    assert server.unfinished(bucket) == []


_RUNNER = """
import json, sys
from kr_kfp.storage.run import Plan, transfer
transfer("fetch", Plan.from_json(json.load(open(sys.argv[1]))), work=sys.argv[2])
"""


def test_a_child_without_a_runner_ends(slow: tuple[S3Server | GcsServer, Place, str], tmp_path: Path) -> None:
    """A transfer whose runner was killed ends too, and writes nothing of the target's name afterwards."""
    server, place, bucket = slow
    for index in range(100):
        server.put(bucket, f"model/{index}", b"x")
    plan = {
        "stores": [store.to_json() for store in place.stores],
        "items": [{"uri": f"{place.uri}/model", "path": str(tmp_path / "model"), "name": "model"}],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    command = [sys.executable, "-c", _RUNNER, str(tmp_path / "plan.json"), str(tmp_path / "work")]
    runner = subprocess.Popen(command, env={**os.environ, **place.env}, stderr=subprocess.DEVNULL)
    try:
        children = Path(f"/proc/{runner.pid}/task/{runner.pid}/children")
        for _ in until(120, "the runner's child"):
            if children.read_text(encoding="ascii"):
                break
        child = int(children.read_text(encoding="ascii"))
    finally:
        runner.kill()
        runner.wait()
    for _ in until(120, "the child's end"):
        if not start_time(child):
            break
    assert not (tmp_path / "model").exists()
