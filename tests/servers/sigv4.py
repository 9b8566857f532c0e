"""Signed requests to an S3 server, for what a test has to arrange: buckets, policies, objects with strange names.

Written from https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html, on the standard library, so that
tests do not arrange with the library that they test.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import http.client
import urllib.parse
from collections.abc import Mapping

__all__ = ["request"]


def request(
    method: str,
    endpoint: str,
    path: str,
    *,
    key: str,
    secret: str,
    region: str,
    query: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> tuple[int, bytes]:
    """Send one request and give status and body of the answer.

    Args:
        method: The HTTP method.
        endpoint: URL of the server, without a path.
        path: ``/<bucket>/<key>``, not escaped.
        key: Access key id.
        secret: Secret access key.
        region: The server's region.
        query: Query parameters, not escaped.
        body: Content of the request.
    """
    netloc = urllib.parse.urlsplit(endpoint).netloc
    now = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    escaped = urllib.parse.quote(path, safe="/-._~")
    pairs = sorted((query or {}).items())
    parameters = "&".join("=".join(urllib.parse.quote(part, safe="-._~") for part in pair) for pair in pairs)
    headers = {"host": netloc, "x-amz-content-sha256": digest, "x-amz-date": now}
    signed = ";".join(headers)
    lines = [f"{name}:{value}" for name, value in headers.items()]
    canonical = "\n".join([method, escaped, parameters, *lines, "", signed, digest])
    scope = f"{now[:8]}/{region}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    seal = b"AWS4" + secret.encode()
    for part in scope.split("/"):
        seal = hmac.digest(seal, part.encode(), "sha256")
    signature = hmac.digest(seal, text.encode(), "sha256").hex()
    headers["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={key}/{scope}, SignedHeaders={signed}, Signature={signature}"
    )
    connection = http.client.HTTPConnection(netloc, timeout=30)
    try:
        connection.request(method, f"{escaped}?{parameters}" if parameters else escaped, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
