"""What an installation or removal says of each object."""

from __future__ import annotations

from typing import Any

import pytest

from kr_kfp.spec.changes import change, is_made_here, removal_order, visible

Json = dict[str, Any]


def role(version: str = "1", verb: str = "get") -> Json:
    """Build an object as a server gives it."""
    metadata = {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": version, "managedFields": [1]}
    return {"kind": "Role", "metadata": metadata, "rules": [{"verbs": [verb]}], "status": {"x": version}}


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, role(), "created"),
        (role(), role(version="2"), "unchanged"),
        (role(), role(verb="list"), "changed"),
        (role(), None, "deleted"),
    ],
)
def test_what_happened(before: Json | None, after: Json | None, expected: str) -> None:
    """What only the server says makes no change."""
    assert change(role(), before, after).what == expected


def test_a_change_names_its_object() -> None:
    """Kind, namespace and name."""
    assert change(role(), None, role(), why="because").title == "Role n/a"
    assert change({"kind": "ClusterRole", "metadata": {"name": "b"}}, None, role()).title == "ClusterRole b"


def test_secrets_are_not_shown() -> None:
    """Of a Secret only the keys are visible, and without what the server says."""
    secret = {"kind": "Secret", "metadata": {"name": "s", "uid": "u"}, "data": {"key": "c2VjcmV0"}, "type": "Opaque"}
    assert visible(secret) == {
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"key": "<not shown>"},
        "type": "Opaque",
    }


@pytest.mark.parametrize(
    ("label", "manager", "operation", "expected"),
    [
        ("kr-kfp", "kr-kfp", "Apply", True),
        ("kr-kfp", "kubectl", "Apply", False),
        ("kr-kfp", "kr-kfp", "Update", False),
        ("kustomize", "kr-kfp", "Apply", False),
    ],
)
def test_made_here(label: str, manager: str, operation: str, expected: bool) -> None:
    """Only what has the label and was applied by kr-kfp is its own."""
    fields = [{"manager": manager, "operation": operation}]
    labels = {"app.kubernetes.io/managed-by": label}
    assert is_made_here({"metadata": {"name": "a", "labels": labels, "managedFields": fields}}) is expected


def test_what_others_need_goes_last() -> None:
    """Webhooks go before their service, roles after their bindings, the namespace at the end."""
    kinds = [
        "Namespace",
        "CustomResourceDefinition",
        "ServiceAccount",
        "Role",
        "RoleBinding",
        "Deployment",
        "MutatingWebhookConfiguration",
    ]
    ordered = removal_order({"kind": kind, "metadata": {"name": "a"}} for kind in kinds)
    assert [o["kind"] for o in ordered] == [
        "MutatingWebhookConfiguration",
        "Deployment",
        "RoleBinding",
        "Role",
        "ServiceAccount",
        "CustomResourceDefinition",
        "Namespace",
    ]
