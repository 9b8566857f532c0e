"""kr_kfp.storage against obstore used directly with the same concurrency, and against copies one after the other.

Moved are one file of 2 GB and 5,000 files of 20 KB, up to and down from an S3 server on this machine, in turn with the
other. A ratio is the other's time over ours: above 1 we are faster. The closing line has the least of the four ratios
against obstore, with its A/A, and the geometric mean of the four against sequential copies: on this machine, with no
way to the store and its processors shared with it, one stream is as fast as many for a single file. Aim: 0.9 of obstore
used directly, and ahead of sequential copies.

``--quick`` moves 256 MB and 1,000 files, in three rounds.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store
from pairs import Pairs, measure

sys.path.insert(0, str(Path(__file__).parents[1]))  # the servers are the tests' own

from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.limits import MIB, Limits
from kr_kfp.storage.put import put
from tests.servers.places import s3_place
from tests.servers.s3 import run_s3

QUICK = "--quick" in sys.argv[1:]
ROUNDS, SEQUENTIAL_ROUNDS = (3, 2) if QUICK else (5, 3)
SHAPES = {"1 x 256 MB": (1, 256 * 10**6), "1,000 x 20 KB": (1000, 20_000)}
if not QUICK:
    SHAPES = {"1 x 2 GB": (1, 2 * 10**9), "5,000 x 20 KB": (5000, 20_000)}
LIMITS = Limits()


async def side_by_side(jobs: Iterable[Callable[[], Coroutine[Any, Any, None]]], count: int) -> None:
    """Run so many jobs at a time."""
    waiting = iter(jobs)

    async def work() -> None:
        for job in waiting:
            await job()

    await asyncio.gather(*(work() for _ in range(count)))


class Direct:
    """What one writes with obstore alone: ranges and parts of the same size, as many requests at a time."""

    def __init__(self, store: S3Store, requests: int) -> None:
        self.store, self.requests = store, requests

    def put(self, source: Path, prefix: str) -> None:
        """Bring a folder up."""

        async def one(file: Path) -> None:
            key = f"{prefix}/{file.name}"
            await obstore.put_async(self.store, key, file, chunk_size=LIMITS.part, max_concurrency=self.requests)

        asyncio.run(side_by_side([partial(one, file) for file in sorted(source.iterdir())], self.requests))

    def fetch(self, prefix: str, target: Path) -> None:
        """Bring a folder down."""
        target.mkdir()

        async def small(key: str, place: Path) -> None:
            answer = await obstore.get_async(self.store, key)
            place.write_bytes(await answer.bytes_async())  # noqa: ASYNC240 # a thread would take longer

        async def piece(key: str, file: int, start: int, end: int) -> None:
            data = await obstore.get_range_async(self.store, key, start=start, end=end)
            await asyncio.to_thread(os.pwrite, file, data, start)

        async def all_of_them() -> None:
            jobs: list[Callable[[], Coroutine[Any, Any, None]]] = []
            opened = []
            for batch in obstore.list(self.store, prefix):
                for meta in batch:
                    key, size, place = meta["path"], meta["size"], target / Path(meta["path"]).name
                    if size <= LIMITS.part:
                        jobs.append(partial(small, key, place))
                        continue
                    opened.append(os.open(place, os.O_WRONLY | os.O_CREAT))
                    starts = range(0, size, LIMITS.part)
                    jobs += [partial(piece, key, opened[-1], at, min(at + LIMITS.part, size)) for at in starts]
            await side_by_side(jobs, self.requests)
            for file in opened:
                os.close(file)

        asyncio.run(all_of_them())


class Sequential(Direct):
    """One request after the other, files streamed."""

    def put(self, source: Path, prefix: str) -> None:
        """Bring a folder up."""
        for file in sorted(source.iterdir()):
            obstore.put(self.store, f"{prefix}/{file.name}", file, chunk_size=LIMITS.part, max_concurrency=1)

    def fetch(self, prefix: str, target: Path) -> None:
        """Bring a folder down."""
        target.mkdir()
        for batch in obstore.list(self.store, prefix):
            for meta in batch:
                with (target / Path(meta["path"]).name).open("wb") as file:
                    for piece in obstore.get(self.store, meta["path"]).stream(min_chunk_size=MIB):
                        file.write(piece)


class Bench:
    """All ways to move the same files, each to a fresh place.

    Args:
        folder: For the local files.
        uri: Of the bucket.
        stores: How kr_kfp reaches it.
        direct: The same bucket for obstore.
    """

    def __init__(self, folder: Path, uri: str, stores: Any, direct: S3Store) -> None:
        self.folder, self.uri, self.stores = folder, uri, stores
        self.direct, self.sequential = Direct(direct, LIMITS.requests), Sequential(direct, 1)
        self.bucket = direct
        self.number = 0

    def measure(self, source: Path) -> dict[str, tuple[Pairs, Pairs]]:
        """Measure up and down: against obstore, and against copies one after the other."""
        self.sequential.put(source, "down")
        ups = (self.up(self.ours_up, source), self.up(self.direct.put, source), self.up(self.sequential.put, source))
        downs = (self.down(self.ours_down), self.down(self.direct.fetch), self.down(self.sequential.fetch))
        found = {}
        for way, (ours, direct, sequential) in {"up": ups, "down": downs}.items():
            print(f"{source.name} {way}: ours (a) against obstore (b)")
            pairs = measure(ours, direct, rounds=ROUNDS)
            print(f"{source.name} {way}: ours (a) against one after the other (b)")
            found[way] = pairs, measure(ours, sequential, rounds=SEQUENTIAL_ROUNDS, warm=False)
        self.clear("down")
        return found

    def ours_up(self, source: Path, prefix: str) -> None:
        """Bring a folder up."""
        put(str(source), f"{self.uri}/{prefix}", stores=self.stores, limits=LIMITS)

    def ours_down(self, prefix: str, target: Path) -> None:
        """Bring a folder down."""
        fetch(f"{self.uri}/{prefix}", str(target), stores=self.stores, limits=LIMITS)

    def up(self, way: Callable[[Path, str], None], source: Path) -> Callable[[], float]:
        """Time a way up; what came there is removed afterwards."""

        def once() -> float:
            self.number += 1
            begun = time.perf_counter()
            way(source, f"up{self.number}")
            seconds = time.perf_counter() - begun
            self.clear(f"up{self.number}")
            return seconds

        return once

    def down(self, way: Callable[[str, Path], None]) -> Callable[[], float]:
        """Time a way down; what came here is removed afterwards."""

        def once() -> float:
            target = self.folder / "target"
            begun = time.perf_counter()
            way("down", target)
            seconds = time.perf_counter() - begun
            shutil.rmtree(target)
            return seconds

        return once

    def clear(self, prefix: str) -> None:
        """Remove objects."""
        for batch in obstore.list(self.bucket, prefix):
            obstore.delete(self.bucket, [meta["path"] for meta in batch])


@contextmanager
def bench_on(folder: Path) -> Iterator[Bench]:
    """Give a bench with a server of its own."""
    with run_s3(folder / "server") as server:
        place = s3_place(server)
        store = S3Store(
            place.uri.removeprefix("s3://"),
            endpoint=server.endpoint,
            region=server.region,
            access_key_id=server.writer.access_key,
            secret_access_key=server.writer.secret_key,
            client_options={"allow_http": True},
        )
        with place.environment():
            yield Bench(folder, place.uri, place.stores, store)


def main() -> None:
    """Measure and print."""
    # Memory where there is enough: a disk that writes back when it likes would be measured instead.
    shared = Path("/dev/shm")  # noqa: S108 # Linux's own
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > 16 * 10**9
    found: list[tuple[Pairs, Pairs]] = []
    with tempfile.TemporaryDirectory(dir=shared if roomy else None) as name, bench_on(Path(name)) as bench:
        for shape, (count, size) in SHAPES.items():
            source = Path(name, shape)
            source.mkdir()
            for number in range(count):
                (source / f"{number:05d}").write_bytes(os.urandom(size % 2**24) + bytes(size - size % 2**24))
            for way, (direct, sequential) in bench.measure(source).items():
                found.append((direct, sequential))
                rate = count * size / 10**6 / direct.a
                print(f"{shape} {way}: {direct.line(sequential=f'{sequential.ratio:.3f}', mb_per_s=f'{rate:.0f}')}")
            shutil.rmtree(source)
    worst = min((direct for direct, _ in found), key=lambda pairs: pairs.ratio)
    sequential_ratio = statistics.geometric_mean(sequential.ratio for _, sequential in found)
    print(f"ratio={worst.ratio:.3f} sequential_ratio={sequential_ratio:.3f} aa={worst.aa:.3f}")


if __name__ == "__main__":
    main()
