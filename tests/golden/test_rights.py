"""The RBAC objects of ``kr-kfp install``, as committed files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kr_kfp.spec.rights import EDITOR, Account, rights

FOLDER = Path(__file__).parent / "rights"
REGENERATE = os.environ.get("KR_KFP_REGENERATE") == "1"

RUNNER = Account(namespace="kubeflow", name="pipeline-runner")
PROFILES = [Account(namespace=name, name=EDITOR) for name in ("ada", "grace")]

CASES: dict[str, tuple[dict[str, Any], ...]] = {
    "single-user": rights([RUNNER]),
    "single-user-everything": rights([RUNNER], leases=True, nodes=True),
    "two-profiles": rights(PROFILES, nodes=True),
}


@pytest.mark.parametrize("name", CASES)
def test_rights_are_those_of_the_file(name: str) -> None:
    """The objects are the committed ones, in their order; KR_KFP_REGENERATE=1 writes them instead."""
    file = FOLDER / f"{name}.yaml"
    if REGENERATE:
        FOLDER.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump_all(CASES[name], sort_keys=False), encoding="utf-8")
        return
    assert file.is_file(), f"no {file.name}: write it with `make golden`, and read it before committing"
    assert tuple(yaml.safe_load_all(file.read_text(encoding="utf-8"))) == CASES[name]


@pytest.mark.skipif(REGENERATE, reason="files are being written")
def test_no_file_is_left_over() -> None:
    """A file without a case is one that nobody checks."""
    assert {file.stem for file in FOLDER.glob("*.yaml")} == set(CASES)
