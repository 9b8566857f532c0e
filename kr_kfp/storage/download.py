"""One item on its way down: the pieces of work for its objects, and its appearance when the last one is done."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Coroutine, Iterator
from typing import Any

from kr_kfp.storage import local, uris
from kr_kfp.storage.limits import MIB
from kr_kfp.storage.listing import Entry, Listing
from kr_kfp.storage.read import Ranges, read_whole
from kr_kfp.storage.reasons import BrokenOffError, failures
from kr_kfp.storage.run import Item
from kr_kfp.storage.session import Bucket, Session, threaded
from kr_kfp.storage.targets import Target

__all__ = ["Download"]

_INLINE = MIB // 4
"""Bytes up to which a file is written at once; a thread would take longer than the write."""


class Download:
    """One item on its way.

    Attributes:
        ended: When its last file was there, by the monotonic clock.
    """

    def __init__(self, session: Session, item: Item, listing: Listing) -> None:
        self.session = session
        self.item = item
        self.listing = listing
        self.target = Target(item.path, folder=not listing.single)
        self._is_local = uris.is_local(item.uri)
        self.ended = 0.0
        self._left = len(listing.files)
        session.expect(item.name, listing.size)
        self._open: list[Ranges] = []

    @functools.cached_property
    def _bucket(self) -> Bucket:
        return self.session.bucket(self.item.uri)

    @property
    def in_place(self) -> bool:
        """Whether the item is local and lies already where it shall be."""
        return self._is_local and os.path.realpath(uris.parse(self.item.uri).key) == os.path.realpath(self.item.path)

    def begin(self) -> None:
        """Prepare the target; an item without files is done with that.

        Raises:
            StorageError: If the disk does not let it.
        """
        try:
            if self.in_place:
                self._left = 0
                self.ended = time.monotonic()
                return
            self.target.begin()
            for folder in self.listing.folders:
                self.target.make(folder)
            if not self._left:
                self._publish()
        except OSError as error:
            raise self.session.failure(error, self.item.uri) from error

    def jobs(self) -> Iterator[Coroutine[Any, Any, None]]:
        """Give the pieces of work, each to be made when its turn comes."""
        if self.in_place:
            return
        for entry in self.listing.files:
            if self._is_local:
                yield self._job(entry, self._copy(entry))
            elif entry.size <= self.session.limits.part:
                yield self._job(entry, self._small(entry))
            else:
                ranges = self._ranges(entry)
                for number in range(ranges.count):
                    yield self._job(entry, ranges.read(number))

    def end(self) -> None:
        """Close what is open; remove what did not become whole."""
        for ranges in self._open:
            ranges.close()
        if not self.ended:
            self.target.discard()

    async def _job(self, entry: Entry, job: Coroutine[Any, Any, bool]) -> None:
        """Do one piece; after the last one of the item, publish it."""
        try:
            self.session.check()
            if await job:
                self._left -= 1
                if not self._left:
                    await threaded(self._publish)
        except failures() as error:
            raise self.session.failure(error, self._uri(entry)) from error
        finally:
            job.close()

    async def _copy(self, entry: Entry) -> bool:
        def moved(amount: int) -> None:
            self.session.moved(self.item.name, amount)

        size = await threaded(local.copy_file, entry.key, self.target.place(entry.path), moved, self.session.check)
        if size != entry.size:
            msg = f"the file changed from {entry.size} to {size} bytes while it was copied"
            raise BrokenOffError(msg)
        return True

    async def _small(self, entry: Entry) -> bool:
        place = self.target.place(entry.path)
        async with self.session.memory.hold(entry.size):
            if entry.size:
                data = await read_whole(self.session, self._bucket, entry, self._uri(entry))
            else:
                data = memoryview(b"")
            if entry.size <= _INLINE:
                _write_new(place, data)
            else:
                await threaded(_write_new, place, data)
        self.session.moved(self.item.name, entry.size)
        return True

    def _ranges(self, entry: Entry) -> Ranges:
        try:
            place = self.target.place(entry.path)
            ranges = Ranges(self.session, self._bucket, entry, uri=self._uri(entry), place=place, name=self.item.name)
        except OSError as error:
            raise self.session.failure(error, self._uri(entry)) from error
        self._open.append(ranges)
        return ranges

    def _uri(self, entry: Entry) -> str:
        return uris.join(self.item.uri, entry.path) if entry.path else self.item.uri

    def _publish(self) -> None:
        self.target.publish()
        self.ended = time.monotonic()


def _write_new(place: str, data: memoryview) -> None:
    # Half the system calls of open(), which counts for many small files.
    file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        while data:
            data = data[os.write(file, data) :]
    finally:
        os.close(file)
