"""A large object whose ranges end at the same time: it becomes whole once."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

from kr_kfp.storage.limits import Limits
from kr_kfp.storage.listing import Entry
from kr_kfp.storage.read import Ranges
from kr_kfp.storage.session import Session
from tests.servers.places import s3_place
from tests.servers.s3 import S3Server

PART, COUNT = 64 * 1024, 16


def test_one_range_is_the_last(s3_server: S3Server, tmp_path: Path) -> None:
    """Of ranges that wait for the checksum together, one says that the file is whole, and then it is.

    An artifact appears when each of its files has said so: one that said it twice would stand for another.
    """
    bucket = s3_server.make_bucket()
    content = os.urandom(PART * COUNT - 1)
    s3_server.put(bucket, "large", content)
    place = s3_place(s3_server, bucket=bucket)
    etag = hashlib.md5(content, usedforsecurity=False).hexdigest()
    entry = Entry(key="large", path="", size=len(content), etag=etag)

    async def read(path: Path) -> list[bool]:
        session = Session("fetch", place.stores, limits=Limits(part=PART))
        session.expect("large", len(content))
        uri = f"{place.uri}/large"
        ranges = Ranges(session, session.bucket(uri), entry, uri=uri, place=str(path), name="large")
        return await asyncio.gather(*(ranges.read(number) for number in range(ranges.count)))

    with place.environment():
        for turn in range(20):
            path = tmp_path / str(turn)
            assert sorted(asyncio.run(read(path))) == [False] * (COUNT - 1) + [True]
            assert path.read_bytes() == content
