"""Answers of an API server as errors: class, words, and whether the request is worth another try."""

from __future__ import annotations

import json

import pytest

from kr_kfp.cluster.kube_errors import BusyError, Target, error_from, is_expired
from kr_kfp.errors import ClusterError, ConflictError, ForbiddenError, NotFoundError, UnavailableError

TARGET = Target(verb="create", resource="leaderworkersets", namespace="ml", name="train-x")


def status(code: int, reason: str, message: str) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": message}).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, ClusterError),
        (401, ClusterError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (422, ClusterError),
        (429, UnavailableError),
        (500, UnavailableError),
        (502, UnavailableError),
        (503, UnavailableError),
        (504, UnavailableError),
    ],
)
def test_every_status_has_its_class(code: int, kind: type[ClusterError]) -> None:
    """Retryable and final are told apart by class, and the status and reason are kept."""
    error = error_from(code, status(code, "Why", "because"), TARGET)
    assert type(error) is kind
    assert (error.status, error.reason) == (code, "Why")


def test_message_says_what_was_asked_for() -> None:
    """The server's own words follow verb, resource, name and namespace."""
    error = error_from(409, status(409, "AlreadyExists", 'leaderworkersets "train-x" already exists'), TARGET)
    assert str(error) == 'create leaderworkersets train-x in namespace ml: leaderworkersets "train-x" already exists'


def test_missing_right_names_everything_and_the_fix() -> None:
    """Verb, resource, namespace, account and the command that gives the right."""
    said = (
        'leaderworkersets.leaderworkerset.x-k8s.io is forbidden: User "system:serviceaccount:ml:pipeline-runner" cannot '
        'create resource "leaderworkersets" in API group "leaderworkerset.x-k8s.io" in the namespace "ml"'
    )
    assert str(error_from(403, status(403, "Forbidden", said), TARGET)) == (
        "system:serviceaccount:ml:pipeline-runner may not create leaderworkersets in namespace ml. "
        "Give it the rights: kr-kfp install"
    )


def test_missing_right_on_a_node_is_one_of_the_cluster() -> None:
    """Nodes need a ClusterRole, which the message says."""
    said = 'nodes "n1" is forbidden: User "u" cannot get resource "nodes" in API group "" at the cluster scope'
    error = error_from(403, status(403, "Forbidden", said), Target(verb="get", resource="nodes", name="n1"))
    assert str(error) == (
        "u may not get nodes in the cluster (a ClusterRole grants it). Give it the rights: kr-kfp install"
    )


def test_quota_is_no_missing_right() -> None:
    """A quota answers 403 too; its own words stay, with what to do about it, and no rights are advised."""
    said = 'leaderworkersets "train-x" is forbidden: exceeded quota: q, requested: count=1, used: count=2, limited: count=2'
    assert str(error_from(403, status(403, "Forbidden", said), TARGET)) == (
        f"create leaderworkersets train-x in namespace ml: {said}. "
        "Wait for other pods to end, raise quota q, or ask for less."
    )


def test_a_page_in_place_of_a_status_is_cut() -> None:
    """A proxy's page is shown by its beginning, on one line."""
    error = error_from(502, b"<html>\n<body>Bad   gateway" + b"x" * 5000, TARGET)
    assert str(error).startswith("create leaderworkersets train-x in namespace ml: <html> <body>Bad gateway")
    assert len(str(error)) == len("create leaderworkersets train-x in namespace ml: ") + 1000


def test_empty_answer_names_the_status() -> None:
    """Without a word of the server, the status is all there is."""
    assert str(error_from(500, b"", TARGET)).endswith(": the API server answered with status 500")


def test_refused_credentials_say_so() -> None:
    """401 is about who one is, not about what one may."""
    assert str(error_from(401, status(401, "Unauthorized", "Unauthorized"), TARGET)) == (
        "create leaderworkersets train-x in namespace ml: the API server does not accept the credentials "
        "(401 Unauthorized)"
    )


def test_retry_after_is_kept() -> None:
    """What the server asks for with 429 is kept in seconds; a date is not looked at."""
    error = error_from(429, b"", TARGET, "7")
    assert isinstance(error, BusyError)
    assert error.after == 7.0
    assert type(error_from(429, b"", TARGET, "Wed, 21 Oct 2026 07:28:00 GMT")) is UnavailableError


@pytest.mark.parametrize(
    ("code", "body", "expired"),
    [
        (410, None, True),
        (200, {"code": 410, "reason": "Expired"}, True),
        (200, {"reason": "Gone"}, True),
        (500, {"code": 500, "reason": "InternalError"}, False),
    ],
)
def test_expired_in_both_forms(code: int, body: dict[str, object] | None, expired: bool) -> None:
    """410 comes as a status or as an ERROR event inside a watch."""
    assert is_expired(code, body) is expired
