"""Annotations as KFP's compiler needs them, from which it reads the interface of a component.

``from __future__ import annotations`` turns every annotation into text. In the pod nothing is lost: KFP ships the
function without that import. ``str | None`` is not known to the compiler as the ``Optional[str]`` that it is; in the
pod KFP goes by the text of it, which begins with the type.
"""

from __future__ import annotations
import __future__

import inspect
import typing
from collections.abc import Callable
from types import FunctionType, UnionType
from typing import Any

from kr_kfp.errors import Problem

__all__ = ["closure_of", "resolve_annotations"]

_READABLE = frozenset({"bool", "dict", "float", "int", "list", "str"})
"""Texts that KFP itself takes for types, at compile time and in the pod."""


def resolve_annotations(func: FunctionType) -> tuple[FunctionType, tuple[Problem, ...]]:
    """Give the function with annotations that are objects.

    Args:
        func: The author's function.

    Returns:
        The function itself if KFP can read its annotations, else a copy of it (the same code, so that
        ``inspect.getsource`` works), and the problems.
    """
    given = inspect.get_annotations(func)
    texts = {name: text for name, text in given.items() if isinstance(text, str)}
    if not texts and not any(isinstance(value, UnionType) for value in given.values()):
        return func, ()
    postponed = bool(func.__code__.co_flags & __future__.annotations.compiler_flag)
    resolved: dict[str, Any] = {}
    failed: dict[str, str] = {}
    quoted: list[str] = []
    if postponed:
        namespace, scope = _namespace(func), _scope(func)
        for name, text in texts.items():
            try:
                # The text is the author's own code of the module that is being imported.
                resolved[name] = eval(text, namespace, scope)  # noqa: S307
            except (NameError, AttributeError, TypeError, SyntaxError) as error:
                failed[name] = f"{name}: {text} ({error})"
    else:
        resolved = dict(texts)
    for name, value in resolved.items():
        if isinstance(value, str) and value not in _READABLE:
            quoted.append(name)
    problems = [_quoted(name, resolved[name]) for name in quoted]
    if failed:
        problems.append(_postponed(func, failed))
    return _copy(func, {name: _optional(value) for name, value in {**given, **resolved}.items()}), tuple(problems)


def _optional(annotation: Any) -> Any:
    """Write ``X | None`` as ``Optional[X]``; ``None | X``, which KFP cannot read in the pod either, stays as it is."""
    if isinstance(annotation, UnionType):
        arguments = typing.get_args(annotation)
        if len(arguments) == 2 and arguments[1] is type(None):
            return typing.Optional[arguments[0]]  # noqa: UP045 - the very class that KFP looks for
    return annotation


def _quoted(name: str, text: str) -> Problem:
    path = "the return annotation" if name == "return" else f"annotation of {name}"
    message = f"{text!r} is in quotes, and KFP reads annotations as objects in the pod."
    return Problem(path, message, f"write {text} without quotes.")


def _postponed(func: FunctionType, failed: dict[str, str]) -> Problem:
    message = (
        f"'from __future__ import annotations' in {func.__code__.co_filename} makes texts of annotations, and "
        f"{'this' if len(failed) == 1 else 'these'} cannot be read back: {'; '.join(failed.values())}."
    )
    return Problem("annotations", message, "import what they name at the top of that file, or remove that import.")


def _namespace(func: FunctionType) -> dict[str, Any]:
    """Give what the function's module knows, and below it what KFP's shipped module will know."""
    import kfp
    from kfp import dsl

    shipped = {"kfp": kfp, "dsl": dsl}
    shipped |= {name: getattr(typing, name) for name in typing.__all__}
    shipped |= {name: getattr(dsl, name) for name in dsl.__all__}
    return {**shipped, **func.__globals__}


def _scope(func: FunctionType) -> dict[str, Any]:
    """Give the local names around a function that was defined inside another one, as far as it is still running."""
    scope: dict[str, Any] = {}
    around = func.__qualname__.rpartition(".<locals>.")[0].rpartition(".")[2]
    frame = inspect.currentframe() if around else None
    while frame is not None:
        if frame.f_code.co_name == around and frame.f_code.co_filename == func.__code__.co_filename:
            scope |= frame.f_locals
            break
        frame = frame.f_back
    return scope | _closure(func)


def _closure(func: FunctionType) -> dict[str, Any]:
    values = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            values[name] = cell.cell_contents
        except ValueError:
            continue  # not assigned yet
    return values


def _copy(func: FunctionType, annotations: dict[str, Any]) -> FunctionType:
    copy = FunctionType(func.__code__, func.__globals__, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    copy.__dict__.update(func.__dict__)
    copy.__doc__ = func.__doc__
    copy.__module__ = func.__module__
    copy.__qualname__ = func.__qualname__
    copy.__annotations__ = annotations
    return copy


def closure_of(func: Callable[..., Any]) -> dict[str, Any]:
    """Give the values that a function has captured from around it."""
    return _closure(func) if isinstance(func, FunctionType) else {}
