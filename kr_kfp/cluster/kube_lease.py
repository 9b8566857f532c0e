"""A Lease that stands for a launcher outside of a KFP pod: renewed while it lives, expired soon after it died.

The holder of a group is then ``lease:<name>``. The Lease is owned by the group, so that it goes with it; who finds the
group of a Lease that expired may take it over or delete it. Times are the API server's, since they are compared by
other machines (``coordination.k8s.io/v1``, Lease).
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from datetime import UTC, datetime
from typing import Any

from kr_kfp.cluster.api import Manifest
from kr_kfp.cluster.kube_http import Api, Resource
from kr_kfp.cluster.kube_watch import Wait
from kr_kfp.errors import ClusterError, NotFoundError
from kr_kfp.spec.observe import unix

__all__ = ["EXPIRES", "LEASES", "PREFIX", "RENEWED", "Lease", "is_alive"]

LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")

PREFIX = "lease:"
"""Begins a holder that is a Lease and no pod."""

RENEWED = 60.0
EXPIRES = 180.0

_AGAIN = 10.0
"""Seconds until a renewal that failed is tried again."""


class Lease:
    """This process's Lease, renewed by a thread once :meth:`hold` was called.

    Args:
        api: The API server.
        namespace: Where it lives.
        wait: How the thread waits.
    """

    def __init__(self, api: Api, namespace: str, *, wait: Wait = threading.Event.wait) -> None:
        self._api, self._namespace, self._wait = api, namespace, wait
        self.name = f"kr-kfp-{secrets.token_hex(6)}"
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._owner = ""

    @property
    def holder(self) -> str:
        """What a group says of its holder."""
        return f"{PREFIX}{self.name}"

    def hold(self) -> None:
        """Create the Lease, or free it of the group that it belonged to, and keep renewing it.

        Raises:
            ClusterError: If that fails.
        """
        try:
            # That group may be going just now, and would take the Lease with it.
            self._patch({"metadata": {"ownerReferences": None}, "spec": {"renewTime": self._stamp()}})
        except NotFoundError:
            self._create()
        self._owner = ""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
            self._thread.start()

    def _create(self) -> None:
        spec = {
            "holderIdentity": f"{socket.gethostname()}:{os.getpid()}",
            "leaseDurationSeconds": int(EXPIRES),
            "acquireTime": self._stamp(),
            "renewTime": self._stamp(),
        }
        manifest = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name},
            "spec": spec,
        }
        self._api.create(LEASES, manifest, namespace=self._namespace)

    def belong_to(self, group: Manifest) -> None:
        """Let it be deleted with the group."""
        metadata = group["metadata"]
        if self._owner == metadata["uid"]:
            return
        owner = {
            "apiVersion": group["apiVersion"],
            "kind": group["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        self._patch({"metadata": {"ownerReferences": [owner]}})
        self._owner = metadata["uid"]

    def close(self) -> None:
        """Stop renewing."""
        self._ended.set()

    def _run(self) -> None:
        warned, seconds = False, RENEWED
        while not self._wait(self._ended, seconds):
            try:
                self._renew()
                seconds = RENEWED
            except NotFoundError:
                return  # It went with its group.
            except ClusterError as problem:
                seconds = _AGAIN
                if not warned:
                    warned = True
                    self._api.warn(f"{problem}; after {EXPIRES:g} s without, another launcher takes the group over")

    def _renew(self) -> None:
        self._patch({"spec": {"renewTime": self._stamp()}})

    def _patch(self, patch: dict[str, Any]) -> None:
        self._api.patch(LEASES, self.name, patch, namespace=self._namespace)

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self._api.now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def is_alive(api: Api, namespace: str, holder: str) -> bool:
    """Tell whether the launcher behind a Lease may still be at work.

    Args:
        api: The API server.
        namespace: Where the Lease lives.
        holder: ``lease:<name>``.
    """
    try:
        lease: dict[str, Any] = api.get(LEASES, holder.removeprefix(PREFIX), namespace=namespace)
    except NotFoundError:
        return False
    spec = lease.get("spec") or {}
    return api.now() < unix(spec.get("renewTime")) + float(spec.get("leaseDurationSeconds") or EXPIRES)
