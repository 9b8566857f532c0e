"""An API server for tests: a real HTTP server on the loopback with objects, watches, logs, and faults on order.

It keeps the parts of the protocol that :mod:`kr_kfp.cluster.kube` relies on: resource versions, selectors, paging,
bookmarks, 410, merge patches under a resource version, preconditions of deletions, and logs with timestamps.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

Json = dict[str, Any]

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/[^/]+(?:/namespaces/(?P<ns>[^/]+))?/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)

LWS_SCHEMA: Json = {
    "components": {
        "schemas": {
            "io.x-k8s.leaderworkerset.v1.LeaderWorkerSet": {
                "x-kubernetes-group-version-kind": [{"kind": "LeaderWorkerSet"}],
                "properties": {
                    "spec": {
                        "properties": {
                            "leaderWorkerTemplate": {
                                "properties": {
                                    "restartPolicy": {"enum": ["Default", "RecreateGroupOnPodRestart", "None"]},
                                    "subGroupPolicy": {"properties": {"subGroupPolicyType": {}, "subGroupSize": {}}},
                                }
                            },
                            "rolloutStrategy": {
                                "properties": {"rollingUpdateConfiguration": {"properties": {"partition": {}}}}
                            },
                        }
                    }
                },
            }
        }
    }
}


@dataclass
class Request:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any = None
    epoch: int = 0
    """How often streams were ended before it came; set by :meth:`KubeServer.take`."""

    @property
    def kind(self) -> str:
        """``watch pods``, ``list pods``, ``get pods``, ``log pods``, ``delete pods`` and so on."""
        found = _PATH.fullmatch(self.path)
        if found is None:
            return f"{self.method} {self.path}"
        plural, named = found["plural"], found["name"]
        if found["sub"]:
            return f"{found['sub']} {plural}"
        verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
        verb = verbs.get(self.method) or ("watch" if "watch" in self.query else "get" if named else "list")
        return f"{verb} {plural}"


@dataclass
class Fault:
    """An answer in place of the right one: a status, a broken connection, a pause before it."""

    status: int = 0
    reason: str = ""
    message: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    reset: bool = False
    pause: float = 0.0
    body: bytes | None = None
    after: bool = False
    """Do what was asked, and only then break."""


@dataclass
class Log:
    """The log of one start of a container; lines with their timestamps."""

    lines: list[tuple[str, bytes]] = field(default_factory=list)
    ended: bool = False


class _Ended(Exception):  # noqa: N818 - no error
    """A watch or log is to end."""


class KubeServer:
    """The server and what it serves.

    Attributes:
        requests: All requests, in order.
        logs: Logs of pods: by name, the starts in order; ``current`` is the last.
        rules: Resource rules that a SelfSubjectRulesReview gives.
        allowed: What a SelfSubjectAccessReview answers, by ``verb plural``.
        cuts: Bytes after which the next logs that are asked for break off, one each.
        gone_in_stream: Whether 410 comes as an ERROR event inside a watch, and not as a status.
        documents: Answers for paths that are no objects, such as ``/openapi/v3/...``.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        self.logs: dict[str, list[Log]] = {}
        self.cuts: list[int] = []
        self.rules: list[Json] = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        self.allowed: dict[str, bool] = {}
        self.gone_in_stream = False
        self.documents: dict[str, Json] = {"/openapi/v3/apis/leaderworkerset.x-k8s.io/v1": LWS_SCHEMA}
        self._objects: dict[str, dict[tuple[str, str], Json]] = {}
        self._history: list[tuple[int, str, Json]] = []
        self._version = 100
        self._oldest = 0
        self._faults: list[tuple[str, Fault]] = []
        self._epoch = 0
        self._how = "end"
        self._uids = itertools.count(1)
        self._changed = threading.Condition()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._http.daemon_threads = True
        self._http.kube = self  # type: ignore[attr-defined]
        if context is not None:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._http.server_address[1]}"
        self.port = int(self._http.server_address[1])
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop; open watches end."""
        self.end_streams()
        self._http.shutdown()
        self._http.server_close()

    # --- what a test does ---------------------------------------------------------------------------------------------

    def put(self, plural: str, manifest: Mapping[str, Any], namespace: str = "ml") -> Json:
        """Create or replace an object, as some controller would; watches see it."""
        with self._changed:
            value: Json = copy.deepcopy(dict(manifest))
            key = (namespace, value["metadata"]["name"])
            old = self._objects.setdefault(plural, {}).get(key)
            uid = (old or {}).get("metadata", {}).get("uid")
            value["metadata"].setdefault("uid", uid or f"uid-{next(self._uids)}")
            value["metadata"].setdefault("namespace", namespace)
            self._write(plural, key, value, "ADDED" if old is None else "MODIFIED")
            return copy.deepcopy(value)

    def remove(self, plural: str, name: str, namespace: str = "ml") -> None:
        """Delete an object for good; watches see it."""
        with self._changed:
            value = self._objects[plural].pop((namespace, name))
            self._note(plural, "DELETED", value)

    def bookmark(self, plural: str) -> None:
        """Send a bookmark to the watches of a kind."""
        with self._changed:
            self._note(plural, "BOOKMARK", {"metadata": {}})

    def expire(self) -> None:
        """Forget the history: watches from an older version are answered 410."""
        with self._changed:
            self._version += 1
            self._oldest = self._version

    def end_streams(self, how: str = "end") -> None:
        """End all watches and followed logs: ``end`` as a server does, ``reset`` as a broken network does."""
        with self._changed:
            self._epoch += 1
            self._how = how
            self._changed.notify_all()

    def take(self, request: Request) -> None:
        """Note a request, at once with the streams that were ended before: its own ends with the next."""
        with self._changed:
            request.epoch = self._epoch
            self.requests.append(request)

    def fail(self, kind: str, *faults: Fault) -> None:
        """Answer the next requests of a kind (:attr:`Request.kind`) with faults, one each."""
        with self._changed:
            self._faults += [(kind, fault) for fault in faults]

    def write_log(self, pod: str, *lines: tuple[str, bytes], start: int = 0) -> None:
        """Add lines to the log of one start of a pod's container."""
        with self._changed:
            starts = self.logs.setdefault(pod, [])
            while len(starts) <= start:
                starts.append(Log())
            starts[start].lines += lines
            self._changed.notify_all()

    def end_log(self, pod: str, start: int = 0) -> None:
        """Let one start be over."""
        with self._changed:
            self.logs[pod][start].ended = True
            self._changed.notify_all()

    def count(self, kind: str) -> int:
        """Count the requests of a kind."""
        return sum(request.kind == kind for request in self.requests)

    def of(self, kind: str) -> list[Request]:
        """Give the requests of a kind."""
        return [request for request in self.requests if request.kind == kind]

    def versions(self, plural: str) -> dict[str, str]:
        """Give the resource versions of the objects of a kind, by UID."""
        with self._changed:
            found = [value["metadata"] for value in self._objects.get(plural, {}).values()]
            return {metadata["uid"]: metadata["resourceVersion"] for metadata in found}

    # --- objects ------------------------------------------------------------------------------------------------------

    def _write(self, plural: str, key: tuple[str, str], value: Json, what: str) -> None:
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        self._objects.setdefault(plural, {})[key] = value
        self._history.append((self._version, plural, {"type": what, "object": copy.deepcopy(value)}))
        self._changed.notify_all()

    def _note(self, plural: str, what: str, value: Json) -> None:
        self._version += 1
        value["metadata"]["resourceVersion"] = str(self._version)
        self._history.append((self._version, plural, {"type": what, "object": copy.deepcopy(value)}))
        self._changed.notify_all()

    def take_fault(self, kind: str) -> Fault | None:
        """Take the next fault for a request of a kind, if there is one."""
        with self._changed:
            for at, (wanted, fault) in enumerate(self._faults):
                if wanted == kind:
                    del self._faults[at]
                    return fault
        return None

    def answer(self, request: Request) -> tuple[int, Json]:
        """Do what a request asks for that is answered at once."""
        if request.path in self.documents:
            return 200, self.documents[request.path]
        found = _PATH.fullmatch(request.path)
        if found is None:
            return 404, _status(404, "NotFound", "404 page not found")
        plural, key = found["plural"], (found["ns"] or "", found["name"] or "")
        with self._changed:
            if plural.startswith("selfsubject"):
                return 201, self._review(plural, request.body)
            if request.method == "GET":
                return self._get(plural, key) if found["name"] else self._list(plural, key[0], request.query)
            if request.method == "POST":
                return self._create(plural, key[0], request.body)
            return self._change(request, plural, key)

    def _review(self, plural: str, body: Json) -> Json:
        if plural == "selfsubjectrulesreviews":
            return {"status": {"resourceRules": self.rules, "incomplete": False}}
        asked = body["spec"]["resourceAttributes"]
        name = "/".join(filter(None, (asked["resource"], asked.get("subresource"))))
        return {"status": {"allowed": self.allowed.get(f"{asked['verb']} {name}", False)}}

    def _get(self, plural: str, key: tuple[str, str]) -> tuple[int, Json]:
        value = self._objects.get(plural, {}).get(key)
        if value is None:
            return 404, _status(404, "NotFound", f'{plural} "{key[1]}" not found')
        return 200, copy.deepcopy(value)

    def _list(self, plural: str, namespace: str, query: Mapping[str, str]) -> tuple[int, Json]:
        values = [
            copy.deepcopy(value)
            for (where, _), value in self._objects.get(plural, {}).items()
            if where == namespace and _matches(value, query)
        ]
        at, limit = int(query.get("continue", 0)), int(query.get("limit", 500))
        metadata = {"resourceVersion": str(self._version)}
        if len(values) > at + limit:
            metadata["continue"] = str(at + limit)
        return 200, {"items": values[at : at + limit], "metadata": metadata}

    def _create(self, plural: str, namespace: str, body: Json) -> tuple[int, Json]:
        key = (namespace, body["metadata"]["name"])
        if key in self._objects.get(plural, {}):
            return 409, _status(409, "AlreadyExists", f'{plural} "{key[1]}" already exists')
        value = copy.deepcopy(body)
        value["metadata"] |= {"uid": f"uid-{next(self._uids)}", "namespace": namespace}
        self._write(plural, key, value, "ADDED")
        return 201, copy.deepcopy(value)

    def _change(self, request: Request, plural: str, key: tuple[str, str]) -> tuple[int, Json]:
        value = self._objects.get(plural, {}).get(key)
        if value is None:
            return 404, _status(404, "NotFound", f'{plural} "{key[1]}" not found')
        if request.method == "PATCH":
            wanted = request.body.get("metadata", {}).get("resourceVersion")
            if wanted not in (None, value["metadata"]["resourceVersion"]):
                message = f'Operation cannot be fulfilled on {plural} "{key[1]}": the object has been modified'
                return 409, _status(409, "Conflict", message)
            merged = _merge(value, request.body)
            self._write(plural, key, merged, "MODIFIED")
            return 200, copy.deepcopy(merged)
        uid = (request.body or {}).get("preconditions", {}).get("uid")
        if uid not in (None, value["metadata"]["uid"]):
            message = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {value['metadata']['uid']}"
            return 409, _status(409, "Conflict", message)
        value["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:30Z")
        self._write(plural, key, value, "MODIFIED")
        return 200, copy.deepcopy(value)

    # --- streams ------------------------------------------------------------------------------------------------------

    def watch(self, request: Request) -> Iterator[bytes]:
        """Give the lines of a watch until it ends."""
        found = _PATH.fullmatch(request.path)
        plural = found["plural"] if found else ""
        namespace = (found["ns"] if found else "") or ""
        at = int(request.query["resourceVersion"])
        epoch = request.epoch
        with self._changed:
            if at < self._oldest:
                error = _status(410, "Expired", f"too old resource version: {at} ({self._oldest})")
                yield json.dumps({"type": "ERROR", "object": error}).encode() + b"\n"
                return
        while True:
            with self._changed:
                while self._epoch == epoch and self._version <= at:
                    self._changed.wait()
                if self._epoch != epoch:
                    raise _Ended
                news = [
                    event
                    for version, kind, event in self._history
                    if version > at
                    and kind == plural
                    and (event["type"] == "BOOKMARK" or _matches(event["object"], request.query))
                    and event["object"]["metadata"].get("namespace", namespace) == namespace
                ]
                at = self._version
            for event in news:
                yield json.dumps(event).encode() + b"\n"

    def is_expired(self, request: Request) -> bool:
        """Tell whether a watch is to be answered 410 at once."""
        return not self.gone_in_stream and int(request.query["resourceVersion"]) < self._oldest

    def log(self, request: Request) -> Iterator[bytes]:
        """Give a log, and what comes if it is followed."""
        found = _PATH.fullmatch(request.path)
        starts = self.logs.get((found["name"] if found else "") or "", [])
        previous = request.query.get("previous") == "true"
        log = starts[-2 if previous else -1]
        follow, stamps = request.query.get("follow") == "true", request.query.get("timestamps") == "true"
        since, at = request.query.get("sinceTime", ""), 0
        epoch = request.epoch
        with self._changed:
            if "tailLines" in request.query:
                at = max(0, len(log.lines) - int(request.query["tailLines"]))
        while True:
            with self._changed:
                while follow and self._epoch == epoch and len(log.lines) <= at and not log.ended:
                    self._changed.wait()
                if self._epoch != epoch:
                    raise _Ended
                lines, ended = log.lines[at:], log.ended
                at += len(lines)
            for stamp, line in lines:
                if not since or not stamp or stamp[:19] >= since[:19]:
                    yield (f"{stamp} ".encode() if stamps and stamp else b"") + line + b"\n"
            if not follow or ended:
                return

    @property
    def how(self) -> str:
        """How streams end now."""
        return self._how


