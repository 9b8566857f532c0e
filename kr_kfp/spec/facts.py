"""What is known of a cluster, as values. Pure.

Gathered by :mod:`kr_kfp.cluster.kube_facts`, judged by :mod:`kr_kfp.spec.doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kr_kfp.spec.rights import Account, Rule

__all__ = ["ADMINISTRATOR", "Answer", "Facts", "Finding", "State", "Unknown"]

Json = dict[str, Any]
State = Literal["pass", "warn", "fail"]

ADMINISTRATOR = "Run it as who administers the namespace or cluster"
"""The fix where a fact could not be had."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor.

    Args:
        check: What was looked at: ``kubernetes``, ``leaderworkerset``, ``webhooks``, ``pipelines``, ``account``,
            ``rights``, ``quota``, ``store`` or ``nodes``.
        state: ``pass``; ``warn``: works, but not in every way, or could not be looked at; ``fail``: does not work.
        message: What was found.
        fix: What to do about it; empty if nothing is wrong.
    """

    check: str
    state: State
    message: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A fact that could not be had.

    Args:
        why: The API server's refusal, or what else stood in the way.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether an account has one right.

    Args:
        rule: The rule that grants it.
        resource: The resource, as in ``pods/log``.
        verb: The verb.
        allowed: What the authorizer said.
    """

    rule: Rule
    resource: str
    verb: str
    allowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A cluster as seen by one account, for the runs of another.

    Args:
        account: The account of the launchers.
        kubernetes: ``gitVersion`` of the API server.
        served: API versions of LeaderWorkerSet; empty if there are none.
        lacking: Fields that a step needs and the served LeaderWorkerSet does not have.
        workflows: API versions of Argo's workflows; empty if there are none.
        kfp: Tag of the image of KFP's API server; None if there is none.
        hooks: The webhook configurations, mutating and validating.
        ready: Ready addresses of each service that a webhook names, by ``namespace/name``.
        trial: Why a LeaderWorkerSet was refused in a dry run; empty if it was accepted.
        accounts: Service accounts of the namespace.
        rights: The rights of the account, verb by verb.
        quotas: ResourceQuotas of the namespace.
        limits: LimitRanges of the namespace.
        config: Data of KFP's ConfigMap ``kfp-launcher``; None if there is none.
        nodes: All nodes.
        autoscaled: Whether a cluster autoscaler reports that it is at work.
    """

    account: Account
    kubernetes: str | Unknown
    served: tuple[str, ...] | Unknown
    lacking: tuple[str, ...] | Unknown
    workflows: tuple[str, ...] | Unknown
    kfp: str | Unknown | None
    hooks: tuple[Json, ...] | Unknown
    ready: Mapping[str, int | Unknown]
    trial: str | Unknown
    accounts: tuple[str, ...] | Unknown
    rights: tuple[Answer, ...] | Unknown
    quotas: tuple[Json, ...] | Unknown
    limits: tuple[Json, ...] | Unknown
    config: Mapping[str, str] | Unknown | None
    nodes: tuple[Json, ...] | Unknown
    autoscaled: bool | Unknown
