"""Which kr_kfp a step installs where its image has none: the one that the author has (PEP 610).

An index release and a VCS address are the same everywhere and go into the compiled command. A folder or wheel of the
author's machine is not: the command then names the release of that version, and the environment variable
KR_KFP_PACKAGE, which the bootstrap script prefers, brings a wheel to local runs only.
"""

from __future__ import annotations

import atexit
import importlib.metadata
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse
from urllib.request import url2pathname

import kr_kfp
from kr_kfp.authoring.wheel import pack_wheel

__all__ = ["PACKAGE_ENV", "Package", "author_package", "from_direct_url", "offer_local_package"]

DISTRIBUTION = "kr-kfp"
PACKAGE_ENV = "KR_KFP_PACKAGE"
"""What pip installs in local runs; read by :mod:`kr_kfp.runtime.bootstrap`'s script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """Where kr_kfp comes from.

    Args:
        requirement: A pip requirement that means the same on every machine.
        local: A folder or wheel on this machine, empty if there is none.
    """

    requirement: str
    local: str = ""


def from_direct_url(version: str, direct_url: dict[str, Any] | None) -> Package:
    """Tell where a distribution came from.

    Args:
        version: Its version.
        direct_url: Its ``direct_url.json`` (PEP 610), None where it came from an index.
    """
    release = f"{DISTRIBUTION}=={version}"
    if direct_url is None:
        return Package(requirement=release)
    url = str(direct_url.get("url", ""))
    vcs = direct_url.get("vcs_info")
    if vcs:
        subdirectory = direct_url.get("subdirectory")
        suffix = f"#subdirectory={subdirectory}" if subdirectory else ""
        return Package(requirement=f"{DISTRIBUTION} @ {vcs['vcs']}+{url}@{vcs['commit_id']}{suffix}")
    if url.startswith("file:"):
        return Package(requirement=release, local=url2pathname(urlparse(url).path))
    return Package(requirement=f"{DISTRIBUTION} @ {url}" if url else release)


@cache
def author_package() -> Package:
    """Tell where the kr_kfp of this process came from."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        # Not installed at all: a checkout on the Python path.
        root = Path(kr_kfp.__file__).resolve().parent.parent
        local = str(root) if (root / "pyproject.toml").is_file() else ""
        return Package(requirement=f"{DISTRIBUTION}=={kr_kfp.__version__}", local=local)
    text = distribution.read_text("direct_url.json")
    return from_direct_url(distribution.version, json.loads(text) if text else None)


def offer_local_package() -> None:
    """Tell local runs of this process where kr_kfp is, unless the user said so already.

    kfp.local starts each step in an empty venv by default and hands its own environment on. A wheel is offered as it
    is; a folder as a wheel of the package that this process runs, which lives as long as the process.
    """
    if PACKAGE_ENV in os.environ:
        return
    local = Path(author_package().local or os.devnull)
    if local.is_file():
        os.environ[PACKAGE_ENV] = str(local)
    elif local.is_dir():
        os.environ[PACKAGE_ENV] = _own_wheel()


@cache
def _own_wheel() -> str:
    folder = tempfile.mkdtemp(prefix="kr-kfp-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(pack_wheel(Path(kr_kfp.__file__).resolve().parent, DISTRIBUTION, kr_kfp.__version__, Path(folder)))
