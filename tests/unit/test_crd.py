"""The check of manifests against the real CRD finds what an API server would refuse or silently drop."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.crd import convert, schema, validate

Json = dict[str, Any]

GOOD: Json = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {
        "name": "train-abc",
        "labels": {"a": "b"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}],
    },
    "spec": {
        "replicas": 1,
        "startupPolicy": "LeaderCreated",
        "leaderWorkerTemplate": {
            "size": 4,
            "restartPolicy": "None",
            "workerTemplate": {
                "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                "spec": {
                    "containers": [
                        {
                            "name": "main",
                            "image": "example.test/train:1",
                            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                            "resources": {"limits": {"google.com/tpu": 4, "cpu": "1500m"}},
                            "ports": [{"containerPort": 80}, {"containerPort": 80, "protocol": "UDP"}],
                        }
                    ],
                    "nodeSelector": {"cloud.google.com/gke-tpu-topology": "4x4"},
                    "volumes": [{"name": "v", "emptyDir": {}}],
                },
            },
        },
    },
}


def _template(manifest: Json) -> Json:
    found: Json = manifest["spec"]["leaderWorkerTemplate"]
    return found


def _container(manifest: Json) -> Json:
    found: Json = _template(manifest)["workerTemplate"]["spec"]["containers"][0]
    return found


def test_a_right_manifest_passes() -> None:
    """Quantities may be numbers or texts, maps may have any key."""
    assert validate(GOOD) == []


MAIN = "spec.leaderWorkerTemplate.workerTemplate.spec.containers[0]"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: m.pop("spec"), "(object): 'spec' is a required property"),
        (lambda m: m.update(apiVersion="v1"), "apiVersion: 'leaderworkerset.x-k8s.io/v1' was expected"),
        (
            lambda m: m["metadata"].update(annotatoins={}),
            "metadata: Additional properties are not allowed ('annotatoins' was unexpected)",
        ),
        (
            lambda m: _container(m).update(imagePullPolcy="Always"),
            f"{MAIN}: Additional properties are not allowed ('imagePullPolcy' was unexpected)",
        ),
        (lambda m: _container(m).pop("name"), f"{MAIN}: 'name' is a required property"),
        (lambda m: _template(m).update(size="4"), "spec.leaderWorkerTemplate.size: '4' is not of type 'integer'"),
        (
            lambda m: _template(m).update(restartPolicy="Never"),
            (
                "spec.leaderWorkerTemplate.restartPolicy: 'Never' is not one of "
                "['Default', 'RecreateGroupOnPodRestart', 'RecreateGroupAfterStart', 'None']"
            ),
        ),
        (
            lambda m: _container(m)["env"][0].update(value=1),
            f"{MAIN}.env[0].value: 1 is not of type 'string'",
        ),
        (
            lambda m: _container(m)["env"][1].update(name="A"),
            f"{MAIN}.env: there are two entries with name = A",
        ),
        (
            lambda m: _container(m)["ports"][1].update(protocol="TCP"),
            f"{MAIN}.ports: there are two entries with containerPort, protocol = 80, TCP",
        ),
        (
            lambda m: _container(m)["resources"]["limits"].update({"google.com/tpu": None}),
            f"{MAIN}.resources.limits.google.com/tpu: None is not of type 'integer', 'string'",
        ),
        (
            lambda m: m["metadata"]["labels"].update(a=1),
            "metadata.labels.a: 1 is not of type 'string'",
        ),
        (
            lambda m: m["metadata"]["ownerReferences"][0].pop("uid"),
            "metadata.ownerReferences[0]: 'uid' is a required property",
        ),
    ],
    ids=[
        "no-spec",
        "api-version",
        "misspelt-metadata",
        "misspelt-field",
        "container-without-name",
        "size-as-text",
        "unknown-policy",
        "number-as-env",
        "two-variables-of-one-name",
        "two-ports-by-default-protocol",
        "null-quantity",
        "number-as-label",
        "owner-without-uid",
    ],
)
def test_a_wrong_manifest_is_named(change: Callable[[Json], object], problem: str) -> None:
    """Each mistake gives a sentence that begins with the field's path, and no other field is named."""
    manifest = copy.deepcopy(GOOD)
    change(manifest)
    found = validate(manifest)
    assert problem in found
    # A quantity of a wrong type is told twice: as neither integer nor text, and by each of both.
    assert {line.partition(": ")[0] for line in found} == {problem.partition(": ")[0]}


def test_all_mistakes_are_listed() -> None:
    """Two mistakes give two sentences, in the order of their paths."""
    manifest = copy.deepcopy(GOOD)
    _template(manifest)["size"] = "4"
    manifest["metadata"]["names"] = "x"
    assert [line.partition(":")[0] for line in validate(manifest)] == ["metadata", "spec.leaderWorkerTemplate.size"]


def test_every_listed_object_is_closed() -> None:
    """No object of the schema with named fields takes another one, down to the last leaf."""
    opened = [
        path for path, node in _nodes(schema(), "") if "properties" in node and "additionalProperties" not in node
    ]
    assert opened == []


def test_fields_named_like_keywords_survive() -> None:
    """Only texts of the schema are left out, not a field that is called description."""
    node = {"type": "object", "description": "text", "properties": {"description": {"type": "string"}}}
    crd = {
        "spec": {
            "group": "g",
            "names": {"kind": "K"},
            "versions": [{"name": "v1", "storage": True, "schema": {"openAPIV3Schema": node}}],
        }
    }
    assert convert(crd) == {
        "group": "g",
        "version": "v1",
        "kind": "K",
        "type": "object",
        "properties": {"description": {"type": "string"}},
    }


def _nodes(node: Json, path: str) -> list[tuple[str, Json]]:
    found = [(path, node)]
    for name, inner in node.get("properties", {}).items():
        found += _nodes(inner, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            found += _nodes(node[key], f"{path}[{key}]")
    return found
