"""What the launcher does with its group: make or adopt it, restart it, delete it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kr_kfp.cluster.api import Clock, Cluster, Manifest
from kr_kfp.errors import ConflictError, NotFoundError
from kr_kfp.names import HOLDER_ANNOTATION, IDENTITY_ANNOTATION, PODS_ANNOTATION, RAN_ANNOTATION
from kr_kfp.runtime.picture import Picture, annotations_of, is_older
from kr_kfp.spec.leaderworkerset import leaders_of, restart_patch, stop_patch
from kr_kfp.spec.observe import pod_index

__all__ = ["HURRY", "Group", "HeldError"]

HURRY = 2.0
"""Seconds between SIGTERM and SIGKILL for hosts of a group that failed or restarts: their peers are gone."""

_LOOK_AGAIN = 10.0
"""Seconds after which pods that should be going are listed anew."""

_ENOUGH = 8
"""Characters by which the UIDs of two pods differ that follow each other; they are random."""


class HeldError(Exception):
    """Another launcher that lives holds the group."""


class Group(Picture):
    """The launcher's LeaderWorkerSet; see :class:`~kr_kfp.runtime.picture.Picture` for the arguments."""

    def __init__(self, cluster: Cluster, clock: Clock, *, name: str, hosts: int, runners: int | None = None) -> None:
        super().__init__(cluster, clock, name=name, hosts=hosts, runners=runners)
        self.adopted = False
        self._hurrying = False
        self._hurried: set[tuple[str, float]] = set()

    def acquire(self, manifest: Manifest) -> None:
        """Create the group, or adopt the one that an earlier launcher of this task left.

        Raises:
            HeldError: If a living launcher holds it.
            StoppedError: If a signal came while a group that is being deleted was waited out.
        """
        self._holder = manifest["metadata"]["annotations"][HOLDER_ANNOTATION]
        while self.manifest is None:
            found = self.cluster.read_group(self.name)
            # Pods without their group are those of one that was deleted in the background (as kubectl does): they
            # would count as hosts of the new one, beside which they run.
            if found["metadata"].get("deletionTimestamp") if found else self.cluster.list_pods(self.name):
                self.wait_gone(None)
            elif found is None:
                self._create(manifest)
            else:
                self._adopt(found, manifest)
        self._look()

    def _create(self, manifest: Manifest) -> None:
        try:
            self.manifest = self.cluster.create_group(manifest)
        except ConflictError:
            return  # Somebody was faster: look again.
        self.adopted = False

    def _adopt(self, found: Manifest, manifest: Manifest) -> None:
        wanted, given = manifest["metadata"]["annotations"], annotations_of(found)
        if given.get(IDENTITY_ANNOTATION) != wanted[IDENTITY_ANNOTATION]:
            msg = f"LeaderWorkerSet {self.name} exists and is not of this task; delete or rename it"
            raise ConflictError(msg, status=409, reason="AlreadyExists")
        holder = given.get(HOLDER_ANNOTATION, "")
        if holder != wanted[HOLDER_ANNOTATION] and self.cluster.is_holder_alive(holder):
            msg = f"LeaderWorkerSet {self.name} is held by another launcher that is at work ({holder})"
            raise HeldError(msg)
        patch = {"metadata": {"annotations": {HOLDER_ANNOTATION: wanted[HOLDER_ANNOTATION]}}}
        try:
            self.manifest = self._patch(found, patch)
            self.adopted = True
        except (ConflictError, NotFoundError):
            return

    def _patch(self, manifest: Manifest, patch: dict[str, Any]) -> Manifest:
        version = manifest["metadata"]["resourceVersion"]
        return self.cluster.patch_group(self.name, patch=patch, resource_version=version)

    def note(self, uids: Sequence[str]) -> None:
        """Write down which pods run the attempt, for a launcher that adopts it after one of them went away unseen.

        The first :data:`_ENOUGH` characters of each do: all annotations of an object together may have 256 KiB.

        Args:
            uids: The pods' UIDs by index.

        Raises:
            ClusterError: If that fails.
        """
        told = tuple(uid[:_ENOUGH] for uid in uids)
        if told != self.noted:
            note = f"{self.attempt}:{','.join(told)}"
            self._change(lambda _: {"metadata": {"annotations": {PODS_ANNOTATION: note}}})

    @property
    def is_stopped(self) -> bool:
        """Whether a restart was begun: its first half is done, its second is not."""
        return self.manifest is not None and self.manifest["spec"]["replicas"] == 0

    def is_deleted(self) -> bool:
        """Ask whether the group is gone, or going: the watch of its pods may be ahead of its own."""
        current = self.cluster.read_group(self.name)
        return current is None or "deletionTimestamp" in current["metadata"]

    def restart(self, ran: float) -> None:
        """Take all pods away, wait until they are gone, start the next attempt.

        Args:
            ran: Seconds that user code has run in all attempts so far; kept on the group for a later launcher.

        Raises:
            StoppedError: If a signal came meanwhile.
            NotFoundError: If the group was deleted meanwhile.
        """
        attempt = self.attempt + 1
        note = {"metadata": {"annotations": {RAN_ANNOTATION: f"{ran:.3f}"}}}
        # Before the group's controllers delete them, with the whole grace. No other leader comes meanwhile: this one
        # stays, being deleted, until its workers are gone.
        self.hurry()
        self._change(lambda _: {**stop_patch(), **note})
        self._wait_for_no_pod()
        self._hurrying = False
        self._change(lambda group: restart_patch(group, attempt))
        self.pods.clear()  # Those that are gone stay so: UIDs are never used again.

    def _wait_for_no_pod(self) -> None:
        while True:
            # One that was made just before may not have been told of yet, and of one that came and went while the watch
            # was cut nothing is told: only a list knows.
            left = self.cluster.list_pods(self.name)
            found = self.cluster.read_group(self.name)
            if found is None:
                raise self._deleted()
            if not is_older(found, self.manifest):
                self.manifest = found
            if not left and not leaders_of(found):
                return
            for pod in left:
                self._see(pod)
            end = self.clock.now() + _LOOK_AGAIN
            while (self._there() or leaders_of(self.manifest or {})) and self.next(end) is not None:
                if self.manifest is None:
                    raise self._deleted()

    @property
    def loss(self) -> str:
        """What is said where somebody else deletes the group."""
        return f"LeaderWorkerSet {self.name} was deleted by somebody else while it ran"

    def _deleted(self) -> NotFoundError:
        return NotFoundError(self.loss, status=404, reason="NotFound")

    def _change(self, patch: Callable[[Manifest], dict[str, Any]]) -> None:
        """Patch the group as it is now; a change by somebody else in between means reading it anew.

        Raises:
            SetupError: If another launcher has taken it over, of which the watch has not told yet.
            NotFoundError: If it was deleted.
        """
        while True:
            current = self.cluster.read_group(self.name)
            if current is None or "deletionTimestamp" in current["metadata"]:
                raise self._deleted()
            known, self.manifest = self.manifest, current
            self._check_holder(known)
            try:
                self.manifest = self._patch(current, patch(current))
            except ConflictError:
                continue
            return

    def delete(self) -> bool:
        """Ask for the deletion of the group, if there is one, with :data:`HURRY` as its hosts' grace.

        Returns:
            Whether there is anything to wait for.
        """
        self.stopping = True
        manifest = self.manifest or self._read_own()
        if manifest is not None:
            self.cluster.delete_group(self.name, uid=manifest["metadata"]["uid"])
            self.hurry()
        return manifest is not None or bool(self._there())

    def leave(self) -> bool:
        """Ask for the deletion of the group and watch it no longer: its hosts only hold, and end at SIGTERM.

        So one request is enough for any number of hosts, unless some of them are servers, which may take their whole
        grace.

        Returns:
            False, with nothing done, if a node is lost, whose pod nobody else would take away.
        """
        if self.manifest is None or any(self.cluster.node_is_lost(pod) for pod in self._there()):
            return False
        self.stopping = True
        self.cluster.delete_group(self.name, uid=self.manifest["metadata"]["uid"])
        if self.runners is not None and self.runners < self.hosts:
            self.hurry()
        self.close()
        return True

    def _read_own(self) -> Manifest | None:
        """Read the group, which may have been made although the answer did not come; None if it is of another."""
        found = self.cluster.read_group(self.name)
        return found if annotations_of(found).get(HOLDER_ANNOTATION) == self._holder else None

    def _pod_told(self, pod: Manifest) -> None:
        if self._hurrying:
            self._hurry([pod])

    def hurry(self) -> None:
        """Give the pods of a group that is being taken away a short grace: nothing they could still do would count.

        It has to be said with the first deletion of each: a kubelet that is ending a pod already goes by the grace that
        it began with (measured, Kubernetes 1.36 with containerd 2.2). The leader comes first and in the foreground:
        the workers' StatefulSet goes with it at once, before a worker has gone, which would come back otherwise.
        """
        self._hurrying = True
        leader_first = sorted(self._there(), key=pod_index)
        self._hurry(leader_first[:1])
        self._hurry(leader_first[1:])

    def _hurry(self, pods: Sequence[Manifest]) -> None:
        """Delete pods; on a node that is lost they are not waited for at all."""
        lost: list[Manifest] = []
        others: list[Manifest] = []
        for pod in pods:
            (lost if self.cluster.node_is_lost(pod) else others).append(pod)
        self._delete_pods(others, HURRY)
        # No kubelet is asked here, so they are gone at once: a worker therefore only when its StatefulSet is being
        # deleted, which asks for its pod's deletion; before that, another one would come in its place.
        certain = [pod for pod in lost if pod_index(pod) == 0 or pod["metadata"].get("deletionTimestamp")]
        self._delete_pods(certain, 0.0)

    def _delete_pods(self, pods: Sequence[Manifest], grace: float) -> None:
        """Delete pods, each once with each grace."""
        named = [(pod["metadata"]["name"], pod["metadata"]["uid"]) for pod in pods]
        asked = [(name, uid) for name, uid in named if (uid, grace) not in self._hurried]
        self._hurried |= {(uid, grace) for _, uid in asked}
        if asked:
            self.cluster.delete_pods(asked, grace_seconds=grace)

    def wait_gone(self, deadline: float | None) -> bool:
        """Wait until the group and its pods are gone; False if ``deadline`` (Unix seconds) passed first."""
        self._look()
        self.manifest = self.manifest or self.cluster.read_group(self.name)
        while not self._synced or self.manifest is not None or self._there():
            if self.next(deadline) is None:
                return False
            for pod in self._there():
                # A pod that nobody ends would hold the group for ever.
                if pod["metadata"].get("deletionTimestamp") and self.cluster.node_is_lost(pod):
                    self._delete_pods([pod], 0.0)
        self.close()
        self.pods.clear()
        return True
