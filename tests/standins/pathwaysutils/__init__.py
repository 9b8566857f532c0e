"""Stands in for pathwaysutils beside the servers of ``tests/standins/pathways``: asks the proxy for devices.

The real one makes JAX speak to the proxy. Here JAX gets as many CPU devices as the proxy tells of.
"""

from __future__ import annotations

import json
import os
import socket
import time
from typing import Any

import jax

__all__ = ["end", "initialize", "report"]

_NAMES = (
    "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS",
    "JAX_BACKEND_TARGET",
    "JAX_PLATFORMS",
    "PATHWAYS_HEAD",
    "XCLOUD_ENVIRONMENT",
)

config: Any = jax.config

report: dict[str, Any] = {}
"""What all servers told of themselves, and what this process was given."""


def initialize() -> None:
    """Ask the proxy for the devices of all workers.

    Raises:
        ValueError: If it cannot be reached, or has not all of them.
    """
    if config.jax_platforms != "proxy":
        msg = f"jax_platforms is {config.jax_platforms!r}"
        raise ValueError(msg)
    found = _ask({"kind": "devices"})
    if "error" in found:
        raise ValueError(found["error"])
    report.update(found, client={name: os.environ[name] for name in _NAMES})
    config.update("jax_platforms", "cpu")
    config.update("jax_num_cpu_devices", found["devices"])


def end(who: str, index: int = 0) -> None:
    """Let a server end with exit code 1: ``proxy``, ``manager``, or the ``worker`` of this number."""
    _ask({"kind": "end", "who": who, "index": index})


def _ask(message: dict[str, Any]) -> dict[str, Any]:
    host, _, port = os.environ["JAX_BACKEND_TARGET"].removeprefix("grpc://").rpartition(":")
    deadline = time.monotonic() + float(os.environ["PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS"])
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(json.dumps(message).encode() + b"\n")
                answer: dict[str, Any] = json.loads(connection.makefile().readline() or "{}")
                return answer
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
