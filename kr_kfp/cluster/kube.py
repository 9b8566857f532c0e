"""Groups on Kubernetes: :class:`KubeCluster` implements :class:`kr_kfp.cluster.api.Cluster` on an API server.

What each request costs, and what happens when the server is away, is in :mod:`kr_kfp.cluster.kube_http`; watching in
``kube_watch`` and ``kube_group``, logs in ``kube_log``, lost nodes in ``kube_nodes``, the Lease in ``kube_lease``.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from kr_kfp.cluster import kube_lease
from kr_kfp.cluster.api import Manifest, Ports, Sink, Watch
from kr_kfp.cluster.kube_access import check_rights, check_served
from kr_kfp.cluster.kube_group import CONFIG_MAPS, GROUPS, PODS, GroupWatch
from kr_kfp.cluster.kube_http import Api, Login, Resource
from kr_kfp.cluster.kube_lease import Lease
from kr_kfp.cluster.kube_log import LogReader
from kr_kfp.cluster.kube_login import ACCOUNT, from_kubeconfig, from_pod
from kr_kfp.cluster.kube_nodes import LOST_AFTER, Nodes
from kr_kfp.cluster.kube_watch import Wait
from kr_kfp.errors import ConflictError, ForbiddenError, NotFoundError, SetupError, UnavailableError
from kr_kfp.names import HOLDER_ANNOTATION
from kr_kfp.spec.leaderworkerset import LABEL
from kr_kfp.spec.observe import unix
from kr_kfp.spec.pod import CONTAINER

__all__ = ["RUN_ID", "KubeCluster", "connect", "is_at_work", "log_in"]

RUN_ID = "pipeline/runid"
"""Label of every pod of a KFP run (kubeflow/pipelines ``backend/src/apiserver/common/const.go``)."""

_AT_ONCE = 8
"""Requests at the same time where many are to be made."""

_LEAVING = 10.0
"""Seconds after its grace for which a launcher's pod that is being deleted counts as alive."""


def connect(
    name: str | None, env: Mapping[str, str], *, warn: Callable[[str], None] = lambda _: None, account: Path = ACCOUNT
) -> KubeCluster:
    """Connect to a cluster.

    Args:
        name: None is the cluster of this KFP pod; else ``kubeconfig[:context]`` or ``gke:project/location/name``.
        env: The environment. KFP_POD_NAME names this pod; KUBECONFIG and KR_KFP_NAMESPACE count outside of KFP pods.
        warn: Takes sentences for the user.
        account: Where a pod finds the files of its service account.

    Raises:
        SetupError: If that cluster cannot be used from here; says what to do.
        ClusterError: If this pod cannot be read.
    """
    login = log_in(name, env, account)
    if name is not None:
        return KubeCluster(Api(login, warn=warn))
    pod = _own_pod(Api(login, warn=warn), env["KFP_POD_NAME"])
    user = f"system:serviceaccount:{login.namespace}:{pod['spec'].get('serviceAccountName') or 'default'}"
    return KubeCluster(Api(replace(login, account=user), warn=warn), pod=pod)


def log_in(name: str | None, env: Mapping[str, str], account: Path = ACCOUNT) -> Login:
    """Log in to a cluster, as :func:`connect` does.

    Raises:
        SetupError: If that cluster cannot be used from here; says what to do.
    """
    if name is None:
        return from_pod(env, account)
    if name == "kubeconfig" or name.startswith("kubeconfig:"):
        return from_kubeconfig(name, env)
    if name.startswith("gke:"):
        from kr_kfp.cluster.kube_gke import connect_gke

        return connect_gke(name, env)
    msg = f"cluster={name!r} is none of local, kubeconfig, kubeconfig:<context>, gke:<project>/<location>/<name>"
    raise SetupError(msg)


def _own_pod(api: Api, name: str) -> Manifest:
    namespace = api.login.namespace
    try:
        pod: Manifest = api.get(PODS, name, namespace=namespace)
    except NotFoundError as problem:
        msg = (
            f"KFP_POD_NAME={name!r} names no pod of namespace {namespace}. It is set by KFP in the pods of its steps; "
            "unset it elsewhere"
        )
        raise SetupError(msg) from problem
    if RUN_ID not in (pod["metadata"].get("labels") or {}):
        msg = (
            f"KFP_POD_NAME={name!r} is set, but the pod has no label {RUN_ID}: it is none of a KFP run. "
            "Unset KFP_POD_NAME, or choose the cluster by name (cluster=, KR_KFP_CLUSTER)"
        )
        raise SetupError(msg)
    return pod


