"""Why a transfer failed: obstore's and the system's errors as one sentence each, with a fix and without a secret.

obstore puts a store's whole answer into its errors, which for a wrong signature holds the request as it was signed. So
only the answer's code is taken from it, and its text only where the code is unknown, with every known secret cut out.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Mapping
from typing import Literal

from kr_kfp.errors import Problem
from kr_kfp.storage import identity

__all__ = ["BrokenOffError", "Verb", "explain", "failures", "is_passing", "is_refused", "is_throttled"]

Verb = Literal["fetch", "put"]


class BrokenOffError(Exception):
    """Fewer or other bytes arrived than the store had announced, without an error of the connection."""


_CODE = re.compile(r"<Code>([A-Za-z0-9]+)</Code>")
_STATUS = re.compile(r"(?:status code:|non-2xx status code:) ?(\d{3})")
_BAD_NAME = re.compile(r'Path "(.*?)"(?:: Encountered illegal| contained empty)', re.DOTALL)
_SPACE = re.compile(r"\s+")

_RIGHTS = {
    "fetch": "the credentials may not read or list there",
    "put": "the credentials may not write there (a read-only bucket or account)",
}
_RIGHTS_FIX = {
    "fetch": "grant read and list (s3:GetObject, s3:ListBucket; roles/storage.objectViewer) to the step's account",
    "put": "grant write (s3:PutObject, s3:AbortMultipartUpload; roles/storage.objectUser) to the step's account",
}
_KEYS_FIX = "correct the Secret that KFP's kfp-launcher ConfigMap names, or the account that the pod runs as"

_BY_CODE: dict[str, tuple[str, str]] = {
    "InvalidAccessKeyId": ("the store does not know the access key", _KEYS_FIX),
    "SignatureDoesNotMatch": ("the secret key does not belong to the access key", _KEYS_FIX),
    "InvalidToken": ("the session token is not valid", _KEYS_FIX),
    "ExpiredToken": (
        "the session token has expired",
        "renew it, or use lasting keys or pod identity",
    ),
    "ExpiredTokenException": (
        "the web identity token has expired",
        "look at the pod's projected token",
    ),
    "TokenRefreshRequired": ("the session token has expired", "renew it"),
    "RequestTimeTooSkewed": ("this machine's clock differs too much from the store's", "set the node's clock"),
    "NoSuchBucket": ("the bucket does not exist", "create it, or correct the pipeline root, endpoint or region"),
    "NoSuchUpload": ("the upload was ended by somebody else", "look for a lifecycle rule or a second writer"),
    "PermanentRedirect": ("the bucket is in another region", "name its region in KFP's kfp-launcher ConfigMap"),
    "AuthorizationHeaderMalformed": (
        "the region is not the bucket's",
        "name it in the kfp-launcher ConfigMap",
    ),
    "QuotaExceeded": ("the bucket's quota is used up", "delete old artifacts, or raise the quota"),
    "XMinioStorageFull": ("the store's disk is full", "delete old artifacts, or give the store more disk"),
    "InvalidObjectState": ("the object is archived", "restore it to a storage class that can be read at once"),
    "KeyTooLongError": ("the name is longer than the store allows", "shorten the file's path below 1,024 bytes"),
    "EntityTooLarge": ("the object is larger than the store allows", "split it"),
    "SlowDown": (
        "the store asks to slow down, for longer than was waited",
        "try again, or raise its limits",
    ),
}

_BY_STATUS = {
    "400": ("the store did not accept the request", _KEYS_FIX),
    "401": ("the store does not accept the credentials: they are wrong, or have expired", _KEYS_FIX),
    "429": _BY_CODE["SlowDown"],
    "507": _BY_CODE["XMinioStorageFull"],
}

_BY_ERRNO: Mapping[int, tuple[str, str]] = {
    errno.ENOENT: ("there is no such file or folder on this machine", "look whether it was written, and where"),
    errno.ENOSPC: ("this machine's disk is full", "give the step more ephemeral storage or a larger volume"),
    errno.EDQUOT: ("this machine's disk quota is used up", "give the step more ephemeral storage or a larger volume"),
    errno.EROFS: ("the local file system is read-only", "mount a writable volume there"),
    errno.EACCES: ("the local path may not be accessed", "check owner and mode against the user of the container"),
    errno.EPERM: ("the local path may not be accessed", "check owner and mode against the user of the container"),
    errno.ENAMETOOLONG: ("the name is longer than the local file system allows", "shorten it below 255 bytes"),
    errno.EMFILE: ("too many files are open", "raise the limit on open files"),
}

_IDENTITY = ("169.254.", "/latest/api/token", "metadata.google.internal", "computeMetadata", "sts.", "credential error")

# In the order in which they are looked for; all in lower case.
_BY_TEXT: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("certificate", "unknownissuer", "tls", "handshake"),
        "the store's TLS certificate is not trusted, or it speaks no TLS",
        "name the CA's file, or set disableSSL in KFP's kfp-launcher ConfigMap",
    ),
    (
        ("dns error", "failed to lookup", "name resolution", "nodename nor servname"),
        "the store's name cannot be resolved",
        "correct the endpoint in KFP's kfp-launcher ConfigMap",
    ),
    (
        (
            "connection refused",
            "tcp connect",
            "error trying to connect",
            "no route",
            "network is unreachable",
            "connect,",
        ),
        "the store cannot be reached",
        "correct the endpoint, and look at network policies between the pod and the store",
    ),
    (
        ("timed out", "timedout", "timeout"),
        "the store did not answer in time",
        "look at the store and the network; try again",
    ),
    (
        ("connection closed", "connection reset", "incompletemessage", "body", "broken pipe", "decod"),
        "the connection broke off again and again",
        "look at the store and the network; try again",
    ),
)


def failures() -> tuple[type[Exception], ...]:
    """Give the classes of what goes wrong with a store or a disk, for ``except``; whatever else is raised is a bug.

    obstore raises Python's FileNotFoundError and ValueError (a name that cannot be one) beside classes of its own.
    """
    from obstore.exceptions import BaseError

    return BaseError, OSError, ValueError, BrokenOffError


def explain(error: BaseException, uri: str, verb: Verb, *, secrets: Collection[str] = ()) -> Problem:
    """Say why moving a URI failed.

    Args:
        error: What obstore or the system raised.
        uri: What was to be moved, down to the file.
        verb: Which way.
        secrets: Texts that must not be shown.
    """
    if isinstance(error, BrokenOffError):
        return _problem(uri, str(error), "look at the store and the network; try again")
    if isinstance(error, OSError) and error.errno is not None:
        text, fix = _BY_ERRNO.get(error.errno, (error.strerror or str(error), ""))
        named = isinstance(error.filename, str) and error.filename != uri
        return _problem(f"{uri} ({error.filename})" if named else uri, text, fix)
    text = _text(error)
    found = _CODE.search(text)
    code = found[1] if found else ""
    return (
        _by_identity(uri, text)
        or _by_code(uri, code)
        or _by_class(error, uri, verb, code)
        or _by_status(uri, text, code, verb)
        or _by_text(uri, error, text)
        or _shown(uri, error, text, secrets)
    )


def is_passing(error: BaseException) -> bool:
    """Tell whether a request that failed so may succeed if it is made once more."""
    if isinstance(error, BrokenOffError):
        return True
    if type(error).__name__ != "GenericError":
        return False
    text = _text(error)
    status = _STATUS.search(text)
    if status:
        return status[1][0] == "5" or status[1] in {"408", "429"}
    # What is wrong with a certificate stands in what obstore gives for debugging alone.
    return "without LOCATION" not in text and "certificate" not in str(error).lower()


def is_refused(error: BaseException) -> bool:
    """Tell whether the store refuses who asks. S3 answers 400 to a token that has expired or is for another region."""
    if type(error).__name__ in {"PermissionDeniedError", "UnauthenticatedError"}:
        return True
    status = _STATUS.search(_text(error))
    return status is not None and status[1] in {"400", "401", "403"}


def is_throttled(error: BaseException) -> bool:
    """Tell whether a store asks to slow down: 429, or 503, which is S3's answer."""
    status = _STATUS.search(_text(error))
    return status is not None and status[1] in {"429", "503"}


