"""What a group's watch tells when its threads cross."""

from __future__ import annotations

import threading

from kr_kfp.cluster.api import Event
from kr_kfp.cluster.kube_group import GroupWatch
from tests.kube_kit import GROUP, NAMESPACE, Inbox, Json, WatchedApi, pod, until
from tests.kube_server import KubeServer


def test_a_reminder_never_overtakes_news() -> None:
    """A pod that changes while its timer rings is not told of in its older state afterwards, nor for ever."""
    server, inbox = KubeServer(), Inbox()
    told = threading.Event()
    rung: list[bool] = []

    def sink(event: Event) -> None:
        inbox(event)
        if event.kind == "pod" and event.value["metadata"]["labels"].get("state") == "new":
            told.set()

    def look_again(found: Json) -> float | None:
        if found["metadata"]["labels"].get("state") == "new":
            return None
        if isinstance(threading.current_thread(), threading.Timer):
            changed = pod(0, uid="p0")
            changed["metadata"]["labels"]["state"] = "new"
            server.put("pods", changed)
            rung.append(told.wait(1.0))
        return 3600.0 if rung else 1.0

    try:
        server.put("leaderworkersets", {**GROUP, "metadata": {"name": "train-x", "uid": "g"}})
        server.put("pods", pod(0, uid="p0"))
        watch = GroupWatch(WatchedApi(server), NAMESPACE, "train-x", sink, seen=lambda *_: None, look_again=look_again)
        until(lambda: server.count("watch pods"))
        until(lambda: rung and told.is_set())
        assert inbox.until(5)[-1] == "pod train-x-0 p0"
        watch.close()
        states = [e.value["metadata"]["labels"].get("state", "old") for e in inbox.events if e.kind == "pod"]
        assert states == ["old", "old", "new"]
        # The timer of the older state would ring in an hour; a cancelled one still takes a moment to end.
        until(lambda: not [timer for timer in threading.enumerate() if _belongs(timer, watch)])
    finally:
        server.close()


def _belongs(thread: threading.Thread, watch: GroupWatch) -> bool:
    """Whether a thread is a timer of this watch, not one of another test's."""
    return isinstance(thread, threading.Timer) and getattr(thread.function, "__self__", None) is watch
