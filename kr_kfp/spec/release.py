"""The release file of LeaderWorkerSet (``manifests.yaml`` of its release page), checked before it is installed. Pure.

The file is not part of kr_kfp and its checksum is not published by the project, so it is not claimed here. What is
pinned is the version of the controller's image and the schema of the CRD, as the Go module sigs.k8s.io/lws v0.9.0 has
it (``config/crd/bases``; the Go checksum database vouches for the module).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kr_kfp.errors import Problem
from kr_kfp.names import MANAGED_BY_LABEL
from kr_kfp.spec.rights import MANAGER

__all__ = ["CRD", "RELEASE", "VERSION", "check_release", "crd_digest", "labelled"]

Json = dict[str, Any]

VERSION = "0.9.0"
"""The release that kr_kfp is tested with, and the only one that it installs."""

RELEASE = f"https://github.com/kubernetes-sigs/lws/releases/download/v{VERSION}/manifests.yaml"
"""Where the file is (kubernetes-sigs/lws, "Installation")."""

CRD = "leaderworkersets.leaderworkerset.x-k8s.io"

_SCHEMA = "218fd8b41ac28c1f48eafea3fff7e5a74e54cbbbcb8531925d4251a99b578b0b"
"""SHA-256 of the schema of version v1 in the CRD of 0.9.0, see :func:`crd_digest`."""

_FIX = f"Take the release's own file: {RELEASE}"


def crd_digest(schema: Mapping[str, Any]) -> str:
    """Give the SHA-256 of an ``openAPIV3Schema``: sorted JSON without its ``description`` texts."""
    return hashlib.sha256(json.dumps(_bare(schema), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _bare(value: Any) -> Any:
    """Leave the texts out; a field may be called description too, which is an object then."""
    if isinstance(value, Mapping):
        return {k: _bare(v) for k, v in value.items() if not (k == "description" and isinstance(v, str))}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def check_release(documents: Sequence[Any], kinds: Iterable[str]) -> tuple[Problem, ...]:
    """Name everything that is wrong with the file.

    Args:
        documents: What its YAML holds, empty documents left out.
        kinds: Kinds of objects that can be installed.
    """
    problems = [
        Problem(f"document {n}", "is no Kubernetes object with apiVersion, kind and metadata.name.", _FIX)
        for n, document in enumerate(documents, 1)
        if not _is_object(document)
    ]
    objects = [document for document in documents if _is_object(document)]
    known = set(kinds)
    problems += [
        Problem(f"{o['kind']} {o['metadata']['name']}", "is of a kind that no release of LeaderWorkerSet has.", _FIX)
        for o in objects
        if o["kind"] not in known
    ]
    crds = [o for o in objects if o["kind"] == "CustomResourceDefinition" and o["metadata"]["name"] == CRD]
    if not crds:
        problems.append(Problem("CustomResourceDefinition", f"there is no {CRD}.", _FIX))
    else:
        problems += _check_crd(crds[0])
    return (*problems, *_check_image(objects))


def _is_object(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("metadata"), dict):
        return False
    return all(isinstance(text, str) for text in (value.get("apiVersion"), value.get("kind"))) and isinstance(
        value["metadata"].get("name"), str
    )


def _check_crd(crd: Mapping[str, Any]) -> list[Problem]:
    versions = {v.get("name"): v for v in (crd.get("spec") or {}).get("versions") or ()}
    schema = ((versions.get("v1") or {}).get("schema") or {}).get("openAPIV3Schema") or {}
    if crd_digest(schema) == _SCHEMA:
        return []
    return [Problem(f"CustomResourceDefinition {CRD}", f"its schema of v1 is not that of {VERSION}.", _FIX)]


def _check_image(objects: Iterable[Mapping[str, Any]]) -> list[Problem]:
    """Compare the tag of the controller's image; its registry may be a mirror."""
    deployments = [o for o in objects if o["kind"] == "Deployment"]
    if not deployments:
        return [Problem("Deployment", "there is no controller.", _FIX)]
    problems = []
    for deployment in deployments:
        pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
        for container in pod.get("containers") or ():
            image = str(container.get("image") or "")
            tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
            if tag != f"v{VERSION}":
                where = f"Deployment {deployment['metadata']['name']}, image"
                problems.append(Problem(where, f"{image!r} is not tagged v{VERSION}.", _FIX))
    return problems


def labelled(manifest: Mapping[str, Any]) -> Json:
    """Give an object of the file with the label by which :command:`kr-kfp uninstall` knows it again."""
    metadata = manifest["metadata"]
    labels = {**(metadata.get("labels") or {}), MANAGED_BY_LABEL: MANAGER}
    return {**manifest, "metadata": {**metadata, "labels": labels}}
