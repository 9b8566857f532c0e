"""A Google Cloud Storage server that checks tokens: fake-gcs-server with the XML API that obstore speaks (go/gcs)."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kr_kfp.cluster.local_processes import start_time
from tests.servers import build, process

__all__ = ["GcsServer", "run_gcs"]

_PREFIX = "kr-kfp-gcs-"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GcsServer:
    """A running server.

    Args:
        endpoint: Its URL; also that of a metadata server, which gives out ``metadata_token``.
        writer: Key file of a service account that may do all, as JSON; its ``gcs_base_url`` is the endpoint.
        reader: The same for one that may only read.
        token: A token that may do all.
        expired_token: One that no longer does.
    """

    endpoint: str
    writer: str
    reader: str
    token: str
    expired_token: str

    def __repr__(self) -> str:
        return f"<GCS server at {self.endpoint}>"

    def make_bucket(self, prefix: str = "bucket") -> str:
        """Make a new, empty bucket and give its name."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.ask("POST", "/storage/v1/b", query={"project": "test"}, body=json.dumps({"name": name}).encode())
        return name

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Make an object, whatever its key is."""
        self.ask("PUT", f"/{bucket}/{urllib.parse.quote(key, safe='')}", body=content)

    def get(self, bucket: str, key: str) -> bytes:
        """Give an object's content."""
        return self.ask("GET", f"/{bucket}/{urllib.parse.quote(key, safe='')}")

    def objects(self, bucket: str) -> dict[str, int]:
        """Give the size in bytes of all objects by key."""
        found: dict[str, int] = {}
        query: dict[str, str] = {}
        while True:
            tree = ET.fromstring(self.ask("GET", f"/{bucket}", query=query))  # noqa: S314 # from a server of ours
            for entry in tree.iter("Contents"):
                found[entry.findtext("Key", "")] = int(entry.findtext("Size", ""))
            token = tree.findtext("NextContinuationToken")
            if not token:
                return found
            query["continuation-token"] = token

    def unfinished(self, bucket: str) -> list[str]:
        """Give the keys of multipart uploads that were neither completed nor given up."""
        tree = ET.fromstring(self.ask("GET", f"/{bucket}", query={"uploads": ""}))  # noqa: S314 # from a server of ours
        return [entry.findtext("Key", "") for entry in tree.iter("Upload")]

    def ask(self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
        """Send a request with ``token`` and give the answer's body.

        Raises:
            ServerError: If the server refuses it.
        """
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.endpoint).netloc, timeout=30)
        try:
            target = f"{path}?{urllib.parse.urlencode(query)}" if query else path
            connection.request(method, target, body=body, headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status not in {200, 204}:
            msg = f"{method} {path}: {answer.status} {content.decode(errors='replace')}"
            raise process.ServerError(msg)
        return content


@contextmanager
def run_gcs(
    folder: Path, *, in_memory: bool = False, anonymous: str = "", metadata_expired: bool = False
) -> Iterator[GcsServer]:
    """Run a server as long as the context is open.

    Args:
        folder: An empty folder for its log.
        in_memory: Whether objects are kept in memory: slow for thousands, but an object can have any name, also one
            that leads out of a folder.
        anonymous: What a caller without a token may do: nothing, ``read`` or ``write``.
        metadata_expired: Whether the metadata server gives out ``expired_token`` instead of ``token``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "gcs.log"
    token, expired = (f"ya29.{secrets.token_urlsafe(24)}" for _ in range(2))
    writer, reader = "writer@test.example", "reader@test.example"
    with _data() as data:
        config = {
            "tokens": {token: {"access": "write"}, expired: {"access": "write", "expires": int(time.time()) - 60}},
            "accounts": {writer: "write", reader: "read"},
            "anonymous": anonymous,
            "metadata_token": expired if metadata_expired else token,
            "folder": "" if in_memory else data,
        }
        server = process.start([str(build.binary("gcs"))], log=log, pipes=True)
        try:
            started = _start(server, config, log)
            keys = {name: json.dumps(key) for name, key in started["keys"].items()}
            yield GcsServer(
                endpoint=started["url"], writer=keys[writer], reader=keys[reader], token=token, expired_token=expired
            )
        finally:
            process.stop(server)


def _start(server: subprocess.Popen[str], config: Mapping[str, Any], log: Path) -> dict[str, Any]:
    """Give a server its configuration and wait for what it says to it."""
    if server.stdin is None or server.stdout is None:
        msg = "a server with pipes has pipes"
        raise TypeError(msg)
    server.stdin.write(json.dumps(config))
    server.stdin.flush()
    line = server.stdout.readline()
    if not line:
        msg = f"the GCS server did not start:\n{log.read_text(encoding='utf-8')[-2000:]}"
        raise process.ServerError(msg)
    started: dict[str, Any] = json.loads(line)
    return started


def _clear(place: Path) -> None:
    """Remove what tests left that were killed: it may fill the memory."""
    for folder in place.glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if pid.isdecimal() and not start_time(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _data() -> Iterator[str]:
    """Give a folder for data: in memory if possible, since this server writes each object through to the disk."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > 4 * 10**9
    place = shared if roomy else Path(tempfile.gettempdir())
    _clear(place)
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=place) as folder:
        try:
            os.setxattr(folder, "user.kr-kfp", b"1")
        except OSError:  # this server keeps what it knows of an object in extended attributes
            with tempfile.TemporaryDirectory() as other:
                yield other
        else:
            yield folder
