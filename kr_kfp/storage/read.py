"""Reading one object: whole if it is small, in ranges otherwise; with every check that the store makes possible."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
from typing import TYPE_CHECKING

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage.listing import Entry
from kr_kfp.storage.reasons import BrokenOffError
from kr_kfp.storage.session import Bucket, Session, threaded

if TYPE_CHECKING:
    from obstore import Bytes, GetOptions

__all__ = ["Ranges", "md5_of", "read_whole"]

_MD5 = re.compile(r"[0-9a-f]{32}")


def md5_of(bucket: Bucket, etag: str) -> str:
    """Give the MD5 that an ETag tells; empty if it tells none (uploads in parts, keys of the store's own)."""
    return etag if bucket.etags_are_md5 and _MD5.fullmatch(etag) else ""


async def read_whole(session: Session, bucket: Bucket, entry: Entry, uri: str) -> memoryview:
    """Read an object in one request.

    Raises:
        StorageError: If it changed since it was listed.
        Exception: What obstore raised last, if the store kept failing.
    """
    data = await session.retrying(lambda: _get(bucket, entry, uri, 0, entry.size))
    expected = md5_of(bucket, entry.etag)
    if expected and _md5(data) != expected:
        # Either the bytes changed on their way, or this store's ETags are something else: the same bytes again tell.
        again = await session.retrying(lambda: _get(bucket, entry, uri, 0, entry.size))
        if again != data:
            return await session.retrying(lambda: _checked(bucket, entry, uri, expected))
        bucket.etags_are_md5 = False
    return data


async def _checked(bucket: Bucket, entry: Entry, uri: str, expected: str) -> memoryview:
    data = await _get(bucket, entry, uri, 0, entry.size)
    if _md5(data) != expected:
        msg = "other bytes arrived than the store's checksum says"
        raise BrokenOffError(msg)
    return data


class Ranges:
    """A large object that is read in ranges, in any order and at the same time, into a file.

    Args:
        session: The transfer.
        bucket: Where the object is.
        entry: The object.
        uri: What messages call it.
        place: The file, which must not be there yet.
        name: What progress calls it.
    """

    def __init__(self, session: Session, bucket: Bucket, entry: Entry, *, uri: str, place: str, name: str) -> None:
        self._session = session
        self._bucket = bucket
        self._entry = entry
        self._uri = uri
        self._name = name
        self._part = session.limits.part
        self._file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._file, entry.size)
        self._there: set[int] = set()
        self._hash = hashlib.md5(usedforsecurity=False)
        self._hashed = 0
        self._hashing = asyncio.Lock()

    @property
    def count(self) -> int:
        """Number of ranges."""
        return -(-self._entry.size // self._part)

    async def read(self, number: int) -> bool:
        """Read one range.

        Returns:
            Whether the file is whole now; one range of all says so.

        Raises:
            StorageError: If the object changed since it was listed, or other bytes arrived than its checksum says.
            Exception: What obstore raised last, if the store kept failing.
        """
        start = number * self._part
        end = min(start + self._part, self._entry.size)
        async with self._session.memory.hold(end - start):
            data = await self._get(start, end)
            await threaded(_write, self._file, data, start)
        self._session.moved(self._name, end - start)
        self._there.add(number)
        # Asked before anything is waited for: afterwards several may see that all ranges are there.
        last = len(self._there) == self.count
        if md5_of(self._bucket, self._entry.etag):
            await self._hash_what_is_there()
        if not last:
            return False
        if md5_of(self._bucket, self._entry.etag) and self._hashed == self.count:
            await self._compare()
        self.close()
        return True

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    async def _get(self, start: int, end: int) -> memoryview:
        return await self._session.retrying(lambda: _get(self._bucket, self._entry, self._uri, start, end))

    async def _hash_what_is_there(self) -> None:
        """Go on with the checksum, which needs the ranges in their order, as far as they are there."""
        async with self._hashing:
            while self._hashed in self._there:
                piece = await threaded(os.pread, self._file, self._part, self._hashed * self._part)
                await threaded(self._hash.update, piece)
                self._hashed += 1

    async def _compare(self) -> None:
        if self._hash.hexdigest() == md5_of(self._bucket, self._entry.etag):
            return
        # As for a small object: the same bytes once more mean that this store's ETags are no checksums.
        for number in range(self.count):
            start = number * self._part
            end = min(start + self._part, self._entry.size)
            async with self._session.memory.hold(2 * (end - start)):
                if await self._get(start, end) != await threaded(os.pread, self._file, end - start, start):
                    text = "other bytes arrived than the store's checksum says."
                    raise StorageError([Problem(self._uri, text, "look at the network; try again")])
        self._bucket.etags_are_md5 = False


async def _get(bucket: Bucket, entry: Entry, uri: str, start: int, end: int) -> memoryview:
    import obstore

    options: GetOptions | None = None if end - start == entry.size else {"range": (start, end)}
    result = await obstore.get_async(bucket.store, entry.key, options=options)
    etag = (result.meta["e_tag"] or "").strip('"')
    if entry.etag and etag and etag != entry.etag:
        raise StorageError([Problem(uri, "changed while it was read.", "let one step write it, then read it")])
    if result.meta["size"] != entry.size:
        msg = f"the store announced {result.meta['size']} bytes of an object that it lists with {entry.size}"
        raise BrokenOffError(msg)
    data: Bytes = await result.bytes_async()
    if len(data) != end - start:
        msg = f"{len(data)} of {end - start} bytes arrived"
        raise BrokenOffError(msg)
    return memoryview(data)


def _md5(data: memoryview) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _write(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
