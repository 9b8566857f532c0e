"""Whether anything gives credentials for a store, where the settings name none: said before the first request.

obstore 0.12 takes of the surroundings, in this order (object_store 0.14, ``src/aws/builder.rs`` and
``src/gcp/credential.rs``): for S3 a key pair in variables, a web identity token, a container's credentials, the
instance's role; for Google a bearer token, a key or a credentials file of type ``service_account`` or
``authorized_user``, gcloud's own file, the metadata server. What it does not know it passes over without a word, and
would then ask a metadata server that is not there for minutes, or act as somebody else.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from kr_kfp.errors import Problem
from kr_kfp.storage.settings import STORES_ENV, StoreSettings

__all__ = ["GOOGLE_FIX", "fix", "in_one_pod", "missing", "unreadable_google", "uses_web_identity"]

GOOGLE_FIX = "put a service account's key there, or bind the pod's service account (workload identity)"
"""What to do where Google credentials are of a kind that is not supported, such as ``external_account``."""

_METADATA = {"s3": ("169.254.169.254", 80), "gs": ("metadata.google.internal", 80)}
"""Where AWS and Google give a machine its identity."""

_AWS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_METADATA_ENDPOINT",
    "AWS_SKIP_SIGNATURE",
)
_GOOGLE = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_BEARER_TOKEN",
    "GOOGLE_SKIP_SIGNATURE",
    "GCE_METADATA_HOST",
    "GCE_METADATA_ROOT",
)
_PAIRS = (
    ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"),
)
_EXPORT = 'eval "$(aws configure export-credentials --format env)"'
"""Puts a profile's credentials into variables (AWS CLI 2)."""


def missing(settings: StoreSettings, env: Mapping[str, str], where: str) -> list[Problem]:
    """Give what is wrong with the surroundings' credentials for a store.

    Args:
        settings: The store; they name no credentials.
        env: The environment.
        where: What messages call the store.
    """
    return _google(env, where) if settings.scheme == "gs" else _aws(settings, env, where)


def unreadable_google(text: str) -> str:
    """Say what is wrong with a Google credentials JSON; empty if obstore can use it."""
    try:
        kind = json.loads(text).get("type")
    except (ValueError, AttributeError):
        return "is not a Google credentials JSON"
    return "" if kind in {"service_account", "authorized_user"} else f"holds Google credentials of type {kind!r}"


def uses_web_identity(env: Mapping[str, str]) -> bool:
    """Tell whether a projected token is exchanged for S3 keys, where the settings name none."""
    return bool(env.get("AWS_WEB_IDENTITY_TOKEN_FILE")) and not env.get("AWS_ACCESS_KEY_ID")


def _aws(settings: StoreSettings, env: Mapping[str, str], where: str) -> list[Problem]:
    problems = []
    if settings.scheme == "minio" and not (
        settings.endpoint or env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
    ):
        # Without one it would be taken for a bucket at AWS.
        text = "has no endpoint: the scheme names none, and AWS_ENDPOINT_URL is not set."
        problems.append(Problem(where, text, _fix(env, "AWS_ENDPOINT_URL")))
    problems += [
        Problem(where, f"{first} is set, and {second} is not.", f"set {second} too")
        for first, second in _PAIRS
        if env.get(first) and not env.get(second)
    ]
    token = env.get("AWS_WEB_IDENTITY_TOKEN_FILE", "")
    if uses_web_identity(env) and not os.access(token, os.R_OK):
        text = f"the file {token} of AWS_WEB_IDENTITY_TOKEN_FILE cannot be read."
        problems.append(Problem(where, text, "look at the pod's projected token, and at the user it is for"))
    sts = env.get("AWS_ENDPOINT_URL_STS", "")
    if uses_web_identity(env) and sts and not sts.startswith("https://"):
        text = f"AWS_ENDPOINT_URL_STS is {sts!r}, and a token is only sent over https."
        problems.append(Problem(where, text, "give an https:// address; its CA may be named by AWS_CA_BUNDLE"))
    if any(env.get(name) for name in _AWS):
        return problems
    if env.get("AWS_PROFILE"):
        text = f"AWS_PROFILE is {env['AWS_PROFILE']!r}, but profiles in files are not read."
        problems.append(Problem(where, text, _EXPORT))
    elif not _has_identity("s3"):
        remedy = fix(settings.scheme, env)
        file = env.get("AWS_SHARED_CREDENTIALS_FILE") or f"{env.get('HOME', '')}/.aws/credentials"
        if Path(file).is_file():
            remedy = f"{_EXPORT}, since profiles in files ({file}) are not read"
        problems.append(_nothing("AWS", where, remedy))
    return problems


def _google(env: Mapping[str, str], where: str) -> list[Problem]:
    if any(env.get(name) for name in _GOOGLE):
        return []
    named = env.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    own = f"{env.get('HOME', '/nonexistent')}/.config/gcloud/application_default_credentials.json"
    file = named or own
    if named or Path(own).exists():
        try:
            wrong = unreadable_google(Path(file).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as problem:
            wrong = f"cannot be read: {getattr(problem, 'strerror', None) or problem}"
        source = "of GOOGLE_APPLICATION_CREDENTIALS " if named else ""
        return [Problem(where, f"the file {file} {source}{wrong}.", GOOGLE_FIX)] if wrong else []
    if _has_identity("gs"):
        return []
    return [_nothing("Google", where, fix("gs", env))]


def _has_identity(scheme: str) -> bool:
    try:
        socket.create_connection(_METADATA[scheme], timeout=2.0).close()
    except OSError:
        return False
    return True


def _nothing(kind: str, where: str, remedy: str) -> Problem:
    text = f"there are no {kind} credentials: no variable names them and this machine has no identity of its own."
    return Problem(where, text, remedy)


def in_one_pod(env: Mapping[str, str]) -> bool:
    """Tell whether this is user code of a step of one pod.

    KFP's launcher moves the artifacts of such a step, with credentials that it keeps to itself: user code there has
    what its pod is given.
    """
    return "KFP_POD_NAME" in env and STORES_ENV not in env


def fix(scheme: str, env: Mapping[str, str]) -> str:
    """Say where credentials for a store are to be set."""
    if scheme == "gs":
        return _fix(env, "GOOGLE_APPLICATION_CREDENTIALS")
    return _fix(env, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def _fix(env: Mapping[str, str], *names: str) -> str:
    if not in_one_pod(env):
        return f"set {' and '.join(names)}, or name a Secret in KFP's kfp-launcher ConfigMap"
    if names == ("GOOGLE_APPLICATION_CREDENTIALS",):
        return "bind the step's service account to a Google identity (workload identity)"
    if names == ("AWS_ENDPOINT_URL",):
        return 'give the component env={"AWS_ENDPOINT_URL": "http://..."}'
    shown = ", ".join(f'"{name}": kr_kfp.Secret(...)' for name in names)
    return f"give the component env={{{shown}}}, or bind its service account to a cloud identity"
