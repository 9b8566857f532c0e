"""What is checked on the head before any Pathways server is asked."""

from __future__ import annotations

import sys

import pytest

from kr_kfp.runtime import pathways

PYTHON = ".".join(map(str, sys.version_info[:2]))
IMAGE = "registry.test/server:tag"


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pathways, "_version", {"jax": "0.10.2", "pathwaysutils": "0.1.13"}.get)


def check(env: dict[str, str], *absent: str) -> list[str]:
    return pathways.check({"KR_KFP_PATHWAYS": IMAGE, **env}, lambda name: name not in absent)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"KR_KFP_PATHWAYS_JAX": "0.10.0"},
        {"KR_KFP_PATHWAYS_JAX": ""},
        {"ENABLE_PATHWAYS_PERSISTENCE": "1"},
        {"KR_KFP_PATHWAYS_COLOCATED": f"registry.test/sidecar:20260423-python_{PYTHON}-jax_0.10.0"},
        {"KR_KFP_PATHWAYS_COLOCATED": "registry.test/sidecar:mine"},
    ],
)
def test_right(env: dict[str, str]) -> None:
    """What fits, or cannot be known, is let pass."""
    assert check(env) == []


def test_missing_packages() -> None:
    """All packages that are missing are named together."""
    assert check({}, "pathwaysutils") == [
        "pathwaysutils cannot be imported in this image. Add pathwaysutils to packages_to_install"
    ]
    assert check({}, "jax", "pathwaysutils") == [
        "jax and pathwaysutils cannot be imported in this image. Add jax and pathwaysutils to packages_to_install"
    ]


def test_all_at_once() -> None:
    """Package, variable, JAX and Python are all reported."""
    env = {
        "ENABLE_PATHWAYS_PERSISTENCE": "yes",
        "KR_KFP_PATHWAYS_JAX": "0.9.0",
        "KR_KFP_PATHWAYS_COLOCATED": "registry.test:5000/sidecar:20260423-python_3.9-jax_0.9.0",
    }
    assert check(env, "pathwaysutils") == [
        "pathwaysutils cannot be imported in this image. Add pathwaysutils to packages_to_install",
        "ENABLE_PATHWAYS_PERSISTENCE='yes' is neither '0' nor '1'",
        f"this image has JAX 0.10.2, but {IMAGE} is made for JAX 0.9.0. Install jax==0.9.0, or give "
        "kr_kfp.Pathways(version=...) the tag for JAX 0.10.2",
        f"this image has Python {PYTHON}, but registry.test:5000/sidecar:20260423-python_3.9-jax_0.9.0 has Python 3.9. "
        f"Take one for Python {PYTHON}",
    ]
