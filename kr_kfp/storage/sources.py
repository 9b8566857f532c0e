"""What KFP knows about object stores, read into :class:`~kr_kfp.storage.settings.StoreSettings`.

Sources, kubeflow/pipelines 2.17 (commit 7b70c7b95f), all under ``backend/src/v2``: session info
``objectstore/config.go`` (``SessionInfo``, ``StructuredS3Params``, ``StructuredGCSParams``); what a client is made of
``objectstore/object_store.go`` (``OpenBucket``, ``newS3Client``); the ConfigMap ``kfp-launcher`` and the defaults
``config/env.go``, ``s3.go``, ``minio.go``, ``gcs.go``. Parameters behind ``?`` in a URI are those of gocloud.dev 0.46,
which KFP opens such buckets with (``blob/s3blob``, ``aws.V2ConfigFromURLParams``), and of its older releases.

No secret is read here: session info and ConfigMap name Secrets and keys in them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import uris
from kr_kfp.storage.settings import StoreSettings, ambient, numbered

__all__ = ["from_kfp_launcher", "from_query", "from_session_info", "in_cluster_default", "resolve"]

CONFIG_MAP = "kfp-launcher"
"""Name of KFP's ConfigMap, in the namespace of the run (config/env.go, configMapName)."""

PROVIDERS = "providers"
"""Key in its data with a YAML document (config/env.go, configBucketProviders)."""

SESSION_INFO = "store_session_info"
"""Key in an artifact's metadata (metadata/client.go, RecordArtifact)."""

_DEFAULT = {
    "region": "minio",
    "endpoint": "seaweedfs.kubeflow:9000",
    "disableSSL": "true",
    "fromEnv": "false",
    "secretName": "mlpipeline-minio-artifact",
    "accessKeyKey": "accesskey",
    "secretKeyKey": "secretkey",
}
"""The object store that comes with KFP (config/env.go, getDefaultMinioSessionInfo)."""

# KFP leaves the endpoint away for these: a region's own is right (object_store.go, newS3Client).
_AWS_ENDPOINT = re.compile(r"(https://)?s3\.amazonaws\.com", re.IGNORECASE)
_S3_KEYS = {"access_key_key": "accessKeyKey", "secret_key_key": "secretKeyKey"}
_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})


def from_session_info(text: str, uri: str) -> StoreSettings | None:
    """Read the ``store_session_info`` of an artifact's metadata.

    Args:
        text: JSON with ``Provider`` and ``Params``.
        uri: The artifact's URI.

    Returns:
        The settings; None if the text says nothing (KFP writes ``null`` where a bucket was opened without it).

    Raises:
        StorageError: If it cannot be read, or names no Secret where it should.
    """
    where = f"{uri} ({SESSION_INFO})"
    try:
        data = json.loads(text or "null")
    except ValueError as problem:
        raise StorageError([Problem(where, f"is not JSON: {problem}")]) from problem
    if not data:
        return None
    if not isinstance(data, dict) or not isinstance(data.get("Params") or {}, dict):
        raise StorageError([Problem(where, "is not an object with Provider and Params")])
    return _from_params(data.get("Params") or {}, uri, where)


def in_cluster_default(uri: str) -> StoreSettings:
    """Give what KFP uses without any configuration: its own store for ``minio://``, else the surroundings."""
    scheme = uris.parse(uri).scheme
    return _from_params(_DEFAULT, uri, uri) if scheme == "minio" else ambient(scheme)


