"""Logging in to a GKE cluster by name, without gcloud: Application Default Credentials and one request to GKE.

Sources: the GKE API's method ``projects.locations.clusters.get`` (fields ``endpoint``, ``masterAuth``,
``controlPlaneEndpointsConfig.dnsEndpointConfig``); an OAuth token of the scope cloud-platform is a bearer token for
the cluster too, which is what ``gke-gcloud-auth-plugin`` gives kubectl.
"""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Mapping
from typing import Any

import urllib3

from kr_kfp.cluster.kube_http import Login
from kr_kfp.cluster.kube_login import pool
from kr_kfp.errors import SetupError

__all__ = ["connect_gke"]

_API = "https://container.googleapis.com/v1"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def connect_gke(wanted: str, env: Mapping[str, str], *, api: str = _API) -> Login:
    """Log in by ``gke:project/location/name``.

    Args:
        wanted: The text.
        env: The environment: KR_KFP_NAMESPACE, else the namespace is ``default``.
        api: Address of the GKE API.

    Raises:
        SetupError: If there are no credentials, or no such cluster for them; says what to do with gcloud.
    """
    parts = wanted.removeprefix("gke:").split("/")
    if len(parts) != 3 or not all(parts):
        msg = f"cluster={wanted!r} is not gke:project/location/name"
        raise SetupError(msg)
    project, location, name = parts
    other = (
        f"gcloud container clusters get-credentials {name} --location={location} --project={project}, "
        "then cluster='kubeconfig'"
    )
    credentials = _Credentials(wanted, other)
    found = _describe(f"{api}/projects/{project}/locations/{location}/clusters/{name}", credentials, wanted, other)
    dns = (found.get("controlPlaneEndpointsConfig") or {}).get("dnsEndpointConfig") or {}
    if dns.get("allowExternalTraffic") and dns.get("endpoint"):
        # Behind Google's own certificate.
        server, context = f"https://{dns['endpoint']}", ssl.create_default_context()
    else:
        authority = base64.b64decode((found.get("masterAuth") or {}).get("clusterCaCertificate") or "").decode("ascii")
        server, context = f"https://{found.get('endpoint')}", ssl.create_default_context(cadata=authority or None)
    namespace = env.get("KR_KFP_NAMESPACE") or "default"
    return Login(
        server=server,
        namespace=namespace,
        where=f"namespace {namespace} of GKE cluster {name}",
        pool=pool(context),
        headers=credentials.headers,
    )


class _Credentials:
    """Application Default Credentials, renewed as they end."""

    def __init__(self, wanted: str, other: str) -> None:
        try:
            import google.auth
            import google.auth.exceptions
            import google.auth.transport.urllib3
        except ImportError as problem:
            msg = f"cluster={wanted!r} needs google-auth: pip install google-auth. Or: {other}"
            raise SetupError(msg) from problem
        self._errors = google.auth.exceptions.GoogleAuthError
        transport: Any = google.auth.transport.urllib3
        self._request = transport.Request(urllib3.PoolManager())
        self._wanted = wanted
        try:
            self._credentials: Any = google.auth.default(scopes=[_SCOPE])[0]
        except self._errors as problem:
            msg = f"cluster={wanted!r}: {problem}. Run: gcloud auth application-default login. Or: {other}"
            raise SetupError(msg) from problem

    def headers(self, renew: bool) -> Mapping[str, str]:  # noqa: FBT001 - the shape of Login.headers
        """Give the token as a header."""
        if renew or not self._credentials.valid:
            try:
                self._credentials.refresh(self._request)
            except self._errors as problem:
                msg = f"cluster={self._wanted!r}: {problem}. Run: gcloud auth application-default login"
                raise SetupError(msg) from problem
        return {"Authorization": f"Bearer {self._credentials.token}"}


def _describe(url: str, credentials: _Credentials, wanted: str, other: str) -> dict[str, Any]:
    try:
        response = urllib3.PoolManager().request("GET", url, headers=credentials.headers(renew=False), timeout=30.0)
    except urllib3.exceptions.HTTPError as problem:
        msg = f"cluster={wanted!r}: GKE does not answer: {problem}. Or: {other}"
        raise SetupError(msg) from problem
    if response.status != 200:
        said = response.data.decode("utf-8", "replace")[:500]
        msg = f"cluster={wanted!r}: GKE answered {response.status}: {said}. Or: {other}"
        raise SetupError(msg)
    found: dict[str, Any] = json.loads(response.data)
    return found
