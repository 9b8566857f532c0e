"""What a URI consists of: one object, or the objects of a prefix with the files that they become."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import uris
from kr_kfp.storage.session import Session

if TYPE_CHECKING:
    from obstore import ObjectMeta

__all__ = ["EMPTY_FOLDER", "Entry", "Listing", "look"]

EMPTY_FOLDER = ".kr-kfp-empty-folder"
"""An object of this name and no bytes stands for a folder without files, which object stores do not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object that becomes a file.

    Args:
        key: Its name in the bucket.
        path: Its path below the target folder, with ``/``; empty if the URI is this object.
        size: Its bytes.
        etag: The store's ETag, without quotes; empty if it gives none.
    """

    key: str
    path: str
    size: int
    etag: str


@dataclass(slots=True, kw_only=True)
class Listing:
    """The content of a URI.

    Args:
        uri: The URI.
        single: Whether it is one object, which becomes a file and not a folder.
        files: Its objects, in the order of their names.
        folders: Paths of folders without files.
    """

    uri: str
    single: bool
    files: list[Entry] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)


async def look(session: Session, uri: str) -> Listing:
    """Find out what lies at a URI of an object store.

    Raises:
        StorageError: If nothing is there, if it may not be read, or if its names cannot be those of files: each such
            name is listed.
    """
    import obstore

    location = uris.parse(uri)
    store = session.bucket(uri).store
    if not location.key:
        raise StorageError([Problem(uri, "names a bucket, not an object in it.", "append the artifact's key")])

    async def listed() -> list[ObjectMeta]:
        found: list[ObjectMeta] = []
        async for batch in obstore.list(store, location.key, chunk_size=1000):
            found += batch
        return found

    head, rest = await asyncio.gather(
        session.retrying(lambda: obstore.head_async(store, location.key)),
        session.retrying(listed),
        return_exceptions=True,
    )
    if isinstance(head, BaseException) and not isinstance(head, FileNotFoundError) and not isinstance(rest, Sequence):
        # An answer to HEAD has no body; the listing's error says more.
        raise session.failure(_exception(rest), uri) from rest
    if isinstance(rest, BaseException):
        # Who may read one object need not be allowed to list.
        if isinstance(head, BaseException):
            raise session.failure(_exception(rest), uri) from rest
        rest = []
    if not isinstance(head, BaseException) and not (rest and head["size"] == 0):
        if rest:
            text = f"is an object and also the folder of {rest[0]['path']!r}."
            raise StorageError([Problem(uri, text, "write to another URI")])
        return Listing(uri=uri, single=True, files=[_entry(head, "")])
    if not rest and isinstance(head, BaseException):
        raise session.failure(FileNotFoundError(), uri)
    return await _tree(session, uri, rest)


async def _tree(session: Session, uri: str, found: Sequence[ObjectMeta]) -> Listing:
    prefix = uris.parse(uri).key + "/"
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    for meta in found:
        path = meta["path"].removeprefix(prefix)
        # obstore refuses such names already; what is written to disk does not rest on that alone.
        if not meta["path"].startswith(prefix) or "\0" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
            text = "is no name for a file below the artifact's folder."
            problems.append(Problem(f"{uri}: {meta['path']!r}", text, "rename the object"))
        else:
            entries[path] = _entry(meta, path)
    above = {"/".join(parts[:depth]) for parts in map(_split, entries) for depth in range(1, len(parts))}
    listing = Listing(uri=uri, single=False)
    for path, entry in sorted(entries.items()):
        name = path.rpartition("/")[2]
        if name == EMPTY_FOLDER and entry.size == 0:
            listing.folders.append(path.rpartition("/")[0])
        elif path in above and entry.size:
            text = "is an object and also the folder of others."
            problems.append(Problem(f"{uri}: {entry.key!r}", text, "rename the object"))
        elif path not in above:
            listing.files.append(entry)
    if problems:
        raise StorageError(problems)
    await _drop_markers(session, listing)
    return listing


async def _drop_markers(session: Session, listing: Listing) -> None:
    """Tell empty files from folders.

    Consoles and file gateways put an object ``folder/`` for a folder. obstore cuts the slash off, and cannot read what
    it then calls ``folder``: it is not found, an empty file is.
    """
    import obstore

    store = session.bucket(listing.uri).store
    turns = asyncio.Semaphore(session.limits.requests)

    async def is_file(entry: Entry) -> bool:
        async with turns:
            try:
                await session.retrying(lambda: obstore.head_async(store, entry.key))
            except FileNotFoundError:
                return False
            return True

    empty = [entry for entry in listing.files if entry.size == 0]
    try:
        found = await asyncio.gather(*(is_file(entry) for entry in empty))
    except Exception as error:
        raise session.failure(error, listing.uri) from error
    markers = {entry.path for entry, real in zip(empty, found, strict=True) if not real}
    listing.files = [entry for entry in listing.files if entry.path not in markers]
    listing.folders += sorted(markers)


def _split(path: str) -> list[str]:
    return path.split("/")


def _entry(meta: ObjectMeta, path: str) -> Entry:
    return Entry(key=meta["path"], path=path, size=meta["size"], etag=(meta["e_tag"] or "").strip('"'))


def _exception(error: object) -> Exception:
    if isinstance(error, Exception):
        return error
    raise error if isinstance(error, BaseException) else TypeError(error)
