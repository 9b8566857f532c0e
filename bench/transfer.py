"""kr_kfp.storage against obstore used directly with the same concurrency, and against copies one after the other.

Moved are one file of 2 GB and 5,000 files of 20 KB, up to and down from an S3 server on this machine. A round is ours,
obstore, ours again, and one after the other, every second round backwards; a ratio is the other's time over ours in the
same round, then the median: above 1 we are faster. The closing line has the geometric means over the four cases. Each
case also has the ratio of processor time, without the server's, which a busy machine changes less. Aim: 0.9 of obstore
used directly, and ahead of sequential copies. On this machine, with no way to the store and its processors shared with
it, one stream is as fast as many for a single file.

Files lie in memory (/dev/shm) where 14 GB of it are free, else on the disk; which it was is printed. ``--quick`` moves
256 MB and 1,000 files in three rounds, ``--scale 0.1`` a tenth of either.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store
from pairs import Pairs

sys.path.insert(0, str(Path(__file__).parents[1]))  # the servers are the tests' own

from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.limits import MIB, Limits
from kr_kfp.storage.put import put
from tests.servers.places import s3_place
from tests.servers.s3 import run_s3

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one transfer took.

    Args:
        wall: Seconds from its begin to its end.
        cpu: Seconds of processor time of this process, all threads; the server's are not in it.
    """

    wall: float
    cpu: float


Once = Callable[[], Spent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One shape, one way.

    Args:
        direct: Against obstore used directly.
        sequential: Against copies one after the other.
        cpu: Obstore's processor time over ours, the median of the rounds.
    """

    direct: Pairs
    sequential: Pairs
    cpu: float


def timed(move: Callable[[], None]) -> Spent:
    """Time one transfer."""
    wall, cpu = time.perf_counter(), time.process_time()
    move()
    return Spent(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu)


def case(name: str, ours: Once, direct: Once, sequential: Once, rounds: int) -> Case:
    """Measure all three in turn; each runs once before, uncounted."""
    ways = (ours, direct, ours, sequential)
    for once in ways[1:]:
        once()
    found: list[list[Spent]] = []
    for number in range(rounds):
        turn = ways if number % 2 == 0 else ways[::-1]
        took = [once() for once in turn]
        found.append(took if number % 2 == 0 else took[::-1])
        shown = zip(("ours", "obstore", "ours", "sequential"), found[-1], strict=True)
        said = " ".join(f"{who}={spent.wall:.3f}" for who, spent in shown)
        print(f"{name}: round {number + 1}/{rounds}: {said}", flush=True)
    mean = [(first.wall + again.wall) / 2 for first, _, again, _ in found]
    same = [again.wall / first.wall for first, _, again, _ in found]
    low, _, high = statistics.quantiles(same, n=4)
    pairs = [
        Pairs(
            ratio=statistics.median(took[at].wall / own for took, own in zip(found, mean, strict=True)),
            aa=statistics.median(same),
            spread=(high - low) / 2,
            a=statistics.median(mean),
            b=statistics.median(took[at].wall for took in found),
            rounds=rounds,
        )
        for at in (1, 3)
    ]
    cpu = statistics.median(2 * other.cpu / (first.cpu + again.cpu) for first, other, again, _ in found)
    return Case(direct=pairs[0], sequential=pairs[1], cpu=cpu)


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

    def measure(self, source: Path, rounds: int) -> dict[str, Case]:
        """Measure up and down."""
        self.sequential.put(source, "down")
        ups = (self.up(self.ours_up, source), self.up(self.direct.put, source), self.up(self.sequential.put, source))
        downs = (self.down(self.ours_down), self.down(self.direct.fetch), self.down(self.sequential.fetch))
        found = {way: case(f"{source.name} {way}", *ways, rounds) for way, ways in {"up": ups, "down": downs}.items()}
        self.clear("down")
        return found

    def ours_up(self, source: Path, prefix: str) -> None:
        """Bring a folder up."""
        put(str(source), f"{self.uri}/{prefix}", stores=self.stores, limits=LIMITS)

    def ours_down(self, prefix: str, target: Path) -> None:
        """Bring a folder down."""
        fetch(f"{self.uri}/{prefix}", str(target), stores=self.stores, limits=LIMITS)

    def up(self, way: Callable[[Path, str], None], source: Path) -> Once:
        """Time a way up; what came there is removed afterwards."""

        def once() -> Spent:
            self.number += 1
            spent = timed(partial(way, source, f"up{self.number}"))
            self.clear(f"up{self.number}")
            return spent

        return once

    def down(self, way: Callable[[str, Path], None]) -> Once:
        """Time a way down; what came here is removed afterwards."""

        def once() -> Spent:
            target = self.folder / "target"
            spent = timed(partial(way, "down", target))
            shutil.rmtree(target)
            return spent

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


def free_memory() -> int:
    """Give the bytes of memory that can be had without taking them from others (proc(5), MemAvailable)."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def place() -> Path | None:
    """Choose where files lie: a disk that writes back when it likes would be measured instead of what is meant."""
    shared = Path("/dev/shm")  # noqa: S108 # Linux's own
    if shared.is_dir() and min(shutil.disk_usage(shared).free, free_memory()) >= 14 * 10**9:
        print(f"files lie in memory ({shared})")
        return shared
    print(f"files lie on the disk ({tempfile.gettempdir()}): less than 14 GB of memory are free")
    return None


def arguments() -> tuple[dict[str, tuple[int, int]], int]:
    """Read the command line: number and size of files by name, and rounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="256 MB and 1,000 files, three rounds")
    parser.add_argument("--scale", type=float, default=1.0, metavar="X", help="so much of either (1)")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="rounds of each case (4)")
    given = parser.parse_args()
    large, many = (256 * 10**6, 1000) if given.quick else (2 * 10**9, 5000)
    large, many = max(1, int(large * given.scale)), max(1, int(many * given.scale))
    shapes = {f"1 x {large / 10**6:,.0f} MB": (1, large), f"{many:,} x 20 KB": (many, 20_000)}
    return shapes, given.rounds or (3 if given.quick else 4)


def fill(folder: Path, count: int, size: int) -> None:
    """Write files, random in their last part at least."""
    folder.mkdir()
    for number in range(count):
        with (folder / f"{number:05d}").open("wb") as file:
            for _ in range(size // MIB):
                file.write(bytes(MIB))
            file.write(os.urandom(size % MIB))


def main() -> None:
    """Measure and print."""
    shapes, rounds = arguments()
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(dir=place()) as name, bench_on(Path(name)) as bench:
        for shape, (count, size) in shapes.items():
            source = Path(name, shape)
            fill(source, count, size)
            for way, found in bench.measure(source, rounds).items():
                cases.append(found)
                rate = count * size / 10**6 / found.direct.a
                more = {
                    "sequential": f"{found.sequential.ratio:.3f}",
                    "cpu": f"{found.cpu:.3f}",
                    "mb_per_s": f"{rate:.0f}",
                }
                print(f"{shape} {way}: {found.direct.line(**more)}", flush=True)
            shutil.rmtree(source)
    ratio, sequential, same = (
        statistics.geometric_mean(values)
        for values in (
            [found.direct.ratio for found in cases],
            [found.sequential.ratio for found in cases],
            [found.direct.aa for found in cases],
        )
    )
    print(f"ratio={ratio:.3f} sequential_ratio={sequential:.3f} aa={same:.3f}")


if __name__ == "__main__":
    main()
