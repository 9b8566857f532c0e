"""What a user reads when a transfer fails, and what is tried again."""

from __future__ import annotations

import errno

import pytest
from obstore.exceptions import (
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from kr_kfp.storage.reasons import BrokenOffError, Verb, explain, is_passing, is_refused, is_throttled

URI = "s3://b/k"
KEYS = "correct the Secret that KFP's kfp-launcher ConfigMap names, or the account that the pod runs as."


def _answer(status: int, code: str = "") -> GenericError:
    body = f"<?xml ?><Error><Code>{code}</Code><SignatureProvided>hidden</SignatureProvided></Error>" if code else ""
    return GenericError(
        f"Generic S3 error: Server returned non-2xx status code: {status} Any: {body}\n\nDebug source: x"
    )


@pytest.mark.parametrize(
    ("error", "verb", "message", "fix"),
    [
        (
            _answer(403, "InvalidAccessKeyId"),
            "fetch",
            "the store does not know the access key (InvalidAccessKeyId).",
            KEYS,
        ),
        (
            PermissionDeniedError("... <Code>SignatureDoesNotMatch</Code> <StringToSign>hidden</StringToSign>"),
            "put",
            "the secret key does not belong to the access key (SignatureDoesNotMatch).",
            KEYS,
        ),
        (
            _answer(400, "ExpiredToken"),
            "fetch",
            "the session token has expired (ExpiredToken).",
            "renew it, or use lasting keys or pod identity.",
        ),
        (
            FileNotFoundError("Object at location k not found: <Code>NoSuchBucket</Code>"),
            "put",
            "the bucket does not exist (NoSuchBucket).",
            "create it, or correct the pipeline root, endpoint or region.",
        ),
        (
            FileNotFoundError("Object at location k not found: 404"),
            "fetch",
            "there is no such object.",
            "look whether the step before has written it.",
        ),
        (
            PermissionDeniedError("... <Code>AccessDenied</Code>"),
            "put",
            "the credentials may not write there (a read-only bucket or account) (AccessDenied).",
            "grant write (s3:PutObject, s3:AbortMultipartUpload; roles/storage.objectUser) to the step's account.",
        ),
        (
            _answer(403),
            "fetch",
            "the credentials may not read or list there (403).",
            "grant read and list (s3:GetObject, s3:ListBucket; roles/storage.objectViewer) to the step's account.",
        ),
        (
            UnauthenticatedError("401"),
            "fetch",
            "the store does not accept the credentials: they are wrong, or have expired (401).",
            KEYS,
        ),
        (
            PreconditionError("412"),
            "fetch",
            "the object changed while it was read.",
            "let one step write it, then read it.",
        ),
        (
            _answer(500, "InternalError"),
            "put",
            "the store kept failing (500 InternalError).",
            "look at the store; try again.",
        ),
        (
            _answer(429),
            "put",
            "the store asks to slow down, for longer than was waited (429).",
            "try again, or raise its limits.",
        ),
        (_answer(507), "put", "the store's disk is full (507).", "delete old artifacts, or give the store more disk."),
        (_answer(405), "put", "the store refused the request (405).", ""),
        (
            GenericError("Received redirect without LOCATION, this normally indicates ..."),
            "fetch",
            "the bucket is in another region (PermanentRedirect).",
            "name its region in KFP's kfp-launcher ConfigMap.",
        ),
        (
            GenericError("HTTP error: error trying to connect: tcp connect error: Connection refused (os error 111)"),
            "fetch",
            "the store cannot be reached.",
            "correct the endpoint, and look at network policies between the pod and the store.",
        ),
        (
            GenericError("HTTP error: dns error: failed to lookup address information"),
            "fetch",
            "the store's name cannot be resolved.",
            "correct the endpoint in KFP's kfp-launcher ConfigMap.",
        ),
        (
            GenericError("HTTP error: invalid peer certificate: UnknownIssuer"),
            "fetch",
            "the store's TLS certificate is not trusted, or it speaks no TLS.",
            "name the CA's file, or set disableSSL in KFP's kfp-launcher ConfigMap.",
        ),
        (
            GenericError("HTTP error: operation timed out"),
            "fetch",
            "the store did not answer in time.",
            "look at the store and the network; try again.",
        ),
        (
            GenericError(
                "HTTP error: request\n\nDebug source: RetryErrorImpl { retry_timeout: 180s, inner: Http(hyper::Error(Io, "
                'Os { code: 104, kind: ConnectionReset, message: "Connection reset by peer" })) }'
            ),
            "fetch",
            "the connection broke off again and again.",
            "look at the store and the network; try again.",
        ),
        (
            GenericError("Error performing PUT http://169.254.169.254/latest/api/token: 403"),
            "fetch",
            "no credentials could be had from this machine's identity.",
            "bind the pod's account to a cloud identity, set the provider's variables, or name a Secret in KFP's "
            "kfp-launcher ConfigMap.",
        ),
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "fetch",
            "this machine's disk is full.",
            "give the step more ephemeral storage or a larger volume.",
        ),
        (OSError(errno.ELOOP, "Too many levels of symbolic links"), "put", "Too many levels of symbolic links.", ""),
        (
            BrokenOffError("3 of 5 bytes arrived"),
            "fetch",
            "3 of 5 bytes arrived.",
            "look at the store and the network; try again.",
        ),
        (BaseError("something\nelse with sesame"), "fetch", "BaseError: something else with ***.", ""),
    ],
)
def test_explain(error: BaseException, verb: Verb, message: str, fix: str) -> None:
    """One sentence and a likely fix, without the store's own text and without a secret."""
    problem = explain(error, URI, verb, secrets=["", "sesame"])
    assert (problem.path, problem.message, problem.fix) == (URI, message, fix)


def test_a_local_file_is_named_beside_the_uri() -> None:
    """An error of the local disk tells the file too."""
    problem = explain(OSError(errno.EACCES, "Permission denied", "/gcs/b/k"), "gs://b/k", "fetch")
    assert problem.path == "gs://b/k (/gcs/b/k)"


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (_answer(500), True),
        (_answer(503, "SlowDown"), True),
        (_answer(429), True),
        (_answer(408), True),
        (_answer(400), False),
        (_answer(403), False),
        (GenericError("HTTP error: connection reset"), True),
        (GenericError("HTTP error: invalid peer certificate: Expired"), False),
        (GenericError("Received redirect without LOCATION"), False),
        (BrokenOffError("short"), True),
        (PermissionDeniedError("403"), False),
        (FileNotFoundError("404"), False),
        (OSError(errno.ENOSPC, "full"), False),
    ],
)
def test_is_passing(error: BaseException, *, passing: bool) -> None:
    """Failures of the server, the network and the bytes pass; refusals and the local disk do not."""
    assert is_passing(error) is passing


def test_who_is_throttled_and_who_is_refused() -> None:
    """429 and 503 ask to wait; 401 and 403 refuse, in whatever class they come."""
    assert [is_throttled(_answer(status)) for status in (429, 503, 500, 403)] == [True, True, False, False]
    assert [is_refused(_answer(status)) for status in (401, 403, 404, 503)] == [True, True, False, False]
    assert is_refused(PermissionDeniedError("...")) is True
