"""From URIs to local files and folders.

All items move at the same time: first it is found out what each consists of and whether the disk has room, so that
whatever is wrong is known before the first byte; then small objects are read whole and large ones in ranges, as many
at a time as :class:`~kr_kfp.storage.limits.Limits` allows. Every range must come from the same version of the object
and have its exact length; where the ETag is the content's MD5, that must agree too. A file or folder appears under its
own name when all of it is there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import local, uris
from kr_kfp.storage.download import Download
from kr_kfp.storage.limits import MIB, Limits
from kr_kfp.storage.listing import Entry, Listing, look
from kr_kfp.storage.run import Item, Moved
from kr_kfp.storage.session import Progress, Session, complete, threaded, undisturbed, workers
from kr_kfp.storage.settings import StoreSettings
from kr_kfp.storage.targets import free_bytes

__all__ = ["fetch", "fetch_all"]


def fetch(
    uri: str,
    path: str,
    *,
    stores: Sequence[StoreSettings] = (),
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Moved:
    """Bring what lies at a URI to a local path: a file for one object, a folder for a prefix.

    Args:
        uri: ``gs://``, ``s3://``, ``minio://``, ``file://`` or a local path.
        path: Where it shall be; what is there is replaced.
        stores: How the stores are reached; by default with the surroundings' credentials.
        progress: Told of every piece, from several threads.
        limits: What the transfer may use.

    Returns:
        Bytes, files and seconds.

    Raises:
        StorageError: If there is nothing, it may not be read, the disk has no room, or the store keeps failing.
    """
    session = Session("fetch", stores, limits=limits, progress=progress)
    return complete(lambda: fetch_all(session, [Item(uri=uri, path=path, name=uri)]))[0]


async def fetch_all(session: Session, items: Sequence[Item]) -> tuple[Moved, ...]:
    """Bring several items, all at the same time.

    Args:
        session: With the verb ``fetch``.
        items: What to bring. One whose path and URI lie within another's comes with that one.

    Returns:
        Bytes, files and seconds of each, in their order.

    Raises:
        StorageError: Listing what is wrong with every item, before anything is written; later, what broke first.
    """
    begun = time.monotonic()
    listings = await _look_all(session, items)
    outer, problems = _outermost(items)
    works = [Download(session, items[at], listings[at]) for at in sorted(set(outer))]
    problems += _room(works)
    if problems:
        raise StorageError(problems)
    try:
        for work in works:
            await threaded(work.begin)
        await workers(_jobs(works), session.limits.requests)
    finally:
        for work in works:
            await undisturbed(threaded(work.end))
    ended = {work.item: work.ended for work in works}
    return tuple(
        Moved(
            name=item.name,
            bytes=listings[at].size,
            files=len(listings[at].files),
            seconds=round(ended[items[outer[at]]] - begun, 3),
        )
        for at, item in enumerate(items)
    )


async def _look_all(session: Session, items: Sequence[Item]) -> list[Listing]:
    """Find out what every item consists of, or raise what is wrong with any of them."""

    async def one(uri: str) -> Listing:
        return await (threaded(_look_local, session, uri) if uris.is_local(uri) else look(session, uri))

    found = await asyncio.gather(*(one(item.uri) for item in items), return_exceptions=True)
    problems: list[Problem] = []
    for result in found:
        if isinstance(result, StorageError):
            problems += result.problems
        elif isinstance(result, BaseException):
            raise result
    if problems:
        raise StorageError(dict.fromkeys(problems))
    return [result for result in found if isinstance(result, Listing)]


def _look_local(session: Session, uri: str) -> Listing:
    root = uris.parse(uri).key
    try:
        found = local.scan(root)
    except OSError as error:
        raise session.failure(error, uri) from error
    if found.problems:
        raise StorageError(found.problems)
    files = [Entry(key=f"{root}/{p}" if p else root, path=p, size=size, etag="") for p, size in found.files]
    return Listing(uri=uri, single=found.single, files=files, folders=found.folders)


def _outermost(items: Sequence[Item]) -> tuple[list[int], list[Problem]]:
    """Give for each item the position of the one that brings it: itself, or one whose folder it lies in."""
    paths = [str(Path(item.path).absolute()) for item in items]
    outer: list[int] = []
    problems: list[Problem] = []
    for at, item in enumerate(items):
        holders = [o for o, path in enumerate(paths) if paths[at] == path or paths[at].startswith(f"{path}/")]
        best = min(holders, key=lambda o: (len(paths[o]), o))
        outer.append(best)
        below = paths[at].removeprefix(paths[best]).strip("/")
        above, own = uris.parse(items[best].uri).key.rstrip("/"), uris.parse(item.uri).key.rstrip("/")
        if best != at and not (
            uris.contains(items[best].uri, item.uri) and own.removeprefix(above).strip("/") == below
        ):
            text = f"would be fetched into the path of {items[best].uri}."
            problems.append(Problem(item.uri, text, "give each artifact a path of its own"))
    return outer, problems


def _room(works: Sequence[Download]) -> list[Problem]:
    """Check that every file system has room for what goes there."""
    needs: dict[int, list[Download]] = {}
    free: dict[int, int] = {}
    for work in works:
        device, free_there = free_bytes(work.item.path)
        free[device] = free_there
        needs.setdefault(device, []).append(work)
    problems = []
    for device, there in needs.items():
        need = sum(work.listing.size for work in there)
        if need > free[device]:
            names = ", ".join(work.item.name for work in there)
            text = f"{names} need {_shown(need)}, but the disk has only {_shown(free[device])} free."
            fix = "give the step more ephemeral storage or a larger volume, or read the input from its .uri"
            problems.append(Problem(there[0].item.path, text, fix))
    return problems


def _shown(amount: int) -> str:
    return f"{amount / MIB:,.0f} MiB"


def _jobs(works: Sequence[Download]) -> Iterator[Coroutine[Any, Any, None]]:
    for work in works:
        yield from work.jobs()