def _status(code: int, reason: str, message: str) -> Json:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}


def _matches(value: Json, query: Mapping[str, str]) -> bool:
    metadata = value["metadata"]
    labels = metadata.get("labels") or {}
    for term in filter(None, query.get("labelSelector", "").split(",")):
        key, mark, wanted = term.partition("=")
        if key not in labels or (mark and labels[key] != wanted):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        key, different, wanted = term.partition("!=")
        if not different:
            key, _, wanted = term.partition("=")
        is_same = (metadata["name"] if key == "metadata.name" else value.get(key)) == wanted
        if is_same == bool(different):
            return False
    return True


def _merge(value: Any, patch: Any) -> Any:
    if not isinstance(patch, Mapping):
        return copy.deepcopy(patch)
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, item in patch.items():
        if item is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), item)
    return merged


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are two writes: the second would wait 40 ms for the reader's delayed acknowledgement.
    disable_nagle_algorithm = True

    @property
    def kube(self) -> KubeServer:
        found: KubeServer = self.server.kube  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        self._handle()

    do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        request = Request(
            self.command, unquote(parts.path), query, {key.title(): value for key, value in self.headers.items()}, body
        )
        self.kube.take(request)
        fault = self.kube.take_fault(request.kind)
        with contextlib.suppress(ConnectionError):
            if fault is not None and not self._fault(fault, request):
                return
            self._serve(request)

    def _serve(self, request: Request) -> None:
        if "watch" in request.query:
            if self.kube.is_expired(request):
                self._reply(410, _status(410, "Expired", "too old resource version"))
            else:
                self._stream(self.kube.watch(request))
        elif request.kind.startswith("log "):
            starts = self.kube.logs.get(request.path.split("/")[-2], [])
            if not starts:
                self._reply(400, _status(400, "BadRequest", "container is waiting to start: ContainerCreating"))
            elif request.query.get("previous") == "true" and len(starts) < 2:
                self._reply(400, _status(400, "BadRequest", "previous terminated container not found"))
            else:
                self._stream(self.kube.log(request), cut=self.kube.cuts.pop(0) if self.kube.cuts else None)
        else:
            self._reply(*self.kube.answer(request))

    def _fault(self, fault: Fault, request: Request) -> bool:
        """Answer wrongly; True if the right answer comes all the same."""
        time.sleep(fault.pause)
        if fault.after:
            self.kube.answer(request)
        if fault.reset:
            self._reset()
        elif fault.body is not None:
            self._raw(fault.status or 200, fault.body, fault.headers)
        elif fault.status:
            reply = json.dumps(_status(fault.status, fault.reason, fault.message)).encode()
            self._raw(fault.status, reply, fault.headers)
        else:
            return True
        return False

    def _reset(self) -> None:
        """Break the connection as a lost one does."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    def _reply(self, status: int, value: Json) -> None:
        self._raw(status, json.dumps(value).encode(), {})

    def _raw(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for key, value in {"Date": self.date_time_string(), **headers}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, pieces: Iterator[bytes], cut: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in pieces:
                if cut is not None and len(piece) > cut:
                    self.wfile.write(f"{len(piece):x}\r\n".encode() + piece[:cut])
                    self.close_connection = True
                    return
                cut = None if cut is None else cut - len(piece)
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        except _Ended:
            if self.kube.how == "reset":
                self._reset()
                return
        self.wfile.write(b"0\r\n\r\n")
