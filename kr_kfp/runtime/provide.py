"""The ``provide`` verb: an init container of the launcher's image brings kr_kfp to the training container.

A training image then needs only Python, and launcher and runner cannot differ.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

__all__ = ["main"]


_WITH = ("obstore",)
"""What the runner's transfers need. Its compiled part is for any CPython from 3.11 on (abi3)."""

_IGNORED = shutil.ignore_patterns("__pycache__")


def main(folder: str) -> int:
    """Copy this package into ``folder``, which is then on the training container's PYTHONPATH."""
    own = Path(__file__).resolve().parent.parent
    for package in (own, *map(_folder, _WITH)):
        if package is not None:
            shutil.copytree(package, Path(folder, package.name), ignore=_IGNORED, dirs_exist_ok=True)
    return 0


def _folder(name: str) -> Path | None:
    """Find an installed package; None if it is not there, which a step without remote artifacts does not need."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None
