"""What a store lists cannot write outside of its folder, and names that cannot be kept are refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.servers.gcs import GcsServer, run_gcs
from tests.servers.places import file_place, gcs_place, move, s3_place
from tests.servers.proxy import Fault, Request, run_proxy
from tests.servers.s3 import S3Server

HOSTILE = ["../../up", "a/../../up", "/abs", "a//b", "./a", "a/.", "..", "a/../b"]


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _inside(tmp_path: Path) -> Path:
    """Make a folder deep enough for a way out of it to be seen."""
    inside = tmp_path / "outer" / "inner"
    inside.mkdir(parents=True)
    (tmp_path / "outer" / "up").write_bytes(b"untouched")
    (tmp_path / "up").write_bytes(b"untouched")
    return inside


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_is_refused_from_gcs(tmp_path: Path, name: str) -> None:
    """No object's name is a way out of the artifact's folder; which name it is, is said."""
    inside = _inside(tmp_path)
    with run_gcs(tmp_path / "server", in_memory=True) as server:
        bucket = server.make_bucket()
        server.put(bucket, "model/good", b"good")
        server.put(bucket, f"model/{name}", b"bad")
        done = move("fetch", gcs_place(server, bucket=bucket), {"model": inside / "model"})
    assert done.code == 65, done.output
    (where, what, fix) = done.problems[0]
    assert where.startswith(f"gs://{bucket}/model: 'model/")
    assert (what, fix) == ("is no name for a file.", "rename the object.")
    assert _tree(tmp_path / "outer") == {"up": b"untouched"}
    assert not Path("/abs").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_out_is_refused_from_s3(s3_server: S3Server, tmp_path: Path, name: str) -> None:
    """The same for a listing that no S3 server of good will would give."""
    inside = _inside(tmp_path)
    place = s3_place(s3_server)
    bucket = place.uri.removeprefix("s3://")
    listing = (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix>model/</Prefix><IsTruncated>false</IsTruncated><Contents><Key>model/{name}</Key>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified><Size>3</Size></Contents></ListBucketResult>"
    )
    fake = Fault(kind="answer", status="200 OK", body=listing.encode())

    def plan(request: Request) -> Fault | None:
        if request.method == "GET":
            return fake if "list-type" in request.target else Fault(kind="answer", status="200 OK", body=b"bad")
        return None

    with run_proxy(s3_server.endpoint, plan) as proxy:
        done = move("fetch", s3_place(s3_server, bucket=bucket, endpoint=proxy.endpoint), {"model": inside / "model"})
    assert done.code == 65, done.output
    assert done.problems[0][0].startswith(f"s3://{bucket}/model")
    assert _tree(tmp_path / "outer") == {"up": b"untouched"}
    assert not Path("/abs").exists()


def test_links_that_lie_in_the_target_lead_nowhere(gcs_server: GcsServer, tmp_path: Path) -> None:
    """What an earlier step or image left in the target's place cannot redirect a write."""
    place = gcs_place(gcs_server)
    bucket = place.uri.removeprefix("gs://")
    gcs_server.put(bucket, "model/sub/file", b"new")
    gcs_server.put(bucket, "single", b"new")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"old")
    target = tmp_path / "model"
    target.mkdir()
    (target / "sub").symlink_to(outside)
    (tmp_path / "single").symlink_to(outside / "file")
    done = move("fetch", place, {"model": target, "single": tmp_path / "single"})
    assert done.code == 0, done.output
    assert _tree(outside) == {"file": b"old"}
    assert _tree(target) == {"sub/file": b"new"}
    assert (tmp_path / "single").read_bytes() == b"new"
    assert not (tmp_path / "single").is_symlink()


def test_an_object_that_is_a_folder_too_is_refused(tmp_path: Path) -> None:
    """A name that would have to be a file and a folder at once is said, and nothing is written."""
    with run_gcs(tmp_path / "server", in_memory=True) as server:
        place = gcs_place(server)
        bucket = place.uri.removeprefix("gs://")
        server.put(bucket, "model/a", b"file")
        server.put(bucket, "model/a/b", b"below it")
        done = move("fetch", place, {"model": tmp_path / "model"})
    assert done.code == 65
    assert done.problems == [
        (f"gs://{bucket}/model: 'model/a'", "is an object and also the folder of others.", "rename the object")
    ]
    assert not (tmp_path / "model").exists()


def test_marks_of_folders_are_folders(tmp_path: Path) -> None:
    """Objects that consoles put for a folder become one, with or without files in it."""
    with run_gcs(tmp_path / "server", in_memory=True) as server:
        place = gcs_place(server)
        bucket = place.uri.removeprefix("gs://")
        for name, content in {"": b"", "full/": b"", "full/file": b"1", "empty/": b""}.items():
            server.put(bucket, f"model/{name}", content)
        done = move("fetch", place, {"model": tmp_path / "model"})
    assert done.code == 0, done.problems
    assert _tree(tmp_path / "model") == {"full/file": b"1"}
    assert (tmp_path / "model" / "empty").is_dir()


@pytest.mark.parametrize("store", ["file", "s3", "gcs"])
@pytest.mark.parametrize(
    "name", [b"line\nbreak", b"tab\tulator", b"\x01", b"\x7f", b"return\r", b"\xff\xfe not UTF-8", b"\xe2\x80\xa8"]
)
def test_a_name_that_a_store_cannot_keep_is_refused_before_anything_is_written(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, name: bytes
) -> None:
    """A file comes back under the same name, or is refused by name with nothing written."""
    if store == "file":
        place = file_place(tmp_path / "store")
    elif store == "s3":
        place = s3_place(request.getfixturevalue("s3_server"))
    else:
        place = gcs_place(request.getfixturevalue("gcs_server"))
    source = tmp_path / "source"
    source.mkdir()
    (source / "good").write_bytes(b"good")
    (source / os.fsdecode(name)).write_bytes(b"content")
    done = move("put", place, {"model": source})
    if done.code == 0:
        assert move("fetch", place, {"model": tmp_path / "model"}).code == 0
        assert _tree(tmp_path / "model") == {"good": b"good", os.fsdecode(name): b"content"}
        return
    assert done.code == 65
    assert [(where, fix) for where, _, fix in done.problems] == [(f"{source}/{os.fsdecode(name)!r}", "rename the file")]
    server = request.getfixturevalue(f"{store}_server")
    assert server.objects(place.uri.partition("://")[2]) == {}


def test_special_files_and_broken_links_are_refused(s3_server: S3Server, tmp_path: Path) -> None:
    """What has no content to move is named, all of it at once; links to files go as the files."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"content")
    (source / "link").symlink_to(source / "file")
    os.mkfifo(source / "pipe")
    (source / "broken").symlink_to(tmp_path / "nowhere")
    (source / "loop").symlink_to(source)
    place = s3_place(s3_server)
    done = move("put", place, {"model": source})
    assert (done.code, sorted(done.problems)) == (
        65,
        [
            (f"{source}/broken", "is a link that points nowhere.", "remove the link"),
            (f"{source}/loop", "is a link to a folder above itself.", "remove the link"),
            (f"{source}/pipe", "is neither a file nor a folder.", "remove it from the artifact"),
        ],
    )
    for name in ("pipe", "broken", "loop"):
        (source / name).unlink()
    assert move("put", place, {"model": source}).code == 0
    assert s3_server.objects(place.uri.removeprefix("s3://")) == {"model/file": 7, "model/link": 7}
