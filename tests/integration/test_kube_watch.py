"""The watch of a group against a real HTTP server: what is told, in which order, at what cost, through every break."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kr_kfp.errors import ForbiddenError
from tests.kube_kit import GROUP, Inbox, connected, pod, until
from tests.kube_server import Fault, KubeServer

WATCHES = ("watch leaderworkersets", "watch pods", "watch events")


@pytest.fixture
def server() -> Iterator[KubeServer]:
    """An API server with a group of two hosts."""
    server = KubeServer()
    server.put("leaderworkersets", {**GROUP, "metadata": {"name": "train-x", "uid": "g"}})
    server.put("pods", pod(0, uid="p0"))
    server.put("pods", pod(1, uid="p1"))
    yield server
    server.close()


def opened(server: KubeServer, times: int = 1) -> None:
    """Wait until all watches were opened so often."""
    until(lambda: all(server.count(kind) >= times for kind in WATCHES), f"{[r.kind for r in server.requests]}")


FIRST = ["group train-x g", "pod train-x-0 p0", "pod train-x-0-1 p1", "synced"]


def test_what_exists_then_synced_then_changes(server: KubeServer) -> None:
    """The first list is told at once; changes and deletions follow."""
    inbox = Inbox()
    with connected(server) as (cluster, _):
        cluster.watch("train-x", inbox)
        assert inbox.short() == FIRST
        opened(server)
        server.put("pods", pod(1, uid="p1", restarts=1))
        inbox.until(5)
        server.remove("pods", "train-x-0-1")
        inbox.until(6)
        server.remove("leaderworkersets", "train-x")
        assert inbox.until(7) == [*FIRST, "pod train-x-0-1 p1", "pod-gone train-x-0-1 p1", "group-gone train-x g"]


def test_a_missing_group_is_told_after_synced(server: KubeServer) -> None:
    """A group that does not exist is gone; pods of its name are told all the same."""
    inbox = Inbox()
    with connected(server) as (cluster, _):
        cluster.watch("train-y", inbox)
        assert inbox.short() == ["synced", "group-gone train-y"]


def test_requests_of_a_watch(server: KubeServer) -> None:
    """Group by name, pods by LWS's label, events without the routine ones; each continues from its list."""
    with connected(server) as (cluster, _):
        cluster.watch("train-x", Inbox())
        opened(server)
    group, pods, events = (server.of(kind)[0].query for kind in WATCHES)
    assert group == {
        "fieldSelector": "metadata.name=train-x",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "103",
        "timeoutSeconds": "3600",
    }
    assert pods["labelSelector"] == "leaderworkerset.sigs.k8s.io/name=train-x"
    assert events["fieldSelector"].split(",")[:2] == ["reason!=AllGroupsReady", "reason!=Created"]


@pytest.mark.parametrize("how", ["end", "reset"])
def test_a_watch_that_ends_goes_on_from_where_it_was(server: KubeServer, how: str) -> None:
    """The end of a watch costs one request each; nothing is told twice and nothing is missed."""
    inbox = Inbox()
    with connected(server) as (cluster, api):
        cluster.watch("train-x", inbox)
        opened(server)
        server.put("pods", pod(0, uid="p0", restarts=1))
        inbox.until(5)
        server.end_streams(how)
        opened(server, 2)
        server.put("pods", pod(1, uid="p1", restarts=1))
        assert inbox.until(6) == [*FIRST, "pod train-x-0 p0", "pod train-x-0-1 p1"]
        assert server.of("watch pods")[1].query["resourceVersion"] == "104"
        assert server.count("list pods") == 1
        assert api.warnings == []


def test_bookmarks_move_on_without_an_event(server: KubeServer) -> None:
    """After a bookmark a watch continues from there, so that a quiet one does not fall behind."""
    inbox = Inbox()
    with connected(server) as (cluster, _):
        cluster.watch("train-x", inbox)
        opened(server)
        server.bookmark("pods")
        server.put("pods", pod(0, uid="p0", restarts=1))
        inbox.until(5)
        server.bookmark("pods")
        server.put("leaderworkersets", {**GROUP, "metadata": {"name": "train-x", "uid": "g"}})
        inbox.until(6)
        server.end_streams()
        opened(server, 2)
        assert server.of("watch pods")[1].query["resourceVersion"] in ("105", "106")
        assert inbox.short() == [*FIRST, "pod train-x-0 p0", "group train-x g"]


@pytest.mark.parametrize("in_stream", [False, True], ids=["status", "event"])
def test_expired_version_means_a_new_list(server: KubeServer, in_stream: bool) -> None:
    """After 410 what differs is told: pods that are gone, changed and new, and nothing that stayed."""
    inbox = Inbox()
    server.gone_in_stream = in_stream
    with connected(server) as (cluster, _):
        cluster.watch("train-x", inbox)
        opened(server)
        server.fail("watch pods", *[Fault(status=503)] * 3)
        server.end_streams("reset")
        until(lambda: server.count("watch pods") >= 3)
        server.remove("pods", "train-x-0-1")
        server.put("pods", pod(1, uid="p2"))
        server.expire()
        server.put("pods", pod(2, uid="p3"))
        assert sorted(inbox.until(7)[4:]) == ["pod train-x-0-1 p2", "pod train-x-0-2 p3", "pod-gone train-x-0-1 p1"]
        assert inbox.short().index("pod-gone train-x-0-1 p1") < inbox.short().index("pod train-x-0-1 p2")


