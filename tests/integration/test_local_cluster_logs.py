"""Logs of local hosts: bytes as they were written, from the first start, and always with an end."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kr_kfp.cluster.local_lws import LABEL
from tests.local_kit import DEADLINE, HOLD, Json, Kit, kit_fixture, state, until

__all__ = ["kit_fixture"]

REPOSITORY = Path(__file__).resolve().parents[2]


class Follower:
    """Collects what a generator gives, in a thread."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.data = b""
        self.over = queue.SimpleQueue[bool]()
        threading.Thread(target=self._run, args=(chunks,), daemon=True).start()

    def _run(self, chunks: Iterator[bytes]) -> None:
        for chunk in chunks:
            self.data += chunk
        self.over.put(True)

    def end(self) -> bytes:
        """Wait for the end of the generator and give all it gave."""
        assert self.over.get(timeout=DEADLINE)
        return self.data


def test_a_log_is_followed_as_it_is_written(kit: Kit) -> None:
    """Parts of lines and invalid bytes come at once and untouched; the end of the first start is the end."""
    kit.sh(
        f"echo start; {HOLD}printf 'half a line \\344\\0'; until [ -e $KR_KFP_WORK/go ]; do sleep 0.01; done; "
        "echo and its rest >&2; exit 1"
    )
    (pod,) = kit.pods()
    follower = Follower(kit.cluster.follow_log(pod))
    until(lambda: follower.data == b"start\nhalf a line \xe4\0")
    (kit.work(pod) / "go").touch()
    assert follower.end() == b"start\nhalf a line \xe4\0and its rest\n"
    until(lambda: kit.cluster.read_log(pod) == b"start\n")
    # Followed again, long after: the first start once more.
    assert b"".join(kit.cluster.follow_log(pod)) == follower.data


def test_a_log_is_complete_when_the_end_is_told(kit: Kit) -> None:
    """Much output right before the end is not lost."""
    kit.sh(f"{HOLD}python3 -c \"print('x' * 99 + chr(10), end='' ) ; print(('y' * 99 + chr(10)) * 20000, end='')\"")
    (pod,) = kit.pods()
    follower = Follower(kit.cluster.follow_log(pod))
    data = follower.end()
    assert (len(data), data.count(b"\n")) == (2_000_100, 20_001)


def test_a_followed_pod_that_is_deleted(kit: Kit) -> None:
    """Following ends with the pod, and with a group whose pods never ran."""
    group = kit.sh("echo up; exec sleep 1000")
    (pod,) = kit.pods()
    follower = Follower(kit.cluster.follow_log(pod))
    until(lambda: follower.data)
    kit.delete(group)
    assert follower.end() == b"up\n"
    assert kit.cluster.read_log(pod) == b""
    secret = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}}
    waiting = kit.sh("true", env=[secret])
    (pod,) = kit.pods(running=False)
    follower = Follower(kit.cluster.follow_log(pod))
    kit.delete(waiting)
    assert follower.end() == b""


def test_current_and_previous_log(kit: Kit) -> None:
    """The current start's log, the one before, and the end of either."""
    kit.sh(
        "n=$(ls $KR_KFP_WORK | wc -l); touch $KR_KFP_WORK/$n; echo start $n; [ $n -lt 3 ] || exec sleep 1000; exit 1"
    )
    recorder = kit.watch()
    (pod,) = kit.pods()
    recorder.wait(lambda e: e.kind == "pod" and state(e.value)["restartCount"] == 3)
    until(lambda: kit.cluster.read_log(pod) == b"start 3\n")
    assert kit.cluster.read_log(pod, previous=True) == b"start 2\n"
    assert kit.cluster.read_log(pod, tail_bytes=2) == b"3\n"
    assert kit.cluster.read_log(pod, tail_bytes=1000) == b"start 3\n"
    assert b"".join(kit.cluster.follow_log(pod)) == b"start 0\n"
    kept = sorted(path.name for path in kit.folder(pod).iterdir() if path.name.startswith("log."))
    assert kept == ["log.0", "log.0.end", "log.2", "log.2.end", "log.3"]


def test_a_first_start_has_no_previous_log(kit: Kit) -> None:
    """Nothing is what there is before the first start."""
    kit.sh("echo up; exec sleep 1000")
    (pod,) = kit.pods()
    until(lambda: kit.cluster.read_log(pod) == b"up\n")
    assert kit.cluster.read_log(pod, previous=True) == b""


