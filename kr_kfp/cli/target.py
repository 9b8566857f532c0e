"""``FILE[:NAME]`` on the command line -> a pipeline or component."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import click
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.graph_component import GraphComponent
from yaml import YAMLError

from kr_kfp.cli.trace import short_trace
from kr_kfp.wire import ExitCode

__all__ = ["Target", "TargetError", "arguments_of", "find"]

Target: TypeAlias = BaseComponent

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_KINDS = {"List": list, "Dict": dict, "Boolean": bool, "Integer": int, "Float": float}


class TargetError(click.ClickException):
    """What was named on the command line is not there, cannot be loaded, or does not take these arguments."""

    exit_code = ExitCode.USAGE


def find(text: str) -> Target:
    """Find what ``FILE.py[:NAME]``, ``FILE.yaml`` or ``package.module[:NAME]`` means.

    Without a name: the file's only pipeline, else the only component that it declares, else its only component.

    Raises:
        TargetError: If there is no such file, it raises when it is imported, or there is not exactly one candidate.
    """
    place, _, name = text.partition(":")
    if place.endswith((".yaml", ".yml")):
        return _load(place)
    module = _import(place)
    found = {key: value for key, value in vars(module).items() if isinstance(value, BaseComponent)}
    if name:
        if name not in found:
            msg = f"{place} has no pipeline or component {name!r}; it has: {_names(found)}"
            raise TargetError(msg)
        return found[name]
    own = _candidates(module, found)
    if not own:
        msg = f"{place} has no pipeline and no component"
        raise TargetError(msg)
    if len({id(value) for value in own.values()}) > 1:
        msg = f"{place} has several: {_names(own)}; name one: {place}:{min(own)}"
        raise TargetError(msg)
    return next(iter(own.values()))


def _candidates(module: ModuleType, found: dict[str, Target]) -> dict[str, Target]:
    """Give the pipelines; without any the components that the file declares itself; without any all."""
    pipelines = {key: value for key, value in found.items() if isinstance(value, GraphComponent)}
    functions = {key: getattr(value, "python_func", None) for key, value in found.items()}
    declared = {key: found[key] for key, func in functions.items() if func and func.__module__ == module.__name__}
    return pipelines or declared or found


def _load(place: str) -> Target:
    from kfp import components

    if not Path(place).is_file():
        msg = f"there is no file {place}"
        raise TargetError(msg)
    try:
        loaded: Target = components.load_component_from_file(place)
    except (YAMLError, AttributeError, KeyError, TypeError, ValueError) as problem:
        # KFP does not check what it reads: a file of something else fails wherever its reader first trips over it.
        msg = f"{place} is no pipeline or component of KFP: {type(problem).__name__}: {problem}"
        raise TargetError(msg) from problem
    return loaded


def _import(place: str) -> ModuleType:
    """Import a user's module; what it prints goes to standard error, which keeps --json clean.

    Raises:
        TargetError: If it is not there, or raises; with the user's own part of the traceback.
    """
    path = Path(place)
    if path.suffix == ".py":
        if not path.is_file():
            msg = f"there is no file {place}"
            raise TargetError(msg)
    elif not _MODULE.fullmatch(place):
        msg = f"{place!r} is neither FILE.py, FILE.yaml nor package.module"
        raise TargetError(msg)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return _execute(path.resolve()) if path.suffix == ".py" else _import_module(place)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        # A user's file may raise anything, SystemExit too; the user wants to see where and what, without our frames.
        if isinstance(problem, ModuleNotFoundError) and problem.name and f"{place}.".startswith(f"{problem.name}."):
            msg = f"there is no file and no module {place}"
            raise TargetError(msg) from problem
        msg = f"{place} cannot be loaded:\n{short_trace(problem)}"
        raise TargetError(msg) from problem


def _import_module(name: str) -> ModuleType:
    # A console script does not look in the current folder, `python -m kr_kfp` does.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(name)


def _execute(path: Path) -> ModuleType:
    # As Python does for a script: files beside it can be imported.
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    # A file may be called like a module that is in use, such as json.py or kfp.py.
    known = sys.modules.get(path.stem)
    taken = known is not None and getattr(known, "__file__", None) != str(path)
    name = f"kr_kfp_target_{path.stem}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        msg = f"{path} is not a Python file"
        raise TargetError(msg)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _names(found: dict[str, Any]) -> str:
    return ", ".join(sorted(found)) or "none"


def arguments_of(target: Target, given: tuple[str, ...]) -> dict[str, Any]:
    """Read ``NAME=VALUE`` pairs as values of the target's input types.

    Raises:
        TargetError: If a pair has no ``=``, names no input, or its value is not of the input's type; all at once.
    """
    inputs = target.component_spec.inputs or {}
    values: dict[str, Any] = {}
    problems = []
    for pair in given:
        key, mark, text = pair.partition("=")
        if not mark:
            problems.append(f"{pair!r}: write NAME=VALUE")
        elif key not in inputs:
            problems.append(f"{key}: there is no such input; there are: {_names(inputs)}")
        elif key in values:
            problems.append(f"{key}: given twice")
        elif "." in inputs[key].type:
            problems.append(
                f"{key}: an artifact ({inputs[key].type}) cannot be given here; kr_kfp.testing.run takes it"
            )
        else:
            try:
                values[key] = _value(_kind(inputs[key].type), text)
            except ValueError as problem:
                problems.append(f"{key}: {text!r} is no {_kind(inputs[key].type)} ({problem})")
    tried = {pair.partition("=")[0] for pair in given}
    missing = [key for key in target.required_inputs if key not in tried]
    if missing:
        problems.append("missing: " + ", ".join(f"{key} ({_kind(inputs[key].type)})" for key in missing))
    if problems:
        raise TargetError("\n  ".join([f"arguments of {target.name}:", *problems]))
    return values


def _kind(name: str) -> str:
    # KFP keeps what is inside, such as List[Integer], for a component that was not compiled yet.
    return name.partition("[")[0]


def _value(kind: str, text: str) -> Any:
    """Read one value: text as it stands, everything else as JSON.

    Raises:
        ValueError: If it is not of this type.
    """
    if kind not in _KINDS:
        return text
    try:
        value = json.loads(text.lower() if kind == "Boolean" else text)
    except ValueError:
        msg = "write JSON" if kind in ("List", "Dict") else "write a number" if kind != "Boolean" else "true or false"
        raise ValueError(msg) from None
    if kind == "Float" and type(value) is int:
        # KFP takes no int for a float.
        value = float(value)
    # Not isinstance: true is no number. NaN and infinity are no JSON.
    if type(value) is not _KINDS[kind] or (isinstance(value, float) and not math.isfinite(value)):
        msg = f"got {type(value).__name__}"
        raise ValueError(msg)
    return value
