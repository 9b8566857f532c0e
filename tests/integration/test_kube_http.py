"""Requests against a real HTTP server: what is tried again, for how long, and what a broken answer becomes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from kr_kfp.cluster.kube_errors import Target
from kr_kfp.cluster.kube_group import GROUPS, PODS
from kr_kfp.cluster.kube_http import backoff
from kr_kfp.errors import ClusterError, ConflictError, NotFoundError, UnavailableError
from tests.kube_kit import DEADLINE, GROUP, NAMESPACE, WatchedApi, pod, until
from tests.kube_server import Fault, KubeServer


@pytest.fixture
def server() -> Iterator[KubeServer]:
    """An API server."""
    server = KubeServer()
    yield server
    server.close()


def test_paths_and_headers(server: KubeServer) -> None:
    """Core and group resources have their paths; credentials and content types travel as headers."""
    server.put("pods", pod())
    api = WatchedApi(server)
    api.get(PODS, "train-x-0", namespace=NAMESPACE)
    api.create(GROUPS, GROUP, namespace=NAMESPACE, fieldValidation="Strict")
    api.patch(GROUPS, "train-x", {"metadata": {"annotations": {"a": "b"}}}, namespace=NAMESPACE)
    got, made, patched = server.requests
    assert got.path == "/api/v1/namespaces/ml/pods/train-x-0"
    assert got.headers["Authorization"] == "Bearer old"
    assert (made.method, made.path) == ("POST", "/apis/leaderworkerset.x-k8s.io/v1/namespaces/ml/leaderworkersets")
    assert made.query == {"fieldValidation": "Strict"}
    assert made.headers["Content-Type"] == "application/json"
    assert patched.headers["Content-Type"] == "application/merge-patch+json"


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=500, message="failed calling webhook"),
        Fault(status=502),
        Fault(status=503),
        Fault(status=504),
        Fault(status=429),
        Fault(reset=True),
        Fault(body=b"<html>a proxy's page</html>"),
    ],
    ids=["500", "502", "503", "504", "429", "reset", "page"],
)
def test_a_request_is_tried_again(server: KubeServer, fault: Fault) -> None:
    """Whatever passes by itself is waited out, with growing pauses."""
    server.put("pods", pod())
    server.fail("get pods", fault, fault)
    api = WatchedApi(server)
    assert api.get(PODS, "train-x-0", namespace=NAMESPACE)["metadata"]["name"] == "train-x-0"
    assert api.pauses.waited == [0.5, 1.0]
    assert api.warnings == []


def test_trying_ends_with_the_deadline(server: KubeServer) -> None:
    """After its patience a request fails with the server's words; the user was told once, meanwhile."""
    server.fail("get pods", *[Fault(status=503, message="etcd is away")] * 50)
    api = WatchedApi(server, patience=60.0)
    with pytest.raises(UnavailableError) as caught:
        api.get(PODS, "p", namespace=NAMESPACE)
    assert str(caught.value) == "get pods p in namespace ml: etcd is away"
    assert api.pauses.waited == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]
    assert api.warnings == ["get pods p in namespace ml: etcd is away; trying for up to 60 s"]


def test_retry_after_is_obeyed(server: KubeServer) -> None:
    """A busy server says for how long it wants to be left alone."""
    server.put("pods", pod())
    server.fail("get pods", Fault(status=429, headers={"Retry-After": "9"}))
    api = WatchedApi(server)
    api.get(PODS, "train-x-0", namespace=NAMESPACE)
    assert api.pauses.waited == [9.0]


def test_final_answers_are_not_tried_again(server: KubeServer) -> None:
    """404, 409 and 422 come back at once."""
    api = WatchedApi(server)
    with pytest.raises(NotFoundError):
        api.get(PODS, "p", namespace=NAMESPACE)
    server.fail("create leaderworkersets", Fault(status=409, reason="AlreadyExists"), Fault(status=422))
    with pytest.raises(ConflictError):
        api.create(GROUPS, GROUP, namespace=NAMESPACE)
    with pytest.raises(ClusterError) as caught:
        api.create(GROUPS, GROUP, namespace=NAMESPACE)
    assert type(caught.value) is ClusterError
    assert (api.pauses.waited, len(server.requests)) == ([], 3)


