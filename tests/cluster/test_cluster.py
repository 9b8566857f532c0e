"""The test cluster itself: it leaves nothing behind, clears what a crash left, and touches nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import requirements
from tests.cluster.cgroups import hierarchies
from tests.cluster.cluster import Cluster, clear
from tests.cluster.groups import container
from tests.cluster.node import NodeSpec
from tests.cluster.places import REPOSITORY, Places
from tests.cluster.processes import Process, spawn, wait_for
from tests.cluster.rest import Rest
from tests.cluster.space import Space


@pytest.fixture
def places(cluster: Cluster) -> Iterator[Places]:
    """Give the place of a second cluster beside the session's; whatever is left of it is removed."""
    second = Places(number=9)
    clear(second)
    yield second
    clear(second)


def _traces(places: Places) -> dict[str, object]:
    """List all that a cluster could leave on this machine, or take from it."""
    output = {
        command: subprocess.run(command.split(), capture_output=True, text=True, check=True).stdout
        for command in ("iptables-save", "ip -oneline link", "ip rule")
    }
    # Counters of packets, and ports of pods of the session's own cluster, change by themselves.
    rules = [line.partition("[")[0] for line in output["iptables-save"].splitlines() if line[:1] in ":-"]
    devices = [line.split()[1].partition("@")[0].strip(":") for line in output["ip -oneline link"].splitlines()]
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    commands = Path("/proc").glob("[0-9]*/cmdline")
    return {
        "rules": sorted(rules),
        # Other test clusters on this machine may come and go.
        "devices": sorted(name for name in devices if name == places.device or not name.startswith("krkfp")),
        "routing": output["ip rule"],
        "mounts": sorted(mount.split()[4] for mount in mounts),
        "cgroups": [str(root / places.cgroup) for root in hierarchies() if (root / places.cgroup).exists()],
        "processes": [path for path in commands if str(places.state) in _read(path)],
        "files": [path for path in (places.state, *map(Path, _WRITTEN)) if path.exists()],
    }


_WRITTEN = ("/var/lib/cni", "/var/lib/kubelet", "/var/log/pods", "/var/log/containers", "/opt/containerd", "/run/netns")
"""Fixed places that kubelet, containerd and network plugins write to."""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_stopped_cluster_leaves_no_trace(places: Places) -> None:
    """After a cluster that ran a pod, this machine is as before: devices, rules, mounts, cgroups, processes, files."""
    before = _traces(places)
    started = Cluster.start([NodeSpec(number=0)], places=places)
    space = Space.create(started, Rest(kubeconfig=places.kubeconfig), "trace")
    pod = {"containers": [container("print('here')", volumeMounts=[])], "restartPolicy": "Never"}
    space.create_object("pods", {"metadata": {"name": "p"}, "spec": pod})
    assert space.first_line("p") == "here"
    during = _traces(places)
    started.stop()
    assert during["cgroups"]
    assert _traces(places) == before


def test_start_clears_what_a_crash_left(places: Places) -> None:
    """A start that was killed in the middle leaves processes; the next start removes them and then works."""
    command = [sys.executable, "-m", "tests.cluster", "up"]
    env = os.environ | {"KR_KFP_CLUSTER_NUMBER": str(places.number), "PYTHONPATH": str(REPOSITORY)}
    starting = subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)
    try:
        wait_for("the first node's container runtime", lambda: any(places.state.glob("node-*/containerd.pid")))
    finally:
        starting.kill()
        starting.communicate()
    orphan = Process.read(places.state / "holder.pid")
    assert orphan is not None
    # What is written down may be lost as well: the cgroup alone tells what is ours.
    (places.state / "holder.pid").unlink()
    started = Cluster.start([NodeSpec(number=0)], places=places)
    assert not orphan.alive()
    assert started.kubectl("get", "nodes", "--output=name") == "node/node-0\n"
    started.stop()


def test_process_is_told_by_its_start(tmp_path: Path) -> None:
    """A process that has the number of a recorded one, but another start, is not that one and gets no signal."""
    process = spawn(["sleep", "60"], tmp_path / "log", os.environ)
    try:
        process.record(tmp_path / "pid")
        assert Process.read(tmp_path / "pid") == process
        other = Process(pid=process.pid, started=process.started - 1)
        other.record(tmp_path / "pid")
        assert Process.read(tmp_path / "pid") is None
        other.signal(signal.SIGKILL)
        assert process.alive()
    finally:
        process.end()
        process.collect()
    assert not process.alive()


def test_missing_go_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Go on the PATH there is no cluster, and the reason says so."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert requirements.reason() == "the cluster is built with Go 1.26 or newer, which is not on the PATH"


def test_old_go_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A Go that is too old for the pinned modules is a reason that names both releases."""
    go = tmp_path / "go"
    go.write_text("#!/bin/sh\necho go1.21.3\n", encoding="utf-8")
    go.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert requirements.reason() == "the cluster is built with Go 1.26 or newer, this is 1.21"
