"""One item on its way up: its files as objects, or as local copies, and the undoing of what does not become whole."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import local, uris
from kr_kfp.storage.limits import MIB
from kr_kfp.storage.listing import EMPTY_FOLDER, Entry, list_all
from kr_kfp.storage.parts import PartsUpload, changed
from kr_kfp.storage.read import md5_of, read_whole
from kr_kfp.storage.reasons import BrokenOffError, failures
from kr_kfp.storage.run import Item
from kr_kfp.storage.session import Bucket, Session, threaded, undisturbed
from kr_kfp.storage.targets import Target

if TYPE_CHECKING:
    from obstore import PutResult

__all__ = ["Upload"]

_INLINE = MIB // 4
"""Bytes up to which a file is read at once; a thread would take longer than the read."""

_LAST_ANSWER = 5.0
"""Seconds to wait for the answer to a request that is no longer wanted."""

_SECOND_WRITER = "look for a second writer to the URI, or for a rule that deletes objects"


class Upload:
    """One item on its way.

    Attributes:
        ended: When all of it was there, by the monotonic clock.
    """

    def __init__(self, session: Session, item: Item, found: local.Scan) -> None:
        self.session = session
        self.item = item
        self.found = found
        self.ended = 0.0
        session.expect(item.name, sum(size for _, size in found.files))
        self._location = uris.parse(item.uri)
        self._bucket = None if self._location.is_file else session.bucket(item.uri)
        self._target = Target(self._location.key, folder=not found.single) if self._location.is_file else None
        self._begun: dict[str, int] = {}
        self._written = False

    @property
    def _in_place(self) -> bool:
        path = self._location.key
        return self._location.is_file and os.path.realpath(path) == os.path.realpath(self.item.path)

    def jobs(self, *, on_top: bool) -> Iterator[Coroutine[Any, Any, None]]:
        """Give the pieces of work, each to be made when its turn comes.

        Args:
            on_top: Whether those for files at the top of the artifact, or those for files in folders below.
        """
        if self._in_place:
            return
        if self._target is not None:
            if not on_top:
                yield self._job("", self._copy_all(self._target))
            return
        for folder in self.found.folders:
            if (folder == "") is on_top:
                yield self._job(folder, self._small(f"{folder}/{EMPTY_FOLDER}".lstrip("/"), None))
        large = sum(size > self.session.limits.part for _, size in self.found.files)
        for name, size in self.found.files:
            if ("/" not in name) is not on_top:
                continue
            if size <= self.session.limits.part:
                yield self._job(name, self._small(name, size))
            else:
                yield self._job(name, self._large(name, size, share=1 if large == 1 else 2))

    async def finish(self) -> None:
        """Publish a local copy; ask the store whether it has every object with its size.

        Raises:
            StorageError: Naming the objects that are not there as they were written.
        """
        try:
            if self._target is not None and not self._in_place:
                await threaded(self._target.publish)
            if self._bucket is not None:
                await self._confirm(self._bucket)
        except failures() as error:
            raise self.session.failure(error, self.item.uri) from error
        self.ended = time.monotonic()

    async def undo(self) -> list[Problem]:
        """Remove what was written; give what could not be removed."""
        if self._target is not None:
            await threaded(self._target.discard)
        if self._bucket is None or not self._begun:
            return []
        import obstore

        expected: tuple[type[Exception], ...] = (*failures(), StorageError)
        try:
            there = await self._sizes(self._bucket)
            await obstore.delete_async(self._bucket.listing, [key for key in self._begun if key in there])
        except FileNotFoundError:
            return []
        except expected as error:
            if not self._written:
                return []
            reason = self.session.problem(error, self.item.uri)
            return [Problem(self.item.uri, f"what was written so far is left there: {reason.message}", "remove it")]
        return []

    async def _job(self, name: str, job: Coroutine[Any, Any, None]) -> None:
        try:
            self.session.check()
            await job
        except failures() as error:
            raise self.session.failure(error, uris.join(self.item.uri, name) if name else self.item.uri) from error
        finally:
            job.close()

    async def _copy_all(self, target: Target) -> None:
        def moved(amount: int) -> None:
            self.session.moved(self.item.name, amount)

        await threaded(target.begin)
        for folder in self.found.folders:
            target.make(folder)
        for name, _ in self.found.files:
            place = target.place(name)
            await threaded(local.copy_file, self._path(name), place, moved, self.session.check, durable=True)

    async def _small(self, name: str, size: int | None) -> None:
        """Write an object in one request.

        Args:
            name: Its path below the item; empty for the item itself.
            size: The file's bytes; None for an object without content and without a file.
        """
        bucket, key = self._place(name, size or 0)
        async with self.session.memory.hold(size or 0):
            if size is None:
                data = b""
            else:
                data = self._read(name, size) if size <= _INLINE else await threaded(self._read, name, size)
            result = await self.session.retrying(lambda: _put(bucket, key, data))
            self._written = True
            etag = (result["e_tag"] or "").strip('"')
            # A signed request to S3 carries the SHA-256 of its body, which the store compares itself.
            expected = md5_of(bucket, etag) if self._location.scheme == "gs" else ""
            if expected and hashlib.md5(data, usedforsecurity=False).hexdigest() != expected:
                await self._reread(bucket, Entry(key=key, path=name, size=len(data), etag=etag), data)
        self.session.moved(self.item.name, len(data))

    async def _reread(self, bucket: Bucket, entry: Entry, data: bytes) -> None:
        """Tell a store whose ETags are no checksums from one that got other bytes."""
        if await read_whole(self.session, bucket, entry, self.item.uri) != data:
            msg = "the store has other bytes than were sent"
            raise BrokenOffError(msg)
        bucket.etags_are_md5 = False

    async def _large(self, name: str, size: int, *, share: int) -> None:
        bucket, key = self._place(name, size)
        upload = PartsUpload(self.session, bucket, key, path=self._path(name), size=size, name=self.item.name)
        await upload.put(share=share)
        self._written = True

    def _place(self, name: str, size: int) -> tuple[Bucket, str]:
        if self._bucket is None:
            raise TypeError(self.item.uri)
        key = f"{self._location.key}/{name}" if name else self._location.key
        self._begun[key] = size
        return self._bucket, key

    def _path(self, name: str) -> str:
        return f"{self.item.path}/{name}" if name else self.item.path

    def _read(self, name: str, size: int) -> bytes:
        with open(self._path(name), "rb", buffering=0) as file:  # noqa: PTH123
            data = file.readall()
        if len(data) != size:
            raise changed(self._path(name), size, len(data))
        return data

    async def _sizes(self, bucket: Bucket) -> dict[str, int]:
        import obstore

        if not self.found.single:
            return {meta["path"]: meta["size"] for meta in await list_all(self.session, self.item.uri)}
        head = await self.session.retrying(lambda: obstore.head_async(bucket.store, self._location.key))
        return {head["path"]: head["size"]}

    async def _confirm(self, bucket: Bucket) -> None:
        there = await self._sizes(bucket)
        problems = [
            Problem(f"{self._location.root}/{key}", f"has {there[key]} bytes, {size} were written.", _SECOND_WRITER)
            if key in there
            else Problem(f"{self._location.root}/{key}", "was written, but is not there.", _SECOND_WRITER)
            for key, size in self._begun.items()
            if there.get(key) != size
        ]
        if problems:
            raise StorageError(problems)


async def _put(bucket: Bucket, key: str, data: bytes) -> PutResult:
    """Write an object. When cancelled, wait for the answer: the store may write it yet, after all else was undone."""
    import obstore

    running = asyncio.ensure_future(obstore.put_async(bucket.store, key, data, use_multipart=False))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await undisturbed(asyncio.wait([running], timeout=_LAST_ANSWER))
        running.cancel()
        raise
