"""A host that was cut off and uploads after a later attempt was committed: what the next step reads stays the same.

Kubernetes can call a host lost while its machine only lost the network. What it had under way then arrives late.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kfp import dsl

import kr_kfp
import kr_kfp.testing
from kr_kfp.storage.limits import MIB, Limits
from tests.hosts import read_marker, until
from tests.servers.gcs import GcsServer
from tests.servers.proxy import Fault, Plan, Proxy, Request, run_proxy
from tests.servers.s3 import S3Server

SIZE = Limits().part + MIB
"""Bytes of the large file: it goes up in two parts."""


@kr_kfp.component(hosts=2, install_kfp_package=False, framework="none", logs="all", terminate_grace="5s")
def train(folder: str, size: int, model: dsl.Output[dsl.Model]) -> int:
    """Write on the leader; attempt 0 loses its worker when the test says so."""
    import os
    import time
    from pathlib import Path

    import kr_kfp

    ctx = kr_kfp.context()
    runner = int(os.environ["KR_KFP_RUNNER_PID"])
    if ctx.attempt == 0 and not ctx.is_leader:
        while not Path(folder, "cut").exists():
            time.sleep(0.02)
        os.kill(runner, 9)
        time.sleep(600)
    if ctx.is_leader:
        Path(model.path).mkdir(parents=True)
        Path(model.path, "weights").write_bytes(f"{ctx.attempt}".encode() * size)
        Path(model.path, "config.json").write_text(f"attempt {ctx.attempt}")
        model.metadata["attempt"] = ctx.attempt
        if ctx.attempt == 0 and Path(folder, "twin").exists() and "KR_TEST_TWIN" not in os.environ:
            Path(folder, "leader").write_text(str(runner))
            time.sleep(600)
    return ctx.attempt


@kr_kfp.component(hosts=2, install_kfp_package=False, framework="none", logs="all")
def read(model: dsl.Input[dsl.Model]) -> dict:  # type: ignore[type-arg]
    """Give the digest of every file that the next step finds, and say it on every host."""
    import hashlib
    from pathlib import Path

    files = sorted(path for path in Path(model.path).rglob("*") if path.is_file())
    found = {str(path.relative_to(model.path)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    print(f"found {found}", flush=True)
    return {"files": found, "attempt": model.metadata["attempt"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A store behind a proxy.

    Args:
        server: The store itself.
        root: URI of a bucket.
        env: The environment by which hosts reach it, through the proxy.
        proxy: The proxy.
    """

    server: S3Server | GcsServer
    root: str
    env: Mapping[str, str]
    proxy: Proxy

    def content(self, key: str) -> bytes:
        """Give an object as the store has it."""
        return self.server.get(self.root.partition("://")[2], key)

    def names(self) -> list[str]:
        """Give the names of all objects."""
        return sorted(self.server.objects(self.root.partition("://")[2]))


@contextmanager
def behind_proxy(server: S3Server | GcsServer, plan: Plan) -> Iterator[Store]:
    """Give a bucket that is reached through a proxy."""
    with run_proxy(server.endpoint, plan) as proxy:
        if isinstance(server, S3Server):
            env = server.variables(proxy.endpoint)
            root = f"s3://{server.make_bucket()}"
        else:
            env = {"STORAGE_EMULATOR_HOST": proxy.endpoint, "GOOGLE_BEARER_TOKEN": server.token}
            root = f"gs://{server.make_bucket()}"
        yield Store(server=server, root=root, env=env, proxy=proxy)


@pytest.fixture(params=["s3", "gcs"])
def server(request: pytest.FixtureRequest) -> S3Server | GcsServer:
    """Give each server in turn."""
    chosen: S3Server | GcsServer = request.getfixturevalue(f"{request.param}_server")
    return chosen


class Hold:
    """Holds the first request of a kind.

    Args:
        method: Its HTTP method.
        target: A pattern that its path and query match.
    """

    def __init__(self, method: str, target: str) -> None:
        self._method, self._target = method, re.compile(target)
        self.held = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, request: Request) -> Fault | None:
        """Hold it, or let it pass."""
        target = urllib.parse.unquote(request.target)
        if self.held.is_set() or request.method != self._method or not self._target.search(target):
            return None
        self.held.set()
        return Fault(kind="held", until=self.let_go)


