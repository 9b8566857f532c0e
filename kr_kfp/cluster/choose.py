"""Which cluster a launcher works on.

A Kubernetes namespace is chosen only by a KFP executor pod or by name. A mounted service-account token alone, as in
notebooks and CI pods, chooses nothing: everything else is the local cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kr_kfp.cluster.api import Cluster
from kr_kfp.errors import SetupError

__all__ = ["choose"]


def choose(wanted: str | None, env: Mapping[str, str], *, warn: Callable[[str], None] = lambda _: None) -> Cluster:
    """Choose the cluster.

    Args:
        wanted: The step's ``cluster``: None, ``local``, ``kubeconfig[:context]`` or ``gke:project/location/name``.
        env: The environment. KR_KFP_CLUSTER overrides ``wanted`` outside KFP pods, KR_KFP_NAMESPACE the namespace.
        warn: Takes sentences for the user.

    Raises:
        SetupError: If that cluster cannot be used from here.
    """
    in_pod = bool(env.get("KFP_POD_NAME"))
    name = wanted if in_pod else env.get("KR_KFP_CLUSTER") or wanted
    if name == "local" or (name is None and not in_pod):
        from kr_kfp.cluster.local import LocalCluster

        return LocalCluster()
    try:
        from kr_kfp.cluster.kube import connect
    except ModuleNotFoundError as problem:
        where = "this KFP pod" if name is None else f"cluster={name!r}"
        msg = f"{where} needs the package {problem.name}, which is not installed. Run: pip install kr-kfp"
        raise SetupError(msg) from problem
    return connect(name, env, warn=warn)
