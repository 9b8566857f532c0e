"""Installing and removing what runs need on a cluster: requests and their order.

What is installed is decided in :mod:`kr_kfp.spec.rights` and :mod:`kr_kfp.spec.release`, what is reported in
:mod:`kr_kfp.spec.changes`. Server-side apply with one field manager makes it idempotent; the server itself says what a
dry run would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kr_kfp.cluster.api import Manifest
from kr_kfp.cluster.kube_http import Api, Resource
from kr_kfp.errors import ClusterError, ForbiddenError, NotFoundError, Problem
from kr_kfp.names import MANAGED_BY_LABEL
from kr_kfp.spec.changes import Change, change, is_made_here, removal_order, title, visible
from kr_kfp.spec.release import CRD
from kr_kfp.spec.rights import MANAGER, is_ours

__all__ = ["KINDS", "has_account", "has_lws", "install", "uninstall"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the API server's paths name a kind.

    Args:
        resource: Its resource.
        namespaced: Whether its objects are in namespaces.
    """

    resource: Resource
    namespaced: bool = True


_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_HOOKS = "/apis/admissionregistration.k8s.io/v1"

_RIGHTS: Mapping[str, _Kind] = {
    "Role": _Kind(Resource(_RBAC, "roles")),
    "RoleBinding": _Kind(Resource(_RBAC, "rolebindings")),
    "ClusterRole": _Kind(Resource(_RBAC, "clusterroles"), namespaced=False),
    "ClusterRoleBinding": _Kind(Resource(_RBAC, "clusterrolebindings"), namespaced=False),
}

_NAMESPACES = Resource("/api/v1", "namespaces")
_CRDS = Resource("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions")

KINDS: Mapping[str, _Kind] = {
    **_RIGHTS,
    "Namespace": _Kind(_NAMESPACES, namespaced=False),
    "CustomResourceDefinition": _Kind(_CRDS, namespaced=False),
    "ServiceAccount": _Kind(Resource("/api/v1", "serviceaccounts")),
    "ConfigMap": _Kind(Resource("/api/v1", "configmaps")),
    "Secret": _Kind(Resource("/api/v1", "secrets")),
    "Service": _Kind(Resource("/api/v1", "services")),
    "Deployment": _Kind(Resource("/apis/apps/v1", "deployments")),
    "CronJob": _Kind(Resource("/apis/batch/v1", "cronjobs")),
    "MutatingWebhookConfiguration": _Kind(Resource(_HOOKS, "mutatingwebhookconfigurations"), namespaced=False),
    "ValidatingWebhookConfiguration": _Kind(Resource(_HOOKS, "validatingwebhookconfigurations"), namespaced=False),
}
"""Kinds of objects that an installation consists of (kubernetes-sigs/lws v0.9.0, ``config/default``; the reaper)."""

_SELECTOR = f"{MANAGED_BY_LABEL}={MANAGER}"

_IN_A_NAMESPACE = ("Deployment", "Secret", "ConfigMap", "Service", "ServiceAccount")
_BY_KUBERNETES = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
"""What every namespace has (kubernetes ``pkg/controller``: rootcacertpublisher, serviceaccount)."""


def has_lws(api: Api) -> bool:
    """Tell whether the cluster has the CRD of LeaderWorkerSet, and ``kr-kfp install`` did not make it."""
    try:
        found = api.get(_CRDS, CRD)
    except NotFoundError:
        return False
    return not _is_labelled(found)


def has_account(api: Api, namespace: str, name: str) -> bool:
    """Tell whether a service account exists; True if that may not be read."""
    try:
        api.get(KINDS["ServiceAccount"].resource, name, namespace=namespace)
    except NotFoundError:
        return False
    except ForbiddenError:
        return True
    return True


