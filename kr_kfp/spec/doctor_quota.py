"""Quotas against the pods of a run. Pure.

In a namespace whose quota counts cpu or memory, a pod that requests none is refused, unless a LimitRange gives it
defaults (kubernetes ``pkg/quota/v1/evaluator/core/pods.go``, Constraints; Kubernetes, "Resource Quotas"). With
TaskConfig passthrough KFP gives a launcher no requests at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kr_kfp.spec.facts import ADMINISTRATOR, Facts, Finding, Unknown
from kr_kfp.spec.quantities import quantity
from kr_kfp.spec.step import StepSpec

__all__ = ["check_quota"]

_COMPUTE = {
    "cpu": ("requests", "cpu"),
    "memory": ("requests", "memory"),
    "requests.cpu": ("requests", "cpu"),
    "requests.memory": ("requests", "memory"),
    "limits.cpu": ("limits", "cpu"),
    "limits.memory": ("limits", "memory"),
}
"""What a quota may count and a pod then has to say (pods.go, validationSet)."""

_FOR_ALL = "NotTerminating"
"""The one scope that holds for every pod without a deadline; pods that the others are for have to ask for it."""


def check_quota(facts: Facts, steps: Sequence[StepSpec] = ()) -> Iterator[Finding]:
    """Say whether pods would be refused by a quota."""
    quotas, limits, namespace = facts.quotas, facts.limits, facts.account.namespace
    if isinstance(quotas, Unknown):
        yield Finding("quota", "warn", f"quotas are not known: {quotas.why}", ADMINISTRATOR)
        return
    if not quotas:
        yield Finding("quota", "pass", f"namespace {namespace} has no quota")
        return
    found = [*_without_requests(quotas, limits), *_too_small(quotas, steps)]
    names = ", ".join(q["metadata"]["name"] for q in quotas)
    yield from found or [Finding("quota", "pass", f"quota {names}: pods without requests are not refused")]


def _without_requests(
    quotas: Sequence[Mapping[str, Any]], limits: Sequence[Mapping[str, Any]] | Unknown
) -> Iterator[Finding]:
    given = frozenset() if isinstance(limits, Unknown) else _defaults(limits)
    for quota in quotas:
        demanded = [key for key in _hard(quota) if key in _COMPUTE] if _holds_for_all(quota) else []
        missing = [key for key in demanded if _COMPUTE[key] not in given]
        if not missing:
            continue
        name = quota["metadata"]["name"]
        what = f"quota {name} counts {', '.join(missing)}"
        if isinstance(limits, Unknown):
            yield Finding(
                "quota",
                "warn",
                f"{what}; whether a LimitRange gives defaults is not known: {limits.why}",
                ADMINISTRATOR,
            )
            continue
        kinds = sorted({("defaultRequest" if _COMPUTE[key][0] == "requests" else "default") for key in missing})
        compute = sorted({_COMPUTE[key][1] for key in missing})
        message = f"{what}, and no LimitRange gives defaults: launcher and training pods without requests are refused"
        fix = f"Make a LimitRange of type Container with {' and '.join(kinds)} for {' and '.join(compute)}"
        yield Finding("quota", "fail", message, fix)


def _hard(quota: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (quota.get("spec") or {}).get("hard") or {}
    return found


def _holds_for_all(quota: Mapping[str, Any]) -> bool:
    spec = quota.get("spec") or {}
    return not spec.get("scopeSelector") and set(spec.get("scopes") or ()) <= {_FOR_ALL}


def _defaults(limits: Sequence[Mapping[str, Any]]) -> frozenset[tuple[str, str]]:
    """Give what containers get by default; the server fills in what follows from min, max and the other default."""
    given = set()
    for entry in (e for limit in limits for e in (limit.get("spec") or {}).get("limits") or ()):
        if entry.get("type") != "Container":
            continue
        given |= {("requests", key) for key in entry.get("defaultRequest") or {}}
        given |= {("limits", key) for key in entry.get("default") or {}}
    return frozenset(given)


def _too_small(quotas: Sequence[Mapping[str, Any]], steps: Sequence[StepSpec]) -> Iterator[Finding]:
    """Compare accelerators that a step needs with what a quota leaves."""
    needs = [(s.name, s.shape.resource, s.shape.chips_per_host * s.hosts) for s in steps if s.shape]
    for quota in quotas if needs else ():
        used = (quota.get("status") or {}).get("used") or {}
        for step_name, resource, need in needs:
            key = f"requests.{resource}"
            if key not in _hard(quota) or not _holds_for_all(quota):
                continue
            hard, taken = quantity(_hard(quota)[key]), quantity(used.get(key, 0))
            name = quota["metadata"]["name"]
            if hard < need:
                message = f"step {step_name} needs {need} {resource}: quota {name} allows {hard:g}"
                yield Finding("quota", "fail", message, "Raise the quota, or choose a smaller accelerator")
            elif hard - taken < need:
                message = (
                    f"step {step_name} needs {need} {resource}: quota {name} has {hard - taken:g} of {hard:g} left"
                )
                yield Finding("quota", "warn", message, "Wait until others end, or raise the quota")
