"""What a URI consists of: one object, or the objects of a prefix with the files that they become."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import uris
from kr_kfp.storage.reasons import failures, is_refused
from kr_kfp.storage.session import Session

if TYPE_CHECKING:
    from obstore import ObjectMeta

__all__ = ["EMPTY_FOLDER", "Entry", "Listing", "list_all", "look"]

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


async def list_all(session: Session, uri: str) -> list[ObjectMeta]:
    """List all objects below a URI; after a failure, from where the listing broke off.

    Raises:
        Exception: What obstore raised last, if the store kept failing.
    """
    import obstore

    key, store = uris.parse(uri).key, session.bucket(uri).listing
    # Stores list in the order of names, and take the last one seen for where to go on.
    found: dict[str, ObjectMeta] = {}

    async def rest() -> None:
        async for batch in obstore.list(store, key, offset=max(found, default=None), chunk_size=1000):
            found.update((meta["path"], meta) for meta in batch)

    await session.retrying(rest)
    return list(found.values())


async def look(session: Session, uri: str) -> Listing:
    """Find out what lies at a URI of an object store.

    Raises:
        StorageError: If nothing is there, if it may not be read, or if its names cannot be those of files: each such
            name is listed.
    """
    location = uris.parse(uri)
    if not location.key:
        raise StorageError([Problem(uri, "names a bucket, not an object in it.", "append the artifact's key")])
    try:
        (head, found) = await asyncio.gather(_head(session, uri), _list_if_allowed(session, uri))
        if head is None and found is None:
            # What the listing says is why: an answer to HEAD has no text.
            found = await list_all(session, uri)
    except failures() as error:
        raise session.failure(error, uri) from error
    if head is not None and not (found and head["size"] == 0):
        if found:
            text = f"is an object and also the folder of {found[0]['path']!r}."
            raise StorageError([Problem(uri, text, "write to another URI")])
        return Listing(uri=uri, single=True, files=[_entry(head, "")])
    if not found:
        raise session.failure(FileNotFoundError(), uri)
    return await _tree(session, uri, found)


async def _head(session: Session, uri: str) -> ObjectMeta | None:
    """Give what is known of an object; None if it is not there or may not be seen."""
    import obstore

    store, key = session.bucket(uri).store, uris.parse(uri).key
    try:
        return await session.retrying(lambda: obstore.head_async(store, key))
    except FileNotFoundError:
        return None
    except failures() as error:
        if is_refused(error):
            return None
        raise


async def _list_if_allowed(session: Session, uri: str) -> list[ObjectMeta] | None:
    """List all objects below a URI; None if that may not be done, as by someone who may read one object alone."""
    try:
        return await list_all(session, uri)
    except failures() as error:
        if is_refused(error):
            return None
        raise


async def _tree(session: Session, uri: str, found: Sequence[ObjectMeta]) -> Listing:
    prefix = uris.parse(uri).key + "/"
    problems: list[Problem] = []
    entries: dict[str, Entry] = {}
    for meta in found:
        if f"{meta['path']}/" == prefix and meta["size"] == 0:
            continue  # an object "folder/" that a console put for the artifact's own folder
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
    except failures() as error:
        raise session.failure(error, listing.uri) from error
    markers = {entry.path for entry, real in zip(empty, found, strict=True) if not real}
    listing.files = [entry for entry in listing.files if entry.path not in markers]
    listing.folders += sorted(markers)


def _split(path: str) -> list[str]:
    return path.split("/")


def _entry(meta: ObjectMeta, path: str) -> Entry:
    return Entry(key=meta["path"], path=path, size=meta["size"], etag=(meta["e_tag"] or "").strip('"'))
