"""Checkpoints of frameworks that write local files alone, kept at a URI.

Orbax and Keras write to ``gs://`` themselves; for the rest, or for ``s3://``, save into a local folder and bring it to
:attr:`kr_kfp.Context.checkpoint_dir`::

    ctx = kr_kfp.context()
    start = checkpoints.restore(ctx.checkpoint_dir, "/tmp/last")  # None: there is none yet
    ...
    if ctx.is_leader:
        checkpoints.save("/tmp/now", step, ctx.checkpoint_dir)

A step is one folder of a name of its own, ``step-<number>-<token>/``, and a small object beside it that is written when
all of the folder is there, ``step-<number>.committed``, and names it. Without that object a step does not exist. So a
step that was cut off is never resumed from, and two writers of one step, such as a host that was lost and comes back,
cannot mix their files: the object names one folder or the other.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import objects, uris
from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.put import put
from kr_kfp.storage.settings import STORES_ENV, StoreSettings, load_stores

__all__ = ["latest", "restore", "save", "steps"]

_FOLDER = re.compile(r"step-(\d+)-[0-9a-f]+")
_MARKER = re.compile(r"step-(\d+)\.committed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Committed:
    """What the object beside a whole step says."""

    step: int
    folder: str
    files: int
    bytes: int


def save(local_dir: str | os.PathLike[str], step: int, uri: str, *, keep: int = 3) -> None:
    """Save the files of a local folder as one step. When this returns, the step is there whole.

    Call it from one process, the leader's. Afterwards older steps and what was cut off before are removed.

    Args:
        local_dir: A folder with the files of this step alone.
        step: Number of the step, 0 or more; a later one is resumed from first. One that is there already is replaced.
        uri: Where the steps are kept, such as :attr:`kr_kfp.Context.checkpoint_dir`.
        keep: Number of steps that stay, 1 or more.

    Raises:
        StorageError: If the folder is empty or cannot be read, if it may not be written to the URI, or the store keeps
            failing. What was committed before is then untouched.
    """
    _check(uri, step=step, keep=keep)
    stores = _stores()
    if not Path(local_dir).is_dir():
        raise StorageError([Problem(str(local_dir), "is not a folder.", "name the folder of the step's files")])
    if not any(path.is_file() for path in Path(local_dir).rglob("*")):
        raise StorageError([Problem(str(local_dir), "holds no file.", "write the checkpoint there before it is saved")])
    folder = f"step-{step:010d}-{uuid.uuid4().hex[:12]}"
    moved = put(str(local_dir), uris.join(uri, folder), stores=stores)
    committed = _Committed(step=step, folder=folder, files=moved.files, bytes=moved.bytes)
    text = json.dumps(asdict(committed)).encode()
    objects.write_bytes(_marker(uri, step), text, stores=stores)
    try:
        _clean(uri, step, keep, stores)
    except StorageError as error:
        warnings.warn(f"old checkpoints could not be removed: {error}", RuntimeWarning, stacklevel=2)


def steps(uri: str) -> tuple[int, ...]:
    """Give the steps that are there whole, in their order.

    Raises:
        StorageError: If the URI may not be listed, or the store keeps failing.
    """
    _check(uri)
    _, files = objects.children(uri, stores=_stores())
    return tuple(_numbers(files))


def latest(uri: str) -> int | None:
    """Give the last step that is there whole; None if there is none.

    Raises:
        StorageError: If the URI may not be listed, or the store keeps failing.
    """
    return max(steps(uri), default=None)


def restore(uri: str, local_dir: str | os.PathLike[str], *, step: int | None = None) -> int | None:
    """Bring a step's files into a local folder. Every host may call it at the same time, with folders of their own.

    Args:
        uri: Where the steps are kept.
        local_dir: A folder that is empty or not there yet.
        step: Which step; None for the last one.

    Returns:
        The step; None if none was asked for and there is none.

    Raises:
        StorageError: If the folder holds something, the step is not there or not whole, or the store keeps failing.
    """
    _check(uri)
    target = Path(local_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StorageError([Problem(str(local_dir), "is not an empty folder.", "name one that is empty or new")])
    while True:
        wanted = latest(uri) if step is None else step
        if wanted is None:
            return None
        try:
            _bring(uri, wanted, str(local_dir))
        except StorageError:
            # The writer may have gone on and removed this one meanwhile.
            if step is not None or latest(uri) == wanted:
                raise
        else:
            return wanted


def _bring(uri: str, step: int, local_dir: str) -> None:
    stores = _stores()
    committed = _read(uri, step, stores)
    where = uris.join(uri, committed.folder)
    moved = fetch(where, local_dir, stores=stores)
    if (moved.files, moved.bytes) != (committed.files, committed.bytes):
        text = f"has {moved.files} files of {moved.bytes} bytes; {committed.files} of {committed.bytes} were saved."
        shutil.rmtree(local_dir)
        raise StorageError([Problem(where, text, "resume from another step, and look who deletes objects there")])


def _clean(uri: str, saved: int, keep: int, stores: Sequence[StoreSettings]) -> None:
    """Remove steps beyond the last ones, and folders that no step names."""
    folders, files = objects.children(uri, stores=stores)
    committed = _numbers(files)
    kept = {*committed[-keep:], saved}
    for step in committed:
        if step not in kept:
            # First what makes it count, then its files.
            objects.remove(_marker(uri, step), stores=stores)
    named = {_read(uri, step, stores).folder for step in kept if step in committed}
    for folder in folders:
        found = _FOLDER.fullmatch(folder)
        # A folder of the last step or a later one may be another writer's that is not done yet.
        if found and folder not in named and int(found[1]) < max(committed, default=saved):
            objects.remove(uris.join(uri, folder), stores=stores)


def _marker(uri: str, step: int) -> str:
    """Give the URI of the object that makes a step count."""
    return uris.join(uri, f"step-{step:010d}.committed")


def _numbers(files: Iterable[str]) -> list[int]:
    """Give the numbers of the steps that are whole, by the names of such objects, in their order."""
    return sorted(int(found[1]) for found in map(_MARKER.fullmatch, files) if found)


def _read(uri: str, step: int, stores: Sequence[StoreSettings]) -> _Committed:
    where = _marker(uri, step)
    try:
        return _Committed(**json.loads(objects.read_bytes(where, stores=stores)))
    except (ValueError, TypeError) as problem:
        raise StorageError([Problem(where, f"does not say what the step consists of: {problem}.")]) from problem


def _stores() -> tuple[StoreSettings, ...]:
    return load_stores(json.loads(os.environ.get(STORES_ENV) or "[]"))


def _check(uri: str, *, step: int = 0, keep: int = 1) -> None:
    problems = []
    if not uris.is_managed(uri):
        text = "is no place for checkpoints."
        fix = (
            "use gs://, s3://, minio:// or a path; context().checkpoint_dir is empty without output or checkpoint_root"
        )
        problems.append(Problem(repr(uri), text, fix))
    if step < 0:
        problems.append(Problem("step", f"is {step}.", "number steps from 0"))
    if keep < 1:
        problems.append(Problem("keep", f"is {keep}.", "keep 1 step at least"))
    if problems:
        raise StorageError(problems)
