"""Whether a pod's node is lost.

A kubelet that is gone changes nothing itself. The node controller then turns the pod's condition Ready to False and
leaves everything else as it was (kubernetes ``pkg/controller/util/node/controller_utils.go``, MarkPodsNotReady), the
condition ContainersReady too; a kubelet always changes both. The phase stays Running, and a pod that is being deleted
stays for ever (measured, Kubernetes 1.36).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kr_kfp.cluster.api import Manifest
from kr_kfp.cluster.kube_http import Api, Resource
from kr_kfp.errors import ClusterError, ForbiddenError, NotFoundError
from kr_kfp.spec.observe import unix

__all__ = ["LOST_AFTER", "NODES", "Nodes", "doubted_since"]

NODES = Resource("/api/v1", "nodes")

LOST_AFTER = 60.0
"""Seconds for which a node may be silent, after the 40 to 50 that the node controller itself waits."""

_OVERDUE = 10.0
"""Seconds that a kubelet that lives may take longer than a pod's grace."""

_ANSWER_AGE = 5.0
"""Seconds for which what was read of a node is used again: all pods of a group are looked at with every event."""


def doubted_since(pod: Manifest) -> float | None:
    """Give since when (Unix seconds) nothing speaks for a pod's node; None while nothing speaks against it."""
    status, metadata = pod.get("status") or {}, pod["metadata"]
    if not (pod.get("spec") or {}).get("nodeName"):
        return None
    since = []
    conditions: Mapping[str, Any] = {c.get("type"): c for c in status.get("conditions") or ()}
    ready, containers = conditions.get("Ready") or {}, conditions.get("ContainersReady") or {}
    if ready.get("status") == "False" and containers.get("status") == "True":
        since.append(unix(ready.get("lastTransitionTime")))
    if metadata.get("deletionTimestamp"):
        # It is the time at which the pod should be gone: the grace is in it.
        since.append(unix(metadata["deletionTimestamp"]) + _OVERDUE)
    return min(since) if since else None


class Nodes:
    """Tells whether nodes are lost, with or without the right to read them.

    Args:
        api: The API server.
        lost_after: Seconds for which a node may be silent.
        now: Gives Unix seconds; None is the API server's time, by which conditions are stamped.
    """

    def __init__(self, api: Api, *, lost_after: float = LOST_AFTER, now: Callable[[], float] | None = None) -> None:
        self._api, self._lost_after, self._now = api, lost_after, now or api.now
        self._may_read = True
        self._known: dict[str, tuple[float, float | None]] = {}

    def is_lost(self, pod: Manifest) -> bool:
        """Tell whether the pod's node is gone or was silent for too long."""
        doubted = doubted_since(pod)
        now = self._now()
        if doubted is None or now < doubted:
            return False
        if self._may_read:
            silent = self._silent_since(pod["spec"]["nodeName"], now)
            if self._may_read:
                return silent is not None and now >= silent + self._lost_after
        return now >= doubted + self._lost_after

    def look_again(self, pod: Manifest) -> float | None:
        """Give the seconds after which an unchanged pod may have become a lost one; None if nothing is in doubt."""
        doubted = doubted_since(pod)
        if doubted is None:
            return None
        # The node may be deleted meanwhile, which decides it; its own condition may have turned later than the pod's.
        left = doubted + self._lost_after - self._now()
        return min(left, self._lost_after / 4) if left > 0 else self._lost_after / 4

    def _silent_since(self, name: str, now: float) -> float | None:
        """Give since when the node is silent: None if it is not, 0 if it does not exist."""
        read, silent = self._known.get(name, (0.0, None))
        if now < read + _ANSWER_AGE:
            return silent
        silent = self._read(name)
        self._known[name] = (now, silent)
        return silent

    def _read(self, name: str) -> float | None:
        try:
            node = self._api.get(NODES, name, patience=_ANSWER_AGE)
        except NotFoundError:
            return 0.0
        except ForbiddenError as problem:
            self._may_read = False
            self._api.warn(f"{problem}; that a node is lost is concluded from its pods")
            return None
        except ClusterError:
            return None  # Nothing is known now; the next look asks again.
        for condition in (node.get("status") or {}).get("conditions") or ():
            if condition.get("type") == "Ready" and condition.get("status") != "True":
                return unix(condition.get("lastTransitionTime"))
        return None
