"""A transfer's memory is bounded, however large a file or however many of them there are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kr_kfp.storage.limits import MIB
from tests.servers.places import move, s3_place
from tests.servers.s3 import S3Server

SIZE = 5 * 10**9
MOST = 300_000_000
"""Bytes of memory that a transfer may have, all in all."""


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a file of 5 GB that takes no room: zeros, but for its ends and its middle."""
    file = tmp_path_factory.mktemp("sparse") / "file"
    with file.open("wb") as out:
        for position, mark in ((0, b"begin"), (SIZE // 2, b"middle"), (SIZE - 3, b"end")):
            out.seek(position)
            out.write(mark)
    return file


def _marks(file: Path) -> tuple[int, bytes, bytes, bytes]:
    with file.open("rb") as content:
        found = [os.pread(content.fileno(), 6, position) for position in (0, SIZE // 2, SIZE - 3)]
    return file.stat().st_size, found[0], found[1], found[2]


def test_5_gb_go_up_and_down_in_300_mb(s3_server: S3Server, sparse: Path, tmp_path: Path) -> None:
    """Neither way holds more than 300 MB, and what came back has the size and the marks of what went."""
    place = s3_place(s3_server)
    up = move("put", place, {"model": sparse})
    assert (up.code, up.problems) == (0, []), up.output
    down = move("fetch", place, {"model": tmp_path / "model"})
    assert (down.code, down.problems) == (0, []), down.output
    marks = _marks(tmp_path / "model")
    (tmp_path / "model").unlink()
    s3_server.ask("DELETE", f"/{place.uri.removeprefix('s3://')}/model")
    assert marks == (SIZE, b"begin\0", b"middle", b"end")
    assert (up.peak < MOST, down.peak < MOST) == (True, True), (up.peak, down.peak)


def test_many_files_side_by_side_stay_in_300_mb(s3_server: S3Server, tmp_path: Path) -> None:
    """60 files of 10 MB and 2,000 small ones, as several artifacts at once, share one limit."""
    place = s3_place(s3_server)
    source = tmp_path / "source"
    for name, count, size in (("large", 40, 10 * MIB), ("more", 20, 10 * MIB), ("small", 2000, 5000)):
        (source / name).mkdir(parents=True)
        for number in range(count):
            (source / name / f"{number:04d}").write_bytes(bytes([number % 256]) * size)
    items = {name: source / name for name in ("large", "more", "small")}
    up = move("put", place, items)
    assert (up.code, up.problems) == (0, []), up.output
    target = tmp_path / "target"
    down = move("fetch", place, {name: target / name for name in items})
    assert (down.code, down.problems) == (0, []), down.output
    assert (up.peak < MOST, down.peak < MOST) == (True, True), (up.peak, down.peak)
    for name, number in (("large", 39), ("more", 0), ("small", 1999)):
        file = f"{name}/{number:04d}"
        assert (target / file).read_bytes() == (source / file).read_bytes()
