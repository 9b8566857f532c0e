"""What all requests of one transfer share: open stores, limits, progress, the wish to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

from kr_kfp.errors import Problem, StorageError, StorageStoppedError
from kr_kfp.storage import uris
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.reasons import Verb, explain, failures, is_passing, is_throttled
from kr_kfp.storage.settings import StoreSettings, choose, secret_names
from kr_kfp.storage.stores import Store, open_store

__all__ = ["Bucket", "Progress", "Session", "complete", "threaded", "undisturbed", "workers"]

T = TypeVar("T")
P = ParamSpec("P")

Progress = Callable[[str, int, int], None]
"""Takes an item's name, its bytes moved so far, and its bytes in all; called from several threads."""

_SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_BEARER_TOKEN")


class Bucket:
    """A bucket, opened when it is first used.

    Attributes:
        etags_are_md5: Whether an ETag of 32 hexadecimal digits is taken for the MD5 of the content. It is, but for
            stores that encrypt with keys of their own; the first object that contradicts, twice alike, tells.
    """

    def __init__(self, opener: Callable[..., Store]) -> None:
        self._open = opener
        self.etags_are_md5 = True

    @functools.cached_property
    def store(self) -> Store:
        """Obstore's store for requests that :meth:`Session.retrying` repeats."""
        return self._open(kind="single")

    @functools.cached_property
    def listing(self) -> Store:
        """Obstore's store for listings, whose pages only obstore can ask for again."""
        return self._open(kind="listing")

    @functools.cached_property
    def parts(self) -> Store:
        """Obstore's store for uploads in parts, which only obstore can send again."""
        return self._open(kind="parts")


class Budget:
    """Bytes that may be held at the same time; who asks first gets first."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._free = total
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, amount: int) -> AsyncIterator[None]:
        """Wait for that many bytes, all there are at most, and hold them."""
        wanted = min(amount, self._total)
        if self._waiting or wanted > self._free:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((wanted, turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._give(wanted)
                raise
        else:
            self._free -= wanted
        try:
            yield
        finally:
            self._give(wanted)

    def _give(self, amount: int) -> None:
        self._free += amount
        while self._waiting:
            wanted, turn = self._waiting[0]
            if turn.cancelled():
                self._waiting.popleft()
                continue
            if wanted > self._free:
                return
            self._waiting.popleft()
            self._free -= wanted
            turn.set_result(None)


class Session:
    """One transfer's shared state. Belongs to one event loop, but for :meth:`stop`.

    Args:
        verb: Which way data go.
        stores: Settings by prefix.
        limits: What may be used.
        progress: Told of every piece that was moved.
        env: The environment that settings name variables of.
    """

    def __init__(
        self,
        verb: Verb,
        stores: Sequence[StoreSettings] = (),
        *,
        limits: Limits | None = None,
        progress: Progress | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        self.verb: Verb = verb
        self.limits = limits or Limits()
        self.memory = Budget(self.limits.memory)
        self.stopping = threading.Event()
        self._stores = tuple(stores)
        self._progress = progress
        self._env = env
        self._open: dict[tuple[StoreSettings, str], Bucket] = {}
        self._counts: dict[str, tuple[int, int]] = {}
        self._counting = threading.Lock()
        self._secrets = [env.get(name, "") for name in (*secret_names(stores), *_SECRETS)]

    def bucket(self, uri: str) -> Bucket:
        """Give the bucket of a URI. Its first use raises StorageError if it cannot be opened as the settings say."""
        location = uris.parse(uri)
        key = (choose(self._stores, uri), location.bucket)
        if key not in self._open:
            self._open[key] = Bucket(functools.partial(open_store, *key, self.limits, self._env))
        return self._open[key]

    def expect(self, name: str, total: int) -> None:
        """Note how many bytes an item has."""
        with self._counting:
            self._counts[name] = (0, total)

    def moved(self, name: str, amount: int) -> None:
        """Note bytes of an item that were moved; from any thread."""
        with self._counting:
            before, total = self._counts[name]
            # What is sent again after a failure does not count twice.
            now = min(before + amount, total)
            self._counts[name] = (now, total)
        if self._progress is not None:
            self._progress(name, now, total)

    def stop(self) -> None:
        """Ask the transfer to end soon, from any thread; what it began is then undone."""
        self.stopping.set()

    def check(self) -> None:
        """Raise if the transfer shall end.

        Raises:
            StorageStoppedError: If :meth:`stop` was called.
        """
        if self.stopping.is_set():
            raise StorageStoppedError([self.stopped])

    @property
    def stopped(self) -> Problem:
        """What to say of a transfer that was told to stop."""
        return Problem(self.verb, "was told to stop (SIGTERM) before all was there; what it had begun is undone.")

    def problem(self, error: BaseException, uri: str) -> Problem:
        """Say why something failed."""
        return explain(error, uri, self.verb, secrets=self._secrets)

    def failure(self, error: Exception, uri: str) -> StorageError:
        """Give an error as a StorageError; one that is one already stays as it is."""
        return error if isinstance(error, StorageError) else StorageError([self.problem(error, uri)])

    async def retrying(self, operation: Callable[[], Awaitable[T]], *, tries: int = 1) -> T:
        """Repeat an operation while it fails for passing reasons, with exponential backoff and jitter.

        A store that asks to slow down is left alone for two seconds at first, since its Retry-After cannot be seen
        (:mod:`kr_kfp.storage.stores`); after a broken connection the next try comes soon.

        Args:
            operation: What to do.
            tries: How often it is tried at least, however long that takes.
        """
        deadline = time.monotonic() + self.limits.patience
        soon, slow = 0.1, 2.0
        while True:
            tries -= 1
            try:
                return await operation()
            except failures() as error:
                if not is_passing(error) or (time.monotonic() >= deadline and tries <= 0):
                    raise
                throttled = is_throttled(error)
            self.check()
            jitter = random.uniform(1.0, 1.5)  # noqa: S311 - no key
            await asyncio.sleep(jitter * (slow if throttled else soon))
            if throttled:
                slow = min(slow * 2, 30.0)
            else:
                soon = min(soon * 2, 10.0)


async def workers(jobs: Iterator[Coroutine[Any, Any, None]], count: int) -> None:
    """Run jobs, so many at a time and in their order; they are made only when their turn comes.

    The first that fails ends the rest: no new one is begun, those that run are cancelled and waited for.

    Raises:
        Exception: What the first one raised.
    """

    async def work() -> None:
        for job in jobs:
            await job

    tasks = [asyncio.ensure_future(work()) for _ in range(count)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await undisturbed(asyncio.gather(*tasks, return_exceptions=True))


async def undisturbed(cleaning: Awaitable[T]) -> T:
    """Wait for what has to be cleared away, also when this is cancelled meanwhile: its caller is ending already."""
    running = asyncio.ensure_future(cleaning)
    while not running.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running])
    return running.result()


async def threaded(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread. When cancelled, wait for it: it may still be using an open file."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await undisturbed(asyncio.wait([running]))
        raise


def complete(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end, also where an event loop runs in this thread already, as in notebooks."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(main())
    result: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            result.append(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - handed to the caller as it is
            failed.append(error)

    thread = threading.Thread(target=run, name="kr-kfp-storage")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return result[0]
