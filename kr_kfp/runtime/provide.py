"""The ``provide`` verb: an init container of the launcher's image brings kr_kfp to the training container.

A training image then needs only Python, and launcher and runner cannot differ.
"""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["main"]


def main(folder: str) -> int:
    """Copy this package into ``folder``, which is then on the training container's PYTHONPATH."""
    package = Path(__file__).resolve().parent.parent
    shutil.copytree(
        package, Path(folder) / package.name, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    return 0