def install(api: Api, manifests: Sequence[Manifest], *, dry_run: bool) -> tuple[Change, ...]:
    """Make objects as the manifests say, or tell what would be made.

    Everything is tried with a dry run first, so that nothing is made if one thing is refused.

    Args:
        api: The API server.
        manifests: The objects, in the order in which they are made.
        dry_run: Change nothing.

    Raises:
        ClusterError: If something is refused, or somebody else's object is in the way; lists all of it.
    """
    before: dict[str, Manifest | None] = {}
    tried: dict[str, Change] = {}
    problems: list[Problem] = []
    for manifest in manifests:
        name = title(manifest)
        try:
            before[name] = _read(api, manifest)
            tried[name] = _try(api, manifest, before)
        except ClusterError as problem:
            problems.append(Problem(name, str(problem)))
    _raise(problems)
    if dry_run:
        return tuple(tried.values())
    return tuple(
        tried[title(m)] if tried[title(m)].what in ("kept", "unchanged") else _apply(api, m, before[title(m)])
        for m in manifests
    )


def _try(api: Api, manifest: Manifest, before: Mapping[str, Manifest | None]) -> Change:
    """Tell what applying one object would do.

    Raises:
        ClusterError: If it would be refused, or another's object has its name.
    """
    found = before[title(manifest)]
    if found is not None and not _is_labelled(found):
        if manifest["kind"] == "Namespace":
            same = visible(found)
            return _kept(manifest, same, "was there before")
        by = (found["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL)
        whose = f"is managed by {by}" if by else f"has no label {_SELECTOR}"
        msg = f"exists and {whose}: kr-kfp does not change it. Delete or rename it"
        raise ClusterError(msg)
    try:
        return change(manifest, found, _send(api, manifest, dry_run=True))
    except NotFoundError:
        if not _waits_for(manifest, before):
            raise
        return change(manifest, None, manifest, why="not tried: what it needs would be made before it")


def _waits_for(manifest: Manifest, before: Mapping[str, Manifest | None]) -> bool:
    """Tell whether a namespace or role that an object needs is made by the same installation."""
    namespace = manifest["metadata"].get("namespace", "")
    needed = [f"Namespace {namespace}"]
    if ref := manifest.get("roleRef"):
        needed.append(title({"kind": ref["kind"], "metadata": {"namespace": namespace, "name": ref["name"]}}))
        needed.append(f"{ref['kind']} {ref['name']}")
    return any(name in before and before[name] is None for name in needed)


def _apply(api: Api, manifest: Manifest, before: Manifest | None) -> Change:
    return change(manifest, before, _send(api, manifest, dry_run=False))


def _send(api: Api, manifest: Manifest, *, dry_run: bool) -> Manifest:
    kind, namespace = KINDS[manifest["kind"]], manifest["metadata"].get("namespace", "")
    found: Manifest = api.apply(kind.resource, manifest, manager=MANAGER, dry_run=dry_run, namespace=namespace)
    return found


def _read(api: Api, manifest: Manifest) -> Manifest | None:
    metadata = manifest["metadata"]
    resource = KINDS[manifest["kind"]].resource
    try:
        found: Manifest = api.get(resource, metadata["name"], namespace=metadata.get("namespace", ""))
    except NotFoundError:
        return None
    return found


def _is_labelled(manifest: Manifest) -> bool:
    return (manifest["metadata"].get("labels") or {}).get(MANAGED_BY_LABEL) == MANAGER


def _kept(manifest: Manifest, seen: Manifest | None, why: str) -> Change:
    metadata = manifest["metadata"]
    namespace = str(metadata.get("namespace") or "")
    return Change(
        kind=manifest["kind"],
        namespace=namespace,
        name=metadata["name"],
        what="kept",
        before=seen,
        after=seen,
        why=why,
    )


def _raise(problems: Sequence[Problem]) -> None:
    if len(problems) == 1:
        raise ClusterError(str(problems[0]))
    if problems:
        listed = "\n".join(f"  {n}. {problem}" for n, problem in enumerate(problems, 1))
        msg = f"nothing was changed, {len(problems)} problems\n{listed}"
        raise ClusterError(msg)


def uninstall(api: Api, namespaces: Iterable[str] = (), *, dry_run: bool) -> tuple[Change, ...]:
    """Remove what :func:`install` made, and nothing else.

    Args:
        api: The API server.
        namespaces: Only the rights of accounts in these; empty is everything on the cluster.
        dry_run: Change nothing.

    Returns:
        What was removed, and what was kept and why: LeaderWorkerSet itself while there are objects of its kinds, a
        namespace while there is something else in it.

    Raises:
        ClusterError: If something may not be listed or deleted.
    """
    where = tuple(dict.fromkeys(namespaces))
    found = _made_in(api, where) if where else _made(api)
    ours = {title(manifest) for manifest in found}
    used = _instances(api, found)
    done = []
    for manifest in removal_order(found):
        why = ""
        if used and not is_ours(manifest):
            why = f"in use: {', '.join(used)}"
        elif manifest["kind"] == "Namespace":
            others = _others(api, manifest["metadata"]["name"], ours)
            why = f"there is something else in it: {', '.join(others)}" if others else ""
        if why:
            done.append(_kept(manifest, visible(manifest), why))
            continue
        is_going = "deletionTimestamp" in manifest["metadata"]
        if not dry_run and not is_going:
            _delete(api, manifest)
        done.append(change(manifest, manifest, None, why="is being deleted already" if is_going else ""))
    return tuple(done)


def _made_in(api: Api, namespaces: Iterable[str]) -> list[Manifest]:
    """List the rights of accounts in these namespaces, to read nodes too, and the reaper."""
    kinds = ("CronJob", "ServiceAccount", "Role", "RoleBinding")
    found = [m for n in namespaces for kind in kinds for m in _list(api, kind, n) if is_ours(m)]
    try:
        bindings = [m for m in _list(api, "ClusterRoleBinding") if is_ours(m)]
    except ForbiddenError as problem:
        api.warn(f"{problem}. Rights to read nodes, if there are any, stay")
        return found
    ending = [m for m in bindings if {s.get("namespace") for s in m.get("subjects") or ()} <= set(namespaces)]
    # The role goes with its last binding.
    roles = [m for m in _list(api, "ClusterRole") if is_ours(m)] if len(ending) == len(bindings) else []
    return [*found, *ending, *roles]


def _made(api: Api) -> list[Manifest]:
    return [manifest for kind in KINDS for manifest in _list(api, kind)]


def _list(api: Api, kind: str, namespace: str = "") -> list[Manifest]:
    """List what was made; the items of a list do not say their kind."""
    found, _ = api.list_all(KINDS[kind].resource, namespace=namespace, labelSelector=_SELECTOR)
    return [{**item, "kind": kind} for item in found if is_made_here(item)]


def _instances(api: Api, made: Iterable[Manifest]) -> list[str]:
    """Name some of the objects that would go with the CRDs; none where they are not served (any more)."""
    names = []
    for crd in made:
        if crd["kind"] == "CustomResourceDefinition":
            spec = crd["spec"]
            version = next(v["name"] for v in spec["versions"] if v["served"])
            with suppress(NotFoundError):
                found, _ = api.list_all(Resource(f"/apis/{spec['group']}/{version}", spec["names"]["plural"]))
                names += [title({**item, "kind": spec["names"]["kind"]}) for item in found]
    return [*names[:3], f"{len(names) - 3} more"] if len(names) > 3 else names


def _others(api: Api, namespace: str, ours: set[str]) -> list[str]:
    """Name what is in a namespace apart from what is removed, from what belongs to that, and from Kubernetes' own."""
    others = []
    for kind in _IN_A_NAMESPACE:
        found, _ = api.list_all(KINDS[kind].resource, namespace=namespace)
        for item in found:
            metadata = item["metadata"]
            name = title({**item, "kind": kind})
            is_owned = metadata.get("ownerReferences") or (kind, metadata["name"]) in _BY_KUBERNETES
            if not is_owned and name not in ours:
                others.append(name)
    return others


def _delete(api: Api, manifest: Manifest) -> None:
    metadata = manifest["metadata"]
    options = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
    try:
        api.delete(KINDS[manifest["kind"]].resource, metadata["name"], options, namespace=metadata.get("namespace", ""))
    except NotFoundError:
        return
