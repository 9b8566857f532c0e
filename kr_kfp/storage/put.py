"""From local files and folders to URIs.

Object stores have no folders and no renames, so a prefix cannot appear at once. What is done instead, in this order:
what is wrong with any name is reported before the first byte; files in folders below come first, files at the top of
the artifact last, where most formats keep what names the others (an index, a configuration); one object appears whole
or not at all, in parts or not; then the store is asked whether it has every object with its size. KFP hands the URI to
nobody before the step has succeeded. If anything fails, or the transfer is told to stop, uploads in parts are aborted
and the objects written so far are deleted.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Sequence

from kr_kfp.errors import Problem, StorageError, StorageStoppedError
from kr_kfp.storage import local, uris
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.run import Item, Moved
from kr_kfp.storage.session import Progress, Session, complete, threaded, undisturbed, workers
from kr_kfp.storage.settings import StoreSettings
from kr_kfp.storage.upload import Upload

__all__ = ["put", "put_all"]

_SHOWN = 20
"""Problems with files that are listed one by one."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_KEY_LIMIT = 1024
"""Bytes of an object's name, for S3 and for Google Cloud Storage."""


def put(
    path: str,
    uri: str,
    *,
    stores: Sequence[StoreSettings] = (),
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Moved:
    """Bring a local file to an object, or the files of a folder below a prefix.

    Args:
        path: The file or folder.
        uri: ``gs://``, ``s3://``, ``minio://``, ``file://`` or a local path.
        stores: How the stores are reached; by default with the surroundings' credentials.
        progress: Told of every piece, from several threads.
        limits: What the transfer may use.

    Returns:
        Bytes, files and seconds.

    Raises:
        StorageError: If the path is not there or holds what cannot be moved, if it may not be written to the URI, or
            the store keeps failing.
    """
    session = Session("put", stores, limits=limits, progress=progress)
    return complete(lambda: put_all(session, [Item(uri=uri, path=path, name=uri)]))[0]


async def put_all(session: Session, items: Sequence[Item]) -> tuple[Moved, ...]:
    """Bring several items to their URIs, all at the same time.

    Args:
        session: With the verb ``put``.
        items: What to bring.

    Returns:
        Bytes, files and seconds of each, in their order.

    Raises:
        StorageError: Listing what is wrong with every item, before anything is written; later, what broke first.
    """
    begun = time.monotonic()
    works = await threaded(_scan_all, session, items)
    try:
        for on_top in (False, True):
            await workers((job for work in works for job in work.jobs(on_top=on_top)), session.limits.requests)
        for work in works:
            await work.finish()
    except BaseException as error:
        left = [problem for work in works for problem in await undisturbed(work.undo())]
        if isinstance(error, asyncio.CancelledError) and session.stopping.is_set():
            raise StorageStoppedError([session.stopped, *left]) from error
        if left and isinstance(error, StorageError):
            raise type(error)([*error.problems, *left]) from error
        raise
    return tuple(
        Moved(
            name=work.item.name,
            bytes=sum(size for _, size in work.found.files),
            files=len(work.found.files),
            seconds=round(work.ended - begun, 3),
        )
        for work in works
    )


def _scan_all(session: Session, items: Sequence[Item]) -> list[Upload]:
    """Find out what every item consists of, or raise what is wrong with any of them."""
    problems: list[Problem] = []
    works = []
    for item in items:
        try:
            found = local.scan(item.path)
            works.append(Upload(session, item, found))
        except OSError as error:
            problems.append(session.problem(error, item.uri))
        except StorageError as error:
            problems += error.problems
        else:
            problems += found.problems
            if not uris.is_local(item.uri):
                problems += _bad_names(item, found)
    for first, second in itertools.combinations(items, 2):
        if uris.contains(first.uri, second.uri) or uris.contains(second.uri, first.uri):
            text = f"lies within {first.uri}, or the other way round; both are to be written."
            problems.append(Problem(second.uri, text, "give each artifact a URI of its own"))
    if problems:
        raise StorageError(problems if len(problems) <= _SHOWN else [*problems[:_SHOWN], _more(problems)])
    return works


def _more(problems: Sequence[Problem]) -> Problem:
    return Problem("...", f"and {len(problems) - _SHOWN} more of such problems.")


def _bad_names(item: Item, found: local.Scan) -> list[Problem]:
    """Name the files that obstore or a store would refuse, each with its reason."""
    prefix = uris.parse(item.uri).key
    problems = []
    for name in (*(name for name, _ in found.files), *found.folders):
        try:
            length = len(f"{prefix}/{name}".encode())
        except UnicodeEncodeError:
            problems.append(Problem(f"{item.path}/{name!r}", "has a name that is not UTF-8.", "rename the file"))
            continue
        if _CONTROL.search(name):
            text = "has a control character in its name, which object stores do not take."
            problems.append(Problem(f"{item.path}/{name!r}", text, "rename the file"))
        if length > _KEY_LIMIT:
            text = f"becomes an object name of {length} bytes; stores take {_KEY_LIMIT}."
            problems.append(Problem(f"{item.path}/{name}", text, "shorten the file's path"))
    return problems
