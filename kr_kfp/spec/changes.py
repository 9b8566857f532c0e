"""What an installation or removal does to each object, told by values before and after. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kr_kfp.names import MANAGED_BY_LABEL
from kr_kfp.spec.rights import MANAGER

__all__ = ["Change", "What", "change", "is_made_here", "removal_order", "title", "visible"]

Json = dict[str, Any]

What = Literal["created", "changed", "unchanged", "deleted", "kept"]

_OF_THE_SERVER = ("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid")

_LAST = ("Role", "ClusterRole", "ServiceAccount", "CustomResourceDefinition", "Namespace")
"""Removed after everything else, in this order: others refer to them or are kept in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happens to one object, or would happen.

    Args:
        kind: Its kind.
        namespace: Its namespace; empty for one of the cluster.
        name: Its name.
        what: What happens.
        before: The object as it was, without what only the server says; None if there was none.
        after: As it is then; None if there is none.
        why: Why it is kept, or what else is to be known.
    """

    kind: str
    namespace: str
    name: str
    what: What
    before: Json | None = None
    after: Json | None = None
    why: str = ""

    @property
    def title(self) -> str:
        """Kind and name, for people."""
        return title({"kind": self.kind, "metadata": {"namespace": self.namespace, "name": self.name}})


def title(manifest: Mapping[str, Any]) -> str:
    """Name an object for people."""
    metadata = manifest["metadata"]
    where = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
    return f"{manifest['kind']} {where}{metadata['name']}"


def visible(manifest: Mapping[str, Any] | None) -> Json | None:
    """Leave out what only the server says (status, versions, times), and the values of a Secret."""
    if manifest is None:
        return None
    metadata = {k: v for k, v in manifest["metadata"].items() if k not in _OF_THE_SERVER}
    seen = {**{k: v for k, v in manifest.items() if k != "status"}, "metadata": metadata}
    if manifest.get("kind") == "Secret":
        for key in ("data", "stringData"):
            if seen.get(key):
                seen[key] = dict.fromkeys(seen[key], "<not shown>")
    return seen


def change(
    manifest: Mapping[str, Any], before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, *, why: str = ""
) -> Change:
    """Compare an object before and after.

    Args:
        manifest: What was applied or deleted; says which object it is.
        before: The object as the server had it.
        after: As it has it then.
        why: What else is to be known.
    """
    was, now = visible(before), visible(after)
    what: What = "deleted" if now is None else "created" if was is None else "unchanged" if was == now else "changed"
    metadata = manifest["metadata"]
    return Change(
        kind=str(manifest["kind"]),
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata["name"]),
        what=what,
        before=was,
        after=now,
        why=why,
    )


def is_made_here(manifest: Mapping[str, Any]) -> bool:
    """Tell whether ``kr-kfp install`` made an object: it has the label, and was applied by our field manager.

    The label alone may have been copied along with an object; the manager is noted by the server
    (``metadata.managedFields``, Kubernetes, "Server-Side Apply").
    """
    metadata = manifest["metadata"]
    if (metadata.get("labels") or {}).get(MANAGED_BY_LABEL) != MANAGER:
        return False
    entries = metadata.get("managedFields") or ()
    return any(e.get("manager") == MANAGER and e.get("operation") == "Apply" for e in entries)


def removal_order(manifests: Iterable[Json]) -> list[Json]:
    """Order objects for removal: what refers to others first; webhooks before the service that answers them."""

    def rank(manifest: Json) -> tuple[int, str, str, str]:
        kind, metadata = str(manifest["kind"]), manifest["metadata"]
        first = -1 if kind.endswith("WebhookConfiguration") else 0
        at = _LAST.index(kind) + 1 if kind in _LAST else first
        return at, kind, str(metadata.get("namespace") or ""), str(metadata["name"])

    return sorted(manifests, key=rank)
