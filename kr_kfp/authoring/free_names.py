"""Names that a component's source uses but that will not exist where it runs.

KFP ships the text of the function, not its module: what stands around the function in the author's file is gone. The
shipped module is compiled here, never run, and its byte code tells which names it looks up globally, with lines. So
scopes, comprehensions, ``global``, walrus, ``except ... as`` and pattern captures are judged by Python itself.
"""

from __future__ import annotations

import ast
import builtins
import dis
import importlib.util
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType

__all__ = ["FreeName", "find_free_names", "module_names"]

_LOOKUPS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "DELETE_GLOBAL"})
_STORES = frozenset({"STORE_NAME", "STORE_GLOBAL"})
_MODULE = frozenset(
    {"__annotations__", "__builtins__", "__doc__", "__file__", "__loader__", "__name__", "__package__", "__spec__"}
)


@dataclass(frozen=True, slots=True)
class FreeName:
    """A name that nothing defines.

    Args:
        name: The name.
        lines: Lines of the shipped source that use it, in order, each once.
        at_definition: Whether it is needed already when the function is defined (a default or an annotation).
    """

    name: str
    lines: tuple[int, ...]
    at_definition: bool = False


@cache
def module_names() -> frozenset[str]:
    """Give the names that KFP's shipped module imports by ``*``: those of kfp.dsl at run time, and of typing.

    While a component runs, kfp.dsl offers fewer names than while one is compiled (``_KFP_RUNTIME``), so ``__all__``
    is read from its source, where the run-time list is written out.
    """
    spec = importlib.util.find_spec("kfp.dsl")
    names: list[str] = []
    if spec is not None and spec.origin is not None:
        for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                names = ast.literal_eval(node.value)
    return frozenset(names) | frozenset(typing.__all__)


@lru_cache(maxsize=64)  # options() makes several components of one source
def find_free_names(source: str, offered: frozenset[str] = frozenset()) -> tuple[FreeName, ...]:
    """Find the names that a module looks up and nobody defines.

    Args:
        source: The module's text; ``from x import *`` counts for nothing here.
        offered: Names that its ``*`` imports bring.

    Returns:
        The names in order of their first line.

    Raises:
        SyntaxError: If the source is not Python.
    """
    # The shipped text has no ``from __future__`` line; this module's own must not rub off on it.
    code = compile(source, "<component>", "exec", dont_inherit=True)
    tolerated = _tolerated_lines(source)
    defined = {*offered, *dir(builtins), *_MODULE}
    found: dict[str, list[int]] = {}
    early: set[str] = set()
    for name, line, stores in _module_code(code):
        if stores:
            defined.add(name)
        elif name not in defined and line not in tolerated:
            found.setdefault(name, []).append(line)
            early.add(name)
    bodies = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    for body in bodies:
        defined |= _stored_globals(body)
    for body in bodies:
        for name, line in _lookups(body):
            if name not in defined and line not in tolerated:
                found.setdefault(name, []).append(line)
    names = [FreeName(name, tuple(sorted(set(lines))), name in early) for name, lines in found.items()]
    return tuple(sorted(names, key=lambda item: (item.lines[0], item.name)))


def _module_code(code: CodeType) -> Iterator[tuple[str, int, bool]]:
    """Give the names of the module's own statements in the order in which they run: name, line, whether stored."""
    for instruction in dis.get_instructions(code):
        line = instruction.positions.lineno if instruction.positions else None
        if instruction.opname in _STORES:
            yield str(instruction.argval), line or 0, True
        elif instruction.opname in _LOOKUPS:
            yield str(instruction.argval), line or 0, False


def _stored_globals(code: CodeType) -> set[str]:
    """Give the names that functions make global (``global x; x = 1``, also ``import`` and ``def`` under it)."""
    names = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "STORE_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _stored_globals(constant)
    return names


def _lookups(code: CodeType) -> Iterator[tuple[str, int]]:
    """Give global lookups of a function or class body and of all inside it."""
    instructions = list(dis.get_instructions(code))
    # Only class bodies store and load by name: what a class body stores is its own.
    own = {str(i.argval) for i in instructions if i.opname == "STORE_NAME"}
    for instruction in instructions:
        if instruction.opname in _LOOKUPS and str(instruction.argval) not in own:
            line = instruction.positions.lineno if instruction.positions else None
            yield str(instruction.argval), line or 0
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _lookups(constant)


def _tolerated_lines(source: str) -> set[int]:
    """Give the lines inside ``try: ... except NameError``: such code asks whether a name exists."""
    lines: set[int] = set()
    if "NameError" not in source:
        return lines
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Try) and any(_catches_name_error(handler.type) for handler in node.handlers):
            for statement in node.body:
                lines |= set(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    return lines


def _catches_name_error(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(item, ast.Name) and item.id == "NameError" for item in kinds)