def test_lost_answer_of_a_create_is_a_conflict(server: KubeServer) -> None:
    """If the answer is lost after the object was made, the second try says that it exists."""
    server.fail("create leaderworkersets", Fault(reset=True, after=True))
    api = WatchedApi(server)
    with pytest.raises(ConflictError):
        api.create(GROUPS, GROUP, namespace=NAMESPACE)
    assert server.count("create leaderworkersets") == 2


def test_credentials_are_renewed_once(server: KubeServer) -> None:
    """401 is answered with fresh credentials; if they are refused too, that is final."""
    server.put("pods", pod())
    api = WatchedApi(server)
    server.fail("get pods", Fault(status=401))
    api.get(PODS, "train-x-0", namespace=NAMESPACE)
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer old", "Bearer new"]
    server.fail("get pods", Fault(status=401), Fault(status=401))
    with pytest.raises(ClusterError) as caught:
        api.get(PODS, "train-x-0", namespace=NAMESPACE)
    assert (caught.value.status, api.pauses.waited) == (401, [])


def test_lists_are_read_page_by_page(server: KubeServer) -> None:
    """A long list comes in pages and is whole; the version is that of the list."""
    for index in range(7):
        server.put("pods", pod(index))
    items, version = WatchedApi(server).list_all(PODS, namespace=NAMESPACE, limit=3)
    assert [item["metadata"]["name"] for item in items] == ["train-x-0", *[f"train-x-0-{n}" for n in range(1, 7)]]
    assert version == "107"
    assert [request.query.get("continue") for request in server.requests] == [None, "3", "6"]


def test_nobody_listens() -> None:
    """A server that is not there is worth waiting for, and then an error."""
    server = KubeServer()
    server.close()
    api = WatchedApi(server, patience=3.0)
    with socket.socket() as kept:  # so that nobody else gets the port meanwhile
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", server.port))
        with pytest.raises(
            UnavailableError, match=r"get pods p in namespace ml: the API server does not answer: .*refused"
        ):
            api.get(PODS, "p", namespace=NAMESPACE)
    assert api.pauses.waited == [0.5, 1.0]


def test_a_stream_can_be_ended_by_another_thread(server: KubeServer) -> None:
    """Whoever reads sees the end at once, without an error."""
    server.write_log("p", ("2026-01-01T00:00:00Z", b"a"))
    target = Target(verb="get", resource="pods/log", namespace=NAMESPACE, name="p")
    stream = WatchedApi(server).stream(PODS.path(NAMESPACE, "p", "log"), target, query={"follow": True}, idle=60.0)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.extend(stream))
    thread.start()
    until(lambda: got)
    stream.close()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert got == [b"a\n"]


def test_a_silent_stream_counts_as_broken(server: KubeServer) -> None:
    """No byte for the time that was set means a connection that died."""
    server.write_log("p")
    target = Target(verb="get", resource="pods/log", namespace=NAMESPACE, name="p")
    stream = WatchedApi(server).stream(PODS.path(NAMESPACE, "p", "log"), target, query={"follow": True}, idle=2.0)
    with pytest.raises(UnavailableError):
        list(stream)


@pytest.mark.parametrize(
    ("failures", "chance", "seconds"),
    [(1, 1.0, 0.5), (1, 0.0, 0.25), (4, 1.0, 4.0), (7, 1.0, 30.0), (500, 0.5, 22.5)],
)
def test_backoff(failures: int, chance: float, seconds: float) -> None:
    """Doubled with each failure, bounded, and half of it left to chance."""
    assert backoff(failures, chance) == seconds
