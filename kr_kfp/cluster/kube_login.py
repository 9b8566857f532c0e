"""Ways to log in to a cluster: from a KFP pod, by kubeconfig, to GKE by name. The only importer of ``kubernetes``."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import urllib3

from kr_kfp.cluster.kube_http import KEEPALIVE, Login
from kr_kfp.errors import SetupError

__all__ = ["ACCOUNT", "from_kubeconfig", "from_pod", "pool"]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its account: ``token``, ``ca.crt``, ``namespace`` (Kubernetes, "Access the API from a Pod")."""

_TOKEN_AGE = 60.0
"""Seconds for which a token is used before its file is looked at again: the kubelet renews it well before it ends."""


def pool(context: ssl.SSLContext | None) -> urllib3.PoolManager:
    """Make the connections to a server.

    Args:
        context: Trusted authorities and own certificate; None for a server without TLS.
    """
    return urllib3.PoolManager(maxsize=4, ssl_context=context, socket_options=KEEPALIVE)


class _Token:
    """A token in a file that somebody else keeps fresh."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path, self._clock = path, clock
        self._token, self._read = "", 0.0

    def headers(self, renew: bool) -> Mapping[str, str]:  # noqa: FBT001 - the shape of Login.headers
        """Give the token as a header, from the file if it was not read lately."""
        now = self._clock()
        if renew or not self._token or now > self._read + _TOKEN_AGE:
            self._token, self._read = _read(self._path), now
        return {"Authorization": f"Bearer {self._token}"}


def from_pod(env: Mapping[str, str], folder: Path = ACCOUNT, *, clock: Callable[[], float] = time.monotonic) -> Login:
    """Log in as this pod's service account. No proxy is used: the API server's address is one of the cluster.

    Args:
        env: The environment: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
        folder: Where the account's files are.
        clock: Gives seconds that only ever grow.

    Raises:
        SetupError: If something of that is missing.
    """
    host, port = env.get("KUBERNETES_SERVICE_HOST", ""), env.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        msg = (
            "KFP_POD_NAME is set, so this is a KFP pod, but KUBERNETES_SERVICE_HOST is not. "
            "Keep the variables that Kubernetes sets in every pod"
        )
        raise SetupError(msg)
    namespace = _read(folder / "namespace")
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    except OSError as problem:
        msg = f"the pod's service account cannot be used: {folder / 'ca.crt'}: {problem}. {_MOUNT}"
        raise SetupError(msg) from problem
    address = f"[{host}]" if ":" in host else host
    token = _Token(folder / "token", clock)
    token.headers(renew=False)
    return Login(
        server=f"https://{address}:{port}",
        namespace=namespace,
        where=f"namespace {namespace}",
        pool=pool(context),
        headers=token.headers,
    )


_MOUNT = "Let the pod mount its token (automountServiceAccountToken)"


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except OSError as problem:
        msg = f"the pod's service account cannot be used: {problem}. {_MOUNT}"
        raise SetupError(msg) from problem
    if not text:
        msg = f"the pod's service account cannot be used: {path} is empty. {_MOUNT}"
        raise SetupError(msg)
    return text


class _Kubeconfig:
    """A context of a kubeconfig; the official client runs its plugins and renews its tokens."""

    def __init__(self, file: str | None, context: str | None) -> None:
        self._file, self._context = file, context
        self.client = self._load()

    def _load(self) -> Any:
        from kubernetes import config

        try:
            return config.new_client_from_config(config_file=self._file, context=self._context)
        except (config.ConfigException, OSError, ValueError) as problem:
            wanted = f"kubeconfig:{self._context}" if self._context else "kubeconfig"
            msg = f"cluster={wanted!r}: {problem}. Contexts there: {', '.join(self._names()) or 'none'}"
            raise SetupError(msg) from problem

    def _names(self) -> list[str]:
        from kubernetes import config

        try:
            contexts, _ = config.list_kube_config_contexts(config_file=self._file)
        except (config.ConfigException, OSError, ValueError):
            return []
        return sorted(str(context["name"]) for context in contexts or ())

    def namespace(self) -> tuple[str, str]:
        """Give the context's name and its namespace, ``default`` if it names none, as kubectl does."""
        from kubernetes import config

        contexts, active = config.list_kube_config_contexts(config_file=self._file)
        chosen = next((c for c in contexts if c["name"] == self._context), active) if self._context else active
        return str(chosen["name"]), str((chosen.get("context") or {}).get("namespace") or "default")

    def headers(self, renew: bool) -> Mapping[str, str]:  # noqa: FBT001 - the shape of Login.headers
        """Give the credentials as headers; the client's own hook renews those that end."""
        if renew:
            self.client = self._load()
        settings = self.client.configuration.auth_settings()
        return {entry["key"]: entry["value"] for entry in settings.values() if entry.get("value")}


def from_kubeconfig(wanted: str, env: Mapping[str, str]) -> Login:
    """Log in by ``kubeconfig[:context]``.

    Args:
        wanted: The text; without a context the current one.
        env: The environment: KUBECONFIG, and KR_KFP_NAMESPACE, which overrides the context's namespace.

    Raises:
        SetupError: If there is no such context, or it cannot be used.
    """
    found = _Kubeconfig(env.get("KUBECONFIG") or None, wanted.partition(":")[2] or None)
    context, namespace = found.namespace()
    namespace = env.get("KR_KFP_NAMESPACE") or namespace
    # The client's own connections: certificates, proxy and server name of the kubeconfig are in them.
    connections: urllib3.PoolManager = found.client.rest_client.pool_manager
    connections.connection_pool_kw["socket_options"] = KEEPALIVE
    return Login(
        server=str(found.client.configuration.host).rstrip("/"),
        namespace=namespace,
        where=f"namespace {namespace} of context {context}",
        pool=connections,
        headers=found.headers,
    )
