"""What kr_kfp relies on in pathwaysutils and in JAX's IFRT proxy client, with the real packages and no server.

Each case is a process of its own: JAX takes its platforms once.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time

import pytest

from tests.hosts import free_port

JAX, LIB, UTILS = (importlib.metadata.version(name) for name in ("jax", "jaxlib", "pathwaysutils"))

_START = """
from kr_kfp.errors import SetupError
from kr_kfp.runtime import frameworks
try:
    frameworks.start()
except SetupError as problem:
    print("setup:", problem)
"""

_BLOCK = """
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in {names!r} else find(name, *rest)
"""


def run(code: str, **env: str) -> tuple[str, float]:
    """Run a program on the head of a Pathways step whose proxy nobody runs; give its output and seconds."""
    settings = {
        "KR_KFP_PATHWAYS": f"registry.test/server:jax-{JAX}",
        "KR_KFP_PATHWAYS_JAX": JAX,
        "KR_KFP_DEVICES": "16",
        "JAX_PLATFORMS": "proxy",
        "JAX_BACKEND_TARGET": f"grpc://localhost:{free_port()}",
        "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
        "PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS": "1",
    }
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings, **env},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, time.monotonic() - begun


def test_the_real_client_asks_the_proxy() -> None:
    """The package registers the back end, JAX asks at the address, and what it says comes in one error."""
    said, _ = run(_START)
    assert f"kr_kfp: Pathways: jax {JAX}, jaxlib {LIB}, pathwaysutils {UTILS}; " in said
    assert f"servers registry.test/server:jax-{JAX}, made for JAX {JAX}" in said
    assert "setup: JAX found no devices through the Pathways proxy at grpc://localhost:" in said
    assert "Unable to establish connection to ifrt_proxy server" in said


def test_without_pathwaysutils_the_error_is_quick() -> None:
    """The missing package and the mode are named soon, not after the client's patience (case 15)."""
    code = _BLOCK.format(names=("pathwaysutils",)) + _START
    said, seconds = run(code, PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS="3600")
    assert said == (
        "setup: backend='pathways' cannot start: pathwaysutils cannot be imported in this image. "
        "Add pathwaysutils to packages_to_install\n"
    )
    assert seconds < 200


def test_versions_that_do_not_fit() -> None:
    """A skew of versions is told before anything is asked of a server (case 16)."""
    said, seconds = run(
        _START,
        KR_KFP_PATHWAYS="registry.test/server:jax-0.9.0",
        KR_KFP_PATHWAYS_JAX="0.9.0",
        PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS="3600",
    )
    assert said == (
        f"setup: backend='pathways' cannot start: this image has JAX {JAX}, but registry.test/server:jax-0.9.0 is made "
        f"for JAX 0.9.0. Install jax==0.9.0, or give kr_kfp.Pathways(version=...) the tag for JAX {JAX}\n"
    )
    assert seconds < 200


def test_jax_touched_too_early() -> None:
    """Devices that were asked for before are those of this machine; the error says so (case 14)."""
    said, _ = run("import jax; jax.config.update('jax_platforms', 'cpu'); jax.devices()\n" + _START)
    assert said.startswith("setup: JAX had asked for its devices before the step began, by ")


@pytest.mark.parametrize("platforms", ["cpu"])
def test_on_this_machine(platforms: str) -> None:
    """Locally the CPU devices of one process stand for those of all slices, and pathwaysutils changes nothing."""
    said, _ = run(
        _START + "import jax; print(jax.device_count(), jax.process_count(), jax.devices()[0].platform)",
        KR_KFP_LOCAL="1",
        JAX_PLATFORMS=platforms,
        XLA_FLAGS="--xla_force_host_platform_device_count=16",
    )
    assert said.splitlines() == [
        f"kr_kfp: Pathways: jax {JAX}, jaxlib {LIB}, pathwaysutils {UTILS}; in place of servers: CPU devices of this "
        f"process, made for JAX {JAX}",
        "kr_kfp: the function runs once and sees 16 devices",
        "16 1 cpu",
    ]
