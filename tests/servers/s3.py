"""An S3 server that checks signatures and rights and stores on disk: versitygw over a folder."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import build, process, sigv4

__all__ = ["S3Server", "User", "run_s3"]

_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Somebody with keys.

    Args:
        access_key: Access key id.
        secret_key: Secret access key.
    """

    access_key: str
    secret_key: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class S3Server:
    """A running server.

    Args:
        endpoint: Its URL.
        region: Its region; a signature for another one is refused.
        writer: Who owns the buckets that :meth:`make_bucket` makes.
        reader: Who may list and read there, and not write.
        stranger: Who may do nothing.
        folder: Where it stores: an object is the file ``<bucket>/<key>``.
    """

    endpoint: str
    region: str
    writer: User
    reader: User
    stranger: User
    folder: Path

    def __repr__(self) -> str:
        return f"<S3 server at {self.endpoint}>"

    def variables(self, endpoint: str = "") -> dict[str, str]:
        """Give AWS's variables for the writer; ``endpoint`` is another way to the server, such as a proxy's."""
        return {
            "AWS_ACCESS_KEY_ID": self.writer.access_key,
            "AWS_SECRET_ACCESS_KEY": self.writer.secret_key,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_REGION": self.region,
        }

    def make_bucket(self, prefix: str = "bucket") -> str:
        """Make a new, empty bucket and give its name."""
        name = f"{prefix}-{secrets.token_hex(4)}"
        self.ask("PUT", f"/{name}")
        # With a policy, this server looks at that alone: it has to name the owner too.
        rights = {
            self.writer.access_key: ["s3:*"],
            self.reader.access_key: ["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"],
        }
        resources = [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
        statements = [
            {"Effect": "Allow", "Principal": {"AWS": [user]}, "Action": actions, "Resource": resources}
            for user, actions in rights.items()
        ]
        policy = {"Version": "2012-10-17", "Statement": statements}
        self.ask("PUT", f"/{name}", query={"policy": ""}, body=json.dumps(policy).encode())
        return name

    def put(self, bucket: str, key: str, content: bytes) -> None:
        """Make an object, whatever its key is."""
        self.ask("PUT", f"/{bucket}/{key}", body=content)

    def get(self, bucket: str, key: str) -> bytes:
        """Give an object's content."""
        return self.ask("GET", f"/{bucket}/{key}")

    def objects(self, bucket: str) -> dict[str, int]:
        """Give the size in bytes of all objects by key."""
        found: dict[str, int] = {}
        query = {"list-type": "2", "encoding-type": "url"}
        while True:
            tree = ET.fromstring(self.ask("GET", f"/{bucket}", query=query))  # noqa: S314 # from a server of ours
            for entry in tree.iter(f"{_NAMESPACE}Contents"):
                key = urllib.parse.unquote_plus(entry.findtext(f"{_NAMESPACE}Key", ""))
                found[key] = int(entry.findtext(f"{_NAMESPACE}Size", ""))
            token = tree.findtext(f"{_NAMESPACE}NextContinuationToken")
            if not token:
                return found
            query["continuation-token"] = token

    def unfinished(self, bucket: str) -> list[str]:
        """Give the keys of multipart uploads that were neither completed nor given up."""
        tree = ET.fromstring(self.ask("GET", f"/{bucket}", query={"uploads": ""}))  # noqa: S314 # from a server of ours
        return [entry.findtext(f"{_NAMESPACE}Key", "") for entry in tree.iter(f"{_NAMESPACE}Upload")]

    def ask(self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: bytes = b"") -> bytes:
        """Send a request as the writer and give the answer's body.

        Raises:
            ServerError: If the server refuses it.
        """
        keys = {"key": self.writer.access_key, "secret": self.writer.secret_key}
        status, answer = sigv4.request(method, self.endpoint, path, region=self.region, query=query, body=body, **keys)
        if status not in {200, 204}:
            msg = f"{method} {path}: {status} {answer.decode(errors='replace')}"
            raise process.ServerError(msg)
        return answer


@contextmanager
def run_s3(
    folder: Path, *, region: str = "us-east-1", concurrency: int = 5000, host: str = "127.0.0.1"
) -> Iterator[S3Server]:
    """Run a server as long as the context is open.

    Args:
        folder: An empty folder for its data and log.
        region: Its region.
        concurrency: Most actions that it carries out at a time.
        host: The address it listens at: for pods of a test's cluster, this machine's in their network.
    """
    data, accounts, meta = folder / "data", folder / "accounts", folder / "meta"
    for place in (data, accounts, meta):
        place.mkdir(parents=True)
    log = folder / "s3.log"
    root = _new_user("root")
    port = process.free_port()
    endpoint = f"http://{host}:{port}"
    program = str(build.binary("versitygw"))
    env = {**os.environ, "ROOT_ACCESS_KEY": root.access_key, "ROOT_SECRET_KEY": root.secret_key}
    options = ["--port", f"{host}:{port}", "--region", region, "--iam-dir", str(accounts), "--keep-alive", "--quiet"]
    stored = ["posix", "--concurrency", str(concurrency), *_metadata(meta), str(data)]
    server = process.start([program, *options, *stored], log=log, env=env)
    try:
        process.wait_for_port(server, port, log=log, host=host)
        users = {"writer": "userplus", "reader": "user", "stranger": "user"}
        made = {name: _add_user(program, endpoint, region, root, name, role) for name, role in users.items()}
        yield S3Server(endpoint=endpoint, region=region, folder=data, **made)
    finally:
        process.stop(server)
        shutil.rmtree(data, ignore_errors=True)  # pytest keeps the folders of three sessions


def _new_user(name: str) -> User:
    return User(access_key=f"{name}{secrets.token_hex(6)}", secret_key=secrets.token_urlsafe(30))


def _add_user(program: str, endpoint: str, region: str, root: User, name: str, role: str) -> User:
    """Make an account by the server's own administration tool."""
    user = _new_user(name)
    command = [program, "admin", "--endpoint-url", endpoint, "--region", region, "create-user", "--role", role]
    env = {**os.environ, "ADMIN_ACCESS_KEY": root.access_key, "ADMIN_SECRET_KEY": root.secret_key}
    keys = ["--access", user.access_key, "--secret", user.secret_key]
    done = subprocess.run([*command, *keys], env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        msg = f"user {name} cannot be made: {done.stdout}{done.stderr}"
        raise process.ServerError(msg)
    return user


def _metadata(folder: Path) -> list[str]:
    """Say where the server keeps what S3 knows of an object beside its content."""
    try:
        os.setxattr(folder, "user.kr-kfp", b"1")
    except OSError:  # a file system without extended attributes
        return ["--sidecar", str(folder)]
    return []
