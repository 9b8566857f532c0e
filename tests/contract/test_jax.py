"""What kr_kfp relies on in the installed JAX (kr_kfp.runtime.frameworks)."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax._src import distributed, xla_bridge
from jax._src.clusters import cloud_tpu_cluster

from kr_kfp.cluster.local_env import container_start
from kr_kfp.cluster.local_lws import webhook_pod
from kr_kfp.errors import SetupError
from kr_kfp.runtime import frameworks
from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.launch import Launch, Ports
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.step import StepSpec


def test_initialize_takes_our_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every argument that is given on CPU and GPU is one of ``jax.distributed.initialize``."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:8482")
    monkeypatch.setenv("RANK", "1")
    arguments = frameworks._jax_arguments(4)
    assert arguments == {
        "initialization_timeout": 300,
        "shutdown_timeout_seconds": 300,
        "coordinator_address": "10.0.0.1:8482",
        "num_processes": 4,
        "process_id": 1,
        "cluster_detection_method": "deactivate",
    }
    inspect.signature(jax.distributed.initialize).bind(**arguments)


def test_initialize_detects_on_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On TPU only timeouts are given: JAX finds its place by what LWS sets."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "10.0.0.1:8482")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("KR_KFP_JOIN_TIMEOUT", "60")
    monkeypatch.setenv("KR_KFP_FINISH_GRACE", "0.2")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    assert frameworks._jax_arguments(2) == {"initialization_timeout": 60, "shutdown_timeout_seconds": 1}
    inspect.signature(jax.distributed.initialize).bind(**frameworks._jax_arguments(2))


def test_initialize_arguments_on_the_local_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """With JAX_PLATFORMS=cpu the TPU variables that the local cluster sets too do not matter."""
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert frameworks._jax_arguments(2)["num_processes"] == 2


def test_environment_gives_no_process_count() -> None:
    """JAX reads neither the number of processes nor its own id from the environment: both must be given."""
    names = set(re.findall(r"environ(?:\.get\(|\[)\s*['\"](\w+)['\"]", inspect.getsource(distributed)))
    assert names == {
        "JAX_COORDINATOR_ADDRESS",
        "JAX_COORDINATOR_BIND_ADDRESS",
        "JAX_LOCAL_DEVICE_IDS",
        "JAX_PARTITION_INDEX",
        "JAX_SLICE_INDEX",
    }


def test_default_timeouts() -> None:
    """The defaults that the docs and kr_kfp's own name are JAX's."""
    parameters = inspect.signature(jax.distributed.initialize).parameters
    assert parameters["initialization_timeout"].default == 300
    assert parameters["shutdown_timeout_seconds"].default == 300


def test_deactivate_is_known() -> None:
    """``cluster_detection_method="deactivate"`` switches detection off."""
    assert "cluster_detection_method != 'deactivate'" in inspect.getsource(distributed)


def test_default_port() -> None:
    """The coordinator's port is the one that JAX itself takes on TPU (jax/_src/clusters/cloud_tpu_cluster.py)."""
    assert f"coordinator_port = '{Ports().jax}'" in inspect.getsource(cloud_tpu_cluster)


def hosts_of(name: str, slices: int) -> list[dict[str, str]]:
    """Give the environment that each host of a TPU group has: ours, LWS's and the kubelet's."""
    shape = resolve(name)
    hosts = shape.hosts * slices
    step = StepSpec(name="train", backend="lws", image="i", shape=shape, hosts=hosts, slices=slices)
    launch = Launch(name="train-x", run="r", task="t", identity="r/t", holder="h", payload=())
    group = build(step, launch)
    pods = [webhook_pod(group, index) for index in range(hosts)]
    for pod in pods:
        pod["metadata"]["uid"] = "u"
    return [container_start(pod, Path("/pod"), launcher_env={}, pip_lock=Path("/lock")).env for pod in pods]


@pytest.mark.parametrize(("name", "slices"), [("v5litepod-16", 1), ("v5p-16", 2), ("v6e-16", 3)])
def test_jax_finds_its_place_on_tpu(name: str, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX's own detection numbers the hosts as we do, slice by slice, and asks no metadata server."""
    cluster = cloud_tpu_cluster.GkeTpuCluster
    monkeypatch.setattr(cloud_tpu_cluster, "get_metadata", None)  # calling it would fail
    envs = hosts_of(name, slices)
    for index, env in enumerate(envs):
        with monkeypatch.context() as here:
            for key in frameworks.MEGASCALE:
                here.delenv(key, raising=False)
            for key, value in env.items():
                here.setenv(key, value)
            before = dict(os.environ)
            with frameworks._one_slice():
                found = (
                    cluster.get_process_id(),
                    cluster.get_process_count(),
                    cluster.get_coordinator_address(timeout_secs=1, override_coordinator_port=None),
                )
            assert dict(os.environ) == before
        assert found == (index, len(envs), "127.0.0.1:8482")
        assert [key in env for key in frameworks.MEGASCALE] == [slices > 1] * 3


def test_backends_are_initialized_tells() -> None:
    """The private question whether JAX has its devices is there, and asking it does not get them (case 14)."""
    assert callable(xla_bridge.backends_are_initialized)
    code = (
        "import jax; from jax._src.xla_bridge import backends_are_initialized as asked; "
        "before = asked(); jax.devices(); print(before, asked())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "False True\n"


def test_tpu_host_without_libtpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libtpu JAX would look for a Job's pods in Kubernetes and say that a token is missing (seen in a pod)."""
    if importlib.util.find_spec("libtpu"):
        monkeypatch.setitem(sys.modules, "libtpu", None)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.setenv("KR_KFP_FRAMEWORK", "jax")
    monkeypatch.setenv("KR_KFP_HOST", "0")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "127.0.0.1:1")
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.raises(SetupError, match=r"libtpu cannot be imported.*Add 'jax\[tpu\]' to packages_to_install"):
        frameworks.start()
