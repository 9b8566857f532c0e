"""What is known of one group: told by its watch, and by the answers to the launcher's own requests.

All waiting goes through :meth:`Picture.next`, one event at a time, so that a signal is seen between any two steps and
never in the middle of one.
"""

from __future__ import annotations

from dataclasses import replace

from kr_kfp.cluster.api import Clock, Cluster, Event, Manifest, Watch
from kr_kfp.errors import SetupError
from kr_kfp.names import HOLDER_ANNOTATION, PODS_ANNOTATION, RAN_ANNOTATION
from kr_kfp.spec.leaderworkerset import attempt_of
from kr_kfp.spec.observe import HostState, observe

__all__ = ["Picture", "StoppedError", "annotations_of", "is_older"]


class StoppedError(Exception):
    """The launcher was asked to stop.

    Attributes:
        number: The signal; 0 for the stop file.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}" if number else "stop file")
        self.number = number


class Picture:
    """A LeaderWorkerSet and its pods as its launcher knows them.

    Args:
        cluster: Where it lives.
        clock: Time and inbox.
        name: Its name.
        hosts: Its size.
        runners: Pods that run the function; None is all.
    """

    def __init__(self, cluster: Cluster, clock: Clock, *, name: str, hosts: int, runners: int | None = None) -> None:
        self.cluster, self.clock, self.name, self.hosts, self.runners = cluster, clock, name, hosts, runners
        self.manifest: Manifest | None = None
        self.stopping = False
        self.asked_to_stop: int | None = None
        self.pods: dict[str, Manifest] = {}
        self.gone: set[str] = set()
        self.notices: dict[str, Manifest] = {}
        self._synced = False
        self._holder = ""
        self._last: Manifest | None = None
        self._watch: Watch | None = None
        self._source: object = None

    @property
    def attempt(self) -> int:
        """0-based attempt of the group, as its pod template says, or said when it was there."""
        known = self.manifest or self._last
        return attempt_of(known["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]) if known else 0

    @property
    def created(self) -> str:
        """``metadata.creationTimestamp`` of the group."""
        return str(self.manifest["metadata"].get("creationTimestamp", "")) if self.manifest else ""

    @property
    def ran(self) -> float:
        """Seconds that user code ran in earlier attempts."""
        return float(annotations_of(self.manifest).get(RAN_ANNOTATION, "0"))

    @property
    def noted(self) -> tuple[str, ...]:
        """What the UIDs of the pods begin with that run this attempt, by index, as far as it was written down."""
        attempt, _, uids = annotations_of(self.manifest).get(PODS_ANNOTATION, "").partition(":")
        return tuple(uids.split(",")) if attempt == str(self.attempt) else ()

    def _look(self) -> None:
        """Watch, if that is not done.

        What an earlier watch has put into the inbox may still be there: it tells of a group that is gone.
        """
        if self._watch is None:
            source = self._source = object()
            self._watch = self.cluster.watch(self.name, lambda event: self.clock.put(replace(event, source=source)))

    def next(self, deadline: float | None) -> Event | None:
        """Take one event into the picture.

        Raises:
            StoppedError: If it is a signal, unless the group is being taken away already; see ``asked_to_stop`` then.
            SetupError: If another launcher has taken the group over.
        """
        event = self.clock.next_event(deadline)
        if event is not None and event.source in (None, self._source):
            self._take_in(event)
        return event

    def _take_in(self, event: Event) -> None:
        if event.kind in ("signal", "stop"):
            self.asked_to_stop = int(event.value or 0)
            if not self.stopping:
                raise StoppedError(self.asked_to_stop)
        elif event.kind == "group":
            if not is_older(event.value, self.manifest):
                known, self.manifest = self.manifest, event.value
                self._check_holder(known)
        elif event.kind == "group-gone":
            self._last, self.manifest = self.manifest or self._last, None
        elif event.kind == "synced":
            self._synced = True
        elif event.kind == "notice":
            # One that happens again is the same object with a higher count.
            self.notices[event.value["metadata"]["uid"]] = event.value
        else:
            self._see(event.value)
            if event.kind == "pod-gone":
                self.gone.add(event.value["metadata"]["uid"])
            else:
                self._pod_told(event.value)

    def _check_holder(self, known: Manifest | None) -> None:
        """Go away quietly where another launcher took this one for dead: group and result are no longer ours."""
        holder = annotations_of(self.manifest).get(HOLDER_ANNOTATION, "")
        if self.stopping or annotations_of(known).get(HOLDER_ANNOTATION) != self._holder or holder == self._holder:
            return
        msg = (
            f"another launcher ({holder}) took over LeaderWorkerSet {self.name}: this one was not heard of for too "
            "long (was its machine asleep or cut off?). The group runs on, and what that one tells counts"
        )
        raise SetupError(msg)

    def _pod_told(self, pod: Manifest) -> None:
        """Act on a pod that was told of; nothing here."""

    def _see(self, pod: Manifest) -> None:
        """Take in a pod; what was known of its container stays when an eviction empties its status."""
        uid = pod["metadata"]["uid"]
        known = ((self.pods.get(uid) or {}).get("status") or {}).get("containerStatuses")
        status = pod.get("status") or {}
        if known and not status.get("containerStatuses"):
            pod = {**pod, "status": {**status, "containerStatuses": known}}
        self.pods[uid] = pod

    def sync(self) -> None:
        """Wait until the watch has told all that exists."""
        while not self._synced:
            self.next(None)

    def states(self) -> tuple[HostState, ...]:
        """Tell what every host of the current attempt is doing."""
        lost = {
            uid: f"node {pod['spec']['nodeName']} of pod {pod['metadata']['name']} is gone"
            for uid, pod in self.pods.items()
            if uid not in self.gone and self.cluster.node_is_lost(pod)
        }
        return observe(
            list(self.pods.values()),
            hosts=self.hosts,
            attempt=self.attempt,
            gone=self.gone,
            lost=lost,
            runners=self.runners,
            noted=self.noted,
        )

    def _there(self) -> list[Manifest]:
        return [pod for uid, pod in self.pods.items() if uid not in self.gone]

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()
        self._watch = self._source = None
        self._synced = False


def annotations_of(group: Manifest | None) -> dict[str, str]:
    """Give a group's annotations; none if there is no group."""
    return ((group or {}).get("metadata") or {}).get("annotations") or {}


def is_older(told: Manifest, known: Manifest | None) -> bool:
    """Tell whether a watch is behind what the answer to a change of ours has told already.

    Taken for news it would lead back into the attempt before, whose pods are gone. Versions of one object can be
    compared as numbers (Kubernetes KEP-5504, stable in 1.35; etcd's have always been numbers that grow).
    """
    if known is None or told["metadata"]["uid"] != known["metadata"]["uid"]:
        return False
    return int(told["metadata"]["resourceVersion"]) < int(known["metadata"]["resourceVersion"])
