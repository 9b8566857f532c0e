"""What kr_kfp relies on in the installed JAX (kr_kfp.runtime.frameworks)."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys

import jax
import pytest
from jax._src import distributed, xla_bridge

from kr_kfp.runtime import frameworks
from kr_kfp.spec.launch import Ports


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
    from jax._src.clusters import cloud_tpu_cluster

    assert f"coordinator_port = '{Ports().jax}'" in inspect.getsource(cloud_tpu_cluster)


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
