"""The API server as tests speak to it: paths and JSON, with nothing between that could hide what is sent or answered."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

Json = dict[str, Any]

_LATER = 30.0
"""Seconds for which a request is sent again that the server is too busy for (429)."""

_GROUPS = {
    "pods": "api/v1",
    "services": "api/v1",
    "events": "api/v1",
    "secrets": "api/v1",
    "configmaps": "api/v1",
    "serviceaccounts": "api/v1",
    "resourcequotas": "api/v1",
    "limitranges": "api/v1",
    "persistentvolumes": "api/v1",
    "persistentvolumeclaims": "api/v1",
    "namespaces": "api/v1",
    "nodes": "api/v1",
    "statefulsets": "apis/apps/v1",
    "controllerrevisions": "apis/apps/v1",
    "roles": "apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "apis/rbac.authorization.k8s.io/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "leaderworkersets": "apis/leaderworkerset.x-k8s.io/v1",
    "workflows": "apis/argoproj.io/v1alpha1",
    "customresourcedefinitions": "apis/apiextensions.k8s.io/v1",
}
"""Resources that tests use, and the API group of each."""


class ApiError(Exception):
    """The API server refused: its HTTP status, reason and message."""

    def __init__(self, status: int, body: str) -> None:
        """Read the answer, which is a Status object unless something is very wrong."""
        try:
            answer = json.loads(body)
        except ValueError:
            answer = {}
        self.status = status
        self.reason = str(answer.get("reason", ""))
        self.message = str(answer.get("message", body))
        super().__init__(f"{status} {self.reason}: {self.message}")


@dataclass(slots=True, kw_only=True)
class Rest:
    """A connection with the rights of one kubeconfig."""

    kubeconfig: Path
    _server: str = ""
    _headers: dict[str, str] = field(default_factory=dict)
    _tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Read the kubeconfig, which is JSON here."""
        config = json.loads(self.kubeconfig.read_text(encoding="utf-8"))
        cluster = config["clusters"][0]["cluster"]
        self._server = cluster["server"]
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        self._tls = ssl.create_default_context(cafile=cluster["certificate-authority"])

    def get(self, resource: str, namespace: str | None = None, name: str | None = None, *, select: str = "") -> Json:
        """Read one object, or the list of those that a label selector matches."""
        query = f"?labelSelector={urllib.request.quote(select)}" if select else ""  # type: ignore[attr-defined]
        return self._json("GET", path_of(resource, namespace, name) + query)

    def items(self, resource: str, namespace: str | None = None, *, select: str = "") -> list[Json]:
        """Read the objects of a list."""
        found: list[Json] = self.get(resource, namespace, select=select)["items"]
        return found

    def find(self, resource: str, namespace: str | None, name: str) -> Json | None:
        """Read one object, or None if there is none."""
        try:
            return self.get(resource, namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def create(self, resource: str, namespace: str | None, body: Json, *, query: str = "") -> Json:
        """Create an object and give it as the server stored it; `query` such as ?dryRun=All."""
        return self._json("POST", path_of(resource, namespace) + query, body)

    def patch(self, resource: str, namespace: str | None, name: str, body: Any, *, part: str = "") -> Json:
        """Change an object: a merge patch, or a JSON patch if it is a list; `part` such as /status."""
        kind = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        return self._json("PATCH", path_of(resource, namespace, name) + part, body, kind)

    def delete(self, resource: str, namespace: str | None, name: str, **options: Any) -> None:
        """Delete an object, with DeleteOptions such as propagationPolicy; one that is gone is no error."""
        try:
            self._json("DELETE", path_of(resource, namespace, name), options or None)
        except ApiError as error:
            if error.status != 404:
                raise

    def logs(self, namespace: str, pod: str, *, container: str = "main", previous: bool = False) -> str:
        """Read what a container printed."""
        path = f"{path_of('pods', namespace, pod)}/log?container={container}&previous={str(previous).lower()}"
        with self.open("GET", path) as answer:
            text: str = answer.read().decode("utf-8", "replace")
        return text

    def open(
        self, method: str, path: str, body: Any = None, kind: str = "application/json", *, timeout: float = 30
    ) -> Any:
        """Send one request, again while the server asks for that; the answer is open and not read yet.

        Raises:
            ApiError: The server refused.
        """
        deadline = time.monotonic() + _LATER
        while True:
            try:
                return self._open(method, path, body, kind, timeout)
            except ApiError as error:
                # A resource that was defined just now: "storage is (re)initializing".
                if error.status != 429 or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def _open(self, method: str, path: str, body: Any, kind: str, timeout: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | {"Content-Type": kind}
        url = f"{self._server}/{path}"
        request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - https, by the kubeconfig
        try:
            return urllib.request.urlopen(request, context=self._tls, timeout=timeout)  # noqa: S310 - as above
        except urllib.error.HTTPError as error:
            with error:
                raise ApiError(error.code, error.read().decode()) from None

    def _json(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        with self.open(method, path, body, kind) as answer:
            value: Json = json.load(answer)
        return value


def path_of(resource: str, namespace: str | None, name: str | None = None) -> str:
    """Give the path of a resource's list or of one object."""
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{_GROUPS[resource]}{scope}/{resource}" + (f"/{name}" if name else "")


def secret_value(secret: Json, key: str) -> str:
    """Decode one value of a Secret."""
    return base64.b64decode(secret["data"][key]).decode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One change of an object, and when it arrived here."""

    at: float
    """Seconds of the monotonic clock."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    object: Json

    @property
    def name(self) -> str:
        """The object's name."""
        return str(self.object["metadata"]["name"])


class Watch:
    """Records every change of a namespace's objects of one resource, from its start until it is left."""

    def __init__(self, rest: Rest, resource: str, namespace: str) -> None:
        """Start to watch; what exists already comes first, as ADDED."""
        self.changes: list[Seen] = []
        self._news = threading.Condition()
        self._answer = rest.open("GET", path_of(resource, namespace) + "?watch=true", timeout=600)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        """Give itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop watching."""
        # Closing a socket does not wake the thread that reads from it; shutting it down does.
        self._answer.fp.raw._sock.shutdown(2)
        self._thread.join(timeout=10)
        self._answer.close()

    def __iter__(self) -> Iterator[Seen]:
        """Iterate over what has been seen so far."""
        with self._news:
            return iter(tuple(self.changes))

    def until(
        self, condition: Callable[[list[Seen]], bool], *, seconds: float = 180, what: str = "a change"
    ) -> list[Seen]:
        """Wait until the changes seen so far satisfy a condition, and give them.

        Raises:
            TimeoutError: They did not in time; with the last change of each object.
        """
        deadline = time.monotonic() + seconds
        with self._news:
            while not condition(self.changes):
                if not self._news.wait(deadline - time.monotonic()):
                    last = {seen.name: (seen.type, seen.object.get("status")) for seen in self.changes}
                    msg = f"no {what} within {seconds:.0f} s; last seen: {json.dumps(last)[:4000]}"
                    raise TimeoutError(msg)
            return list(self.changes)

    def _read(self) -> None:
        try:
            for line in self._answer:
                change = json.loads(line)
                with self._news:
                    self.changes.append(Seen(at=time.monotonic(), type=change["type"], object=change["object"]))
                    self._news.notify_all()
        except (OSError, ValueError, http.client.HTTPException):
            return  # the connection was shut down, perhaps in the middle of a line
