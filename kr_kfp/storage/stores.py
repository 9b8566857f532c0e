"""StoreSettings to obstore's stores: endpoints, credentials, private CA, and who repeats requests.

obstore 0.12 can repeat a request by itself (object_store 0.14, ``src/client/retry.rs``) after 429, 408, any 5xx, a
refused or broken connection and, where that is safe, a timeout, with exponential backoff and jitter. It never looks at
Retry-After, nor hands that header on, and waits the same for a broken connection as for a store that asks to slow down.
It does not ask again for an answer that breaks off, and takes a body that ends early without an error for whole. So a
request that is one operation, which is nearly all of them, is repeated by :meth:`kr_kfp.storage.session.Session.
retrying` instead, and obstore gives up at once. Pages of a listing and parts of an upload can only be repeated by
obstore: those go through stores that are patient themselves. The one for parts also waits longer for an answer, since
some stores put the parts together before they give one; to ask again would find no upload any more.

Where settings name credentials, nothing of the surroundings is mixed in: obstore would read AWS_* for what is missing.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from kr_kfp.errors import Problem, StorageError
from kr_kfp.storage import identity
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.settings import StoreSettings, endpoint_url

if TYPE_CHECKING:
    from obstore.store import BackoffConfig, ClientConfig, GCSStore, RetryConfig, S3Credential, S3Store

__all__ = ["Kind", "Store", "open_store"]

Kind = Literal["single", "listing", "parts"]
"""What a store is for: requests that are repeated elsewhere, pages of listings, parts of uploads."""

if TYPE_CHECKING:
    Store = GCSStore | S3Store
else:
    Store = Any

_REQUEST_TIMEOUT = timedelta(seconds=300)
"""For one request from connect to the last byte; it moves 8 MiB at most, so this is the floor of 28 kB/s."""

_ASSEMBLY = 10
"""Times the usual wait for an answer, for a store that puts parts together."""


def open_store(
    settings: StoreSettings, bucket: str, limits: Limits, env: Mapping[str, str] = os.environ, *, kind: Kind = "single"
) -> Store:
    """Open a bucket. No request is made yet, but for a look whether this machine has an identity at all.

    Args:
        settings: How to reach it.
        bucket: Its name.
        limits: Patience and stall go into the client.
        env: The environment that the settings' names are looked up in.
        kind: What it is for.

    Raises:
        StorageError: If a variable or a file that the settings name is not there, or nothing gives any credentials.
    """
    where = f"{settings.scheme}://{bucket}"
    problems = [
        Problem(where, f"{name} is not set.", _missing_fix(settings))
        for name in (settings.access_key_env, settings.secret_key_env, settings.gcs_json_env)
        if name and not env.get(name)
    ]
    if bool(settings.access_key_env) != bool(settings.secret_key_env):
        problems.append(Problem(where, "has one half of a key pair.", "name access key and secret key"))
    emulator = settings.scheme == "gs" and not settings.endpoint and env.get("STORAGE_EMULATOR_HOST")
    if not (settings.access_key_env or settings.gcs_json_env or settings.anonymous or emulator):
        problems += identity.missing(settings, env, where)
    if problems:
        raise StorageError(problems)
    from obstore.exceptions import BaseError

    stall = limits.stall * (_ASSEMBLY if kind == "parts" else 1)
    retry = _retry(0.0 if kind == "single" else limits.patience + stall)
    client = _client(settings, stall, env, where)
    opener = _open_gs if settings.scheme == "gs" else _open_s3
    try:
        return opener(settings, bucket, env, where, client=client, retry=retry)
    except (BaseError, ValueError) as error:
        reason = f"{error}\n".partition("\n")[0].rstrip(".")
        fix = "correct its settings: credentials, CA file, endpoint"
        raise StorageError([Problem(where, f"cannot be opened: {reason}.", fix)]) from error


def _missing_fix(settings: StoreSettings) -> str:
    if settings.secret_name:
        return f"look whether Secret {settings.secret_name} has the key, and whether the pod lists it in its env"
    return "set it, or leave it out of the settings to use the surroundings' credentials"


def _open_s3(
    settings: StoreSettings,
    bucket: str,
    env: Mapping[str, str],
    _where: str,
    *,
    client: ClientConfig,
    retry: RetryConfig,
) -> S3Store:
    from obstore.store import S3Store

    config: dict[str, Any] = {}
    endpoint = settings.endpoint or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""
    if endpoint:
        endpoint = endpoint_url(endpoint, plain=settings.disable_ssl)
        virtual = bool(settings.endpoint) and not settings.path_style and not _is_bare_host(endpoint)
        # obstore wants the bucket in an endpoint's host already.
        if virtual:
            parts = urlsplit(endpoint)
            endpoint = parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()
        config["aws_endpoint_url_s3"] = endpoint
        config["virtual_hosted_style_request"] = virtual
    region = settings.region or env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    if region:
        config["region"] = region
    if settings.encryption:
        config["server_side_encryption"] = settings.encryption
    if settings.encryption_key:
        config["sse_kms_key_id"] = settings.encryption_key
    if settings.anonymous:
        config["skip_signature"] = True
    return S3Store(
        bucket,
        config=config,  # type: ignore[arg-type] # built of S3Config's own keys
        client_options=_for_endpoint(client, endpoint, keep_ca=identity.uses_web_identity(env)),
        retry_config=retry,
        credential_provider=_s3_keys(settings, env) if settings.access_key_env and not settings.anonymous else None,
    )


def _open_gs(
    settings: StoreSettings,
    bucket: str,
    env: Mapping[str, str],
    where: str,
    *,
    client: ClientConfig,
    retry: RetryConfig,
) -> GCSStore:
    from obstore.store import GCSStore

    config: dict[str, Any] = {}
    # Google's own clients know this variable: an emulator, which checks no credentials.
    emulator = "" if settings.endpoint else env.get("STORAGE_EMULATOR_HOST", "")
    endpoint = settings.endpoint or emulator
    if endpoint:
        endpoint = endpoint_url(endpoint, plain=settings.disable_ssl or bool(emulator))
        config["base_url"] = endpoint
    extra: dict[str, Any] = {}
    if emulator:
        # obstore asks for a token before every write, unsigned requests or not (object_store gcp/client.rs).
        token = env.get("GOOGLE_BEARER_TOKEN") or "emulator"
        extra["credential_provider"] = lambda: {"token": token, "expires_at": None}
    elif settings.anonymous:
        config["skip_signature"] = True
    with _google_file(settings, env, where, config) as credentials:
        return GCSStore(
            bucket,
            config=config | credentials,  # type: ignore[arg-type] # built of GCSConfig's own keys
            client_options=_for_endpoint(client, endpoint),
            retry_config=retry,
            **extra,
        )


@contextlib.contextmanager
def _google_file(
    settings: StoreSettings, env: Mapping[str, str], where: str, config: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Give GCSStore's part of the configuration for a credentials JSON. A file for it is read before this closes."""
    if not settings.gcs_json_env or config.get("skip_signature"):
        yield {}
        return
    text = env[settings.gcs_json_env]
    wrong = identity.unreadable_google(text)
    if wrong:
        raise StorageError([Problem(where, f"{settings.gcs_json_env} {wrong}.", identity.GOOGLE_FIX)])
    if json.loads(text)["type"] == "service_account":
        yield {"service_account_key": text}
        return
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield {"application_credentials": file.name}


