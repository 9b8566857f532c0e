"""Pathways before user code: the package that knows the proxy, matching versions, all devices; or one clear error.

Everything that can be wrong is found before the client talks to the proxy, so that a step with a wrong image ends in
seconds and not at the end of the client's patience.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from kr_kfp.errors import SetupError
from kr_kfp.names import PATHWAYS_ENV
from kr_kfp.spec.check_pathways import fits

__all__ = ["check", "start"]

_NEEDED = ("jax", "pathwaysutils")
_PYTHON_IN_TAG = re.compile(r"python[-_](\d+\.\d+)")


def start() -> None:
    """Make the devices of all slices those of this process.

    Raises:
        SetupError: If packages are missing, versions do not fit, or the servers do not give the devices.
    """
    local = os.environ.get("KR_KFP_LOCAL") == "1"
    problems = check(os.environ, lambda name: importlib.util.find_spec(name) is not None)
    if local:
        # One process with as many CPU devices stands for head and workers; what would fail elsewhere is said.
        for problem in problems:
            print(f"kr_kfp: warning: on a cluster this step would fail: {problem}", flush=True)
    elif problems:
        msg = "backend='pathways' cannot start: " + "; ".join(problems)
        raise SetupError(msg)
    if importlib.util.find_spec("jax") is None:
        msg = "backend='pathways', but jax cannot be imported here. Add it to packages_to_install"
        raise SetupError(msg)
    _say_versions(local=local)
    if importlib.util.find_spec("pathwaysutils") is not None:
        _initialize()
    _check_devices(local=local)


def check(env: Mapping[str, str], has: Callable[[str], bool]) -> list[str]:
    """Give everything that is wrong before any server is asked, a sentence each.

    Args:
        env: The environment.
        has: Tells whether a module can be imported.
    """
    missing = [name for name in _NEEDED if not has(name)]
    problems = []
    if missing:
        names = " and ".join(missing)
        problems.append(f"{names} cannot be imported in this image. Add {names} to packages_to_install")
    if env.get("ENABLE_PATHWAYS_PERSISTENCE", "0") not in ("0", "1"):
        # pathwaysutils _initialize.py:57-67
        given = env["ENABLE_PATHWAYS_PERSISTENCE"]
        problems.append(f"ENABLE_PATHWAYS_PERSISTENCE={given!r} is neither '0' nor '1'")
    own, servers = _version("jax"), env.get("KR_KFP_PATHWAYS_JAX", "")
    if own and servers and not fits(own, servers):
        problems.append(
            f"this image has JAX {own}, but {env.get(PATHWAYS_ENV)} is made for JAX {servers}. Install jax=={servers}, "
            f"or give kr_kfp.Pathways(version=...) the tag for JAX {own}"
        )
    python = _PYTHON_IN_TAG.search(env.get("KR_KFP_PATHWAYS_COLOCATED", "").rpartition(":")[2])
    mine = ".".join(map(str, sys.version_info[:2]))
    if python and python[1] != mine:
        # Functions travel pickled (pathwaysutils validators.py:143-233 asks for the same Python).
        image = env["KR_KFP_PATHWAYS_COLOCATED"]
        problems.append(f"this image has Python {mine}, but {image} has Python {python[1]}. Take one for Python {mine}")
    return problems


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _say_versions(*, local: bool) -> None:
    """Print all versions, so that a log alone shows a skew."""
    found = ", ".join(f"{name} {_version(name) or 'absent'}" for name in ("jax", "jaxlib", "pathwaysutils"))
    servers = os.environ.get("KR_KFP_PATHWAYS_JAX") or "a version that the tag does not tell"
    where = "in place of servers: CPU devices of this process" if local else f"servers {os.environ.get(PATHWAYS_ENV)}"
    print(f"kr_kfp: Pathways: {found}; {where}, made for JAX {servers}", flush=True)


def _initialize() -> None:
    try:
        import pathwaysutils

        pathwaysutils.initialize()
    except (ImportError, ValueError, AttributeError) as problem:
        # AttributeError: it patches JAX's internals, which another version may not have.
        msg = f"pathwaysutils {_version('pathwaysutils')} cannot be initialised: {problem}"
        raise SetupError(msg) from problem


def _check_devices(*, local: bool) -> None:
    """Ask for the devices, which connects; fewer than the step's would train on a part of it, unseen."""
    import jax

    wanted = int(os.environ.get("KR_KFP_DEVICES", "0"))
    try:
        devices: list[Any] = jax.devices()
    except RuntimeError as problem:
        target = os.environ.get("JAX_BACKEND_TARGET", "")
        msg = f"JAX found no devices through the Pathways proxy at {target}: {problem}"
        raise SetupError(msg) from problem
    print(f"kr_kfp: the function runs once and sees {len(devices)} devices", flush=True)
    elastic = int(os.environ.get("KR_KFP_PATHWAYS_ELASTIC", "0"))
    if len(devices) < wanted and not local and not elastic:
        msg = f"Pathways gives {len(devices)} devices where the step has {wanted}"
        raise SetupError(msg)
