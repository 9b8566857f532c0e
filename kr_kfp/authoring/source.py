"""The source that KFP ships: is it there, does it stand alone, does it fit, and does it arrive as it was written.

KFP puts the text of the function, after a few imports, into one argument of the container's command
(``kfp/dsl/component_factory.py``, ``_get_command_and_args_for_lightweight_component``).
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import kr_kfp
from kr_kfp.authoring.annotations import closure_of
from kr_kfp.authoring.free_names import FreeName, find_free_names, module_names
from kr_kfp.errors import KrKfpError, Problem
from kr_kfp.wire import ARGUMENT_LIMIT

__all__ = ["Shipped", "author_place", "check_function", "check_names", "check_sizes", "find_source", "ship"]

_EPHEMERAL_FILE = '"$program_path/ephemeral_component.py"'
_LAST_IMPORT = "\nfrom typing import *\n"
_CHANGED_BY_KUBELET = re.compile(r"\$\$|\$\([-A-Za-z0-9_.]+\)")
_LOCAL_IMPORT = re.compile(r"^from (__main__|\S*<locals>\S*) import (\w+)$", re.MULTILINE)
_CARRIED = ("ConfigKey", "Context", "DeclarationError", "Gpu", "KrKfpError", "Problem", "Secret", "Tpu", "context")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """KFP's command, ready to stand behind the prefix.

    Args:
        command: The command, its source with kr_kfp's own imports where the function uses them.
        source: The source where it has to travel packed too, since a kubelet would change it on its way; else None.
    """

    command: tuple[str, ...]
    source: str | None = None


def check_function(func: Any) -> tuple[Problem, ...]:
    """Check that KFP can ship this function at all."""
    if not isinstance(func, FunctionType):
        message = f"it is a {type(func).__name__}, not a Python function."
        return (Problem("function", message, "write a function with def, and decorate that."),)
    kind = _kind(func) or _text(func)
    return (Problem("function", f"{func.__name__!r} {kind[0]}.", kind[1]),) if kind else ()


def _kind(func: FunctionType) -> tuple[str, str] | None:
    """Say what is wrong with the kind of a function, and what to do."""
    if hasattr(func, "__wrapped__"):
        fix = "call the wrapper's code inside the function."
        return "is wrapped by another decorator, and KFP ships the function's text without decorators", fix
    if func.__name__ == "<lambda>":
        return "is a lambda, and KFP ships functions written with def", "write it with def."
    if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        fix = "write an ordinary function, with asyncio.run(...) inside if need be."
        return "is a coroutine or a generator, whose body KFP never runs", fix
    return None


def _text(func: FunctionType) -> tuple[str, str] | None:
    """Say what is wrong with the text of a function, and what to do."""
    try:
        text, _ = _definition(func)
    except (OSError, TypeError):
        where = func.__code__.co_filename
        return f"has no source that could be read (it is from {where})", "define it in a file or a notebook cell."
    if not text:
        what = (
            "cannot be taken out of its surroundings: a line of it, such as a line of a text, begins further left "
            "than its def"
        )
        return what, "define it at the top of a module, or indent that line."
    return None


def author_place(func: Callable[..., Any]) -> str:
    """Give ``file:line`` of the ``def``, empty where there is none."""
    try:
        _, line = _definition(func)
    except (OSError, TypeError):
        return ""
    return f"{func.__code__.co_filename}:{line}"


def find_source(command: Sequence[str]) -> int | None:
    """Give the position of the shipped source in KFP's command; None if it carries none (``target_image``)."""
    for at, part in enumerate(command[:-1]):
        if _EPHEMERAL_FILE in part:
            return at + 1
    return None


