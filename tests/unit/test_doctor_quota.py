"""Quotas: pods without requests, and accelerators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.doctor_quota import check_quota
from kr_kfp.spec.facts import Finding, Unknown
from tests.unit.test_doctor import WELL
from tests.unit.test_doctor_nodes import step

Json = dict[str, Any]

REFUSED = "and no LimitRange gives defaults: launcher and training pods without requests are refused"


def quota(hard: Json, used: Json | None = None, **spec: Any) -> Json:
    """Build a ResourceQuota."""
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}}


def limits(kind: str = "Container", **given: Json) -> Json:
    """Build a LimitRange as a server gives it."""
    return {"spec": {"limits": [{"type": kind, **given}]}}


def lines(quotas: list[Json], ranges: list[Json] | None = None, *, with_step: bool = False) -> list[Finding]:
    """Check a namespace."""
    facts = replace(WELL, quotas=tuple(quotas), limits=tuple(ranges or ()))
    return list(check_quota(facts, (step(),) if with_step else ()))


def test_no_quota() -> None:
    """Nothing is counted."""
    assert lines([]) == [Finding("quota", "pass", "namespace kubeflow has no quota")]


@pytest.mark.parametrize(
    ("hard", "keys", "fix"),
    [
        ({"cpu": "8"}, "cpu", "defaultRequest for cpu"),
        (
            {"requests.memory": "8Gi", "limits.cpu": "8"},
            "requests.memory, limits.cpu",
            "default and defaultRequest for cpu and memory",
        ),
    ],
)
def test_a_quota_without_defaults_refuses_pods(hard: Json, keys: str, fix: str) -> None:
    """What the quota counts has to come from a LimitRange, since a launcher requests nothing."""
    message = f"quota q counts {keys}, {REFUSED}"
    assert lines([quota(hard)]) == [
        Finding("quota", "fail", message, f"Make a LimitRange of type Container with {fix}")
    ]


@pytest.mark.parametrize(
    ("hard", "spec"),
    [
        ({"pods": "10", "requests.google.com/tpu": "16", "requests.storage": "1Ti"}, {}),
        ({"cpu": "8"}, {"scopes": ["NotBestEffort"]}),
        ({"cpu": "8"}, {"scopes": ["Terminating"]}),
        ({"cpu": "8"}, {"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass"}]}}),
    ],
)
def test_quotas_that_refuse_nobody(hard: Json, spec: Json) -> None:
    """Other resources need not be requested, and scopes leave pods without requests out."""
    assert [found.state for found in lines([quota(hard, **spec)])] == ["pass"]


def test_a_scope_that_holds_for_all() -> None:
    """NotTerminating is every pod without a deadline."""
    assert [found.state for found in lines([quota({"cpu": "8"}, scopes=["NotTerminating"])])] == ["fail"]


def test_defaults_help_where_they_are_given() -> None:
    """A request that has a default is no reason; a default for pods as a whole is none for containers."""
    both = quota({"cpu": "8", "limits.cpu": "8"})
    assert [f.state for f in lines([both], [limits(default={"cpu": "1"}, defaultRequest={"cpu": "1"})])] == ["pass"]
    (found,) = lines([both], [limits(defaultRequest={"cpu": "1"})])
    assert found.message == f"quota q counts limits.cpu, {REFUSED}"
    assert [f.state for f in lines([both], [limits("Pod", default={"cpu": "1"})])] == ["fail"]


def test_limit_ranges_that_may_not_be_listed() -> None:
    """Whether there are defaults is then not known."""
    (found,) = check_quota(replace(WELL, quotas=(quota({"cpu": "8"}),), limits=Unknown("no")))
    assert (found.state, found.message) == (
        "warn",
        "quota q counts cpu; whether a LimitRange gives defaults is not known: no",
    )


@pytest.mark.parametrize(
    ("hard", "used", "state", "message"),
    [
        ("8", "0", "fail", "step train needs 16 google.com/tpu: quota q allows 8"),
        ("32", "20", "warn", "step train needs 16 google.com/tpu: quota q has 12 of 32 left"),
        ("32", "16", "pass", "quota q: pods without requests are not refused"),
    ],
)
def test_accelerators_are_compared(hard: str, used: str, state: str, message: str) -> None:
    """A step that never fits fails, one that does not fit now is a warning."""
    key = "requests.google.com/tpu"
    (found,) = lines([quota({key: hard}, {key: used})], with_step=True)
    assert (found.state, found.message) == (state, message)
