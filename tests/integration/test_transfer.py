"""How the runner starts a transfer, stops it, and learns how it ended."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kr_kfp.errors import Problem, SetupError, StorageError, StorageStoppedError
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.run import Item, Plan, Result, transfer
from kr_kfp.storage.settings import StoreSettings


def _plan(*pairs: tuple[str, Path], stores: tuple[StoreSettings, ...] = ()) -> Plan:
    items = tuple(Item(uri=uri, path=str(path), name=path.name) for uri, path in pairs)
    return Plan(stores=stores, items=items)


def test_nothing_to_move(tmp_path: Path) -> None:
    """A plan without items starts no process."""
    assert transfer("fetch", Plan(), work=str(tmp_path / "work"), python="/no/such/python") == Result()


def test_a_transfer_says_what_it_moved(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Every item with bytes and files; a line for each on standard error; nothing is left in the work folder."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"12345")
    plan = _plan((str(tmp_path / "in"), tmp_path / "data"), (f"file://{tmp_path}/in/a", tmp_path / "one"))
    result = transfer("fetch", plan, work=str(tmp_path / "work"))
    assert [(item.name, item.bytes, item.files) for item in result.items] == [("data", 5, 1), ("one", 5, 1)]
    assert (tmp_path / "data" / "a").read_bytes() == (tmp_path / "one").read_bytes() == b"12345"
    assert list((tmp_path / "work").iterdir()) == []
    assert [line.partition(" in ")[0] for line in capfd.readouterr().err.splitlines()] == [
        "kr_kfp: fetched data: 0.0 MB, 1 file",
        "kr_kfp: fetched one: 0.0 MB, 1 file",
    ]


def test_all_problems_come_back(tmp_path: Path) -> None:
    """What is wrong with any item is raised as one error, and nothing was moved."""
    (tmp_path / "there").write_bytes(b"1")
    plan = _plan(
        (str(tmp_path / "gone"), tmp_path / "a"),
        ("oci://registry/image", tmp_path / "b"),
        ("s3://bucket/key", tmp_path / "c"),
        (str(tmp_path / "there"), tmp_path / "d"),
        stores=(
            StoreSettings(scheme="s3", access_key_env="MISSING_A", secret_key_env="MISSING_B", secret_name="keys"),
        ),
    )
    with pytest.raises(StorageError) as caught:
        transfer("fetch", plan, work=str(tmp_path / "work"))
    fix = "look whether Secret keys has the key, and whether the pod lists it in its env"
    assert caught.value.problems == (
        Problem(
            f"{tmp_path}/gone",
            "there is no such file or folder on this machine.",
            "look whether it was written, and where.",
        ),
        Problem(
            "oci://registry/image",
            "is not a URI that kr_kfp can read or write.",
            "use gs://<bucket>/<key>, minio://<bucket>/<key>, s3://<bucket>/<key>",
        ),
        Problem("s3://bucket", "MISSING_A is not set.", fix),
        Problem("s3://bucket", "MISSING_B is not set.", fix),
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "work"]


def test_no_python(tmp_path: Path) -> None:
    """An interpreter that is not there is an error of the surroundings."""
    with pytest.raises(SetupError) as caught:
        transfer("put", _plan(("/b", tmp_path)), work=str(tmp_path / "work"), python="/no/such/python")
    assert str(caught.value) == "cannot start /no/such/python to put artifacts: No such file or directory"


def test_no_obstore(tmp_path: Path) -> None:
    """An interpreter without obstore says so and how to get it."""
    # -S would be simpler, but is no part of the command: an interpreter without site-packages is.
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(StorageError) as caught:
        transfer("put", _plan(("/b", tmp_path)), work=str(tmp_path / "work"), python=str(bare))
    [problem] = caught.value.problems
    assert problem.fix == "install it beside kr_kfp: pip install 'obstore>=0.12,<0.13'"
    assert problem.message.startswith("this Python (")
    assert problem.message.endswith("has no obstore, which moves artifacts: No module named 'obstore'.")


@pytest.fixture
def silent_store() -> Iterator[tuple[StoreSettings, threading.Event]]:
    """Give a store that takes connections and never answers, and an event for the first one."""
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        connections = []

        def accept() -> None:
            while True:
                try:
                    connections.append(server.accept()[0])
                except OSError:
                    return
                asked.set()

        thread = threading.Thread(target=accept)
        thread.start()
        port = server.getsockname()[1]
        yield StoreSettings(scheme="s3", endpoint=f"http://127.0.0.1:{port}", anonymous=True), asked
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for connection in connections:
            connection.close()


def test_sigterm_stops_a_transfer(tmp_path: Path, silent_store: tuple[StoreSettings, threading.Event]) -> None:
    """SIGTERM goes on to the child, which ends soon; afterwards the handler is the one from before."""
    store, asked = silent_store
    before = signal.getsignal(signal.SIGTERM)

    told: list[float] = []

    def terminate() -> None:
        if asked.wait(200):
            told.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(StorageStoppedError) as caught:
        transfer("fetch", _plan(("s3://b/k", tmp_path / "a"), stores=(store,)), work=str(tmp_path / "work"))
    thread.join()
    assert caught.value.problems == (
        Problem("fetch", "was told to stop (SIGTERM) before all was there; what it had begun is undone."),
    )
    assert time.monotonic() - told[0] < Limits().patience / 2
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_child_that_is_killed(tmp_path: Path) -> None:
    """A child that dies without a result is an error of the surroundings that tells the signal."""
    killed = tmp_path / "python"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    with pytest.raises(SetupError) as caught:
        transfer("put", _plan(("/b", tmp_path)), work=str(tmp_path / "work"), python=str(killed))
    assert str(caught.value) == (
        "the process that should put artifacts was killed by signal 9 and left no result; its output says why. "
        "Signal 9 is what a full memory looks like."
    )


def test_an_artifact_within_another_comes_with_it(tmp_path: Path) -> None:
    """An input and a part of it, which KFP puts into its folder, are fetched once and both are there."""
    (tmp_path / "store" / "part").mkdir(parents=True)
    (tmp_path / "store" / "part" / "a").write_bytes(b"1")
    (tmp_path / "store" / "b").write_bytes(b"22")
    store, local = tmp_path / "store", tmp_path / "local"
    plan = _plan((f"{store}/part", local / "part"), (str(store), local), (str(store), local))
    result = transfer("fetch", plan, work=str(tmp_path / "work"))
    assert [(item.bytes, item.files) for item in result.items] == [(1, 1), (3, 2), (3, 2)]
    assert (local / "part" / "a").read_bytes() + (local / "b").read_bytes() == b"122"


def test_two_artifacts_cannot_share_a_path(tmp_path: Path) -> None:
    """Different artifacts for one path, or one in the other's folder, are refused before anything is written."""
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    plan = _plan((f"{tmp_path}/a", tmp_path / "t"), (f"{tmp_path}/b", tmp_path / "t"))
    with pytest.raises(StorageError) as caught:
        transfer("fetch", plan, work=str(tmp_path / "work"))
    assert caught.value.problems == (
        Problem(
            f"{tmp_path}/b",
            f"would be fetched into the path of {tmp_path}/a.",
            "give each artifact a path of its own",
        ),
    )
