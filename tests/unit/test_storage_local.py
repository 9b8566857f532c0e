"""Files of this machine: what a folder holds, how files and folders appear, and transfers between local URIs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kr_kfp.errors import Problem, StorageError, WireError
from kr_kfp.storage import local
from kr_kfp.storage.__main__ import main
from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.put import put
from kr_kfp.storage.run import Item, Plan
from kr_kfp.storage.settings import StoreSettings
from kr_kfp.storage.targets import Target


def _tree(root: Path) -> dict[str, bytes | None]:
    """Give the content of each file and None for each folder."""
    found = sorted(root.rglob("*"))
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in found}


def test_scan_lists_files_and_empty_folders(tmp_path: Path) -> None:
    """Files with their sizes in the order of names; folders only if nothing is in them."""
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "x").write_bytes(b"123")
    (tmp_path / "a").write_bytes(b"1")
    found = local.scan(str(tmp_path))
    assert (found.single, found.files, found.folders) == (False, [("a", 1), ("b/x", 3)], ["b/c"])
    (tmp_path / "empty").mkdir()
    assert local.scan(str(tmp_path / "empty")).folders == [""]
    single = local.scan(str(tmp_path / "a"))
    assert (single.single, single.files) == (True, [("", 1)])


def test_scan_follows_links(tmp_path: Path) -> None:
    """Links count as what they point to, also outside of the folder, as for KFP's own upload."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "blob").write_bytes(b"12")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "file").symlink_to(tmp_path / "outside" / "blob")
    (tmp_path / "model" / "folder").symlink_to(tmp_path / "outside")
    found = local.scan(str(tmp_path / "model"))
    assert (found.files, found.problems) == ([("file", 2), ("folder/blob", 2)], [])


def test_scan_names_all_that_cannot_be_moved(tmp_path: Path) -> None:
    """Links to nowhere and in a circle, and what is no file, are all listed."""
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    found = local.scan(str(tmp_path))
    assert sorted(found.problems, key=lambda problem: problem.path) == [
        Problem(f"{tmp_path}/circle", "is a link to a folder above itself.", "remove the link"),
        Problem(f"{tmp_path}/nowhere", "is a link that points nowhere.", "remove the link"),
        Problem(f"{tmp_path}/pipe", "is neither a file nor a folder.", "remove it from the artifact"),
    ]


@pytest.mark.parametrize("before", ["nothing", "file", "folder", "full folder", "link"])
@pytest.mark.parametrize("folder", [False, True])
def test_a_target_replaces_what_is_there(tmp_path: Path, before: str, *, folder: bool) -> None:
    """It appears at once, and whatever was in its place is gone; a link is replaced and not followed."""
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("kept")
    match before:
        case "file":
            place.write_text("old")
        case "folder":
            place.mkdir()
        case "full folder":
            place.mkdir()
            (place / "old").write_text("old")
        case "link":
            place.symlink_to(elsewhere)
    target = Target(str(place), folder=folder)
    target.begin()
    Path(target.place("a/b" if folder else "")).write_text("new")
    assert (place / "a").exists() is False
    target.publish()
    assert (place / "a" / "b" if folder else place).read_text() == "new"
    assert not place.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "place"]
    assert _tree(elsewhere) == {"precious": b"kept"}


def test_a_target_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    """What lies there under the temporary name of a process that is gone is removed; a living one's is not.

    The own number in a name that is not the own is from before the container started again.
    """
    (tmp_path / ".place.999999999-ab.kr-kfp").mkdir()
    (tmp_path / f".place.{os.getpid()}-ab.kr-kfp").write_text("left behind")
    (tmp_path / f".place.{os.getppid()}-ab.kr-kfp").write_text("at work")
    own = Target(str(tmp_path / "place"), folder=True)
    own.begin()
    Target(str(tmp_path / "place"), folder=False).begin()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f".place.{os.getppid()}-ab.kr-kfp", own.temporary.name]
    )


@pytest.mark.parametrize("limits", [None, Limits(requests=1, memory=10, part=4)])
def test_local_transfers(tmp_path: Path, limits: Limits | None) -> None:
    """file:// URIs and plain paths are copied both ways, with empty folders and names that obstore would hide."""
    source = tmp_path / "source"
    (source / "empty" / "below").mkdir(parents=True)
    (source / "part#1").write_bytes(b"0123456789")
    (source / "zero").touch()
    done = put(str(source), f"file://{tmp_path}/store/model", limits=limits)
    assert (done.bytes, done.files) == (10, 2)
    done = fetch(str(tmp_path / "store" / "model"), str(tmp_path / "back"), limits=limits)
    assert (done.bytes, done.files) == (10, 2)
    assert _tree(tmp_path / "back") == _tree(source)


def test_a_local_artifact_that_is_in_place_stays(tmp_path: Path) -> None:
    """With kfp.local an artifact's URI is its path: nothing is copied, and nothing lost."""
    (tmp_path / "a").write_bytes(b"1")
    assert fetch(str(tmp_path), str(tmp_path)).bytes == 1
    assert put(str(tmp_path), f"file://{tmp_path}").bytes == 1
    assert _tree(tmp_path) == {"a": b"1"}