def _is_bare_host(endpoint: str) -> bool:
    """Tell whether a bucket cannot be put in front of an endpoint's host: an IP address, or this machine."""
    host = urlsplit(endpoint).hostname or ""
    return host == "localhost" or ":" in host or host.replace(".", "").isdigit()


def _s3_keys(settings: StoreSettings, env: Mapping[str, str]) -> Callable[[], S3Credential]:
    def keys() -> S3Credential:
        return {
            "access_key_id": env[settings.access_key_env],
            "secret_access_key": env[settings.secret_key_env],
            "token": env.get(settings.session_token_env) or None if settings.session_token_env else None,
            "expires_at": None,
        }

    return keys


def _retry(patience: float) -> RetryConfig:
    if not patience:
        return {"max_retries": 0}
    # The first wait, which is also the shortest one, suits a store that asks to slow down. Time decides, not the count.
    backoff: BackoffConfig = {"init_backoff": timedelta(seconds=1), "max_backoff": timedelta(seconds=20), "base": 2}
    return {"backoff": backoff, "max_retries": 1000, "retry_timeout": timedelta(seconds=patience)}


def _client(settings: StoreSettings, stall: float, env: Mapping[str, str], where: str) -> ClientConfig:
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=stall),
        "timeout": max(_REQUEST_TIMEOUT, timedelta(seconds=2 * stall)),
        "pool_idle_timeout": timedelta(seconds=30),
        "user_agent": "kr-kfp",
    }
    # KFP gives executors its CA bundle by these (backend/src/v2/component/launcher_v2.go).
    file = settings.ca_file or env.get("AWS_CA_BUNDLE") or env.get("SSL_CERT_FILE")
    if file:
        try:
            client["root_certificate"] = Path(file).read_bytes()
        except OSError as problem:
            text = f"the CA file {file} cannot be read: {problem.strerror}."
            raise StorageError([Problem(where, text, "name a file with certificates in PEM form")]) from problem
    return client


def _for_endpoint(client: ClientConfig, endpoint: str, *, keep_ca: bool = False) -> ClientConfig:
    """Allow plain HTTP where the endpoint asks for it; a CA that nobody needs is not read in, which takes time."""
    if not endpoint.startswith("http://"):
        return client
    plain: ClientConfig = {**client, "allow_http": True}
    if not keep_ca:
        plain.pop("root_certificate", None)
    return plain
