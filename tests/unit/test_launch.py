"""What the launch verb puts together in a KFP pod."""

from __future__ import annotations

from typing import Any

import pytest

from kr_kfp.errors import DeclarationError
from kr_kfp.runtime.launch import make_launch
from kr_kfp.spec.step import StepSpec
from kr_kfp.testing import FakeClock, FakeCluster

Json = dict[str, Any]

STEP = StepSpec(name="train", backend="lws", hosts=2, image="python:3.12")
POD: Json = {
    "metadata": {
        "name": "p",
        "uid": "l1",
        "labels": {"pipeline/runid": "r1", "team": "vision"},
        "annotations": {
            "workflows.argoproj.io/node-name": "digits(0).root(0).it(1:x:2).train(0).executor(1)",
            "kr-kfp.dev/source": "train.py:7",
        },
        "ownerReferences": [
            {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "w1", "controller": True}
        ],
    },
    "spec": {
        "serviceAccountName": "trainer",
        "containers": [{"name": "main", "image": "python:3.12", "securityContext": {"runAsUser": 1}}],
    },
}


def launched(pod: Json | None, config: Json | None = None) -> Any:
    cluster = FakeCluster(FakeClock(), pod=pod)
    executor_input: Json = {"outputs": {"outputFile": "/tmp/x/task/out.json"}}
    return make_launch(STEP, cluster, (("python3",), executor_input, config or {}), {})


def test_in_a_kfp_pod() -> None:
    """Owner, identity, source and what is inherited come from the launcher's own pod."""
    launch = launched(POD)
    assert launch.owners == ({"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w", "uid": "w1"},)
    assert launch.identity == "r1/digits(0).root(0).it(1:x:2).train(0)"
    assert launch.inherited.pod == {"serviceAccountName": "trainer"}
    assert launch.inherited.container == {"securityContext": {"runAsUser": 1}}
    assert launch.inherited.labels == {"team": "vision"}
    assert launch.inherited.told == ("service account trainer", "security context", "label team")


def test_outside_of_a_pod() -> None:
    """Nothing is owned and nothing inherited."""
    launch = launched(None)
    assert launch.owners == ()
    assert launch.inherited.told == ()


def test_all_problems_of_task_and_pod_at_once() -> None:
    """What collides in the task's settings and what is wrong on the own pod are told together."""
    main = {"name": "main", "image": "python:3.12", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {**POD, "spec": {"containers": [main], "activeDeadlineSeconds": 60}}
    with pytest.raises(DeclarationError) as caught:
        launched(pod, {"env": [{"name": "LWS_WORKER_INDEX", "value": "1"}]})
    assert [problem.path for problem in caught.value.problems] == [
        "env 'LWS_WORKER_INDEX'",
        "resource 'nvidia.com/gpu'",
        "set_timeout",
    ]