def from_kfp_launcher(config_map_data: Mapping[str, str], uri: str) -> StoreSettings | None:
    """Read the section for a URI's scheme in the ConfigMap ``kfp-launcher``.

    The first of its ``overrides`` whose ``bucketName`` is the URI's bucket and whose ``keyPrefix`` holds its key is put
    over ``default``.

    Args:
        config_map_data: The ConfigMap's ``data``; empty if there is none.
        uri: A URI of a bucket.

    Returns:
        The settings; None if there is no section for the scheme.

    Raises:
        StorageError: If the document cannot be read or lacks what KFP demands.
    """
    location = uris.parse(uri)
    where = f"ConfigMap {CONFIG_MAP}, providers.{location.scheme}"
    section = _lower(_providers(config_map_data).get(location.scheme) or {})
    default, overrides = section.get("default"), section.get("overrides")
    if not default and not overrides:
        return None
    found: dict[str, Any] = _lower(default or {})
    if not found.get("credentials"):
        raise StorageError([Problem(f"{where}.default", "has no credentials", "set fromEnv: true, or secretRef")])
    for number, item in enumerate(overrides or ()):
        override = _lower(item)
        if override.get("bucketname") == location.bucket and _holds(str(override.get("keyprefix") or ""), location.key):
            where = f"{where}.overrides[{number}]"
            if not override.get("credentials"):
                raise StorageError([Problem(where, "has no credentials", "set fromEnv: true, or secretRef")])
            found |= {key: value for key, value in override.items() if value not in (None, "")}
            break
    credentials = _lower(found.pop("credentials"))
    params = {"disablessl": False, "forcepathstyle": True} | found
    params |= {"fromenv": credentials.get("fromenv", False), **_lower(credentials.get("secretref") or {})}
    return _from_params(params, uri, where)


def from_query(uri: str) -> StoreSettings | None:
    """Read the parameters that stand behind ``?`` in a URI. Credentials are then the surroundings', as in KFP.

    Returns:
        The settings; None if there are no parameters.

    Raises:
        StorageError: Naming every parameter that kr_kfp does not know or cannot honour.
    """
    location = uris.parse(uri)
    if not location.query:
        return None
    known = _GS_QUERY if location.scheme == "gs" else _S3_QUERY
    problems, changes = [], {}
    for key, value in location.query:
        if key in _CLIENT_TUNING and location.scheme != "gs":
            continue
        if key not in known:
            problems.append(Problem(uri, f"parameter {key!r} is not supported.", f"use {', '.join(known)} only"))
            continue
        field, read = known[key]
        try:
            changes[field] = read(value)
        except ValueError as problem:
            problems.append(Problem(uri, f"parameter {key!r} {problem}"))
    if problems:
        raise StorageError(problems)
    # The AWS SDK puts the bucket into the host's name unless told otherwise, and so KFP does for such URIs.
    return replace(ambient(location.scheme), **{"path_style": False, **changes})


def resolve(
    used: Iterable[str],
    session_infos: Mapping[str, str] | None = None,
    config_map_data: Mapping[str, str] | None = None,
) -> tuple[StoreSettings, ...]:
    """Decide on a cluster how every URI of a step is reached.

    For each URI the first that says something counts: its own query, its artifact's session info, the ConfigMap
    ``kfp-launcher``, KFP's defaults.

    Args:
        used: Artifact URIs and the checkpoint folder; local ones and those that kr_kfp does not manage are skipped.
        session_infos: By URI, the ``store_session_info`` of input artifacts.
        config_map_data: The ``data`` of ConfigMap ``kfp-launcher`` in the run's namespace; empty if there is none.

    Returns:
        Distinct settings, in the order of the URIs, with the names of their environment variables
        (``KR_KFP_STORE_<n>_ACCESS_KEY`` ...).

    Raises:
        StorageError: Listing every URI, session info or section that cannot be used.
    """
    found: dict[str, StoreSettings] = {}
    problems: list[Problem] = []
    for uri in used:
        if uris.is_local(uri) or not uris.is_managed(uri):
            continue
        try:
            found[uri] = (
                from_query(uri)
                or from_session_info((session_infos or {}).get(uri, ""), uri)
                or from_kfp_launcher(config_map_data or {}, uri)
                or in_cluster_default(uri)
            )
        except StorageError as error:
            problems += error.problems
    if problems:
        raise StorageError(dict.fromkeys(problems))
    return numbered(_grouped(found))


def _grouped(found: Mapping[str, StoreSettings]) -> list[StoreSettings]:
    """Join equal settings; they apply to whole buckets, but where one bucket has several."""
    roots = {uri: uris.parse(uri).root for uri in found}
    groups: dict[StoreSettings, list[str]] = {}
    for uri, store in found.items():
        alone = all(found[other] == store for other in found if roots[other] == roots[uri])
        prefix = roots[uri] if alone else uri.partition("?")[0]
        groups.setdefault(store, []).append(prefix)
    return [replace(store, prefixes=tuple(dict.fromkeys(prefixes))) for store, prefixes in groups.items()]


