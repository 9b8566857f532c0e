"""Everything that the doctor says of a cluster: what the pure rules make of the facts, and the object store."""

from __future__ import annotations

from collections.abc import Sequence

from kr_kfp.cluster.kube_facts import gather, secret_keys
from kr_kfp.cluster.kube_http import Api
from kr_kfp.spec.doctor import examine
from kr_kfp.spec.facts import Finding
from kr_kfp.spec.rights import Account
from kr_kfp.spec.step import StepSpec
from kr_kfp.storage.check import check_store

__all__ = ["diagnose"]


def diagnose(api: Api, account: Account, steps: Sequence[StepSpec] = ()) -> tuple[Finding, ...]:
    """Look at a cluster and judge it.

    Args:
        api: The API server.
        account: The account of the launchers, in the namespace of the runs.
        steps: The steps that it is to run.

    Raises:
        ClusterError: If the API server does not answer, or does not accept the credentials.
    """
    facts = gather(api, account)
    store = check_store(facts.config, account.namespace, lambda name: secret_keys(api, account.namespace, name))
    return (*examine(facts, steps), *store)
