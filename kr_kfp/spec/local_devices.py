"""XLA CPU devices in place of chips, where a step runs on a machine without them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["environment", "without_tpu"]

_FLAG = "--xla_force_host_platform_device_count"


def environment(env: Mapping[str, str], devices: int) -> dict[str, str]:
    """Give the variables that make JAX count ``devices`` CPU devices.

    Args:
        env: The environment so far; a platform or a device count that the user chose stays.
        devices: Accelerator devices of this host; 0 on CPU, where JAX keeps its single CPU device.
    """
    platforms = env.get("JAX_PLATFORMS", "cpu")
    # No Pathways proxy runs here: the CPU devices of one process stand for those behind it.
    given = {"JAX_PLATFORMS": "cpu" if "proxy" in platforms.split(",") else platforms}
    flags = env.get("XLA_FLAGS", "")
    if devices and _FLAG not in flags:
        given["XLA_FLAGS"] = f"{flags} {_FLAG}={devices}".strip()
    return given


def without_tpu(script: str) -> str:
    """Take the TPU extra out of a pip script: ``jax[tpu]`` becomes ``jax``.

    libtpu is some 200 MB to fetch (0.0.42, 213 MB) and of no use where CPU devices stand for chips.
    """
    return script.replace("jax[tpu]", "jax")
