"""Small things done with URIs at once: list what is there, read or write a few bytes, remove a tree."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kr_kfp.storage import uris
from kr_kfp.storage.reasons import Verb, failures
from kr_kfp.storage.session import Session, complete
from kr_kfp.storage.settings import StoreSettings

__all__ = ["children", "read_bytes", "remove", "write_bytes"]

T = TypeVar("T")

_TRIES = 3
"""Times that a tree is listed and removed, while others may be removing it too."""


def children(uri: str, *, stores: Sequence[StoreSettings] = ()) -> tuple[list[str], list[str]]:
    """List what lies directly below a URI.

    Returns:
        Names of folders and names of files, each in order; none if there is nothing.

    Raises:
        StorageError: If it may not be listed, or the store keeps failing.
    """
    location = uris.parse(uri)
    if location.is_file:
        with _explained("fetch", uri), contextlib.suppress(FileNotFoundError):
            found = list(Path(location.key).iterdir())
            return sorted(p.name for p in found if p.is_dir()), sorted(p.name for p in found if not p.is_dir())
        return [], []

    async def listed(session: Session) -> tuple[list[str], list[str]]:
        import obstore

        result = await obstore.list_with_delimiter_async(session.bucket(uri).store, location.key)
        folders = sorted(prefix.rpartition("/")[2] for prefix in result["common_prefixes"])
        return folders, sorted(meta["path"].rpartition("/")[2] for meta in result["objects"])

    return _ask("fetch", uri, stores, listed)


def read_bytes(uri: str, *, stores: Sequence[StoreSettings] = ()) -> bytes:
    """Give the content of a small object.

    Raises:
        StorageError: If it is not there or may not be read, or the store keeps failing.
    """
    location = uris.parse(uri)
    if location.is_file:
        with _explained("fetch", uri):
            return Path(location.key).read_bytes()

    async def read(session: Session) -> bytes:
        import obstore

        result = await obstore.get_async(session.bucket(uri).store, location.key)
        return bytes(await result.bytes_async())

    return _ask("fetch", uri, stores, read)


def write_bytes(uri: str, data: bytes, *, stores: Sequence[StoreSettings] = ()) -> None:
    """Write a small object, which appears whole or not at all and replaces one that is there.

    Raises:
        StorageError: If it may not be written, or the store keeps failing.
    """
    location = uris.parse(uri)
    if location.is_file:
        with _explained("put", uri):
            _write_local(Path(location.key), data)
        return

    async def written(session: Session) -> None:
        import obstore

        await obstore.put_async(session.bucket(uri).store, location.key, data, use_multipart=False)

    _ask("put", uri, stores, written)


def remove(uri: str, *, stores: Sequence[StoreSettings] = ()) -> None:
    """Remove an object and all below it; what is not there is no error.

    Raises:
        StorageError: If it may not be removed, or the store keeps failing.
    """
    location = uris.parse(uri)
    if location.is_file:
        path = Path(location.key)
        with _explained("put", uri), contextlib.suppress(FileNotFoundError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        return

    async def removed(session: Session) -> None:
        import obstore

        store = session.bucket(uri).store
        for _ in range(_TRIES):
            found = [m["path"] async for batch in obstore.list(store, location.key, chunk_size=1000) for m in batch]
            # Google's store calls it an error if another process was faster.
            with contextlib.suppress(FileNotFoundError):
                if found:
                    await obstore.delete_async(store, found)
                await obstore.delete_async(store, location.key)
                return

    _ask("put", uri, stores, removed)


def _ask(
    verb: Verb, uri: str, stores: Sequence[StoreSettings], operation: Callable[[Session], Coroutine[Any, Any, T]]
) -> T:
    session = Session(verb, stores)

    async def asked() -> T:
        try:
            return await session.retrying(lambda: operation(session))
        except failures() as error:
            raise session.failure(error, uri) from error

    return complete(asked)


@contextlib.contextmanager
def _explained(verb: Verb, uri: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Session(verb).failure(error, uri) from error


def _write_local(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.kr-kfp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
