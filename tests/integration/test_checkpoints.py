"""Checkpoints of local files at a URI: whole steps only, the last of them first, on every kind of store."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from kr_kfp import checkpoints
from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import objects
from kr_kfp.storage.settings import STORES_ENV
from tests.servers.places import Place, file_place, gcs_place, s3_place


@pytest.fixture(params=["file", "s3", "gcs"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Give a place on each kind of store in turn, reached as user code reaches it: by the environment."""
    if request.param == "file":
        chosen = file_place(tmp_path / "store")
    elif request.param == "s3":
        chosen = s3_place(request.getfixturevalue("s3_server"))
    else:
        chosen = gcs_place(request.getfixturevalue("gcs_server"))
    monkeypatch.setenv(STORES_ENV, json.dumps([store.to_json() for store in chosen.stores]))
    with chosen.environment():
        yield chosen


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Give a folder with the files of a step."""
    folder = tmp_path / "state"
    (folder / "variables").mkdir(parents=True)
    (folder / "variables" / "w").write_bytes(b"weights")
    (folder / "config.json").write_text("{}")
    return folder


def _content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _below(place: Place, uri: str) -> tuple[list[str], list[str]]:
    folders, files = objects.children(uri, stores=place.stores)
    return [name.rpartition("-")[0] for name in folders], files


def test_a_step_comes_back(place: Place, state: Path, tmp_path: Path) -> None:
    """What was saved is restored, into a folder that is empty or new; the last step if none is named."""
    uri = f"{place.uri}/run/task"
    assert (checkpoints.latest(uri), checkpoints.restore(uri, tmp_path / "a")) == (None, None)
    assert not (tmp_path / "a").exists()
    first = _content(state)
    checkpoints.save(state, 5, uri)
    (state / "config.json").write_text('{"step": 12}')
    checkpoints.save(str(state), 12, uri)
    assert (checkpoints.steps(uri), checkpoints.latest(uri)) == ((5, 12), 12)
    (tmp_path / "b").mkdir()
    assert checkpoints.restore(uri, tmp_path / "b") == 12
    assert _content(tmp_path / "b") == _content(state)
    assert checkpoints.restore(uri, tmp_path / "c", step=5) == 5
    assert _content(tmp_path / "c") == first


def test_the_last_steps_stay(place: Place, state: Path) -> None:
    """Older steps than the last N are removed with their files; the one just saved never is."""
    uri = f"{place.uri}/kept"
    for step in (1, 2, 30, 4):
        checkpoints.save(state, step, uri, keep=2)
    assert checkpoints.steps(uri) == (4, 30)
    checkpoints.save(state, 3, uri, keep=2)
    assert _below(place, uri) == (
        ["step-0000000003", "step-0000000004", "step-0000000030"],
        ["step-0000000003.committed", "step-0000000004.committed", "step-0000000030.committed"],
    )


def test_a_step_that_was_cut_off_does_not_count(place: Place, state: Path, tmp_path: Path) -> None:
    """Files without the object that commits them are no step; the next later step removes them."""
    uri = f"{place.uri}/cut"
    checkpoints.save(state, 1, uri)
    objects.write_bytes(f"{uri}/step-0000000002-0abc/variables/w", b"half", stores=place.stores)
    objects.write_bytes(f"{uri}/notes.txt", b"the user's own", stores=place.stores)
    assert checkpoints.latest(uri) == 1
    assert checkpoints.restore(uri, tmp_path / "a") == 1
    checkpoints.save(state, 2, uri)
    assert _below(place, uri)[0] == ["step-0000000001", "step-0000000002", "step-0000000002"]
    checkpoints.save(state, 3, uri)
    assert _below(place, uri) == (
        ["step-0000000001", "step-0000000002", "step-0000000003"],
        ["notes.txt", "step-0000000001.committed", "step-0000000002.committed", "step-0000000003.committed"],
    )


def test_a_step_is_replaced_whole(place: Place, state: Path, tmp_path: Path) -> None:
    """Saved again, as after a restart, a step has the new files and none of the old ones."""
    uri = f"{place.uri}/again"
    checkpoints.save(state, 7, uri)
    (state / "variables" / "w").unlink()
    (state / "other").write_bytes(b"new")
    checkpoints.save(state, 7, uri)
    assert checkpoints.restore(uri, tmp_path / "a") == 7
    assert _content(tmp_path / "a") == {"config.json": b"{}", "other": b"new"}


def test_a_step_that_lost_a_file_is_refused(place: Place, state: Path, tmp_path: Path) -> None:
    """A step whose files are not those that were saved is an error, and leaves no folder that looks like one."""
    uri = f"{place.uri}/lost"
    checkpoints.save(state, 1, uri)
    [folder] = objects.children(uri, stores=place.stores)[0]
    objects.remove(f"{uri}/{folder}/variables/w", stores=place.stores)
    with pytest.raises(StorageError) as caught:
        checkpoints.restore(uri, tmp_path / "a")
    assert caught.value.problems == (
        Problem(
            f"{uri}/{folder}",
            "has 1 files of 2 bytes; 2 of 9 were saved.",
            "resume from another step, and look who deletes objects there",
        ),
    )
    assert not (tmp_path / "a").exists()


def test_a_step_that_is_not_there(place: Place, tmp_path: Path) -> None:
    """A step that is asked for by number and is not there is an error."""
    with pytest.raises(StorageError) as caught:
        checkpoints.restore(f"{place.uri}/none", tmp_path / "a", step=3)
    [problem] = caught.value.problems
    assert problem.path.startswith(f"{place.uri}/none/step-0000000003.committed")


def test_what_is_wrong_is_said_at_once(state: Path, tmp_path: Path) -> None:
    """Place, step and count are checked together; folders are looked at before anything is moved."""
    with pytest.raises(StorageError) as caught:
        checkpoints.save(state, -1, "", keep=0)
    assert [problem.path for problem in caught.value.problems] == ["''", "step", "keep"]
    (tmp_path / "empty" / "below").mkdir(parents=True)
    with pytest.raises(StorageError, match="holds no file"):
        checkpoints.save(tmp_path / "empty", 1, str(tmp_path / "store"))
    with pytest.raises(StorageError, match="is not a folder"):
        checkpoints.save(state / "config.json", 1, str(tmp_path / "store"))
    with pytest.raises(StorageError, match="is not an empty folder"):
        checkpoints.restore(str(tmp_path / "store"), state)
    assert not (tmp_path / "store").exists()


def test_old_steps_that_cannot_be_removed_are_a_warning(state: Path, tmp_path: Path) -> None:
    """A step is saved when it is saved, whatever becomes of older ones."""
    uri = str(tmp_path / "store")
    checkpoints.save(state, 1, uri)
    (tmp_path / "store" / "step-0000000001.committed").write_text("nonsense")
    with pytest.warns(RuntimeWarning, match="old checkpoints could not be removed: .*does not say what the step"):
        checkpoints.save(state, 2, uri)
    with warnings.catch_warnings():
        assert checkpoints.latest(uri) == 2