class KubeCluster:
    """Runs groups in one namespace; see :class:`kr_kfp.cluster.api.Cluster` for what each request does.

    Args:
        api: The API server.
        pod: The launcher's own pod; None outside of KFP pods, where a Lease stands for the launcher.
        lost_after: Seconds for which a node may be silent.
        wait: How threads wait.
    """

    def __init__(
        self,
        api: Api,
        *,
        pod: Manifest | None = None,
        lost_after: float = LOST_AFTER,
        wait: Wait = threading.Event.wait,
    ) -> None:
        self._api, self._pod, self._wait = api, pod, wait
        self._namespace = api.login.namespace
        self._nodes = Nodes(api, lost_after=lost_after)
        self._logs = LogReader(api, self._namespace, latest=self._latest, wait=wait)
        self._lease = Lease(api, self._namespace, wait=wait) if pod is None else None
        self._lock = threading.Lock()
        self._watches: list[GroupWatch] = []
        # What the watches know of pods, by UID; None is one that is gone.
        self._pods: dict[str, Manifest | None] = {}

    @property
    def where(self) -> str:
        """Name the namespace and its cluster."""
        return self._api.login.where

    def ports(self, name: str) -> Ports:
        """Give the fixed ports: every pod has an address of its own."""
        del name
        return Ports()

    def own_pod(self) -> Manifest | None:
        """Give the launcher's own pod as it was when the launcher started."""
        return self._pod

    @property
    def is_local(self) -> bool:
        """Hosts are pods."""
        return False

    def config_map(self, name: str) -> dict[str, str]:
        """Give the data of a ConfigMap; empty if there is none, or with a warning if it may not be read."""
        try:
            found: Manifest = self._api.get(CONFIG_MAPS, name, namespace=self._namespace)
        except NotFoundError:
            return {}
        except ForbiddenError as problem:
            self._api.warn(f"{problem}; KFP's defaults are taken in its place")
            return {}
        return dict(found.get("data") or {})

    def holder(self) -> str:
        """Identify this launcher by its pod's UID, outside of a KFP pod by a Lease."""
        if self._lease is not None:
            return self._lease.holder
        uid: str = (self._pod or {})["metadata"]["uid"]
        return uid

    def is_holder_alive(self, holder: str) -> bool:
        """Tell whether the launcher's pod is neither gone nor terminal, or its Lease not expired."""
        if not holder:
            return False
        if holder.startswith(kube_lease.PREFIX):
            return kube_lease.is_alive(self._api, self._namespace, holder)
        run = ((self._pod or {}).get("metadata") or {}).get("labels", {}).get(RUN_ID)
        selector = f"{RUN_ID}={run}" if run else RUN_ID
        pods, _ = self._api.list_all(PODS, namespace=self._namespace, labelSelector=selector)
        return any(is_at_work(pod, self._api.now()) for pod in pods if pod["metadata"]["uid"] == holder)

    def create_group(self, manifest: Manifest) -> Manifest:
        """Create the LeaderWorkerSet, after a look whether this account could end it too.

        Raises:
            ConflictError: If one of this name exists.
            ForbiddenError: If a right is missing, or a quota is used up.
            SetupError: If the cluster's LeaderWorkerSet is missing or too old.
        """
        check_served(self._api)
        check_rights(self._api, self._namespace)
        try:
            self._hold_lease(manifest)
            made: Manifest = self._api.create(GROUPS, manifest, namespace=self._namespace, fieldValidation="Strict")
        except NotFoundError as problem:
            msg = f"{problem}. Does namespace {self._namespace} exist?"
            raise SetupError(msg) from problem
        self._own_lease(made)
        return made

    def _hold_lease(self, group: Manifest) -> None:
        """See that this launcher's Lease is there before a group names it."""
        if self._lease is not None and _holder(group) == self._lease.holder:
            self._lease.hold()

    def _own_lease(self, group: Manifest) -> None:
        """Let this launcher's Lease go with the group that it holds."""
        if self._lease is not None and _holder(group) == self._lease.holder:
            self._lease.belong_to(group)

    def read_group(self, name: str) -> Manifest | None:
        """Read a LeaderWorkerSet; None if there is none.

        Raises:
            ForbiddenError: If a right is missing: names all that are.
        """
        try:
            found: Manifest = self._api.get(GROUPS, name, namespace=self._namespace)
        except NotFoundError:
            return None
        except ForbiddenError:
            check_rights(self._api, self._namespace)
            raise
        return found

    def patch_group(self, name: str, *, patch: Manifest, resource_version: str) -> Manifest:
        """Apply a JSON merge patch under a resource version.

        Raises:
            ConflictError: If somebody changed it first; a lost answer that is asked for again looks like that, too.
            NotFoundError: If it is gone.
        """
        self._hold_lease(patch)
        metadata = {**(patch.get("metadata") or {}), "resourceVersion": resource_version}
        patched: Manifest = self._api.patch(GROUPS, name, {**patch, "metadata": metadata}, namespace=self._namespace)
        self._own_lease(patched)
        return patched

    def delete_group(self, name: str, *, uid: str) -> None:
        """Ask for the deletion of this very LeaderWorkerSet and all its pods; no error if it is gone.

        In the foreground: it stays, being deleted, until all that it owns is gone, so that its name says whether a
        pod of it may still run, and a launcher that starts meanwhile waits.
        """
        self._delete(GROUPS, name, {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}})

    def list_pods(self, name: str) -> list[Manifest]:
        """List the group's pods, the ones being deleted too.

        Raises:
            ForbiddenError: If a right is missing: names all that are.
        """
        try:
            pods, _ = self._api.list_all(PODS, namespace=self._namespace, labelSelector=f"{LABEL}/name={name}")
        except ForbiddenError:
            check_rights(self._api, self._namespace)
            raise
        return pods

    def delete_pod(self, name: str, *, uid: str, grace_seconds: float | None = None) -> None:
        """Delete this very pod; a leader in the foreground, so that no new one starts beside its old workers.

        ``grace_seconds`` is rounded up to whole seconds; 0 does not wait for the node at all.
        """
        options: dict[str, Any] = {"preconditions": {"uid": uid}}
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = math.ceil(grace_seconds)
        # Leaders are <group>-0, workers <group>-0-<1...>; the workers' StatefulSet belongs to the leader.
        if name.endswith("-0"):
            options["propagationPolicy"] = "Foreground"
        self._delete(PODS, name, options)

    def delete_pods(self, pods: Sequence[tuple[str, str]], *, grace_seconds: float) -> None:
        """Delete these very pods, given by name and UID, several at the same time: a group may have hundreds."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = [pool.submit(self.delete_pod, name, uid=uid, grace_seconds=grace_seconds) for name, uid in pods]
        for one in asked:
            one.result()

    def _delete(self, resource: Resource, name: str, options: Manifest) -> None:
        try:
            self._api.delete(resource, name, options, namespace=self._namespace)
        except NotFoundError:
            return
        except ConflictError as problem:
            if "uid" not in str(problem).lower():
                raise
            return  # Another one of its name.

    def watch(self, name: str, sink: Sink) -> Watch:
        """Send what exists now, then ``synced``, then every change of the group and its pods, until closed.

        Raises:
            ClusterError: If group and pods cannot be listed.
        """
        watch = GroupWatch(
            self._api,
            self._namespace,
            name,
            sink,
            seen=self._see,
            look_again=self._nodes.look_again,
            wait=self._wait,
        )
        with self._lock:
            self._watches.append(watch)
        return watch

    def _see(self, uid: str, pod: Manifest | None) -> None:
        with self._lock:
            self._pods[uid] = pod
        if pod is None:
            self._logs.pod_gone(uid)

    def _latest(self, pod: Manifest) -> Manifest | None:
        """Give a pod as a watch knows it, else as the server does; None if it is gone."""
        uid = pod["metadata"]["uid"]
        with self._lock:
            if uid in self._pods and any(watch.is_open for watch in self._watches):
                return self._pods[uid]
        try:
            found: Manifest = self._api.get(PODS, pod["metadata"]["name"], namespace=self._namespace, patience=5.0)
        except NotFoundError:
            return None
        except UnavailableError:
            return pod
        return found if found["metadata"]["uid"] == uid else None

    def read_log(self, pod: Manifest, *, previous: bool = False, tail_bytes: int | None = None) -> bytes:
        """Read the log of the container's current start, or of the one before; nothing if there is none (any more)."""
        return self._logs.read(pod, previous=previous, tail_bytes=tail_bytes)

    def follow_log(self, pod: Manifest) -> Iterator[bytes]:
        """Give the log of the first start as it is written, until that start has ended or the pod is gone."""
        return self._logs.follow(pod)

    def node_is_lost(self, pod: Manifest) -> bool:
        """Tell whether the pod's node is gone or was silent for too long; asks the server only if it is in doubt."""
        return self._nodes.is_lost(pod)

    def close(self) -> None:
        """End all watches, followed logs and the renewal of the Lease."""
        for watch in self._watches:
            watch.close()
        self._logs.close()
        if self._lease is not None:
            self._lease.close()


def _holder(group: Manifest) -> str | None:
    """Give the holder that a group, or a patch of one, names."""
    holder: str | None = ((group.get("metadata") or {}).get("annotations") or {}).get(HOLDER_ANNOTATION)
    return holder


def is_at_work(pod: Manifest, now: float) -> bool:
    """Tell whether a launcher's pod may still do something."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return False
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER and (container.get("state") or {}).get("terminated"):
            return False
    deleted = pod["metadata"].get("deletionTimestamp")
    return not deleted or now < unix(deleted) + _LEAVING