@contextmanager
def training(store: Store, folder: Path) -> Iterator[Future[kr_kfp.testing.Result]]:
    """Run the step in a thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(
            kr_kfp.testing.run,
            train,
            root=folder / "root",
            artifacts=f"{store.root}/out",
            env=store.env,
            timeout=600,
            folder=str(folder),
            size=SIZE,
        )


def assert_next_step_reads_attempt_1(store: Store, folder: Path, trained: kr_kfp.testing.Result) -> None:
    """Run the next step on what was committed, and compare what each of its hosts finds."""
    wanted = {
        "config.json": hashlib.sha256(b"attempt 1").hexdigest(),
        "weights": hashlib.sha256(b"1" * SIZE).hexdigest(),
    }
    result = kr_kfp.testing.run(read, root=folder / "next", env=store.env, model=trained.outputs["model"])
    assert result.output == {"files": wanted, "attempt": 1}
    assert result.log.count(f"found {wanted}") == 2


def assert_committed(store: Store, trained: kr_kfp.testing.Result) -> None:
    """Check that attempt 1 is what KFP was told of, and all of it is there."""
    assert trained.output == 1
    assert (trained.outputs["model"].uri, trained.outputs["model"].metadata) == (
        f"{store.root}/out/train/model-r1",
        {"attempt": 1},
    )
    assert store.content("out/train/model-r1/weights") == b"1" * SIZE
    assert store.content("out/train/model-r1/config.json") == b"attempt 1"


@pytest.mark.parametrize(
    ("hold", "late"),
    [
        pytest.param(("PUT", r"/model/config\.json$"), "config.json", id="object"),
        pytest.param(("PUT", r"/model/weights\?.*partNumber=1"), "", id="part"),
        pytest.param(("POST", r"/model/weights\?.*uploadId="), "weights", id="completion"),
    ],
)
def test_a_request_that_arrives_late(
    hold: tuple[str, str], late: str, server: S3Server | GcsServer, tmp_path: Path
) -> None:
    """What a lost leader had sent, an object or the end of an upload in parts, reaches the store after the commit."""
    holding = Hold(*hold)
    with behind_proxy(server, holding) as store, training(store, tmp_path) as running:
        assert holding.held.wait(240), "the leader's upload did not begin"
        (tmp_path / "cut").touch()
        trained = running.result()
        assert "restarting the group as attempt 1" in trained.log
        assert_committed(store, trained)
        before = store.names()
        assert f"out/train/model/{late}" not in before
        holding.let_go.set()
        # Its answer has nobody to go to; what the store has made of it shows.
        for _ in until(240, "the late request's arrival"):
            if store.proxy.passed:
                break
        expected = {"config.json": b"attempt 0", "weights": b"0" * SIZE}
        if late:
            assert store.content(f"out/train/model/{late}") == expected[late]
        assert [key for key in store.names() if key not in before] == ([f"out/train/model/{late}"] if late else [])
        assert_committed(store, trained)
        assert_next_step_reads_attempt_1(store, tmp_path, trained)


def test_a_frozen_leader_that_goes_on(server: S3Server | GcsServer, tmp_path: Path) -> None:
    """A leader that stood still during its upload ends it after the commit, all of it, and calls that a success.

    The local cluster can lose no machine without its processes, so the leader has a twin of the same command and
    environment that the cluster knows nothing of.
    """
    holding = Hold("PUT", r"/model/weights\?.*partNumber=1")
    (tmp_path / "twin").touch()
    with behind_proxy(server, holding) as store, training(store, tmp_path) as running:
        twin = start_twin(tmp_path)
        try:
            assert holding.held.wait(240), "the twin's upload did not begin"
            os.killpg(twin.pid, signal.SIGSTOP)
            (tmp_path / "cut").touch()
            trained = running.result()
            assert_committed(store, trained)
            before = store.names()
            assert "out/train/model/weights" not in before
            holding.let_go.set()
            os.killpg(twin.pid, signal.SIGCONT)
            assert twin.wait(240) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(twin.pid, signal.SIGKILL)
            twin.wait()
        outcome = read_marker(tmp_path / "twin-work")
        assert (outcome.kind, outcome.attempt) == ("ok", 0)
        assert store.content("out/train/model/weights") == b"0" * SIZE
        assert store.content("out/train/model/config.json") == b"attempt 0"
        assert_committed(store, trained)
        assert_next_step_reads_attempt_1(store, tmp_path, trained)


def start_twin(folder: Path) -> subprocess.Popen[bytes]:
    """Start what the leader's container runs, once more, with a disk of its own."""
    note = folder / "leader"
    for _ in until(240, "the leader's function"):
        if note.exists() and note.read_text(encoding="ascii"):
            break
    process = Path("/proc", note.read_text(encoding="ascii"))
    command = process.joinpath("cmdline").read_text(encoding="utf-8").split("\0")[:-1]
    entries = process.joinpath("environ").read_text(encoding="utf-8").split("\0")[:-1]
    env = dict(entry.split("=", 1) for entry in entries)
    own = {
        "KR_KFP_WORK": str(folder / "twin-work"),
        "KR_KFP_TERMINATION_LOG": str(folder / "twin-termination"),
        "KR_KFP_ARTIFACTS": str(folder / "twin-artifacts"),
        "KR_KFP_POD_UID": "twin",
        "KR_TEST_TWIN": "1",
    }
    with (folder / "twin.log").open("wb") as log:
        return subprocess.Popen(
            command, env={**env, **own}, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