def ship(command: Sequence[str], functions: Sequence[Callable[..., Any]]) -> tuple[Shipped, tuple[Problem, ...]]:
    """Check the source in KFP's command and make it ready to travel.

    Args:
        command: KFP's command.
        functions: The author's function and its ``additional_funcs``, for file, line and what a name stands for.

    Returns:
        The command, with ``import kr_kfp`` (or what else of kr_kfp the function names) added to the source, and the
        problems.
    """
    parts = list(command)
    at = find_source(parts)
    if at is None:
        return Shipped(command=tuple(parts)), ()
    source = parts[at]
    problems = _unimportable(source)
    # Such an import need not even be Python; the name is told already.
    carried, unknown = _check_names(_LOCAL_IMPORT.sub(r"\2 = ...", source), functions)
    problems += unknown
    if carried:
        if _LAST_IMPORT not in source:
            msg = "KFP's shipped module has no line 'from typing import *': this kfp is too new for this kr_kfp"
            raise KrKfpError(msg)
        lines = "\n".join(sorted(carried))
        source = source.replace(_LAST_IMPORT, f"{_LAST_IMPORT}{lines}\n", 1)
        parts[at] = source
    packed = bool(_CHANGED_BY_KUBELET.search(source))
    if packed and "{{$" in source:
        message = "the source holds both '$$' or '$(NAME)', which Kubernetes changes, and '{{$', which KFP replaces."
        problems.append(Problem("function", message, "write one of them in two parts, such as '$' + '$'."))
    return Shipped(command=tuple(parts), source=source if packed else None), tuple(problems)


def check_names(functions: Sequence[Callable[..., Any]], *, bodies_only: bool = False) -> tuple[Problem, ...]:
    """Check the names of functions that KFP has not made a component of, since something else is wrong with them.

    Args:
        functions: The functions.
        bodies_only: Whether to leave out names in annotations and defaults, which have been judged already.
    """
    texts = [_definition(func)[0] for func in functions]
    header = f"import kfp\nfrom kfp import dsl{_LAST_IMPORT}"
    _, problems = _check_names(header + "\n".join(texts), functions, bodies_only=bodies_only)
    return tuple(problems)


def _check_names(
    source: str, functions: Sequence[Callable[..., Any]], *, bodies_only: bool = False
) -> tuple[set[str], list[Problem]]:
    """Give the imports of kr_kfp that the source needs, and the names that it cannot have."""
    try:
        free = find_free_names(source, module_names())
    except SyntaxError as error:
        line = (error.text or "").strip()
        return set(), [
            Problem("function", f"its source alone is no Python: {error.msg}: {line!r}.", "write it without.")
        ]
    carried = {name.name: text for name in free if (text := _import_line(name.name, functions))}
    unknown = [name for name in free if name.name not in carried and not (bodies_only and name.at_definition)]
    places = [_Place.of(func, source) for func in functions] if unknown else []
    return set(carried.values()), [_problem(name, functions, places) for name in unknown]


def check_sizes(command: Sequence[str]) -> tuple[Problem, ...]:
    """Check that Linux takes every argument of the finished command."""
    source = find_source(command)
    problems = []
    for at, part in enumerate(command):
        size = len(part.encode("utf-8", "surrogateescape"))
        if size > ARGUMENT_LIMIT:
            what = "the source that KFP ships" if at == source else "an argument of the command"
            message = f"{what} is {size:,} bytes; Linux takes {ARGUMENT_LIMIT:,} for one argument."
            fix = (
                "read large data from an input artifact or a URI, and put long code into a package that the image has "
                "(packages_to_install=)."
            )
            problems.append(Problem("function" if at == source else "command", message, fix))
    return tuple(problems)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stretch of the shipped source stands in the author's files."""

    file: str
    first: int
    last: int
    shift: int

    @classmethod
    def of(cls, func: Callable[..., Any], source: str) -> _Place | None:
        for node in reversed(ast.parse(source).body):
            if isinstance(node, ast.FunctionDef) and node.name == func.__name__:
                try:
                    _, line = _definition(func)
                except (OSError, TypeError):
                    return None
                file = func.__code__.co_filename
                return cls(file, node.lineno, node.end_lineno or node.lineno, line - node.lineno)
        return None


@lru_cache(maxsize=256)
def _definition(func: Callable[..., Any]) -> tuple[str, int]:
    """Give the text from ``def`` on, cut out as KFP does it, and the line of the ``def`` in the author's file."""
    lines, start = inspect.getsourcelines(func)
    text = textwrap.dedent("".join(lines)).split("\n")
    for skipped, line in enumerate(text):
        if line.startswith("def"):
            return "\n".join(text[skipped:]), max(start, 1) + skipped
    return "", max(start, 1)


