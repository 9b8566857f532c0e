"""The API server's own word on every shape: dry runs with LeaderWorkerSet's schema, its webhooks and Kubernetes' checks.

The schema of LeaderWorkerSet says little of the pod templates in it, which are looked at when pods are made of them. So
each template is sent as a pod too. Nothing is stored by either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.step import StepSpec
from tests.cluster.rest import ApiError, Json, Rest, path_of
from tests.cluster.space import Space
from tests.shapes import LAUNCH, cases, manifests, representatives

_AT_ONCE = 8
"""Requests at a time."""

_STRICT = "?dryRun=All&fieldValidation=Strict"
"""Nothing is stored, and a field that the server does not know is an error instead of being dropped."""

ENFORCE = "pod-security.kubernetes.io/enforce"
"""Label of a namespace whose pods have to pass a profile."""


def objects(manifest: Json) -> Iterator[tuple[str, str, Json]]:
    """Give what a manifest asks the server to take: resource, what it is, object."""
    yield "leaderworkersets", "the group", manifest
    group = manifest["spec"]["leaderWorkerTemplate"]
    for role in ("leaderTemplate", "workerTemplate"):
        if role in group:
            template = group[role]
            named = {**template, "metadata": {**template["metadata"], "name": manifest["metadata"]["name"]}}
            yield "pods", role, named


def complaints(rest: Rest, namespace: str, asked: Iterable[tuple[str, tuple[str, str, Json]]]) -> list[str]:
    """Send dry runs side by side, and give every refusal and warning, each with the name of what was sent."""

    def ask(item: tuple[str, tuple[str, str, Json]]) -> list[str]:
        name, (resource, what, body) = item
        try:
            with rest.open("POST", path_of(resource, namespace) + _STRICT, body) as answer:
                return [f"{name}, {what}: warning: {text}" for text in answer.headers.get_all("Warning") or ()]
        except ApiError as error:
            return [f"{name}, {what}: {error.status} {error.message}"]

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return [text for found in pool.map(ask, asked) for text in found]


def every(shapes: dict[str, Json]) -> list[tuple[str, tuple[str, str, Json]]]:
    """Give all objects of all shapes, each with the name of its shape."""
    return [(name, found) for name, manifest in shapes.items() for found in objects(manifest)]


def test_the_server_takes_every_shape(space: Space) -> None:
    """Every group of the golden matrix and every pod template in it is accepted, without a warning."""
    asked = every(manifests())
    assert len(asked) > 100
    assert complaints(space.rest, space.name, asked) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spec", "leaderWorkerTemplate", "sise"), 4, 'unknown field "spec.leaderWorkerTemplate.sise"'),
        (("spec", "leaderWorkerTemplate", "subGroupPolicy"), {"subGroupSize": 3}, "must be divisible"),
        (("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "nodeSelctor"), {}, "unknown field"),
    ],
    ids=["schema", "webhook", "pod"],
)
def test_the_server_refuses_what_is_wrong(space: Space, path: tuple[str, ...], value: Any, said: str) -> None:
    """A field that does not exist, in the group or its pods, and what LeaderWorkerSet's webhook forbids are refused."""
    shapes = manifests()
    name = next(name for name in shapes if name.startswith("v5p") and name.endswith("-hosts"))
    target = shapes[name]
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    found = complaints(space.rest, space.name, every({name: shapes[name]}))
    assert found
    assert all(said in text for text in found), found


def test_restricted_namespace_takes_every_restricted_layout(space: Space) -> None:
    """Every pod of every layout passes the profile where pod_security asks for it; by default none does."""
    space.rest.patch("namespaces", None, space.name, {"metadata": {"labels": {ENFORCE: "restricted"}}})
    rows = [row for row in representatives() if row.family in ("v5p", "h100")]
    steps = {case.id: case.step() for row in rows for case in cases(row) if case.layout != "pod"}
    steps["cpu"] = StepSpec(name="train", backend="lws", image="python:3.12", hosts=2)
    assert len(steps) == 9
    strict = {name: build(replace(step, pod_security="restricted"), LAUNCH) for name, step in steps.items()}
    assert complaints(space.rest, space.name, every(strict)) == []
    pods = [item for item in every({name: build(step, LAUNCH) for name, step in steps.items()}) if item[1][0] == "pods"]
    refused = complaints(space.rest, space.name, pods)
    assert len(refused) == len(pods)
    assert all('violates PodSecurity "restricted:latest"' in text for text in refused)
