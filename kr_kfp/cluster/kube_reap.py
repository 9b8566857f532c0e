"""Deleting groups that nobody needs any more: requests and their order. What goes is decided in ``spec/reap.py``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kr_kfp.cluster.api import Manifest
from kr_kfp.cluster.kube import RUN_ID, is_at_work
from kr_kfp.cluster.kube_group import GROUPS, PODS
from kr_kfp.cluster.kube_http import Api, Resource
from kr_kfp.cluster.kube_lease import EXPIRES, LEASES, PREFIX
from kr_kfp.errors import ClusterError, ConflictError, NotFoundError
from kr_kfp.names import MANAGED_BY_LABEL
from kr_kfp.spec.observe import unix
from kr_kfp.spec.reap import Finding, Holder, changed, holder_of, is_ours, judge, run_of, workflow_of
from kr_kfp.spec.rights import MANAGER

__all__ = ["WORKFLOWS", "reap"]

WORKFLOWS = Resource("/apis/argoproj.io/v1alpha1", "workflows")

_LOOKS = 3
"""How often a group is looked at that somebody changes between look and deletion."""


def reap(api: Api, namespaces: Iterable[str], *, dry_run: bool) -> tuple[Finding, ...]:
    """Delete groups of launchers whose run has ended or is gone, or whose Lease expired.

    A group is deleted as it was looked at: if a launcher takes it over meanwhile, the API server refuses, and it is
    looked at again. What cannot be looked at or deleted is told, and the others are gone on with.

    Args:
        api: The API server.
        namespaces: Where; an empty name is everywhere.
        dry_run: Delete nothing.

    Returns:
        What became of each group that a launcher made.
    """
    found: list[Finding] = []
    for namespace in dict.fromkeys(namespaces):
        try:
            groups, _ = api.list_all(GROUPS, namespace=namespace, labelSelector=f"{MANAGED_BY_LABEL}={MANAGER}")
        except NotFoundError:
            continue  # There is no LeaderWorkerSet at all.
        except ClusterError as problem:
            found.append(Finding(namespace=namespace, name="", what="failed", why=str(problem)))
            continue
        found += [_finding(api, group, dry_run=dry_run) for group in groups if is_ours(group)]
    return tuple(found)


def _finding(api: Api, group: Manifest, *, dry_run: bool) -> Finding:
    metadata = group["metadata"]
    finding = Finding(namespace=metadata["namespace"], name=metadata["name"], what="kept", why="")
    try:
        goes, why = _reap(api, group, dry_run=dry_run)
    except ClusterError as problem:
        return replace(finding, what="failed", why=str(problem))
    return replace(finding, what="deleted" if goes else "kept", why=why)


def _reap(api: Api, group: Manifest, *, dry_run: bool) -> tuple[bool, str]:
    """Decide on a group and delete it; say whether it goes, and why.

    Raises:
        ClusterError: If a request is refused.
    """
    namespace, name, uid = (group["metadata"][key] for key in ("namespace", "name", "uid"))
    for _ in range(_LOOKS):
        goes, why = judge(group, _holder(api, group), _workflows(api, group))
        if dry_run or not goes:
            return goes, why
        try:
            with suppress(ConflictError):
                _delete(api, group)
                return True, why
            group = api.get(GROUPS, name, namespace=namespace)
        except NotFoundError:
            return False, "is gone already"
        if group["metadata"]["uid"] != uid:
            return False, "was made anew meanwhile"
    return False, "is being changed by somebody"


def _delete(api: Api, group: Manifest) -> None:
    metadata = group["metadata"]
    preconditions = {key: metadata[key] for key in ("uid", "resourceVersion")}
    options: dict[str, Any] = {"propagationPolicy": "Foreground", "preconditions": preconditions}
    api.delete(GROUPS, metadata["name"], options, namespace=metadata["namespace"])


def _workflows(api: Api, group: Manifest) -> list[Manifest]:
    """Give the Workflows of a group's run that exist: the one that owns it, else those with the run's id."""
    namespace, owner = group["metadata"]["namespace"], workflow_of(group)
    try:
        if owner is None:
            if holder_of(group, PREFIX).kind == "lease":
                return []
            found, _ = api.list_all(WORKFLOWS, namespace=namespace, labelSelector=f"{RUN_ID}={run_of(group)}")
            return found
        one: Manifest = api.get(WORKFLOWS, owner["name"], namespace=namespace)
    except NotFoundError:
        return []
    return [one] if one["metadata"]["uid"] == owner["uid"] else []


def _holder(api: Api, group: Manifest) -> Holder:
    """Find out who holds a group, and whether that launcher may be at work."""
    holder, namespace = holder_of(group, PREFIX), group["metadata"]["namespace"]
    if holder.kind == "lease":
        return replace(holder, lives=_lease_lives(api, group, holder.name))
    pods, _ = api.list_all(PODS, namespace=namespace, labelSelector=f"{RUN_ID}={run_of(group)}")
    return replace(holder, lives=any(is_at_work(p, api.now()) for p in pods if p["metadata"]["uid"] == holder.name))


def _lease_lives(api: Api, group: Manifest, name: str) -> bool:
    """Tell whether a Lease is renewed. One that takes a group over is written just after the group names it."""
    try:
        lease: Manifest = api.get(LEASES, name, namespace=group["metadata"]["namespace"])
    except NotFoundError:
        return api.now() < changed(group) + EXPIRES
    spec = lease.get("spec") or {}
    return api.now() < unix(spec.get("renewTime")) + float(spec.get("leaseDurationSeconds") or EXPIRES)
