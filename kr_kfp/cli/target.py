"""``FILE[:NAME]`` on the command line -> a pipeline or component."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import click
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.graph_component import GraphComponent

__all__ = ["Target", "arguments_of", "find"]

Target = BaseComponent


def find(text: str) -> Target:
    """Find what ``FILE.py[:NAME]``, ``FILE.yaml`` or ``package.module[:NAME]`` means.

    Without a name: the file's only pipeline, else its only component.

    Raises:
        click.UsageError: If there is no such file, or not exactly one candidate.
    """
    place, _, name = text.partition(":")
    if place.endswith((".yaml", ".yml")):
        from kfp import components

        if not Path(place).is_file():
            msg = f"no file {place}"
            raise click.UsageError(msg)
        loaded: Target = components.load_component_from_file(place)
        return loaded
    module = _import(place)
    found = {key: value for key, value in vars(module).items() if isinstance(value, BaseComponent)}
    if name:
        if name not in found:
            msg = f"{place} has no pipeline or component {name!r}; it has: {_names(found)}"
            raise click.UsageError(msg)
        return found[name]
    own = {key: value for key, value in found.items() if isinstance(value, GraphComponent)} or found
    if len(own) != 1:
        msg = f"{place} has {len(own)} candidates ({_names(own)}); name one: {place}:NAME"
        raise click.UsageError(msg)
    return next(iter(own.values()))


def _import(place: str) -> Any:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as problem:
            msg = f"no file and no module {place!r} ({problem})"
            raise click.UsageError(msg) from problem
    path = Path(place).resolve()
    if not path.is_file():
        msg = f"no file {place}"
        raise click.UsageError(msg)
    # As Python does for a script: files beside it can be imported.
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        msg = f"{place} is not a Python file"
        raise click.UsageError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _names(found: dict[str, Any]) -> str:
    return ", ".join(sorted(found)) or "none"


def arguments_of(target: Target, given: tuple[str, ...]) -> dict[str, Any]:
    """Read ``NAME=VALUE`` pairs as values of the target's input types.

    Raises:
        click.UsageError: If a pair has no ``=``, names no input, or its value is not of the input's type; all at once.
    """
    inputs = target.component_spec.inputs or {}
    values: dict[str, Any] = {}
    problems = []
    for pair in given:
        key, mark, text = pair.partition("=")
        if not mark or key not in inputs:
            problems.append(f"{pair!r}: write NAME=VALUE with a NAME of: {_names(inputs)}")
            continue
        try:
            values[key] = _value(inputs[key].type, text)
        except ValueError as problem:
            problems.append(f"{key}: {text!r} is no {inputs[key].type} ({problem})")
    missing = [key for key in target.required_inputs if key not in values]
    if missing:
        problems.append("missing: " + ", ".join(missing))
    if problems:
        raise click.UsageError("; ".join(problems))
    return values


def _value(kind: str, text: str) -> Any:
    if kind in ("String", "str"):
        return text
    value = json.loads(text.lower() if kind in ("Boolean", "bool") else text)
    expected = {"Integer": int, "Float": (int, float), "Boolean": bool, "List": list, "Dict": dict}.get(kind)
    if expected and (not isinstance(value, expected) or (kind == "Integer" and isinstance(value, bool))):
        msg = f"got {type(value).__name__}"
        raise ValueError(msg)
    return value
