"""The release file of LeaderWorkerSet: what is taken, and everything that is wrong with what is not."""

from __future__ import annotations

import copy
import json
from typing import Any

from kr_kfp.spec.release import _SCHEMA, CRD, RELEASE, check_release, crd_digest, labelled
from tests.crd import DATA

Json = dict[str, Any]
KINDS = ("CustomResourceDefinition", "Deployment", "Namespace")
FIX = f"Fix: Take the release's own file: {RELEASE}"


def schema() -> Json:
    """Give the schema of 0.9.0, which the data of the tests hold."""
    data: Json = json.loads(DATA.read_text(encoding="utf-8"))
    return {key: value for key, value in data.items() if key not in ("group", "version", "kind")}


def crd(given: Json) -> Json:
    """Build the CRD with a schema."""
    versions = [{"name": "v1", "served": True, "schema": {"openAPIV3Schema": given}}]
    return {"apiVersion": "v1", "kind": KINDS[0], "metadata": {"name": CRD}, "spec": {"versions": versions}}


def deployment(image: str) -> Json:
    """Build the controller's Deployment."""
    pod = {"spec": {"containers": [{"name": "manager", "image": image}]}}
    return {"apiVersion": "apps/v1", "kind": KINDS[1], "metadata": {"name": "manager"}, "spec": {"template": pod}}


def problems(*documents: Any) -> list[str]:
    """Check a file."""
    return [str(problem) for problem in check_release(documents, KINDS)]


def test_the_schema_is_that_of_the_go_module() -> None:
    """The pinned digest is that of the CRD of v0.9.0, whose texts do not count."""
    assert crd_digest(schema()) == _SCHEMA
    described = copy.deepcopy(schema())
    described["properties"]["spec"]["description"] = "a text"
    assert crd_digest(described) == _SCHEMA


def test_a_field_named_description_counts() -> None:
    """Only texts are left out."""
    assert crd_digest({"properties": {"description": {"type": "string"}}}) != crd_digest({"properties": {}})


def test_the_release_is_taken_from_any_mirror() -> None:
    """The image's registry and digest may be any, its tag may not."""
    assert problems(crd(schema()), deployment("mirror:5000/lws:v0.9.0")) == []
    assert problems(crd(schema()), deployment("lws:v0.9.0@sha256:00")) == []


def test_all_that_is_wrong_is_listed() -> None:
    """One message has every problem, each with the way to the right file."""
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}
    changed = schema()
    del changed["properties"]["status"]
    assert problems("text", job, crd(changed), deployment("mirror:5000/lws@sha256:00")) == [
        f"document 1: is no Kubernetes object with apiVersion, kind and metadata.name. {FIX}",
        f"Job x: is of a kind that no release of LeaderWorkerSet has. {FIX}",
        f"CustomResourceDefinition {CRD}: its schema of v1 is not that of 0.9.0. {FIX}",
        f"Deployment manager, image: 'mirror:5000/lws@sha256:00' is not tagged v0.9.0. {FIX}",
    ]


def test_an_empty_file_is_no_release() -> None:
    """CRD and controller have to be there."""
    assert problems() == [
        f"CustomResourceDefinition: there is no {CRD}. {FIX}",
        f"Deployment: there is no controller. {FIX}",
    ]


def test_objects_get_the_label() -> None:
    """An object of the file is labelled, its other labels stay, the file's own object is not touched."""
    given = {"kind": "Namespace", "metadata": {"name": "a", "labels": {"app.kubernetes.io/managed-by": "x", "b": "c"}}}
    kept = copy.deepcopy(given)
    assert labelled(given)["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "kr-kfp", "b": "c"}
    assert given == kept
