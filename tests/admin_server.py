"""The API server of :mod:`tests.kube_server` as an administrator uses it.

Server-side apply with dry runs, lists of all namespaces, deletions that come true at once, reviews of anybody's
rights, and refusals in the authorizer's words.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from kr_kfp.cluster.kube_admin import KINDS
from tests.kube_server import _PATH, KubeServer, Request, _matches, _merge, _status

Json = dict[str, Any]

_DOCUMENTS: dict[str, Json] = {
    "/version": {"gitVersion": "v1.36.3"},
    "/apis/leaderworkerset.x-k8s.io": {"versions": [{"groupVersion": "leaderworkerset.x-k8s.io/v1"}]},
    "/apis/argoproj.io": {"versions": [{"groupVersion": "argoproj.io/v1alpha1"}]},
}


class AdminServer(KubeServer):
    """The server.

    Attributes:
        user: Who is logged in.
        forbidden: Requests that are refused, as ``verb resource`` (:attr:`Request.kind`).
        refused: Rights that reviews deny, as ``verb resource``.
        namespaces: Namespaces that exist beside those that are objects; applying into any other is refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.user = "admin"
        self.forbidden: set[str] = set()
        self.refused: set[str] = set()
        self.namespaces = {"kubeflow", "ada", "grace"}
        self.documents |= copy.deepcopy(_DOCUMENTS)

    def without_lws(self) -> None:
        """Take LeaderWorkerSet away."""
        for path in [path for path in self.documents if "leaderworkerset" in path]:
            del self.documents[path]

    def names(self, plural: str) -> list[str]:
        """Name the objects of a kind, with their namespaces."""
        return ["/".join(filter(None, key)) for key in self._objects.get(plural, {})]

    def object(self, plural: str, name: str, namespace: str = "") -> Json:
        """Give one object."""
        return self._objects[plural][namespace, name]

    def answer(self, request: Request) -> tuple[int, Json]:
        """Do what a request asks for."""
        found = _PATH.fullmatch(request.path)
        if found is None or request.path in self.documents:
            return super().answer(request)
        if request.kind in self.forbidden:
            return 403, _forbidden(self.user, request)
        with self._changed:
            answer = self._answer(request, found["plural"], found["ns"] or "", found["name"] or "")
        return answer or super().answer(request)

    def _answer(self, request: Request, plural: str, namespace: str, name: str) -> tuple[int, Json] | None:
        """Do what the server for launchers does not."""
        objects = self._objects.get(plural, {})
        if plural.endswith(("subjectaccessreviews", "subjectreviews")):
            return self._reviewed(request)
        if request.method == "PATCH" and "apply-patch" in request.headers["Content-Type"]:
            return self._apply(request, plural, (namespace, name))
        if request.method == "POST" and request.query.get("dryRun") == "All":
            return 201, request.body
        if request.method == "DELETE" and (namespace, name) in objects:
            del objects[namespace, name]
            return 200, _status(200, "", "")
        if request.method == "GET" and not name and not namespace:
            return 200, {"items": [copy.deepcopy(o) for o in objects.values() if _matches(o, request.query)]}
        return None

    def _reviewed(self, request: Request) -> tuple[int, Json]:
        if request.path.endswith("/selfsubjectreviews"):
            return 201, {"status": {"userInfo": {"username": self.user}}}
        if "Impersonate-User" in request.headers and "impersonate users" in self.forbidden:
            return 403, _status(403, "Forbidden", f'users "x" is forbidden: User "{self.user}" cannot impersonate')
        asked = request.body["spec"]["resourceAttributes"]
        name = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        return 201, {"status": {"allowed": f"{asked['verb']} {name}" not in self.refused}}

    def _apply(self, request: Request, plural: str, key: tuple[str, str]) -> tuple[int, Json]:
        """Merge the manifest into what is there, and note the manager; lists are replaced."""
        namespace = key[0]
        if (
            namespace
            and namespace not in self.namespaces
            and ("", namespace) not in self._objects.get("namespaces", {})
        ):
            return 404, _status(404, "NotFound", f'namespaces "{namespace}" not found')
        old = self._objects.get(plural, {}).get(key)
        value = _merge(old or {}, request.body)
        entry = {"manager": request.query["fieldManager"], "operation": "Apply"}
        others = [e for e in value["metadata"].get("managedFields", ()) if e != entry]
        value["metadata"] |= {"managedFields": [*others, entry]}
        value["metadata"].setdefault("uid", f"uid-{next(self._uids)}")
        if request.query.get("dryRun") != "All" and value != old:
            self._write(plural, key, value, "ADDED" if old is None else "MODIFIED")
        return 200, copy.deepcopy(value)


def _forbidden(user: str, request: Request) -> Json:
    verb, _, resource = request.kind.partition(" ")
    where = "at the cluster scope"
    message = f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group "" {where}'
    return _status(403, "Forbidden", message)


def kubeconfig(server: AdminServer, folder: Path) -> Path:
    """Write a kubeconfig for the server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "test",
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def release(schema: Mapping[str, Any], *, tag: str = "v0.9.0") -> list[Json]:
    """Build a release file in small: what ``config/default`` of kubernetes-sigs/lws v0.9.0 has one of."""
    names = {"plural": "leaderworkersets", "kind": "LeaderWorkerSet"}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": dict(schema)}}]
    crd = {"group": "leaderworkerset.x-k8s.io", "names": names, "versions": versions}
    pod = {"spec": {"containers": [{"name": "manager", "image": f"mirror/lws:{tag}"}]}}
    made: list[tuple[str, str, str, Json]] = [
        ("Namespace", "lws-system", "", {}),
        ("CustomResourceDefinition", "leaderworkersets.leaderworkerset.x-k8s.io", "", {"spec": crd}),
        ("Secret", "lws-cert", "lws-system", {}),
        ("Deployment", "lws-manager", "lws-system", {"spec": {"template": pod}}),
        ("ValidatingWebhookConfiguration", "lws-hooks", "", {"webhooks": []}),
    ]
    return [
        {
            "apiVersion": KINDS[kind].resource.api.removeprefix("/apis/").removeprefix("/api/"),
            "kind": kind,
            "metadata": {"name": name, "labels": {"app.kubernetes.io/managed-by": "kustomize"}}
            | ({"namespace": namespace} if namespace else {}),
            **more,
        }
        for kind, name, namespace, more in made
    ]
