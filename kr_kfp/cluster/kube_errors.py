"""HTTP answers of an API server as errors of kr_kfp. Pure: status and body in, exception out.

What an answer's body says: ``Status`` of apimachinery (kubernetes ``staging/src/k8s.io/apimachinery/pkg/apis/meta/v1``,
type Status); a proxy or a missing API path answers with other text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kr_kfp.errors import ClusterError, ConflictError, ForbiddenError, NotFoundError, UnavailableError
from kr_kfp.spec.messages import refusal
from kr_kfp.spec.rights import granted

__all__ = ["HINTS", "RETRYABLE", "BusyError", "Target", "error_from", "is_expired"]

RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed. 500 is what a webhook that does not answer amounts to."""

HINTS = (". Give it the rights: kr-kfp install", ". Ask who administers the cluster")
"""End of the message about a missing right: of one that ``kr-kfp install`` gives, of another."""

_LONGEST = 1000
"""Characters of an answer in a message: a proxy may send a whole page."""

_DENIED = re.compile(r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)"')
"""The authorizer's words (kubernetes ``apiserver/pkg/endpoints/handlers/responsewriters/errors.go``, Forbidden)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request asks for, in the words of the authorizer.

    Args:
        verb: ``get``, ``list``, ``watch``, ``create``, ``patch`` or ``delete``.
        resource: Plural name with its subresource, such as ``pods/log``.
        namespace: Its namespace; empty for one of the cluster.
        name: The object's name; empty for several.
    """

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        name = f" {self.name}" if self.name else ""
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{name}{where}"


class BusyError(UnavailableError):
    """The server asks to be left alone for a while.

    Attributes:
        after: Seconds until the next try (``Retry-After``).
    """

    def __init__(self, message: str, *, status: int, reason: str, after: float) -> None:
        super().__init__(message, status=status, reason=reason)
        self.after = after


def error_from(status: int, body: bytes, target: Target, retry_after: str | None = None) -> ClusterError:
    """Make the error of an answer.

    Args:
        status: The HTTP status, 300 or more: an API server does not redirect.
        body: The answer's body.
        target: What was asked for.
        retry_after: The header of that name; a date, which no API server sends, is not looked at.
    """
    reason, message = _said(body)
    text = f"{target}: {message or f'the API server answered with status {status}'}"
    if status == 403:
        return ForbiddenError(_forbidden(message, target, text), status=status, reason=reason or "Forbidden")
    if status == 401:
        text = f"{target}: the API server does not accept the credentials (401 {message or 'Unauthorized'})"
        return ClusterError(text, status=status, reason=reason or "Unauthorized")
    if status in RETRYABLE and (retry_after or "").isdigit():
        return BusyError(text, status=status, reason=reason, after=float(retry_after or 0))
    kinds: Mapping[int, type[ClusterError]] = {404: NotFoundError, 409: ConflictError}
    kind = UnavailableError if status in RETRYABLE else kinds.get(status, ClusterError)
    return kind(text, status=status, reason=reason)


def is_expired(status: int, body: Mapping[str, Any] | None = None) -> bool:
    """Tell whether a watch or a list went too far back: as an HTTP status, or as an ERROR event inside a watch."""
    return status == 410 or (body or {}).get("code") == 410 or (body or {}).get("reason") in ("Expired", "Gone")


def _said(body: bytes) -> tuple[str, str]:
    """Read reason and message; of anything but a Status the beginning of its text."""
    text = body.decode("utf-8", "replace").strip()
    try:
        value = json.loads(text)
    except ValueError:
        return "", " ".join(text.split())[:_LONGEST]
    if not isinstance(value, dict) or value.get("kind") != "Status":
        return "", " ".join(text.split())[:_LONGEST]
    return str(value.get("reason") or ""), str(value.get("message") or "")[:_LONGEST]


def _forbidden(message: str, target: Target, text: str) -> str:
    """Name verb, resource, namespace, account and fix, if a right is missing; else quota or an admission refused."""
    denied = _DENIED.search(message)
    if denied is None:
        refused = refusal(message)
        return f"{text}. {refused.resolution}" if refused else text
    where = f"in namespace {target.namespace}" if target.namespace else "in the cluster (a ClusterRole grants it)"
    fix = HINTS[0] if target.resource in granted() else HINTS[1]
    return f"{denied['user']} may not {target.verb} {target.resource} {where}{fix}"