def _from_params(params: Mapping[str, Any], uri: str, where: str) -> StoreSettings:
    """Make settings of KFP's parameters, whose values are texts in session info and YAML values in the ConfigMap.

    ``maxRetries`` is left aside: kr_kfp's own limits on retries apply to every store (docs/storage.md).
    """
    given = _lower(params)
    scheme = uris.parse(uri).scheme
    problems = []

    def flag(name: str, default: str) -> bool:
        value = str(given.get(name.lower(), default))
        if value not in _TRUE | _FALSE:
            problems.append(Problem(where, f"{name} is {value!r}.", "write true or false"))
        return value in _TRUE

    def text(name: str) -> str:
        return str(given.get(name.lower()) or "")

    secret: dict[str, Any] = {}
    if not flag("fromEnv", "false"):
        names = {"gcs_json_key": "tokenKey"} if scheme == "gs" else _S3_KEYS
        secret = {"secret_name": text("secretName"), **{field: text(name) for field, name in names.items()}}
        missing = [name for name in ("secretName", *names.values()) if not text(name)]
        if missing:
            fix = "name the Secret and its keys, or set fromEnv: true for the pod's own identity"
            problems.append(Problem(where, f"lacks {', '.join(missing)}.", fix))
    store = replace(ambient(scheme), **secret)
    if scheme != "gs":
        endpoint = "" if _AWS_ENDPOINT.match(text("endpoint")) else text("endpoint")
        style, plain = flag("forcePathStyle", "true"), flag("disableSSL", "false")
        store = replace(store, endpoint=endpoint, region=text("region"), path_style=style, disable_ssl=plain)
    if problems:
        raise StorageError(problems)
    return store


def _providers(config_map_data: Mapping[str, str]) -> dict[str, Any]:
    text = config_map_data.get(PROVIDERS, "")
    if not text.strip():
        return {}
    import yaml

    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        # The parser's own text shows lines of the document, which holds no secret but may be long.
        mark = getattr(problem, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        raise StorageError([Problem(f"ConfigMap {CONFIG_MAP}, {PROVIDERS}", f"is not YAML{place}")]) from problem
    if not isinstance(data, dict):
        raise StorageError([Problem(f"ConfigMap {CONFIG_MAP}, {PROVIDERS}", "is not a mapping of minio, s3 and gs")])
    return data


def _lower(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Give keys in lower case: KFP reads the document with Go's JSON package, to which Overrides is overrides."""
    return {str(key).lower(): value for key, value in mapping.items()}


def _holds(prefix: str, key: str) -> bool:
    """Tell whether a key lies below an override's prefix, by whole names."""
    above = prefix.strip("/")
    return not above or key == above or key.startswith(f"{above}/")


def _flag(value: str) -> bool:
    if value not in _TRUE | _FALSE:
        msg = f"is {value!r}, not true or false"
        raise ValueError(msg)
    return value in _TRUE


_S3_QUERY: dict[str, tuple[str, Callable[[str], Any]]] = {
    "region": ("region", str),
    "endpoint": ("endpoint", str),
    "disable_https": ("disable_ssl", _flag),
    "disableSSL": ("disable_ssl", _flag),
    "use_path_style": ("path_style", _flag),
    "s3ForcePathStyle": ("path_style", _flag),
    "anonymous": ("anonymous", _flag),
    "ssetype": ("encryption", str),
    "kmskeyid": ("encryption_key", str),
}
_GS_QUERY: dict[str, tuple[str, Callable[[str], Any]]] = {"anonymous": ("anonymous", _flag)}

# These tune the Go client, and mean nothing for another one.
_CLIENT_TUNING = frozenset(
    {
        "awssdk",
        "hostname_immutable",
        "rate_limiter_capacity",
        "request_checksum_calculation",
        "response_checksum_validation",
    }
)