def test_errors_back_off_and_recover(server: KubeServer) -> None:
    """While the server fails the pauses grow, without a word to the user; then all is as before."""
    inbox = Inbox()
    server.fail("watch pods", *[Fault(status=500)] * 4)
    with connected(server) as (cluster, api):
        cluster.watch("train-x", inbox)
        until(lambda: server.count("watch pods") == 5)
        server.put("pods", pod(0, uid="p0", restarts=1))
        assert inbox.until(5)[-1] == "pod train-x-0 p0"
        assert api.pauses.waited == [0.5, 1.0, 2.0, 4.0]
        assert api.warnings == []


def test_a_right_that_goes_away_is_told_once_and_tried_again(server: KubeServer) -> None:
    """Pods have to be watched: whoever takes the right away is told, and giving it back helps."""
    inbox = Inbox()
    denied = 'User "u" cannot watch resource "pods" in API group "" in the namespace "ml"'
    server.fail("watch pods", *[Fault(status=403, reason="Forbidden", message=denied)] * 3)
    with connected(server) as (cluster, api):
        cluster.watch("train-x", inbox)
        until(lambda: server.count("watch pods") == 4)
        server.put("pods", pod(0, uid="p0", restarts=1))
        inbox.until(5)
        assert api.warnings == [
            "u may not watch pods in namespace ml. Give it the rights: kr-kfp install; trying again until it works"
        ]


def test_events_without_the_right_are_left_out(server: KubeServer) -> None:
    """One warning, and the group runs on without reasons from events."""
    denied = 'User "u" cannot list resource "events" in API group "" in the namespace "ml"'
    server.fail("list events", *[Fault(status=403, reason="Forbidden", message=denied)] * 9)
    with connected(server) as (cluster, api):
        cluster.watch("train-x", Inbox())
        until(lambda: api.warnings)
        until(lambda: not any(t.name == "watch-events" for t in threading.enumerate()))
        assert api.warnings == [
            "u may not list events in namespace ml. Give it the rights: kr-kfp install; "
            "why pods are not made will not be told"
        ]
        assert server.count("list events") == 1


def test_a_right_that_is_missing_at_first_is_an_error(server: KubeServer) -> None:
    """Without pods nothing can be watched: the caller hears it, at once."""
    server.fail("list pods", Fault(status=403, reason="Forbidden", message="no"))
    with connected(server) as (cluster, _), pytest.raises(ForbiddenError):
        cluster.watch("train-x", Inbox())


def notice(
    name: str, about: str, reason: str = "FailedCreate", when: str = "2026-01-01T00:01:00Z"
) -> dict[str, object]:
    return {
        "metadata": {"name": name},
        "involvedObject": {"name": about},
        "reason": reason,
        "type": "Warning",
        "lastTimestamp": when,
    }


def test_only_events_of_this_group(server: KubeServer) -> None:
    """Told are those about the group, its StatefulSets and pods, and none of an earlier group of its name."""
    made = {"name": "train-x", "uid": "g", "creationTimestamp": "2026-01-01T00:00:30Z"}
    server.put("leaderworkersets", {**GROUP, "metadata": made})
    for number, about in enumerate(("train-x", "train-x-0", "train-x-0-17", "train-x-00", "train-x-1", "train-xy")):
        server.put("events", notice(f"e{number}", about))
    server.put("events", notice("routine", "train-x-0", "Pulled"))
    server.put("events", notice("old", "train-x-0", when="2026-01-01T00:00:29Z"))
    inbox = Inbox()
    with connected(server) as (cluster, _):
        cluster.watch("train-x", inbox)
        opened(server)
        server.put("events", notice("new", "train-x-0-1"))
        inbox.until(8)
    found = [event.value["metadata"]["name"] for event in inbox.events if event.kind == "notice"]
    assert found == ["e0", "e1", "e2", "new"]


def test_nothing_follows_close(server: KubeServer) -> None:
    """Threads end soon, and what happens afterwards is not told."""
    inbox = Inbox()
    with connected(server) as (cluster, _):
        watch = cluster.watch("train-x", inbox)
        opened(server)
        watch.close()
        until(lambda: not any(t.name.startswith("watch-") for t in threading.enumerate()))
        server.put("pods", pod(0, uid="p0", restarts=1))
        assert inbox.short() == FIRST


def test_a_pod_in_doubt_is_told_again(server: KubeServer) -> None:
    """A node that falls silent changes nothing more: the pod is told again, so that the launcher looks at it."""
    inbox = Inbox()
    doubtful = pod(0, uid="p0")
    doubtful["status"]["conditions"][0] |= {"status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    with connected(server, lost_after=1.0) as (cluster, _):
        cluster.watch("train-x", inbox)
        opened(server)
        server.put("pods", doubtful)
        inbox.until(7)
        server.remove("pods", "train-x-0")
        inbox.wait(lambda event: event.kind == "pod-gone")
        *again, last = inbox.short()[4:]
        assert (set(again), last) == ({"pod train-x-0 p0"}, "pod-gone train-x-0 p0")
