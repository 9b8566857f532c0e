"""Check manifests against the LeaderWorkerSet CRD of the real LWS, closed against unknown fields.

An API server prunes fields that a schema does not know and says nothing; here they are errors, since a misspelt field
in a builder is a bug. Run as ``python -m tests.crd CRD.yaml`` this file renews ``tests/data/lws-crd-v0.9.0.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import jsonschema.validators
import yaml

__all__ = ["LWS_VERSION", "close", "convert", "schema", "validate"]

Json = dict[str, Any]

LWS_VERSION = "v0.9.0"
DATA = Path(__file__).parent / "data" / f"lws-crd-{LWS_VERSION}.json"

_OF_ONE = ("items", "additionalProperties")
_OF_MANY = ("allOf", "anyOf", "oneOf")

# What an API server knows of metadata, which a CRD leaves open (apimachinery meta/v1 types.go, ObjectMeta).
_METADATA: Json = {
    "type": "object",
    "properties": {
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
        "generateName": {"type": "string"},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "name": {"type": "string"},
        "namespace": {"type": "string"},
        "finalizers": {"type": "array", "items": {"type": "string"}},
        "ownerReferences": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["apiVersion", "kind", "name", "uid"],
                "properties": {
                    "apiVersion": {"type": "string"},
                    "blockOwnerDeletion": {"type": "boolean"},
                    "controller": {"type": "boolean"},
                    "kind": {"type": "string"},
                    "name": {"type": "string"},
                    "uid": {"type": "string"},
                },
            },
        },
        "resourceVersion": {"type": "string"},
        "uid": {"type": "string"},
    },
}


def convert(crd: Mapping[str, Any]) -> Json:
    """Take the schema of the stored version out of a CustomResourceDefinition, without its texts."""
    (version,) = [v for v in crd["spec"]["versions"] if v["storage"]]
    found = _each(version["schema"]["openAPIV3Schema"], _without_description)
    return {"group": crd["spec"]["group"], "version": version["name"], "kind": crd["spec"]["names"]["kind"], **found}


def close(node: Json) -> Json:
    """Refuse unknown fields wherever fields are listed, and read Kubernetes' own keywords."""
    return _each(node, _closed)


@cache
def schema() -> Json:
    """Load the closed schema of a LeaderWorkerSet as it is created."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    group, version, kind = (data.pop(key) for key in ("group", "version", "kind"))
    data["properties"]["metadata"] = _METADATA
    data["properties"]["apiVersion"] = {"const": f"{group}/{version}"}
    data["properties"]["kind"] = {"const": kind}
    data["required"] = ["apiVersion", "kind", "metadata", "spec"]
    return close(data)


def validate(manifest: Json) -> list[str]:
    """List all that is wrong with a LeaderWorkerSet; nothing if it is right.

    Returns:
        Sentences that begin with the field's path, such as ``spec.leaderWorkerTemplate.size: ...``, sorted by path.
    """
    errors = sorted(_Validator(schema()).iter_errors(manifest), key=lambda e: [str(part) for part in e.absolute_path])
    return [f"{_path(error)}: {error.message}" for error in errors]


def _each(node: Json, change: Callable[[Json], Json]) -> Json:
    """Rebuild a schema from its leaves; only places that hold schemas are followed, not defaults or examples."""
    out = dict(node)
    if "properties" in node:
        out["properties"] = {name: _each(inner, change) for name, inner in node["properties"].items()}
    for key in _OF_ONE:
        if isinstance(node.get(key), dict):
            out[key] = _each(node[key], change)
    for key in _OF_MANY:
        if key in node:
            out[key] = [_each(inner, change) for inner in node[key]]
    return change(out)


def _without_description(node: Json) -> Json:
    return {key: value for key, value in node.items() if key != "description"}


def _closed(node: Json) -> Json:
    open_fields = node.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in node
    if "properties" in node and not open_fields:
        node["additionalProperties"] = False
    if node.get("x-kubernetes-int-or-string"):
        node["type"] = ["integer", "string"]
    if node.get("nullable") and isinstance(node.get("type"), str):
        node["type"] = [node["type"], "null"]
    return node


def _path(error: jsonschema.ValidationError) -> str:
    text = ""
    for part in error.absolute_path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "(object)"


def _unique_keys(
    _validator: object, keys: list[str], instance: object, schema: Json
) -> Iterator[jsonschema.ValidationError]:
    """Refuse two entries of a list with the same keys, as an API server does: two variables of one name."""
    fields = schema["items"]["properties"]
    seen = set()
    for entry in instance if isinstance(instance, list) else []:
        key = tuple(str(entry.get(name, fields[name].get("default"))) for name in keys)
        if key in seen:
            yield jsonschema.ValidationError(f"there are two entries with {', '.join(keys)} = {', '.join(key)}")
        seen.add(key)


_Validator = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"x-kubernetes-list-map-keys": _unique_keys}
)


def main(arguments: list[str]) -> int:
    """Write the schema of a CRD file."""
    if len(arguments) != 1:
        print("usage: python -m tests.crd CRD.yaml", file=sys.stderr)
        return 2
    crd = yaml.safe_load(Path(arguments[0]).read_text(encoding="utf-8"))
    DATA.write_text(json.dumps(convert(crd), separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
