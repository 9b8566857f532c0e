"""Places to move data to and from: a URI, how its store is reached, and the secrets for it. And transfers as children."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kr_kfp.storage.settings import StoreSettings
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server, User

__all__ = ["Done", "Place", "file_place", "gcs_place", "move", "s3_place"]

_ACCESS, _SECRET, _TOKEN, _JSON = "TEST_ACCESS_KEY", "TEST_SECRET_KEY", "TEST_SESSION_TOKEN", "TEST_GCS_JSON"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Place:
    """Where data lie.

    Args:
        uri: URI of a folder.
        stores: How it is reached.
        env: Environment variables with the secrets that ``stores`` names.
    """

    uri: str
    stores: tuple[StoreSettings, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.uri}>"

    @property
    def secrets(self) -> list[str]:
        """The texts that nothing may show."""
        found = [value for name, value in self.env.items() if name in {_ACCESS, _SECRET, _TOKEN}]
        if _JSON in self.env:
            found += json.loads(self.env[_JSON])["private_key"].split("\n")[1:-2]
        return found

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Set the variables in this process."""
        before = {name: os.environ.get(name) for name in self.env}
        os.environ.update(self.env)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def s3_place(
    server: S3Server, *, bucket: str = "", user: User | None = None, endpoint: str = "", token: str = ""
) -> Place:
    """Give a place on an S3 server.

    Args:
        server: The server.
        bucket: Its bucket; empty for a new one.
        user: Whose keys; None for the writer's.
        endpoint: Of a proxy before the server, if there is one.
        token: A session token to send along.
    """
    user = user or server.writer
    bucket = bucket or server.make_bucket()
    store = StoreSettings(
        scheme="s3",
        prefixes=(f"s3://{bucket}",),
        endpoint=endpoint or server.endpoint,
        region=server.region,
        access_key_env=_ACCESS,
        secret_key_env=_SECRET,
        session_token_env=_TOKEN if token else "",
    )
    env = {_ACCESS: user.access_key, _SECRET: user.secret_key} | ({_TOKEN: token} if token else {})
    return Place(uri=f"s3://{bucket}", stores=(store,), env=env)


def gcs_place(server: GcsServer, *, bucket: str = "", key: str = "", endpoint: str = "") -> Place:
    """Give a place on a Google Cloud Storage server.

    Args:
        server: The server.
        bucket: Its bucket; empty for a new one.
        key: A service account's key file; empty for the writer's.
        endpoint: Of a proxy before the server, if there is one.
    """
    bucket = bucket or server.make_bucket()
    settings = StoreSettings(
        scheme="gs",
        prefixes=(f"gs://{bucket}",),
        endpoint=endpoint or server.endpoint,
        gcs_json_env=_JSON,
    )
    return Place(uri=f"gs://{bucket}", stores=(settings,), env={_JSON: key or server.writer})


def file_place(folder: Path) -> Place:
    """Give a place on this machine."""
    return Place(uri=f"file://{folder}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a transfer in a child ended.

    Args:
        code: Exit code; negative for a signal.
        output: All it printed.
        result: The result that it wrote; empty if it wrote none.
        seconds: How long it took.
    """

    code: int
    output: str
    result: dict[str, Any]
    seconds: float

    @property
    def problems(self) -> list[tuple[str, str, str]]:
        """What went wrong: where, what, and what to do."""
        return [(found["path"], found["message"], found["fix"]) for found in self.result.get("problems", [])]


def move(
    verb: Literal["fetch", "put"],
    place: Place,
    items: Mapping[str, Path],
    *,
    limits: Mapping[str, float] | None = None,
    prefix: Sequence[str] = (),
    script: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Done:
    """Run ``python -m kr_kfp.storage`` to its end.

    Args:
        verb: ``fetch`` or ``put``.
        place: Where the remote side is.
        items: Local path by name; the URI is the place's with the name.
        limits: See :class:`kr_kfp.storage.limits.Limits`.
        prefix: What to put before the command.
        script: A file to run in the place of the module, which it has to run in the end.
        env: More environment variables.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan, result, log = (Path(folder, name) for name in ("plan.json", "result.json", "log"))
        content = {
            "stores": [store.to_json() for store in place.stores],
            "items": [{"uri": f"{place.uri}/{name}", "path": str(path), "name": name} for name, path in items.items()],
            "result": str(result),
            # Behind another program, that is the parent.
            "parent": 0 if prefix else os.getpid(),
            "limits": dict(limits or {}),
        }
        plan.write_text(json.dumps(content), encoding="utf-8")
        assert not any(secret in plan.read_text(encoding="utf-8") for secret in place.secrets), "a secret in the plan"
        module = [str(script), "kr_kfp.storage"] if script else ["-m", "kr_kfp.storage"]
        begun = time.monotonic()
        with log.open("wb") as file:
            child = subprocess.Popen(
                [*prefix, sys.executable, *module, verb, str(plan)],
                env={**os.environ, **place.env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        try:
            child.wait()
        finally:
            child.kill()  # does nothing to one that has ended
        return Done(
            code=child.returncode,
            output=log.read_text(encoding="utf-8"),
            result=json.loads(result.read_text(encoding="utf-8")) if result.exists() else {},
            seconds=time.monotonic() - begun,
        )
