"""The watch of one group: its LeaderWorkerSet, its pods, and the Kubernetes Events about both."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from kr_kfp.cluster.api import Event, Manifest, Sink
from kr_kfp.cluster.kube_http import Api, Resource
from kr_kfp.cluster.kube_watch import Selection, Wait, Watcher
from kr_kfp.spec.leaderworkerset import API_VERSION, LABEL
from kr_kfp.spec.observe import unix

__all__ = ["CONFIG_MAPS", "EVENTS", "GROUPS", "PODS", "GroupWatch"]

GROUPS = Resource(f"/apis/{API_VERSION}", "leaderworkersets")
PODS = Resource("/api/v1", "pods")
CONFIG_MAPS = Resource("/api/v1", "configmaps")
EVENTS = Resource("/api/v1", "events")

_ROUTINE = (
    "AllGroupsReady",
    "Created",
    "CreatingRevision",
    "GroupsProgressing",
    "Killing",
    "Pulled",
    "Pulling",
    "Scheduled",
    "Started",
    "SuccessfulCreate",
    "SuccessfulDelete",
)
"""Reasons of Events that tell of nothing wrong; the server leaves them out, which is most of a namespace's."""

_PATIENCE = 1.0
"""Seconds until a pod whose node is in doubt is looked at again, at least."""


class GroupWatch:
    """Tells of a group from now on: what exists, ``synced``, every change. The first list is made at once.

    Args:
        api: The API server.
        namespace: The group's namespace.
        name: The group's name.
        sink: Takes the events.
        seen: Takes each pod's UID and the pod, None if it is gone, before the sink does.
        look_again: Gives the seconds after which an unchanged pod is worth another look; None if it is well.
        wait: How threads wait.

    Raises:
        ClusterError: If group or pods cannot be listed.
    """

    def __init__(
        self,
        api: Api,
        namespace: str,
        name: str,
        sink: Sink,
        *,
        seen: Callable[[str, Manifest | None], None],
        look_again: Callable[[Manifest], float | None],
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._sink, self._seen, self._look_again = sink, seen, look_again
        self._lock = threading.Lock()
        self._closed = False
        self._since = 0.0
        self._about = re.compile(rf"{re.escape(name)}(-0(-[0-9]+)?)?")
        self._timers: dict[str, threading.Timer] = {}
        # What is told of a pod stays in order: its timer rings in a thread of its own.
        self._pod_lock = threading.Lock()
        group = Selection(resource=GROUPS, namespace=namespace, query={"fieldSelector": f"metadata.name={name}"})
        pods = Selection(resource=PODS, namespace=namespace, query={"labelSelector": f"{LABEL}/name={name}"})
        routine = ",".join(f"reason!={reason}" for reason in _ROUTINE)
        notices = Selection(resource=EVENTS, namespace=namespace, query={"fieldSelector": routine})
        self._group = Watcher(api, group, changed=self._group_changed, gone=self._group_gone, wait=wait)
        self._pods = Watcher(api, pods, changed=self._pod_changed, gone=self._pod_gone, wait=wait)
        self._notices = Watcher(
            api,
            notices,
            changed=self._notice,
            gone=lambda _: None,
            wait=wait,
            optional="why pods are not made will not be told",
            keep=False,
        )
        found = self._group.relist()
        self._pods.relist()
        self._tell(Event("synced"))
        if not found:
            self._tell(Event("group-gone", {"metadata": {"name": name}}))
        for watcher in (self._group, self._pods, self._notices):
            watcher.start()

    @property
    def is_open(self) -> bool:
        """Whether it still tells."""
        return not self._closed

    def close(self) -> None:
        """Stop; no event follows."""
        with self._lock:
            self._closed = True
        for watcher in (self._group, self._pods, self._notices):
            watcher.close()
        with self._pod_lock:
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()

    def _tell(self, event: Event) -> None:
        with self._lock:
            if not self._closed:
                self._sink(event)

    def _group_changed(self, group: Manifest) -> None:
        self._since = unix(group["metadata"].get("creationTimestamp"))
        self._tell(Event("group", group))

    def _group_gone(self, group: Manifest) -> None:
        self._tell(Event("group-gone", group))

    def _pod_changed(self, pod: Manifest) -> None:
        with self._pod_lock:
            self._seen(pod["metadata"]["uid"], pod)
            self._forget_timer(pod)
            self._remind(pod)
            self._tell(Event("pod", pod))

    def _pod_gone(self, pod: Manifest) -> None:
        with self._pod_lock:
            self._seen(pod["metadata"]["uid"], None)
            self._forget_timer(pod)
            self._tell(Event("pod-gone", pod))

    def _forget_timer(self, pod: Manifest) -> None:
        """Stop the pod's timer."""
        timer = self._timers.pop(pod["metadata"]["uid"], None)
        if timer is not None:
            timer.cancel()

    def _remind(self, pod: Manifest) -> None:
        """Tell of an unchanged pod once more where time alone changes what it means: its node may be lost."""
        seconds = self._look_again(pod)
        if seconds is None or self._closed:
            return
        timer = threading.Timer(max(_PATIENCE, seconds), self._pod_again, [pod])
        timer.daemon = True
        self._timers[pod["metadata"]["uid"]] = timer
        timer.start()

    def _pod_again(self, pod: Manifest) -> None:
        with self._pod_lock:
            # Unless it has changed or gone while its timer rang.
            if self._timers.get(pod["metadata"]["uid"]) is threading.current_thread():
                self._forget_timer(pod)
                self._remind(pod)
                self._tell(Event("pod", pod))

    def _notice(self, notice: Manifest) -> None:
        """Tell of an Event if it is about this group and not about an earlier one of its name."""
        about = str((notice.get("involvedObject") or {}).get("name") or "")
        series = (notice.get("series") or {}).get("lastObservedTime")
        when = unix(series or notice.get("lastTimestamp") or notice.get("eventTime"))
        if self._about.fullmatch(about) and not (when and when < self._since):
            self._tell(Event("notice", notice))
