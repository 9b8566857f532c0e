"""Every case compiles to its committed file."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp.compiler import Compiler
from kfp.dsl.base_component import BaseComponent

from kr_kfp.errors import WireError
from kr_kfp.runtime.bootstrap import split
from kr_kfp.wire import unpack

FOLDER = Path(__file__).parent
EXPECTED = FOLDER / "expected"
REGENERATE = os.environ.get("KR_KFP_REGENERATE") == "1"


def find_cases() -> dict[str, BaseComponent]:
    """Give all components and pipelines by the name of their file."""
    cases: dict[str, BaseComponent] = {}
    for file in sorted((FOLDER / "cases").glob("*.py")):
        module = importlib.import_module(f"tests.golden.cases.{file.stem}")
        twice = cases.keys() & module.CASES.keys()
        if twice:
            msg = f"{file}: names that are taken: {sorted(twice)}"
            raise ValueError(msg)
        cases |= module.CASES
    return cases


CASES = find_cases()


def readable(text: str) -> list[dict[str, Any]]:
    """Give the documents of a compiled file, with kr_kfp's prefix taken apart and unpacked."""
    documents = list(yaml.safe_load_all(text))
    for executor in documents[0]["deploymentSpec"]["executors"].values():
        command = executor["container"]["command"]
        try:
            verb, packed, inner = split(command)
        except WireError:
            continue
        executor["container"]["command"] = {"script": command[2], "verb": verb, "step": unpack(packed), "kfp": inner}
    return documents


@pytest.mark.parametrize("name", CASES)
def test_case_compiles_to_its_file(name: str, tmp_path: Path) -> None:
    """The compiled text is the committed one; KR_KFP_REGENERATE=1 writes it instead."""
    file, expected = tmp_path / f"{name}.yaml", EXPECTED / f"{name}.yaml"
    Compiler().compile(CASES[name], str(file))
    text = file.read_text(encoding="utf-8")
    if REGENERATE:
        expected.parent.mkdir(exist_ok=True)
        if not expected.exists() or readable(text) != readable(expected.read_text(encoding="utf-8")):
            expected.write_text(text, encoding="utf-8")
        return
    assert expected.is_file(), f"no {expected.name}: write it with `make golden`, and read it before committing"
    assert readable(text) == readable(expected.read_text(encoding="utf-8"))


@pytest.mark.skipif(REGENERATE, reason="files are being written")
def test_no_file_is_left_over() -> None:
    """A file without a case is one that nobody checks."""
    assert {file.stem for file in EXPECTED.glob("*.yaml")} == set(CASES)
