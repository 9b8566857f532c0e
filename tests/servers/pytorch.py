"""PyTorch for tests: an installed one, else Debian's, which is made for CPUs and has gloo, without installing it.

PyPI's wheels for Linux hold or require gigabytes of CUDA. apt chooses and fetches Debian's packages and checks them by
the archive's signature; they are unpacked into the user's cache. What apt keeps lies in folders of its own meanwhile:
the system's packages and lists of them are read at most, and root is not needed.

``python -m tests.servers.pytorch`` does so ahead of the tests: half a minute.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.places import digest_of
from tests.servers.build import BuildError, kept

__all__ = ["environment", "reason"]

_PYTHONS = {"bookworm": (3, 11), "trixie": (3, 13)}
"""The releases of Debian on which this was tried, and the Python that python3-torch is built for there."""

_MODULES = ("torch", "torchgen", "numpy", "sympy", "mpmath")
"""What Python shall find there: the NumPy that this PyTorch was built with, and what the tests do not need otherwise."""

_OURS = re.compile(r"Package: (libtorch.*|python3-(torch|numpy|sympy|mpmath))$", re.MULTILINE)
"""Packages that are fetched though they may be installed: the Python that runs the tests may not see them."""

_UNUSED = ("usr/include", "usr/share", "usr/lib/libtorch-test")
"""A sixth of what is unpacked."""

_SETTINGS = """\
#clear APT::Update;
APT::Install-Recommends "false";
APT::Keep-Downloaded-Packages "true";
APT::Sandbox::User "root";
Acquire::Languages "none";
Debug::NoLocking "true";
Dir::Cache "{place}";
Dir::Cache::Archives "{place}/archives";
Dir::State::Lists "{place}/lists";
Dir::State::Status "{place}/status";
"""
"""apt's settings beside the system's, such as proxies: folders of our own, which apt's own user may not enter; so neither
the system's lock (which is root's) nor commands that tell the system of new lists."""


def reason() -> str:
    """Say why there can be no PyTorch here; empty if there can."""
    if importlib.util.find_spec("torch"):
        return ""
    given = sys.version_info[:2]
    wanted = _PYTHONS.get(_release())
    if wanted == given and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        return ""
    system = f"{_release() or sys.platform} with Python {given[0]}.{given[1]}"
    known = " and ".join(f"{name} with Python {major}.{minor}" for name, (major, minor) in _PYTHONS.items())
    return f"no torch is installed, and Debian's fits {known}, not {system}: install torch to run this"


def environment() -> dict[str, str]:
    """Give the environment in which Python imports PyTorch, fetched if need be.

    Raises:
        BuildError: If apt fails, or what it brought cannot be imported.
    """
    # The loopback's name: gloo listens at the address of this machine's name otherwise.
    loopback = {"GLOO_SOCKET_IFNAME": next(name for _, name in socket.if_nameindex() if name.startswith("lo"))}
    if importlib.util.find_spec("torch"):
        return loopback
    decides = (Path(__file__), _release(), sysconfig.get_config_var("SOABI"))
    return loopback | _paths(kept(f"torch-{digest_of(*decides)}", _make))


def _release() -> str:
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _paths(folder: Path) -> dict[str, str]:
    """Give what leads Python and the loader to what is unpacked."""
    here = f"{os.uname().machine}-linux-gnu"
    libraries = [f"usr/lib/{here}", f"lib/{here}", "usr/lib", f"usr/lib/{here}/blas", f"usr/lib/{here}/lapack"]
    paths = {"PYTHONPATH": [folder / "python"], "LD_LIBRARY_PATH": [folder / "root" / name for name in libraries]}
    # Since PyTorch 2.4 the store of env:// takes libuv unless told otherwise; Debian builds without.
    return {"USE_LIBUV": "0"} | {
        name: os.pathsep.join([*map(str, first), *filter(None, [os.environ.get(name)])])
        for name, first in paths.items()
    }


def _make(folder: Path) -> None:
    root, python = folder / "root", folder / "python"
    python.mkdir()
    with tempfile.TemporaryDirectory(dir=folder.parent) as place, ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda package: _run("dpkg-deb", "--extract", package, root), _fetch(Path(place))))
    for name in _UNUSED:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in _MODULES:
        (python / name).symlink_to(Path("../root/usr/lib/python3/dist-packages", name))
    _run(sys.executable, "-c", "import torch.distributed as dist; assert dist.is_gloo_available()", **_paths(folder))


def _fetch(place: Path) -> list[Path]:
    """Let apt fetch PyTorch, and what it needs and this machine does not have, into a folder."""
    for folder in (place / "lists", place / "archives"):
        (folder / "partial").mkdir(parents=True)
    installed = Path("/var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n")
    (place / "status").write_text("\n\n".join(one for one in installed if not _OURS.match(one)), encoding="utf-8")
    settings = place / "apt.conf"
    settings.write_text(_SETTINGS.format(place=place), encoding="utf-8")
    apt = ("apt-get", "--quiet", "--yes", f"--config-file={settings}")
    _run(*apt, "update")
    _run(*apt, "--download-only", "install", "python3-torch", "python3-numpy")
    return sorted(place.glob("archives/*.deb"))


def _run(*command: str | Path, **env: str) -> None:
    done = subprocess.run(command, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        raise BuildError(msg)


if __name__ == "__main__":
    print(reason() or environment())
