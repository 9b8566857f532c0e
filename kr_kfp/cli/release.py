"""The release file of LeaderWorkerSet: read from a path or URL, and checked."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from kr_kfp.cli.target import TargetError
from kr_kfp.cluster.kube_admin import KINDS
from kr_kfp.errors import DeclarationError
from kr_kfp.spec.release import check_release

__all__ = ["read_release"]

_SECONDS = 60.0
_LARGEST = 20_000_000
"""Bytes; the file of 0.9.0 has 2.5 million."""


def read_release(place: str) -> tuple[list[dict[str, Any]], str]:
    """Read and check the file.

    Args:
        place: Its path, or its address, which has to begin with ``https://``: there is no checksum to check it with.

    Returns:
        Its objects, and its SHA-256 for people to compare.

    Raises:
        TargetError: If it cannot be read.
        DeclarationError: If it is not the release's file; lists everything that is wrong with it.
    """
    raw = _load(place)
    try:
        documents = [d for d in yaml.load_all(raw, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if d is not None]
    except yaml.YAMLError as problem:
        msg = f"--lws {place} is not YAML: {' '.join(str(problem).split())}"
        raise TargetError(msg) from problem
    problems = check_release(documents, KINDS)
    if problems:
        subject = f"--lws {place}"
        raise DeclarationError(subject, problems)
    return documents, hashlib.sha256(raw).hexdigest()


def _load(place: str) -> bytes:
    try:
        if not place.startswith("https://"):
            return Path(place).read_bytes()
        with urllib.request.urlopen(place, timeout=_SECONDS) as answer:  # noqa: S310 - https only
            raw: bytes = answer.read(_LARGEST)
            return raw
    except (OSError, ValueError) as problem:
        reason = problem.reason if isinstance(problem, urllib.error.URLError) else problem
        msg = f"--lws {place} cannot be read: {reason}. Give a file, an https:// address, or none"
        raise TargetError(msg) from problem
