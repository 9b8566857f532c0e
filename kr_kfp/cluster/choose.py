"""Which cluster a launcher works on.

A Kubernetes namespace is chosen only by a KFP executor pod or by name. A mounted service-account token alone, as in
notebooks and CI pods, chooses nothing: everything else is the local cluster.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from kr_kfp.cluster.api import Cluster
from kr_kfp.errors import SetupError

__all__ = ["choose"]


def choose(wanted: str | None, env: Mapping[str, str]) -> Cluster:
    """Choose the cluster.

    Args:
        wanted: The step's ``cluster``: None, ``local``, ``kubeconfig[:context]`` or ``gke:project/location/name``.
        env: The environment. KR_KFP_CLUSTER overrides ``wanted`` outside KFP pods.

    Raises:
        SetupError: If that cluster cannot be used from here.
    """
    in_pod = bool(env.get("KFP_POD_NAME"))
    name = wanted if in_pod else env.get("KR_KFP_CLUSTER") or wanted
    if name == "local" or (name is None and not in_pod):
        from kr_kfp.cluster.local import LocalCluster

        return LocalCluster()
    try:
        kube = importlib.import_module("kr_kfp.cluster.kube")
    except ModuleNotFoundError as problem:
        where = "this KFP pod" if name is None else f"cluster={name!r}"
        msg = f"{where}: {problem.name} is not there. This version of kr_kfp runs groups on the local cluster only"
        raise SetupError(msg) from problem
    cluster: Cluster = kube.connect(name, env)
    return cluster
