"""What a cluster is able to do for runs, line by line: facts in, findings out. Pure.

Quotas are judged in :mod:`kr_kfp.spec.doctor_quota`, nodes in :mod:`kr_kfp.spec.doctor_nodes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kr_kfp.spec.doctor_nodes import check_nodes
from kr_kfp.spec.doctor_quota import check_quota
from kr_kfp.spec.facts import ADMINISTRATOR, Facts, Finding, State, Unknown
from kr_kfp.spec.leaderworkerset import API_VERSION, OLDEST
from kr_kfp.spec.release import RELEASE
from kr_kfp.spec.rights import EDITOR, NAMESPACE, NODES, RUNNER, Account
from kr_kfp.spec.step import StepSpec

__all__ = ["examine"]

_OLDEST_KFP = (2, 15)
"""Brought TaskConfig passthrough, which takes a task's settings to the hosts' pods (kubeflow/pipelines releases)."""

_GROUP = API_VERSION.partition("/")[0]
_INSTALL = f"kr-kfp install --lws manifests.yaml, with the file of {RELEASE}"
_RESTART = "Look at the controller: kubectl --namespace lws-system get pods"


def examine(facts: Facts, steps: Sequence[StepSpec] = ()) -> tuple[Finding, ...]:
    """Judge a cluster.

    Args:
        facts: What is known of it.
        steps: The steps that it is to run, for node pools and quotas.
    """
    return (
        *_versions(facts),
        *_webhooks(facts),
        *_account(facts),
        *_rights(facts),
        *check_quota(facts, steps),
        *check_nodes(facts, steps),
    )


def _versions(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.kubernetes, Unknown):
        yield Finding("kubernetes", "warn", facts.kubernetes.why, "Nothing, if the other lines are well")
    else:
        yield Finding("kubernetes", "pass", f"Kubernetes {facts.kubernetes}")
    yield _leaderworkerset(facts)
    yield _workflows(facts)
    if found := _pipelines(facts):
        yield found


def _leaderworkerset(facts: Facts) -> Finding:
    check, served, lacking = "leaderworkerset", facts.served, facts.lacking
    if isinstance(served, Unknown):
        return Finding(check, "warn", f"it is not known whether {API_VERSION} is served: {served.why}", "Ask again")
    if API_VERSION not in served:
        only = f"; only {', '.join(served)}" if served else ""
        return Finding(check, "fail", f"the cluster does not serve {API_VERSION}{only}", _INSTALL)
    if isinstance(lacking, Unknown):
        return Finding(check, "warn", f"{API_VERSION} is served; its fields are not known: {lacking.why}", "Ask again")
    if lacking:
        message = f"{API_VERSION} is served, but is too old: it has no {', '.join(lacking)}"
        return Finding(check, "fail", message, f"Take {OLDEST} or newer, such as: {_INSTALL}")
    return Finding(check, "pass", f"{API_VERSION} is served, with all fields that a step needs")


def _workflows(facts: Facts) -> Finding:
    if isinstance(facts.workflows, Unknown):
        return Finding(
            "pipelines", "warn", f"it is not known whether there is Argo: {facts.workflows.why}", "Ask again"
        )
    if not facts.workflows:
        message = "the cluster serves no argoproj.io: Kubeflow Pipelines is not installed here"
        return Finding("pipelines", "warn", message, "Install it, unless steps are started from outside (cluster=)")
    return Finding("pipelines", "pass", f"{', '.join(facts.workflows)} is served")


def _pipelines(facts: Facts) -> Finding | None:
    if isinstance(facts.kfp, Unknown):
        return Finding(
            "pipelines", "warn", f"the version of KFP is not known: {facts.kfp.why}", "It has to be 2.15 or newer"
        )
    if facts.kfp is None:
        return None  # KFP may be elsewhere, or have another name.
    numbers = re.match(r"v?(\d+)\.(\d+)", facts.kfp)
    if numbers is None:
        message = f"the version of KFP is not known: its image is tagged {facts.kfp!r}"
        return Finding("pipelines", "warn", message, "It has to be 2.15 or newer")
    if (int(numbers[1]), int(numbers[2])) < _OLDEST_KFP:
        message = f"KFP {facts.kfp} does not take a task's settings to the hosts"
        return Finding(
            "pipelines", "warn", message, "Update KFP to 2.15 or newer, or declare steps with passthrough=False"
        )
    return Finding("pipelines", "pass", f"KFP {facts.kfp}")


def _webhooks(facts: Facts) -> Iterator[Finding]:
    """Look at the webhooks, which LeaderWorkerSet cannot do without: they give hosts their names and variables."""
    if isinstance(facts.served, Unknown) or API_VERSION not in facts.served:
        return
    if isinstance(facts.hooks, Unknown):
        yield Finding("webhooks", "warn", f"LeaderWorkerSet's webhooks are not known: {facts.hooks.why}", ADMINISTRATOR)
    else:
        yield from _configured(facts.hooks, facts.ready)
    if isinstance(facts.trial, Unknown):
        yield Finding("webhooks", "warn", f"no group was tried: {facts.trial.why}", "Run it as who may create one")
    elif facts.trial:
        yield Finding("webhooks", "fail", f"a group was refused in a dry run: {facts.trial}", _RESTART)
    else:
        yield Finding("webhooks", "pass", "a group was accepted in a dry run")


def _configured(hooks: Sequence[Mapping[str, Any]], ready: Mapping[str, int | Unknown]) -> Iterator[Finding]:
    ours = [h for c in hooks for h in c.get("webhooks") or () if _is_of_lws(c, h)]
    of_pods = [h for h in ours if any("pods" in (r.get("resources") or ()) for r in h.get("rules") or ())]
    fix = f"Install LeaderWorkerSet completely: {_INSTALL}"
    if len(ours) == len(of_pods) or not of_pods:
        what = "pods, so that hosts would not get their variables" if ours else "its groups and pods"
        yield Finding("webhooks", "fail", f"LeaderWorkerSet has no webhook for {what}", fix)
    without = [h["name"] for h in ours if _has_no_certificate(h)]
    if without:
        yield Finding("webhooks", "fail", f"without a certificate (caBundle): {', '.join(without)}", _RESTART)
    for service, count in ready.items():
        if isinstance(count, Unknown):
            yield Finding(
                "webhooks", "warn", f"whether service {service} is ready is not known: {count.why}", "Ask again"
            )
        elif count:
            yield Finding("webhooks", "pass", f"service {service}: {count} ready")
        else:
            yield Finding("webhooks", "fail", f"service {service} has no pod that is ready", _RESTART)


def _is_of_lws(configuration: Mapping[str, Any], hook: Mapping[str, Any]) -> bool:
    """Tell whether a webhook belongs to LeaderWorkerSet: those for pods share a configuration with those for groups."""
    hooks = (hook, *(configuration.get("webhooks") or ()))
    return any(_GROUP in (rule.get("apiGroups") or ()) for h in hooks for rule in h.get("rules") or ())


def _has_no_certificate(hook: Mapping[str, Any]) -> bool:
    client = hook.get("clientConfig") or {}
    return bool(client.get("service")) and not client.get("caBundle")


def _account(facts: Facts) -> Iterator[Finding]:
    account, names = facts.account, facts.accounts
    where = f"service account {account.name} of namespace {account.namespace}"
    if isinstance(names, Unknown):
        yield Finding("account", "warn", f"whether there is a {where} is not known: {names.why}", ADMINISTRATOR)
    elif account.name in names:
        yield Finding("account", "pass", f"there is a {where}")
    else:
        others = [name for name in (RUNNER, EDITOR) if name in names]
        elsewhere = f"{NAMESPACE} in single-user KFP, else a profile's with --service-account {EDITOR}"
        fix = f"Give --service-account {others[0]}" if others else f"Give the --namespace of the runs: {elsewhere}"
        yield Finding("account", "fail", f"there is no {where}", fix)


def _rights(facts: Facts) -> Iterator[Finding]:
    account = facts.account
    if isinstance(facts.rights, Unknown):
        fix = f"Run it as who may ask for others' rights, or in a pod of {account.name}"
        yield Finding("rights", "warn", f"the rights of {account.user} are not known: {facts.rights.why}", fix)
        return
    for answer in facts.rights:
        what = f"{answer.verb} {answer.resource}"
        name = f" {answer.rule.names[0]}" if answer.rule.names else ""
        if answer.allowed:
            yield Finding("rights", "pass", f"{account.name} may {what}{name}")
            continue
        cost = f"; without it {answer.rule.without}" if answer.rule.without else ""
        state: State = "warn" if answer.rule.without else "fail"
        fix = _grant(account) + (" --nodes" if answer.rule in NODES else "")
        yield Finding("rights", state, f"{account.name} may not {what}{name}{cost}", fix)


def _grant(account: Account) -> str:
    """Give the command that gives the rights."""
    if account.name == EDITOR:
        return f"kr-kfp install --profile {account.namespace}"
    where = "" if account.namespace == NAMESPACE else f" --namespace {account.namespace}"
    who = "" if account.name == RUNNER else f" --service-account {account.name}"
    return f"kr-kfp install{where}{who}"