def test_progress_counts_up_to_the_total(tmp_path: Path) -> None:
    """Progress tells the item, the bytes so far and the bytes in all."""
    (tmp_path / "a").write_bytes(b"123")
    seen: list[tuple[str, int, int]] = []
    fetch(f"{tmp_path}/a", f"{tmp_path}/b", progress=lambda *now: seen.append(now))
    assert seen[-1] == (f"{tmp_path}/a", 3, 3)


def test_what_is_not_there(tmp_path: Path) -> None:
    """A source that is missing is one clear error, both ways, and leaves nothing."""
    with pytest.raises(StorageError) as caught:
        fetch(f"{tmp_path}/none", f"{tmp_path}/copy")
    assert (
        str(caught.value)
        == f"{tmp_path}/none: there is no such file or folder on this machine. Fix: look whether it was written, and where."
    )
    with pytest.raises(StorageError) as caught:
        put(f"{tmp_path}/none", f"file://{tmp_path}/copy")
    assert (
        str(caught.value)
        == f"file://{tmp_path}/copy ({tmp_path}/none): there is no such file or folder on this machine. Fix: look whether it was written, and where."
    )
    assert list(tmp_path.iterdir()) == []


def test_too_little_room_is_known_before(tmp_path: Path) -> None:
    """An artifact that is larger than the disk's free bytes is refused before anything is written."""
    huge = tmp_path / "huge"
    with huge.open("wb") as file:
        file.truncate(1 << 43)  # without blocks: nothing is used up
    with pytest.raises(StorageError) as caught:
        fetch(str(huge), f"{tmp_path}/copy")
    [problem] = caught.value.problems
    assert (problem.path, problem.fix) == (
        f"{tmp_path}/copy",
        "give the step more ephemeral storage or a larger volume, or read the input from its .uri",
    )
    assert problem.message.startswith(f"{huge} need 8,388,608 MiB, but the disk has only ")
    assert [path.name for path in tmp_path.iterdir()] == ["huge"]


def test_names_that_no_store_takes_are_all_listed(tmp_path: Path) -> None:
    """Control characters, other bytes than UTF-8 and too long names are found before the first byte is sent."""
    source = tmp_path / "source"
    (source / ("d" * 200) / ("e" * 200) / ("f" * 200) / ("g" * 200) / ("h" * 230)).mkdir(parents=True)
    (source / "line\nbreak").touch()
    Path(os.fsdecode(b"%s/\xff" % os.fsencode(source))).touch()
    store = StoreSettings(scheme="s3", endpoint="127.0.0.1:9", anonymous=True)
    with pytest.raises(StorageError) as caught:
        put(str(source), "s3://b/k", stores=[store])
    assert sorted(problem.message for problem in caught.value.problems) == [
        "becomes an object name of 1036 bytes; stores take 1024.",
        "has a control character in its name, which object stores do not take.",
        "has a name that is not UTF-8.",
    ]


def test_problems_with_very_many_files_are_cut_short(tmp_path: Path) -> None:
    """Twenty are listed, the rest are counted."""
    for number in range(25):
        (tmp_path / f"{number:02d}").symlink_to(tmp_path / "gone")
    with pytest.raises(StorageError) as caught:
        put(str(tmp_path), "/anywhere")
    assert len(caught.value.problems) == 21
    assert caught.value.problems[-1] == Problem("...", "and 5 more of such problems.")


def test_a_plan_travels() -> None:
    """JSON and back gives the same plan; anything else is refused."""
    plan = Plan(stores=(StoreSettings(scheme="gs"),), items=(Item(uri="gs://b/k", path="/a", name="data"),))
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    for other in ({}, {"items": [{"uri": "a"}]}, {"items": 3}):
        with pytest.raises(WireError, match="not a plan of a transfer"):
            Plan.from_json(other)


@pytest.mark.parametrize("arguments", [[], ["fetch"], ["move", "plan"], ["fetch", "a", "b"]])
def test_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Anything but a verb and a plan is answered with how it is used."""
    assert main(arguments) == 2
    assert capsys.readouterr().err == "kr_kfp: usage: python3 -m kr_kfp.storage fetch|put|probe PLAN.json\n"


@pytest.mark.parametrize("text", ["", "{}", '{"items": []}', '{"items": [], "result": "r", "limits": {"speed": 1}}'])
def test_no_plan(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is no plan is a usage error that names it."""
    (tmp_path / "plan").write_text(text)
    assert main(["put", str(tmp_path / "plan")]) == 2
    assert capsys.readouterr().err.startswith(f"kr_kfp: {tmp_path}/plan is no plan of a transfer: ")


def test_parts_of_uploads_stay_below_the_stores_limit() -> None:
    """An upload has at most 9,000 parts, of the usual size as long as that suffices."""
    limits = Limits()
    assert limits.upload_part(1) == limits.upload_part(9000 * limits.part) == limits.part
    assert -(-5_000_000_000_000 // limits.upload_part(5_000_000_000_000)) == 9000


@pytest.mark.parametrize(
    ("part", "share", "flying"), [(8, 1, 14), (8, 2, 6), (23, 1, 3), (64, 2, 2), (65, 1, 1), (560, 1, 1)]
)
def test_parts_on_their_way(part: int, share: int, flying: int) -> None:
    """As many as the memory holds beside the two in hand, two at least, one if parts are huge."""
    assert Limits().flying(part * 1024 * 1024, share) == flying
