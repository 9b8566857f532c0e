"""Looking at a cluster: one small request after another, each of which may be refused. Nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from kr_kfp.cluster.kube_access import missing_features
from kr_kfp.cluster.kube_admin import KINDS
from kr_kfp.cluster.kube_errors import HINTS, Target
from kr_kfp.cluster.kube_group import CONFIG_MAPS, GROUPS
from kr_kfp.cluster.kube_http import Api, Login, Resource
from kr_kfp.cluster.kube_nodes import NODES as NODE_RESOURCE
from kr_kfp.errors import ClusterError, ForbiddenError, NotFoundError
from kr_kfp.names import MANAGED_BY_LABEL
from kr_kfp.spec.facts import Answer, Facts, Unknown
from kr_kfp.spec.leaderworkerset import API_VERSION, KIND
from kr_kfp.spec.rights import MANAGER, NAMESPACE, NODES, RULES, Account, Rule

__all__ = ["gather", "secret_keys"]

Json = dict[str, Any]
P = ParamSpec("P")
T = TypeVar("T")
Ask = Callable[[Mapping[str, str]], bool]

_AUTHORIZATION = "/apis/authorization.k8s.io/v1"
_WHO = Resource("/apis/authentication.k8s.io/v1", "selfsubjectreviews")
_SELF = Resource(_AUTHORIZATION, "selfsubjectaccessreviews")
_OTHER = Resource(_AUTHORIZATION, "subjectaccessreviews")
_SLICES = Resource("/apis/discovery.k8s.io/v1", "endpointslices")
_QUOTAS = Resource("/api/v1", "resourcequotas")
_LIMITS = Resource("/api/v1", "limitranges")

_KFP_API = "ml-pipeline"
"""Deployment of KFP's API server (kubeflow/pipelines ``manifests/kustomize/base/pipeline``)."""

_AUTOSCALER = "cluster-autoscaler-status"
"""ConfigMap in kube-system in which it reports (kubernetes/autoscaler ``cluster-autoscaler/clusterstate/utils``)."""

_CREATE_GROUP = {"verb": "create", "group": GROUPS.group, "resource": GROUPS.plural}


def gather(api: Api, account: Account) -> Facts:
    """Look at everything.

    Args:
        api: The API server; with little patience, since what does not answer is told too.
        account: The account of the launchers.

    Raises:
        ClusterError: If the API server does not answer at all, or does not accept the credentials.
    """
    namespace = account.namespace
    version = _version(api)
    hooks = _try(_hooks, api)
    return Facts(
        account=account,
        kubernetes=version,
        served=_try(_served, api, GROUPS.group),
        lacking=_try(_lacking, api),
        workflows=_try(_served, api, "argoproj.io"),
        kfp=_try(_kfp, api),
        hooks=hooks,
        ready={} if isinstance(hooks, Unknown) else {name: _try(_ready, api, name) for name in _services(hooks)},
        trial=_try(_trial, api, namespace),
        accounts=_try(_names, api, KINDS["ServiceAccount"].resource, namespace),
        rights=_try(_rights, api, account),
        quotas=_try(_all, api, _QUOTAS, namespace),
        limits=_try(_all, api, _LIMITS, namespace),
        config=_try(_config, api, namespace),
        nodes=_try(_all, api, NODE_RESOURCE),
        autoscaled=_try(_is_autoscaled, api),
    )


def secret_keys(api: Api, namespace: str, name: str) -> tuple[str, ...] | Unknown | None:
    """Give the keys of a Secret, None if there is none. Values are not looked at."""
    return _try(_keys, api, namespace, name)


def _keys(api: Api, namespace: str, name: str) -> tuple[str, ...] | None:
    try:
        found = api.get(KINDS["Secret"].resource, name, namespace=namespace)
    except NotFoundError:
        return None
    return tuple(sorted(found.get("data") or {}))