def test_a_log_is_asked_for_while_its_folder_goes(kit: Kit) -> None:
    """It is empty, at whatever moment of the look the folder goes."""
    kit.sh("echo up; exec sleep 1000")
    (pod,) = kit.pods()
    until(lambda: kit.cluster.read_log(pod) == b"up\n")
    folder = kit.folder(pod)
    # Another process: a thread would seldom run between two calls of the same look.
    script = f"import os\nwhile True: os.rename({str(folder)!r}, 'away'); os.rename('away', {str(folder)!r})"
    mover = subprocess.Popen([sys.executable, "-c", script], cwd=folder.parent)
    try:
        until(lambda: kit.cluster.read_log(pod) == b"")
        found = {kit.cluster.read_log(pod) for _ in range(3000)}
    finally:
        mover.kill()
        mover.wait()
    assert found <= {b"", b"up\n"}


DUMP = "import json, os; print(json.dumps(dict(os.environ)), flush=True); import time; time.sleep(1000)"


def environment(kit: Kit, pod: Json) -> dict[str, str]:
    """Give what a host that dumped its environment had in it beside the launcher's own."""
    log = until(lambda: kit.cluster.read_log(pod) if kit.cluster.read_log(pod).endswith(b"\n") else b"")
    found = json.loads(log).items()
    return {name: value for name, value in found if os.environ.get(name) != value}


@pytest.fixture(autouse=True)
def settled_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make what Python and the cluster would add to the launcher's environment part of it."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("LC_CTYPE", "C.UTF-8")


def test_what_a_host_sees(kit: Kit) -> None:
    """The whole contract, literally: LWS's variables, the container's with references, the local cluster's."""
    env = [
        {"name": "KR_KFP_DEVICES", "value": "4"},
        {"name": "KR_KFP_WORK", "value": "/kr-kfp/work"},
        {"name": "JAX_COORDINATOR_ADDRESS", "value": "$(LWS_LEADER_ADDRESS):8482"},
        {"name": "PLACE", "value": "$(KR_KFP_WORK)/x $(HOME) $(LATER) $$(PLACE)"},
        {"name": "LATER", "value": "later"},
        {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "INDEX", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{LABEL}/worker-index']"}}},
        {"name": "LWS_GROUP_SIZE", "value": "99"},
    ]
    limits = {"limits": {"google.com/tpu": "4"}}
    kit.create(["python3", "-c", DUMP], args=["$(LATER)"], hosts=2, env=env, resources=limits)
    _, pod = kit.pods(2)
    folder = str(kit.folder(pod))
    assert environment(kit, pod) == {
        "LWS_LEADER_ADDRESS": "127.0.0.1",
        "LWS_GROUP_SIZE": "2",
        "LWS_WORKER_INDEX": "1",
        "TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.1",
        "TPU_WORKER_ID": "1",
        "TPU_NAME": "train-0",
        "TPU_PROCESS_ADDRESSES": "127.0.0.1:8476,127.0.0.1:8477",
        "TPU_PROCESS_PORT": "8477",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:8482",
        "PLACE": f"{folder}/work/x $(HOME) $(LATER) $(PLACE)",
        "LATER": "later",
        "ME": "train-0-1",
        "INDEX": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "KR_KFP_DEVICES": "4",
        "KR_KFP_LOCAL": "1",
        "KR_KFP_PIP_LOCK": f"{kit.root}/train/pip.lock",
        "KR_KFP_POD_UID": pod["metadata"]["uid"],
        "KR_KFP_TERMINATION_LOG": f"{folder}/termination-log",
        "KR_KFP_WORK": f"{folder}/work",
        "KR_KFP_ARTIFACTS": f"{folder}/artifacts",
        "PWD": f"{folder}/cwd",
    }


def test_the_launchers_environment_reaches_hosts(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was when the group was made, with bytes that are no text, and with paths that hold elsewhere."""
    monkeypatch.setenv("ODD", "a\udce4b")
    monkeypatch.setenv("PYTHONPATH", f"tests{os.pathsep}{REPOSITORY}")
    monkeypatch.chdir(REPOSITORY)
    kit.create(["python3", "-c", DUMP])
    monkeypatch.setenv("ODD", "changed")
    (pod,) = kit.pods()
    found = environment(kit, pod)
    assert found["ODD"] == "a\udce4b"
    assert found["PYTHONPATH"] == f"{REPOSITORY}/tests{os.pathsep}{REPOSITORY}"


def test_kr_kfp_is_found_where_the_launcher_found_it(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that has kr_kfp by its working folder alone still gets a supervisor and hosts that have it."""
    monkeypatch.delenv("PYTHONPATH")
    code = "import kr_kfp, sys, time; print(kr_kfp.__file__, sys.executable, flush=True); time.sleep(1000)"
    kit.create(["python3", "-c", code])
    (pod,) = kit.pods()
    expected = f"{REPOSITORY}/kr_kfp/__init__.py {sys.executable}\n".encode()
    until(lambda: kit.cluster.read_log(pod) == expected)
