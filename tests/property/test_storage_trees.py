"""Any tree of files goes up and comes down identical: on a file system, an S3 server and a Google Cloud Storage server."""

from __future__ import annotations

import os
import random
import string
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.limits import MIB, Limits
from kr_kfp.storage.put import put
from tests.servers.places import Place, file_place, gcs_place, s3_place

# The place is as good as new for each tree, and the machine may be busy.
UNHURRIED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

Tree = dict[str, bytes | None]
"""File contents by relative path; None is a folder without files."""

# What a file system takes: no slash, no NUL, at most 255 bytes. Line breaks and other control characters are in
# tests/integration/test_storage_names.py: S3's listing, which is XML, cannot say most of them.
_LETTERS = st.one_of(
    st.sampled_from(string.ascii_letters + string.digits + " .-_~%+&=#?:;,!$'\"()[]{}<>|\\^`*@"),
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/\ufffe\uffff"),
)
_NAMES = st.text(_LETTERS, min_size=1, max_size=24).filter(lambda name: name not in {".", ".."})
_CONTENTS = st.one_of(st.just(b""), st.binary(max_size=64), st.integers(1, 70_000).map(lambda size: b"\xa5" * size))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draw a tree with up to 12 files and a few empty folders, up to four folders deep."""
    tree: Tree = {}
    folders = [""]
    for _ in range(draw(st.integers(0, 12))):
        above = draw(st.sampled_from(folders))
        path = above + draw(_NAMES)
        if path in tree or f"{path}/" in folders:
            continue
        if above.count("/") < 4 and draw(st.booleans()):
            folders.append(f"{path}/")
        else:
            tree[path] = draw(_CONTENTS)
    for folder in folders[1:]:
        if not any(other.startswith(folder) for other in [*tree, *folders] if other != folder):
            tree[folder.rstrip("/")] = None
    return tree


def _write(root: Path, tree: Mapping[str, bytes | None]) -> None:
    root.mkdir()
    for path, content in tree.items():
        place = root / path
        if content is None:
            place.mkdir(parents=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def _read(root: Path) -> Tree:
    tree: Tree = {}
    for folder, folders, files in os.walk(root):
        below = Path(folder).relative_to(root)
        if not folders and not files and folder != str(root):
            tree[str(below)] = None
        tree |= {str(below / name): Path(folder, name).read_bytes() for name in files}
    return tree


def _round_trip(place: Place, tree: Mapping[str, bytes | None], limits: Limits | None = None) -> Tree:
    """Bring a tree up and down and give what came."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "source"), Path(folder, "target")
        _write(source, tree)
        uri = f"{place.uri}/{uuid.uuid4().hex}"
        up = put(str(source), uri, stores=place.stores, limits=limits)
        down = fetch(uri, str(target), stores=place.stores, limits=limits)
        files = [content for content in tree.values() if content is not None]
        assert (up.files, up.bytes) == (down.files, down.bytes) == (len(files), sum(map(len, files)))
        return _read(target)


@pytest.fixture(params=["file", "s3", "gcs"], scope="module")
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Give a place on each kind of store in turn."""
    if request.param == "file":
        chosen = file_place(tmp_path_factory.mktemp("store"))
    elif request.param == "s3":
        chosen = s3_place(request.getfixturevalue("s3_server"))
    else:
        chosen = gcs_place(request.getfixturevalue("gcs_server"))
    with chosen.environment():
        yield chosen


@settings(max_examples=25, deadline=None, suppress_health_check=UNHURRIED)
@example(tree={})
@example(tree={"a b": b"", "ünï/日本 語/🐟": b"1", "empty folder": None})
@example(tree={"%2F": b"1", "%25": b"2", "a+b?c#d": b"3", "..a": b"4", "a..": b"5", "...": b"6", " ": b"7"})
@given(tree=trees())
def test_any_tree_comes_back_identical(place: Place, tree: Tree) -> None:
    """Names, contents and empty folders are the same after a way up and down."""
    assert _round_trip(place, tree) == tree


@settings(max_examples=1, deadline=None, suppress_health_check=UNHURRIED)
@example(count=0)
@example(count=1)
@example(count=1000)
@example(count=1001)
@example(count=10_000)
@given(count=st.integers(2, 3000))
def test_any_number_of_files_comes_back_identical(place: Place, count: int) -> None:
    """Neither one file, nor more than a page of a listing, nor 10,000 are too few or too many."""
    tree: Tree = {f"part {number % 7}/{number:05d}": b"%d" % number for number in range(count)}
    assert _round_trip(place, tree) == tree


@pytest.mark.parametrize("parts", [1, 2, 3], ids="{} parts".format)
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_sizes_around_whole_parts_come_back_identical(place: Place, parts: int, more: int) -> None:
    """Neither a byte more nor one less than a number of whole parts is lost or doubled."""
    content = random.Random(parts).randbytes(parts * 5 * MIB + more)
    assert _round_trip(place, {"file": content}, Limits(part=5 * MIB)) == {"file": content}


@pytest.mark.parametrize("content", [b"", b"x", b"\r\n" * 3_000_000], ids=["empty", "one byte", "6 MB"])
def test_one_file_comes_back_as_a_file(place: Place, tmp_path: Path, content: bytes) -> None:
    """An artifact that is one file is one object, and no folder afterwards."""
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    uri = f"{place.uri}/{uuid.uuid4().hex}"
    put(str(source), uri, stores=place.stores)
    fetch(uri, str(target), stores=place.stores)
    assert target.is_file()
    assert target.read_bytes() == content
