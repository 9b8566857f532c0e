"""What the API server and LeaderWorkerSet's webhooks say to manifests: kr_kfp's own, and wrong ones."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.step import Secret, StepSpec
from tests import crd
from tests.cluster.groups import HOLD, container, group
from tests.cluster.rest import ApiError, Json, Rest
from tests.cluster.space import Space

LAUNCH = Launch(
    name="train-0123456789",
    run="run-1",
    task="p-x.root.train",
    identity="run-1/p-x.root.train",
    holder="holder-uid",
    payload=("first", "second"),
    checkpoint_dir="gs://bucket/checkpoints",
)

CPU = StepSpec(name="train", backend="lws", image="python:3.12", hosts=4)
SLICE = replace(CPU, shape=resolve("v5litepod-16"))
SHAPES = {
    "cpu": CPU,
    "one-host": replace(CPU, hosts=1),
    "slice": SLICE,
    "two-slices": replace(SLICE, hosts=8, slices=2),
    "gpu": replace(CPU, shape=resolve("h100x8"), hosts=2),
    "env": replace(CPU, env=(("PLAIN", "$(NOT) $$"), ("KEY", Secret("keys", "token")))),
}
each_shape = pytest.mark.parametrize("step", SHAPES.values(), ids=SHAPES)

TASK_CONFIG: Json = {
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}],
    "nodeSelector": {"zone": "a"},
    "resources": {"limits": {"memory": "64Gi", "cpu": "8"}, "requests": {"memory": "32Gi"}},
    "tolerations": [{"key": "team", "operator": "Equal", "value": "ml", "effect": "NoSchedule"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
}


def test_committed_schema_is_the_served_one(admin: Rest) -> None:
    """The schema that unit tests check manifests with is the one of the LeaderWorkerSet that runs here."""
    name = "leaderworkersets.leaderworkerset.x-k8s.io"
    served = crd.convert(admin.get("customresourcedefinitions", None, name))
    assert served == json.loads(crd.DATA.read_text(encoding="utf-8"))


@each_shape
def test_manifest_is_accepted_strictly(space: Space, step: StepSpec) -> None:
    """Every kind of group that kr_kfp makes passes schema, strict field check and webhooks."""
    manifest = build(step, replace(LAUNCH, task_config=TASK_CONFIG))
    accepted = space.rest.create("leaderworkersets", space.name, manifest, query=STRICT)
    assert accepted["spec"]["leaderWorkerTemplate"]["size"] == step.hosts


@each_shape
def test_pods_of_the_template_are_accepted_strictly(space: Space, step: StepSpec) -> None:
    """A group's pod template is a pod that the API server accepts: the group's own schema leaves much unchecked."""
    group_ = build(step, replace(LAUNCH, task_config=TASK_CONFIG))["spec"]["leaderWorkerTemplate"]
    for template in (group_["workerTemplate"], group_.get("leaderTemplate") or group_["workerTemplate"]):
        pod = {**template, "metadata": {**template["metadata"], "name": "host"}}
        accepted = space.rest.create("pods", space.name, pod, query=STRICT)
        assert accepted["metadata"]["name"] == "host"


STRICT = "?dryRun=All&fieldValidation=Strict"
"""Nothing is made, and a field that does not exist is an error instead of dropped."""


def _wrong(**template: Any) -> Json:
    body = group("g", container(HOLD))
    body["spec"]["leaderWorkerTemplate"].update(template)
    return body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_wrong(size=0), "spec.leaderWorkerTemplate.size: Invalid value: 0"),
        (_wrong(restartPolicy="Never"), 'spec.leaderWorkerTemplate.restartPolicy: Unsupported value: "Never"'),
        (
            _wrong(subGroupPolicy={"subGroupSize": 5}),
            "spec.leaderWorkerTemplate.SubGroupPolicy.subGroupSize: Invalid value: 5",
        ),
        ({**_wrong(), "metadata": {"name": "1st"}}, "metadata.name"),
    ],
    ids=["size", "policy", "sub-groups", "name"],
)
def test_wrong_group_is_refused_with_the_fields_path(space: Space, body: Json, message: str) -> None:
    """Schema and webhooks of LeaderWorkerSet refuse what cannot work, and name the field."""
    with pytest.raises(ApiError) as refused:
        space.create_object("leaderworkersets", body)
    assert refused.value.status in {403, 422}
    assert message in refused.value.message


def test_misspelt_field_is_dropped_silently_unless_strict(space: Space) -> None:
    """Without strict checking a field that does not exist vanishes: which is why kr_kfp's tests are strict."""
    body = _wrong(sizes=3)
    made = space.create_object("leaderworkersets", body)
    assert "sizes" not in made["spec"]["leaderWorkerTemplate"]
    with pytest.raises(ApiError, match=r"unknown field \"spec.leaderWorkerTemplate.sizes\""):
        space.rest.create("leaderworkersets", space.name, body, query=STRICT)
