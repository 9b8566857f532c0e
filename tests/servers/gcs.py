"""A Google Cloud Storage server that checks tokens: fake-gcs-server with the XML API that obstore speaks (go/gcs)."""

from __future__ import annotations

import http.client
import json
import secrets
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import build, process

__all__ = ["GcsServer", "run_gcs"]


@dataclass(frozen=True, slots=True, kw_only=True)
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
def run_gcs(folder: Path, *, anonymous: str = "", metadata_expired: bool = False) -> Iterator[GcsServer]:
    """Run a server as long as the context is open.

    Args:
        folder: A folder for its log.
        anonymous: What a caller without a token may do: nothing, ``read`` or ``write``.
        metadata_expired: Whether the metadata server gives out ``expired_token`` instead of ``token``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "gcs.log"
    token, expired = (f"ya29.{secrets.token_urlsafe(24)}" for _ in range(2))
    writer, reader = "writer@test.example", "reader@test.example"
    config = {
        "tokens": {token: {"access": "write"}, expired: {"access": "write", "expires": int(time.time()) - 60}},
        "accounts": {writer: "write", reader: "read"},
        "anonymous": anonymous,
        "metadata_token": expired if metadata_expired else token,
    }
    server = process.start([str(build.binary("gcs"))], log=log, pipes=True)
    try:
        assert server.stdin, "a pipe"
        assert server.stdout, "a pipe"
        server.stdin.write(json.dumps(config))
        server.stdin.flush()
        line = server.stdout.readline()
        if not line:
            msg = f"the GCS server did not start:\n{log.read_text(encoding='utf-8')[-2000:]}"
            raise process.ServerError(msg)
        started = json.loads(line)
        keys = {name: json.dumps(key) for name, key in started["keys"].items()}
        yield GcsServer(
            endpoint=started["url"], writer=keys[writer], reader=keys[reader], token=token, expired_token=expired
        )
    finally:
        process.stop(server)
