"""Artifact URIs: their parts, and KFP's rules between a URI and the path where its files lie on a host.

Pure and standard library only. Sources, kubeflow/pipelines 2.17 (commit 7b70c7b95f): the parts of a URI are those of
``backend/src/v2/objectstore/config.go`` (``bucketPattern``); local paths those of ``sdk/python/kfp/dsl/types/
artifact_types.py`` (``_get_path``, ``convert_local_path_to_remote_path``). KFP takes a key as it stands: nothing in it
is percent-decoded.
"""

from __future__ import annotations

import functools
import posixpath
import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote

from kr_kfp.errors import Problem, StorageError

__all__ = ["MOUNTS", "Location", "contains", "is_local", "is_managed", "join", "local_path", "parse", "uri_of"]

MOUNTS = {"gs": "/gcs/", "minio": "/minio/", "s3": "/s3/"}
"""Where KFP keeps the local files of each scheme."""

_BUCKET = re.compile(r"([a-z][a-z0-9]*)://([^/?]+)(?:/([^?]*))?(?:\?(.*))?", re.DOTALL)
_UNSAFE = frozenset({"", ".", ".."})
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The parts of a URI that kr_kfp reads and writes.

    Args:
        scheme: ``gs``, ``s3``, ``minio`` or ``file``.
        bucket: The bucket; empty for ``file``.
        key: The object's name or a prefix of names, without slashes at its ends; for ``file`` a path.
        query: KFP's parameters behind ``?``, such as ``region``, in their order.
    """

    scheme: str
    bucket: str
    key: str
    query: tuple[tuple[str, str], ...] = ()

    @property
    def is_file(self) -> bool:
        """Whether this is a path of this machine."""
        return self.scheme == "file"

    @property
    def root(self) -> str:
        """The bucket's URI, ``<scheme>://<bucket>``."""
        return f"{self.scheme}://{self.bucket}"


def is_local(uri: str) -> bool:
    """Tell whether a URI is a path of this machine: ``file://`` or no scheme at all (kfp.local's are plain paths)."""
    return bool(uri) and (uri.startswith("file://") or not _SCHEME.match(uri))


def is_managed(uri: str, *, workspace: bool = False) -> bool:
    """Tell whether kr_kfp moves the data of a URI.

    ``oci://`` images are mounted by KFP itself, and workspace artifacts lie on a volume that every pod mounts.

    Args:
        uri: An artifact's URI.
        workspace: Whether its metadata say ``_kfp_workspace`` (kfp/dsl/types/artifact_types.py, ``_get_path``).
    """
    if workspace or not uri:
        return False
    return is_local(uri) or uri.partition("://")[0] in MOUNTS


@functools.lru_cache(maxsize=64)  # an artifact's URI is asked for with each of its files
def parse(uri: str) -> Location:
    """Take a URI apart.

    Raises:
        StorageError: If kr_kfp does not move data of such URIs, if there is no bucket, or if the key has a part that
            is empty, ``.`` or ``..``, which could lead out of its folder.
    """
    if is_local(uri):
        path = unquote(uri.removeprefix("file://").removeprefix("localhost")) if uri.startswith("file://") else uri
        return Location(scheme="file", bucket="", key=path)
    found = _BUCKET.fullmatch(uri)
    if found is None or found[1] not in MOUNTS:
        known = ", ".join(f"{scheme}://<bucket>/<key>" for scheme in sorted(MOUNTS))
        raise StorageError([Problem(uri or "''", "is not a URI that kr_kfp can read or write.", f"use {known}")])
    key = (found[3] or "").strip("/")
    if key and not _UNSAFE.isdisjoint(key.split("/")):
        raise StorageError([Problem(uri, "has a part that is empty, '.' or '..'.", "name the object without it")])
    query = tuple(parse_qsl(found[4] or "", keep_blank_values=True))
    return Location(scheme=found[1], bucket=found[2], key=key, query=query)


def join(uri: str, *parts: str) -> str:
    """Append path parts to a URI; its query stays at the end."""
    path, mark, query = (uri, "", "") if is_local(uri) else uri.partition("?")
    return "/".join([path.rstrip("/"), *(part.strip("/") for part in parts)]) + mark + query


def contains(prefix: str, uri: str) -> bool:
    """Tell whether a URI is a prefix or lies below it, by whole names: ``gs://b/a`` holds ``a/x``, but not ``ab``.

    A local path with ``..`` lies below nothing.

    Raises:
        StorageError: If kr_kfp does not move data of such URIs.
    """
    outer, inner = parse(prefix), parse(uri)
    if (outer.scheme, outer.bucket) != (inner.scheme, inner.bucket) or ".." in inner.key.split("/"):
        return False
    above = outer.key.rstrip("/")
    return not above or inner.key == above or inner.key.startswith(f"{above}/")


def local_path(uri: str, *, root: str = "") -> str:
    """Give the path where KFP's executor looks for an artifact: ``gs://b/k`` is ``/gcs/b/k``.

    Args:
        uri: A URI that kr_kfp manages. A query stays in the path, as in KFP.
        root: A folder that KFP's mount points are put under, for hosts that may not write to ``/``.

    Raises:
        StorageError: If kr_kfp does not move data of such URIs.
    """
    location = parse(uri)
    if location.is_file:
        return location.key
    return root.rstrip("/") + MOUNTS[location.scheme] + uri.partition("://")[2]


def uri_of(path: str, *, root: str = "") -> str:
    """Give the URI of a local path, the other way round; a path that is under no mount point stays as it is."""
    for scheme, mount in MOUNTS.items():
        prefix = root.rstrip("/") + mount
        if path.startswith(prefix) and posixpath.normpath(path).startswith(prefix):
            return f"{scheme}://{path.removeprefix(prefix)}"
    return path