def _text(error: BaseException) -> str:
    return str(error).partition("Debug source")[0]


def _by_identity(uri: str, text: str) -> Problem | None:
    """Look whether it was no request to the store that failed, but one for credentials."""
    if not any(place in text for place in _IDENTITY):
        return None
    what = "no credentials could be had from this machine's identity"
    if identity.in_one_pod(os.environ):
        return _problem(uri, what, identity.fix(uri.partition(":")[0], os.environ))
    fix = "bind the pod's account to a cloud identity, set the provider's variables, or name a Secret in KFP's "
    return _problem(uri, what, f"{fix}kfp-launcher ConfigMap")


def _by_code(uri: str, code: str) -> Problem | None:
    return _problem(uri, *_BY_CODE[code], code) if code in _BY_CODE else None


def _by_class(error: BaseException, uri: str, verb: Verb, code: str) -> Problem | None:
    match type(error).__name__:
        case "UnauthenticatedError":
            return _problem(uri, *_BY_STATUS["401"], code or "401")
        case "PermissionDeniedError":
            return _problem(uri, _RIGHTS[verb], _RIGHTS_FIX[verb], code or "403")
        case "PreconditionError":
            return _problem(uri, "the object changed while it was read", "let one step write it, then read it")
        case "FileNotFoundError":
            return _problem(uri, "there is no such object", "look whether the step before has written it")
    return None


def _by_status(uri: str, text: str, code: str, verb: Verb) -> Problem | None:
    if "without LOCATION" in text:
        return _by_code(uri, "PermanentRedirect")
    found = _STATUS.search(text)
    if not found:
        return None
    if found[1] == "403":
        what, fix = _RIGHTS[verb], _RIGHTS_FIX[verb]
    elif found[1] in _BY_STATUS:
        what, fix = _BY_STATUS[found[1]]
    elif found[1].startswith("5"):
        what, fix = "the store kept failing", "look at the store; try again"
    else:
        what, fix = "the store refused the request", ""
    return _problem(uri, what, fix, f"{found[1]} {code}".strip())


def _by_text(uri: str, error: BaseException, text: str) -> Problem | None:
    bad = _BAD_NAME.search(text)
    if bad:
        return _problem(f"{uri}: {bad[1]!r}", "is no name for a file", "rename the object", "")
    # The debugging text names a setting that has nothing to do with what went wrong.
    lower = (text + repr(error)).lower().replace("retry_timeout", "")
    for needles, what, fix in _BY_TEXT:
        if any(needle in lower for needle in needles):
            return _problem(uri, what, fix)
    return None


def _shown(uri: str, error: BaseException, text: str, secrets: Collection[str]) -> Problem:
    shown = _SPACE.sub(" ", text).strip()
    for secret in secrets:
        shown = shown.replace(secret, "***") if secret else shown
    return _problem(uri, f"{type(error).__name__}: {shown[:300]}", "")


def _problem(uri: str, text: str, fix: str, code: str = "") -> Problem:
    return Problem(uri, f"{text} ({code})." if code else f"{text}.", f"{fix}." if fix else "")
