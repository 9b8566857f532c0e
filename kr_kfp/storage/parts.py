"""Writing one large object in parts, which the store puts together at the end, or forgets."""

from __future__ import annotations

import asyncio
import time
from typing import Self

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage.reasons import BrokenOffError, failures, is_refused
from kr_kfp.storage.session import Bucket, Session, undisturbed

__all__ = ["PartsUpload", "changed"]

_TRIES = 2
"""Times that an upload is tried at least: each of its requests has been tried for long already."""


_ABORT = 20.0
"""Seconds for an upload that is no longer wanted to be aborted; a pod that ends has 30 for all of it."""


class PartsUpload:
    """One upload in parts.

    Args:
        session: The transfer.
        bucket: Where the object goes.
        key: Its name there.
        path: The file.
        size: Its bytes.
        name: What progress calls it.
    """

    def __init__(self, session: Session, bucket: Bucket, key: str, *, path: str, size: int, name: str) -> None:
        self.path = path
        self.size = size
        self._session = session
        self._bucket = bucket
        self._key = key
        self._name = name

    async def put(self, *, share: int) -> None:
        """Write the object. When cancelled, or when anything fails, the upload is aborted first.

        Args:
            share: Part of the memory that it may take: 1 for all of it, 2 for half.

        Raises:
            StorageError: If the file changed meanwhile.
            Exception: What obstore raised last, if the store kept failing.
        """
        part = self._session.limits.upload_part(self.size)
        flying = self._session.limits.flying(part, share)
        async with self._session.memory.hold((flying + 2) * part):
            before = await self._state()
            await self._session.retrying(lambda: self._put(part, flying, before), tries=_TRIES)

    async def _put(self, part: int, flying: int, before: tuple[int, str]) -> None:
        import obstore

        with _Parts(self, part) as parts:
            running = asyncio.ensure_future(
                obstore.put_async(
                    self._bucket.parts, self._key, parts, use_multipart=True, chunk_size=part, max_concurrency=flying
                )
            )
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                parts.abandoned = True
                await undisturbed(asyncio.wait([running], timeout=_ABORT))
                running.cancel()
                raise
            except FileNotFoundError as error:
                await self._await_object(before, error)

    async def _state(self) -> tuple[int, str]:
        """Give size and ETag of the object as it is now; -1 and nothing if it is not there or may not be seen."""
        import obstore

        try:
            head = await self._session.retrying(lambda: obstore.head_async(self._bucket.store, self._key))
        except FileNotFoundError:
            return -1, ""
        except failures() as error:
            if is_refused(error):
                return -1, ""
            raise
        return head["size"], head["e_tag"] or ""

    async def _await_object(self, before: tuple[int, str], error: FileNotFoundError) -> None:
        """Wait for the object when the store knows no such upload any more.

        That is the answer when the request that ends an upload was heard, but its answer was lost, and it was asked
        again: the store has put the parts together, or still does.

        Raises:
            BrokenOffError: If no new object of that size appears.
            FileNotFoundError: The error itself, if it says that there is no bucket.
        """
        if "NoSuchBucket" in str(error):
            raise error
        deadline = time.monotonic() + self._session.limits.patience
        while True:
            now = await self._state()
            if now[0] == self.size and now != before:
                return
            if time.monotonic() >= deadline:
                msg = "the store lost the upload before it was put together"
                raise BrokenOffError(msg) from error
            self._session.check()
            await asyncio.sleep(1.0)

    def handed(self, amount: int) -> None:
        """Note bytes that obstore has taken.

        Raises:
            StorageStoppedError: If the transfer shall end.
        """
        self._session.check()
        self._session.moved(self._name, amount)


class _Parts:
    """The parts of a file, one after the other; obstore asks for them from threads of its own.

    Raising is the way to make obstore abort an upload.
    """

    def __init__(self, upload: PartsUpload, part: int) -> None:
        self.abandoned = False
        self._upload = upload
        self._part = part
        self._read = 0
        self._file = open(upload.path, "rb", buffering=0)  # noqa: PTH123, SIM115 - closed by __exit__

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        if self.abandoned:
            raise StorageError([Problem(self._upload.path, "was given up, since another file failed.")])
        data = self._file.read(self._part) or b""
        self._read += len(data)
        if (not data and self._read < self._upload.size) or self._read > self._upload.size:
            raise changed(self._upload.path, self._upload.size, self._read)
        self._upload.handed(len(data))
        if not data:
            raise StopIteration
        return data


def changed(path: str, before: int, now: int) -> StorageError:
    """Say that a file was written to while it was read.

    Args:
        path: The file.
        before: Its bytes when the transfer began.
        now: The bytes that were read, or those of them that were too many.
    """
    text = f"changed from {before} to {now} bytes or more while it was read."
    return StorageError([Problem(path, text, "end whatever writes it before the function returns")])
