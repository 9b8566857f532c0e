"""Which cluster a command speaks to."""

from __future__ import annotations

import os

import click

from kr_kfp.cluster.kube import log_in
from kr_kfp.cluster.kube_http import Api
from kr_kfp.errors import SetupError

__all__ = ["admin", "cluster_option"]

_PATIENCE = 10.0
"""Seconds for which a request is tried again: somebody waits for the answer."""

cluster_option = click.option(
    "--cluster",
    help="kubeconfig[:CONTEXT] or gke:PROJECT/LOCATION/NAME; KR_KFP_CLUSTER, else the current kubeconfig, by default.",
)


def admin(cluster: str | None) -> Api:
    """Log in.

    Args:
        cluster: What --cluster says; None takes KR_KFP_CLUSTER, in a KFP pod that pod's cluster, else ``kubeconfig``.

    Raises:
        SetupError: If that is no cluster, or cannot be used from here.
    """
    name = cluster or os.environ.get("KR_KFP_CLUSTER")
    if name is None and not os.environ.get("KFP_POD_NAME"):
        name = "kubeconfig"
    if name == "local":
        msg = "the local cluster needs no rights and no installation: give --cluster kubeconfig[:CONTEXT], or gke:..."
        raise SetupError(msg)
    return Api(log_in(name, os.environ), warn=lambda text: click.echo(text, err=True), patience=_PATIENCE)
