"""How to reach an object store, as a value that may travel: names of environment variables, never a secret.

Pure and standard library only. :mod:`kr_kfp.storage.sources` makes these values from what KFP knows; the launcher puts
:func:`env_entries` into the hosts' pods, so that the kubelet fills in the secrets there and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from kr_kfp.errors import WireError
from kr_kfp.storage import uris

__all__ = [
    "STORES_ENV",
    "StoreSettings",
    "ambient",
    "choose",
    "dump_stores",
    "endpoint_url",
    "env_entries",
    "load_stores",
    "numbered",
    "secret_names",
]

STORES_ENV = "KR_KFP_STORES"
"""Environment variable of user processes with :func:`dump_stores` as JSON: the step's stores, without secrets."""

_ENV = "KR_KFP_STORE_{number}_{part}"
_PARTS = {
    "access_key": ("access_key_env", "ACCESS_KEY"),
    "secret_key": ("secret_key_env", "SECRET_KEY"),
    "session_token": ("session_token_env", "SESSION_TOKEN"),
    "gcs_json": ("gcs_json_env", "GCS_JSON"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """How the objects below some prefixes are reached. Without credentials named, those of the surroundings are used.

    Args:
        scheme: ``gs``, ``s3`` or ``minio``.
        prefixes: URIs that these settings apply to, such as ``s3://bucket`` or ``s3://bucket/folder``; the longest one
            that holds a URI decides. Empty: all of the scheme.
        endpoint: ``host:port`` or URL of the store; empty for the provider's own.
        region: The bucket's region; empty for the surroundings' or the provider's default.
        path_style: Whether the bucket stands in the path (``endpoint/bucket/key``) and not in the host's name.
        disable_ssl: Whether an ``endpoint`` without ``http://`` or ``https://`` speaks plain HTTP.
        ca_file: PEM file of a private CA, on the host; empty for the system's roots alone.
        access_key_env: Environment variable with the access key id; empty for the surroundings' credentials.
        secret_key_env: Environment variable with the secret access key.
        session_token_env: Environment variable with the session token, where there is one.
        gcs_json_env: Environment variable with the text of a Google credentials JSON file.
        secret_name: Kubernetes Secret that the variables are filled from; empty if they are set already.
        access_key_key: Key in the Secret of the access key id (KFP's ``accessKeyKey``).
        secret_key_key: Key in the Secret of the secret access key (KFP's ``secretKeyKey``).
        session_token_key: Key in the Secret of the session token.
        gcs_json_key: Key in the Secret of the Google credentials (KFP's ``tokenKey``).
        anonymous: Whether requests are not signed at all.
        encryption: S3's server-side encryption, ``AES256``, ``aws:kms`` or ``aws:kms:dsse``; empty for the bucket's.
        encryption_key: The KMS key's id; empty for the account's default.
    """

    scheme: str
    prefixes: tuple[str, ...] = ()
    endpoint: str = ""
    region: str = ""
    path_style: bool = True
    disable_ssl: bool = False
    ca_file: str = ""
    access_key_env: str = ""
    secret_key_env: str = ""
    session_token_env: str = ""
    gcs_json_env: str = ""
    secret_name: str = ""
    access_key_key: str = ""
    secret_key_key: str = ""
    session_token_key: str = ""
    gcs_json_key: str = ""
    anonymous: bool = False
    encryption: str = ""
    encryption_key: str = ""

    def to_json(self) -> dict[str, Any]:
        """Give JSON-ready values; what is at its default is left out."""
        defaults = {field.name: field.default for field in fields(self)}
        found = {key: value for key, value in asdict(self).items() if value != defaults[key]}
        return {**found, "prefixes": list(self.prefixes)} if self.prefixes else found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StoreSettings:
        """Read what :meth:`to_json` gave.

        Raises:
            WireError: If it is something else.
        """
        unknown = sorted(set(data) - {field.name for field in fields(cls)})
        if unknown or "scheme" not in data:
            msg = f"not the settings of a store: {'unknown ' + ', '.join(unknown) if unknown else 'no scheme'}"
            raise WireError(msg)
        return cls(**{**data, "prefixes": tuple(data.get("prefixes", ()))})


def dump_stores(stores: Iterable[StoreSettings]) -> list[dict[str, Any]]:
    """Give JSON-ready values of several stores."""
    return [store.to_json() for store in stores]


def load_stores(data: Iterable[Mapping[str, Any]]) -> tuple[StoreSettings, ...]:
    """Read what :func:`dump_stores` gave.

    Raises:
        WireError: If it is something else.
    """
    return tuple(StoreSettings.from_json(store) for store in data)


def endpoint_url(endpoint: str, *, plain: bool) -> str:
    """Complete an endpoint as KFP does (object_store.go, newS3Client): the scheme follows disableSSL.

    Args:
        endpoint: ``host:port`` or a URL; empty stays empty.
        plain: Whether ``host:port`` speaks plain HTTP.
    """
    if endpoint and not endpoint.startswith(("http://", "https://")):
        endpoint = f"{'http' if plain else 'https'}://{endpoint}"
    return endpoint.rstrip("/")


def ambient(scheme: str) -> StoreSettings:
    """Give the settings of a scheme that rest on the surroundings alone: AWS_* and GOOGLE_* variables, pod identity."""
    return StoreSettings(scheme=scheme)


def choose(stores: Iterable[StoreSettings], uri: str) -> StoreSettings:
    """Give the settings for a URI: those with the longest prefix that holds it, else the surroundings' own.

    Raises:
        StorageError: If kr_kfp does not move data of such URIs.
    """
    scheme = uris.parse(uri).scheme
    best, length = ambient(scheme), -1
    for store in stores:
        if store.scheme != scheme:
            continue
        for prefix in store.prefixes or ("",):
            if len(prefix) > length and (not prefix or uris.contains(prefix, uri)):
                best, length = store, len(prefix)
    return best


def numbered(stores: Sequence[StoreSettings]) -> tuple[StoreSettings, ...]:
    """Name the environment variables of each store that takes its credentials from a Secret, by its position."""
    named = []
    for number, store in enumerate(stores):
        changes: dict[str, Any] = {}
        for part, (field, suffix) in _PARTS.items():
            if store.secret_name and getattr(store, f"{part}_key"):
                changes[field] = _ENV.format(number=number, part=suffix)
        named.append(replace(store, **changes))
    return tuple(named)


def env_entries(stores: Iterable[StoreSettings]) -> list[dict[str, Any]]:
    """Give Kubernetes ``container.env`` entries that bring each store's credentials from its Secret.

    A session token is optional: temporary credentials have one, lasting ones do not.
    """
    entries = []
    for store in stores:
        for part, (field, _) in _PARTS.items():
            key = getattr(store, f"{part}_key")
            if store.secret_name and key:
                reference: dict[str, Any] = {"name": store.secret_name, "key": key}
                if part == "session_token":
                    reference["optional"] = True
                entries.append({"name": getattr(store, field), "valueFrom": {"secretKeyRef": reference}})
    return entries


def secret_names(stores: Iterable[StoreSettings]) -> tuple[str, ...]:
    """Give the environment variables that hold secrets: what user code need not see and no text may show."""
    found = (getattr(store, field) for store in stores for field, _ in _PARTS.values())
    return tuple(dict.fromkeys(name for name in found if name))