def _import_line(name: str, functions: Iterable[Callable[..., Any]]) -> str:
    """Give the import that carries a name of kr_kfp itself; empty for every other name."""
    for func in functions:
        value = _value(name, func)
        if value is kr_kfp:
            return "import kr_kfp" if name == "kr_kfp" else f"import kr_kfp as {name}"
        for public in _CARRIED:
            if value is not None and value is getattr(kr_kfp, public):
                return f"from kr_kfp import {public}" + ("" if name == public else f" as {name}")
    return ""


def _value(name: str, func: Callable[..., Any]) -> Any:
    closure = closure_of(func)
    return closure[name] if name in closure else getattr(func, "__globals__", {}).get(name)


def _problem(name: FreeName, functions: Sequence[Callable[..., Any]], places: Sequence[_Place | None]) -> Problem:
    where = ", ".join(_author_line(line, places) for line in name.lines[:5])
    more = f" and {len(name.lines) - 5} more" if len(name.lines) > 5 else ""
    what, fix = _explain(name, functions)
    return Problem(name.name, f"used at {where}{more}, but {what}; KFP ships only the function's own text.", fix)


def _author_line(line: int, places: Sequence[_Place | None]) -> str:
    for place in places:
        if place is not None and place.first <= line <= place.last:
            file = Path(place.file)
            near = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
            return f"{near}:{line + place.shift}"
    return f"line {line} of the shipped source"


def _explain(name: FreeName, functions: Sequence[Callable[..., Any]]) -> tuple[str, str]:
    """Say what a name stands for in the author's file, and what to do about it."""
    for func in functions:
        if name.name in closure_of(func):
            return "it is a variable around the function", "make it a parameter of the function."
        if name.name in getattr(func, "__globals__", {}):
            return _explain_global(name, func.__globals__[name.name], func.__module__)
    return "nothing of that name is defined", "define or import it inside the function."


def _explain_global(name: FreeName, value: Any, module: str) -> tuple[str, str]:
    own = getattr(value, "__qualname__", "")
    home = _public_home(getattr(value, "__module__", None) or module, own, value)
    alias = "" if (own or getattr(value, "__name__", "")) == name.name else f" as {name.name}"
    if isinstance(value, ModuleType):
        what, fix = f"it is the module {value.__name__}", f"write 'import {value.__name__}{alias}' inside the function."
        if name.at_definition and value.__name__ == "typing":
            fix = "leave 'typing.' out: all names of typing are there in the pod."
    elif name.at_definition and isinstance(value, type) and hasattr(value, "_fields"):
        fields = ", ".join(f"({field!r}, ...)" for field in value._fields)
        what, fix = "it is a class beside it", f"write NamedTuple({name.name!r}, [{fields}]) in its place."
    elif name.at_definition:
        what = f"it is a {type(value).__name__} and needed where the function is defined"
        fix = "write what it stands for in its place."
    elif own and callable(value) and home not in (module, "__main__", "builtins"):
        what, fix = f"it comes from {home}", f"write 'from {home} import {own}{alias}' inside the function."
    elif isinstance(value, FunctionType):
        what = "it is a function beside it"
        fix = f"add additional_funcs=[{name.name}], or define it inside the function."
    elif isinstance(value, type):
        what = "it is a class beside it"
        fix = "define it inside the function, or import it there from an installed package."
    else:
        what = f"it is a {type(value).__name__} beside it"
        fix = "define it inside the function, or make it a parameter."
    return what, fix


def _public_home(home: str, own: str, value: Any) -> str:
    """Give the module that people import a name from: ``pathlib`` where a class says ``pathlib._local``."""
    parent, _, last = home.rpartition(".")
    while parent and last.startswith("_") and getattr(sys.modules.get(parent), own, None) is value:
        home = parent
        parent, _, last = home.rpartition(".")
    return home


def _unimportable(source: str) -> list[Problem]:
    """Find artifact classes that KFP would import from a module that no pod has."""
    return [
        Problem(
            name,
            f"the artifact class is defined in {module}, which cannot be imported in the pod.",
            "put it into a module of a package that the image has.",
        )
        for module, name in _LOCAL_IMPORT.findall(source)
    ]
