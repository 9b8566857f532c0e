"""Whether anything lies at a URI of an object store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import uris
from kr_kfp.storage.reasons import failures
from kr_kfp.storage.run import Item, Moved
from kr_kfp.storage.session import Session

__all__ = ["probe_all"]


async def probe_all(session: Session, items: Sequence[Item]) -> tuple[Moved, ...]:
    """Look at several URIs at the same time.

    Args:
        session: With the verb ``fetch``: probing reads.
        items: What to look at; their paths do not matter.

    Returns:
        For each item its bytes and one file if it is an object, one file if there is anything below it, none if not.

    Raises:
        StorageError: Listing every URI that may not be read.
    """
    begun = time.monotonic()
    found = await asyncio.gather(*(_probe(session, item.uri) for item in items), return_exceptions=True)
    problems: list[Problem] = []
    moved = []
    for item, result in zip(items, found, strict=True):
        if isinstance(result, StorageError):
            problems += result.problems
        elif isinstance(result, BaseException):
            raise result
        else:
            seconds = round(time.monotonic() - begun, 3)
            moved.append(Moved(name=item.name, bytes=result or 0, files=result is not None, seconds=seconds))
    if problems:
        raise StorageError(problems)
    return tuple(moved)


async def _probe(session: Session, uri: str) -> int | None:
    """Give an object's bytes, 0 for a prefix that holds something, None for nothing."""
    import obstore

    location = uris.parse(uri)
    try:
        store = session.bucket(uri).store
        try:
            return int((await obstore.head_async(store, location.key))["size"])
        except FileNotFoundError:
            async for batch in obstore.list(store, location.key, chunk_size=1):
                return 0 if batch else None
            return None
    except failures() as error:
        raise session.failure(error, uri) from error
