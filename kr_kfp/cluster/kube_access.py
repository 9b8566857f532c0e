"""What has to be right before a group is created: LeaderWorkerSet as it is served here, and the account's rights.

Both are looked at once per group, so that a step does not find out at its end that it may not delete what it made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kr_kfp.cluster.kube_errors import Target
from kr_kfp.cluster.kube_group import GROUPS, PODS
from kr_kfp.cluster.kube_http import Api, Resource
from kr_kfp.errors import ClusterError, ForbiddenError, NotFoundError, SetupError
from kr_kfp.spec.leaderworkerset import API_VERSION, KIND, OLDEST

__all__ = ["RIGHTS", "Right", "check_rights", "check_served", "missing_features", "missing_rights"]

_INSTALL = "Install LeaderWorkerSet: kr-kfp install"


@dataclass(frozen=True, slots=True)
class Right:
    """One right of an account.

    Args:
        verb: Such as ``create``.
        resource: The kind.
        sub: Subresource, such as ``log``.
    """

    verb: str
    resource: Resource
    sub: str = ""

    @property
    def plural(self) -> str:
        """The resource in the authorizer's words."""
        return f"{self.resource.plural}/{self.sub}" if self.sub else self.resource.plural


RIGHTS = (
    *(Right(verb, GROUPS) for verb in ("create", "get", "list", "watch", "patch", "delete")),
    *(Right(verb, PODS) for verb in ("get", "list", "watch", "delete")),
)
"""Without one of these nothing works; pods/log, events and nodes are missed where they are used."""

_RULES = Resource("/apis/authorization.k8s.io/v1", "selfsubjectrulesreviews")
_ACCESS = Resource("/apis/authorization.k8s.io/v1", "selfsubjectaccessreviews")


def missing_rights(api: Api, namespace: str, rights: Iterable[Right] = RIGHTS) -> tuple[Right, ...]:
    """Give the rights that this account does not have in a namespace.

    One request tells the rules. An authorizer that cannot list its rules (webhooks, GKE's IAM) is asked for each right
    that no rule grants.
    """
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    answer = api.create(_RULES, {**review, "spec": {"namespace": namespace}})
    rules = (answer.get("status") or {}).get("resourceRules") or ()
    doubtful = [right for right in rights if not any(_grants(rule, right) for rule in rules)]
    return tuple(right for right in doubtful if not _is_allowed(api, namespace, right))


def _grants(rule: Mapping[str, Any], right: Right) -> bool:
    """Read one rule; one for single names grants nothing that is needed."""

    def has(key: str, *values: str) -> bool:
        return not {"*", *values}.isdisjoint(rule.get(key) or ())

    subs = (f"*/{right.sub}",) if right.sub else ()
    return (
        has("verbs", right.verb)
        and has("apiGroups", right.resource.group)
        and has("resources", right.plural, *subs)
        and not rule.get("resourceNames")
    )


def _is_allowed(api: Api, namespace: str, right: Right) -> bool:
    attributes = {
        "namespace": namespace,
        "verb": right.verb,
        "group": right.resource.group,
        "resource": right.resource.plural,
        "subresource": right.sub,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    answer = api.create(_ACCESS, {**review, "spec": {"resourceAttributes": attributes}})
    return bool((answer.get("status") or {}).get("allowed"))


def check_rights(api: Api, namespace: str) -> None:
    """Refuse to begin what could not be ended.

    Raises:
        ForbiddenError: If rights are missing; names all of them.
    """
    missing = missing_rights(api, namespace)
    if not missing:
        return
    verbs: dict[str, list[str]] = {}
    for right in missing:
        verbs.setdefault(right.plural, []).append(right.verb)
    listed = "; ".join(f"{', '.join(found)} {plural}" for plural, found in verbs.items())
    who = api.login.account or "the account that is logged in"
    msg = f"{who} may not: {listed} in namespace {namespace}. Give it the rights: kr-kfp install"
    raise ForbiddenError(msg, status=403, reason="Forbidden")


def check_served(api: Api) -> None:
    """Refuse a cluster whose LeaderWorkerSet is missing or too old.

    The schema is read as OpenAPI, which every account may; the CRD itself it mostly may not. Where that is refused all
    the same, the create request has to tell (``fieldValidation=Strict``).

    Raises:
        SetupError: Says which version is needed and how to install it.
    """
    path = f"/openapi/v3/apis/{API_VERSION}"
    target = Target(verb="get", resource=path)
    try:
        found = api.request("GET", path, target)
    except NotFoundError:
        served = _served_versions(api)
        if API_VERSION in served:
            return  # Installed a moment ago: its schema is published a little later.
        known = f"only as {', '.join(served)}" if served else "not at all"
        msg = f"this cluster serves {API_VERSION} {known}. {_INSTALL}"
        raise SetupError(msg) from None
    except ForbiddenError:
        return
    missing = missing_features((found.get("components") or {}).get("schemas") or {})
    if missing:
        msg = f"the LeaderWorkerSet of this cluster has no {', '.join(missing)}: it is older than {OLDEST}. {_INSTALL}"
        raise SetupError(msg)


def _served_versions(api: Api) -> list[str]:
    group = API_VERSION.partition("/")[0]
    try:
        found = api.get(Resource("/apis", group), "")
    except ClusterError:
        return []
    return [str(version.get("groupVersion")) for version in found.get("versions") or ()]


def missing_features(schemas: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the fields and values that a step needs and the served schema does not have. Pure.

    Args:
        schemas: ``components.schemas`` of the OpenAPI document of the API version; one without the kind, or with a
            schema that is not structural, tells nothing and misses nothing.
    """
    found = [s for s in schemas.values() if any(k.get("kind") == KIND for k in s.get(_KINDS) or ())]
    spec: Mapping[str, Any] = {}
    for schema in found:
        spec = (schema.get("properties") or {}).get("spec") or {}
    fields = _fields(spec, "leaderWorkerTemplate")
    if not fields:
        return ()
    missing = []
    if "None" not in ((fields.get("restartPolicy") or {}).get("enum") or ()):
        missing.append("restartPolicy None")
    if "subGroupPolicyType" not in _fields(spec, "leaderWorkerTemplate", "subGroupPolicy"):
        missing.append("subGroupPolicyType")
    # No field tells of the controller, but this one came with it.
    if "partition" not in _fields(spec, "rolloutStrategy", "rollingUpdateConfiguration"):
        missing.append("controller that leaves groups alone which are being deleted")
    return tuple(missing)


def _fields(schema: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    """Give the properties of a schema, or of one within it; none if it is not there."""
    for name in names:
        schema = (schema.get("properties") or {}).get(name) or {}
    return schema.get("properties") or {}


_KINDS = "x-kubernetes-group-version-kind"
