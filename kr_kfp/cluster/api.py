"""What a cluster must be able to do for the launcher, and nothing more.

Objects are plain Kubernetes dictionaries (camelCase), so that the pure core reads the same values whether they came
from an API server, from the local supervisor or from a test. :class:`kr_kfp.cluster.local.LocalCluster`,
``KubeCluster`` and :class:`kr_kfp.testing.FakeCluster` implement :class:`Cluster`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kr_kfp.spec.launch import Ports

__all__ = ["Clock", "Cluster", "Event", "Manifest", "Ports", "Sink", "Watch"]

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Args:
        kind: ``pod`` or ``group`` (an object was added or changed), ``pod-gone`` or ``group-gone`` (deleted),
            ``synced`` (all that existed when the watch began was sent), ``notice`` (a Kubernetes Event object),
            ``signal`` (``value`` is its number), ``stop`` (asked through the stop file).
        value: The object, or the signal's number.
        source: Tells the watches apart that put events into one inbox; None is no watch. Whoever opened one sets it.
    """

    kind: Literal["pod", "pod-gone", "group", "group-gone", "synced", "notice", "signal", "stop"]
    value: Any = None
    source: object = None


Sink = Callable[[Event], None]
"""Takes events from any thread; must not block."""


class Clock(Protocol):
    """Time, handed in so that tests advance it."""

    def now(self) -> float:
        """Give Unix seconds."""

    def next_event(self, deadline: float | None) -> Event | None:
        """Wait for the next event until ``deadline`` (Unix seconds; None is for ever); None when it has passed."""

    def put(self, event: Event) -> None:
        """Hand an event in, from any thread or signal handler."""


class Watch(Protocol):
    """A running watch."""

    def close(self) -> None:
        """Stop it; no event follows."""


class Cluster(Protocol):
    """The requests that the launcher makes. All arguments but the first are keywords."""

    @property
    def where(self) -> str:
        """Name the cluster for people, such as ``the local cluster``."""

    @property
    def is_local(self) -> bool:
        """Whether hosts are processes of this machine, which see its files and environment."""

    def ports(self, name: str) -> Ports:
        """Choose the ports of a group: fixed on Kubernetes, free ones locally."""

    def own_pod(self) -> Manifest | None:
        """Give the launcher's own pod; None outside a KFP pod."""

    def config_map(self, name: str) -> dict[str, str]:
        """Give the ``data`` of a ConfigMap in the run's namespace; empty if there is none, and outside Kubernetes."""

    def holder(self) -> str:
        """Give what identifies this launcher as holder of a group (its pod's UID; locally pid and start time)."""

    def is_holder_alive(self, holder: str) -> bool:
        """Tell whether the launcher with this identity may still be at work."""

    def create_group(self, manifest: Manifest) -> Manifest:
        """Create the LeaderWorkerSet.

        Raises:
            ConflictError: If one of this name exists.
        """

    def read_group(self, name: str) -> Manifest | None:
        """Read a LeaderWorkerSet; None if there is none."""

    def patch_group(self, name: str, *, patch: Manifest, resource_version: str) -> Manifest:
        """Apply a JSON merge patch under a resource version.

        Raises:
            ConflictError: If somebody changed it first.
            NotFoundError: If it is gone.
        """

    def delete_group(self, name: str, *, uid: str) -> None:
        """Ask for the deletion of this very LeaderWorkerSet and all its pods; no error if it is gone."""

    def list_pods(self, name: str) -> list[Manifest]:
        """List the group's pods, the ones being deleted too."""

    def delete_pods(self, pods: Sequence[tuple[str, str]], *, grace_seconds: float) -> None:
        """Delete these very pods, given by name and UID, several at the same time. No error if one is gone.

        ``grace_seconds`` (``gracePeriodSeconds``) is the time between SIGTERM and SIGKILL; a pod that is being deleted
        already is hurried. 0 does not wait for the pods' nodes at all.
        """

    def watch(self, name: str, sink: Sink) -> Watch:
        """Send what exists now, then ``synced``, then every change of the group and its pods, until closed."""

    def read_log(self, pod: Manifest, *, previous: bool = False, tail_bytes: int | None = None) -> bytes:
        """Read the log of the training container: of its current start, or of the one before."""

    def follow_log(self, pod: Manifest) -> Iterator[bytes]:
        """Give the training container's log from its first start, as it is written, until that start has ended."""

    def node_is_lost(self, pod: Manifest) -> bool:
        """Tell whether the pod's node is known to be gone or unreachable; False where nodes cannot be read."""
