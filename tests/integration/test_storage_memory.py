"""A transfer's memory is bounded, however large a file or however many of them there are."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from kr_kfp.storage.limits import MIB
from tests.servers.places import Place, move, s3_place
from tests.servers.s3 import S3Server

SIZE = 5 * 10**9
MOST = 300_000_000
"""Bytes of memory that a transfer may have, all in all."""


# A process begins with the peak of the one that started it, which here would be that of the tests: so a small one starts
# it, and writes down how much it had in KiB.
_MEASURED = """
import os, subprocess, sys
child = subprocess.Popen(sys.argv[2:])
_, status, usage = os.wait4(child.pid, 0)
open(sys.argv[1], "w").write(str(usage.ru_maxrss))
sys.exit(os.waitstatus_to_exitcode(status))
"""


def _move(verb: Literal["fetch", "put"], place: Place, items: Mapping[str, Path], folder: Path) -> int:
    """Move all of it; give the most bytes of memory that the process had."""
    measured = folder / "peak"
    done = move(verb, place, items, prefix=[sys.executable, "-S", "-c", _MEASURED, str(measured)])
    assert (done.code, done.problems) == (0, []), done.output
    return int(measured.read_text(encoding="ascii")) * 1024


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
    up = _move("put", place, {"model": sparse}, tmp_path)
    down = _move("fetch", place, {"model": tmp_path / "model"}, tmp_path)
    marks = _marks(tmp_path / "model")
    (tmp_path / "model").unlink()
    s3_server.ask("DELETE", f"/{place.uri.removeprefix('s3://')}/model")
    assert marks == (SIZE, b"begin\0", b"middle", b"end")
    assert (up < MOST, down < MOST) == (True, True), (up, down)


def test_many_files_side_by_side_stay_in_300_mb(s3_server: S3Server, tmp_path: Path) -> None:
    """60 files of 10 MB and 2,000 small ones, as several artifacts at once, share one limit."""
    place = s3_place(s3_server)
    source = tmp_path / "source"
    for name, count, size in (("large", 40, 10 * MIB), ("more", 20, 10 * MIB), ("small", 2000, 5000)):
        (source / name).mkdir(parents=True)
        for number in range(count):
            (source / name / f"{number:04d}").write_bytes(bytes([number % 256]) * size)
    items = {name: source / name for name in ("large", "more", "small")}
    up = _move("put", place, items, tmp_path)
    target = tmp_path / "target"
    down = _move("fetch", place, {name: target / name for name in items}, tmp_path)
    assert (up < MOST, down < MOST) == (True, True), (up, down)
    for name, number in (("large", 39), ("more", 0), ("small", 1999)):
        file = f"{name}/{number:04d}"
        assert (target / file).read_bytes() == (source / file).read_bytes()