def _try(ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Unknown:
    """Ask, and take a refusal for an answer. What to do about it depends on what was asked for."""
    try:
        return ask(*args, **kwargs)
    except ClusterError as problem:
        text = str(problem)
        for hint in HINTS:
            text = text.removesuffix(hint)
        return Unknown(text)


def _version(api: Api) -> str | Unknown:
    """Read the server's version; some servers tell it only to who may see it."""
    target = Target(verb="get", resource="/version")
    try:
        return str(api.request("GET", "/version", target).get("gitVersion"))
    except ForbiddenError as problem:
        return Unknown(str(problem))


def _served(api: Api, group: str) -> tuple[str, ...]:
    try:
        found = api.get(Resource("/apis", group), "")
    except NotFoundError:
        return ()
    return tuple(str(version.get("groupVersion")) for version in found.get("versions") or ())


def _lacking(api: Api) -> tuple[str, ...]:
    """Compare the schema with what a step needs; OpenAPI is for every account, the CRD itself is not."""
    path = f"/openapi/v3/apis/{API_VERSION}"
    target = Target(verb="get", resource=path)
    try:
        found = api.request("GET", path, target)
    except NotFoundError:
        return ()
    return missing_features((found.get("components") or {}).get("schemas") or {})


def _kfp(api: Api) -> str | None:
    try:
        found = api.get(KINDS["Deployment"].resource, _KFP_API, namespace=NAMESPACE)
    except NotFoundError:
        return None
    image = str(found["spec"]["template"]["spec"]["containers"][0]["image"])
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def _hooks(api: Api) -> tuple[Json, ...]:
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return tuple({**item, "kind": kind} for kind in kinds for item in _all(api, KINDS[kind].resource))


def _services(hooks: tuple[Json, ...]) -> tuple[str, ...]:
    """Name the services that answer for LeaderWorkerSets and their pods."""
    named: dict[str, None] = {}
    for configuration in hooks:
        for hook in configuration.get("webhooks") or ():
            groups = {group for rule in hook.get("rules") or () for group in rule.get("apiGroups") or ()}
            service = (hook.get("clientConfig") or {}).get("service")
            if service and GROUPS.group in groups:
                named[f"{service['namespace']}/{service['name']}"] = None
    return tuple(named)


def _ready(api: Api, service: str) -> int:
    namespace, _, name = service.partition("/")
    slices, _ = api.list_all(_SLICES, namespace=namespace, labelSelector=f"kubernetes.io/service-name={name}")
    endpoints = [e for s in slices for e in s.get("endpoints") or ()]
    # Unknown counts as ready (discovery.k8s.io/v1, EndpointConditions).
    return sum((e.get("conditions") or {}).get("ready") is not False for e in endpoints)


def _trial(api: Api, namespace: str) -> str:
    """Let a LeaderWorkerSet be checked by all that checks one, webhooks too, without making it.

    Raises:
        ClusterError: If this account may not try.
    """
    if not _allowed(api, _SELF, {}, {**_CREATE_GROUP, "namespace": namespace}):
        msg = f"the account that is logged in may not create leaderworkersets in namespace {namespace}"
        raise ForbiddenError(msg, status=403, reason="Forbidden")
    container = {"name": "main", "image": "none", "resources": {}}
    template = {"size": 1, "restartPolicy": "None", "workerTemplate": {"spec": {"containers": [container]}}}
    manifest = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"generateName": "kr-kfp-doctor-", "labels": {MANAGED_BY_LABEL: MANAGER}},
        "spec": {"replicas": 1, "leaderWorkerTemplate": template},
    }
    try:
        api.create(GROUPS, manifest, namespace=namespace, dryRun="All", fieldValidation="Strict")
    except NotFoundError:
        raise  # LeaderWorkerSet or the namespace is missing, which other facts tell.
    except ClusterError as problem:
        return str(problem)
    return ""


def _rights(api: Api, account: Account) -> tuple[Answer, ...]:
    """Ask for each right of an account.

    Raises:
        ClusterError: If one's own rights are all that this account may ask for.
    """
    ask = _asker(api, account)
    found = []
    for rule in (*RULES, *NODES):
        for resource in rule.resources:
            for verb in rule.verbs:
                allowed = ask(_attributes(rule, resource, verb, "" if rule in NODES else account.namespace))
                found.append(Answer(rule, resource, verb, allowed))
    return tuple(found)


def _attributes(rule: Rule, resource: str, verb: str, namespace: str) -> dict[str, str]:
    plural, _, sub = resource.partition("/")
    attributes = {"verb": verb, "group": rule.group, "resource": plural}
    more = {"namespace": namespace, "subresource": sub, "name": rule.names[0] if rule.names else ""}
    return {**attributes, **{key: value for key, value in more.items() if value}}


def _asker(api: Api, account: Account) -> Ask:
    """Find the way to ask for an account's rights: as oneself, as who may ask for others, or in its name."""
    if _who(api) == account.user:
        return lambda attributes: _allowed(api, _SELF, {}, attributes)
    subject = {"user": account.user, "groups": list(account.groups)}
    probe = {**_CREATE_GROUP, "namespace": account.namespace}
    try:
        _allowed(api, _OTHER, subject, probe)
    except ForbiddenError:
        other = Api(_as(api.login, account), warn=api.warn, patience=0.0)
        try:
            _allowed(other, _SELF, {}, probe)
        except ForbiddenError as problem:
            msg = "the account that is logged in may neither create subjectaccessreviews nor impersonate that one"
            raise ForbiddenError(msg, status=403, reason="Forbidden") from problem
        return lambda attributes: _allowed(other, _SELF, {}, attributes)
    return lambda attributes: _allowed(api, _OTHER, subject, attributes)


def _who(api: Api) -> str:
    """Name the account that is logged in; empty before Kubernetes 1.28, which cannot tell."""
    try:
        answer = api.create(_WHO, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    except (NotFoundError, ForbiddenError):
        return ""
    return str(((answer.get("status") or {}).get("userInfo") or {}).get("username") or "")


def _as(login: Login, account: Account) -> Login:
    """Log in in an account's name; its groups follow from it (Kubernetes, "User impersonation")."""

    def headers(renew: bool) -> Mapping[str, str]:  # noqa: FBT001 - the shape of Login.headers
        return {**login.headers(renew), "Impersonate-User": account.user}

    return replace(login, headers=headers)


def _allowed(api: Api, resource: Resource, subject: Mapping[str, Any], attributes: Mapping[str, str]) -> bool:
    kind = "SelfSubjectAccessReview" if resource is _SELF else "SubjectAccessReview"
    spec = {**subject, "resourceAttributes": dict(attributes)}
    answer = api.create(resource, {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec})
    return bool((answer.get("status") or {}).get("allowed"))


def _all(api: Api, resource: Resource, namespace: str = "") -> tuple[Json, ...]:
    return tuple(api.list_all(resource, namespace=namespace)[0])


def _names(api: Api, resource: Resource, namespace: str) -> tuple[str, ...]:
    return tuple(str(item["metadata"]["name"]) for item in _all(api, resource, namespace))


def _config(api: Api, namespace: str) -> Mapping[str, str] | None:
    try:
        found = api.get(CONFIG_MAPS, "kfp-launcher", namespace=namespace)
    except NotFoundError:
        return None
    return dict(found.get("data") or {})


def _is_autoscaled(api: Api) -> bool:
    try:
        api.get(CONFIG_MAPS, _AUTOSCALER, namespace="kube-system")
    except NotFoundError:
        return False
    return True
