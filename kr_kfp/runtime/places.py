"""Lines of the shipped source <-> lines of the author's file. Standard library only.

KFP ships a function's source in a file of its own (``ephemeral_component.py``). Where the author's file and the line of
the ``def`` are known, messages speak of those.
"""

from __future__ import annotations

import linecache
import os
import re

__all__ = ["USER_FILE", "author_place", "translate"]

USER_FILE = "ephemeral_component.py"
"""File name of the shipped source (kfp/dsl/component_factory.py)."""

_PLACE = re.compile(r'File "([^"]*' + re.escape(USER_FILE) + r')", line (\d+)')


def author_place(file: str, line: int, function: str, source: str) -> tuple[str, int, str]:
    """Translate a place in the shipped source into the author's file.

    Args:
        file: Path of the shipped source.
        line: 1-based line in it.
        function: Name of the user's function.
        source: ``file:line`` of its ``def`` on the author's machine; empty if not known.

    Returns:
        File, line, and the text of the line. The place stays as it is where no translation is known.
    """
    text = linecache.getline(file, line).strip()
    author, _, first = source.rpartition(":")
    if os.path.basename(file) != USER_FILE or not author or not first.isdigit():
        return file, line, text
    definition = re.compile(rf"(async )?def {re.escape(function)}\b")
    for number, shipped in enumerate(linecache.getlines(file), 1):
        if definition.match(shipped):
            # What stands before it are imports that KFP put there.
            return (author, int(first) + line - number, text) if line >= number else (file, line, text)
    return file, line, text


def translate(traceback: str, function: str, source: str) -> str:
    """Translate every place of the shipped source in a traceback's text."""

    def replace(found: re.Match[str]) -> str:
        file, line, _ = author_place(found[1], int(found[2]), function, source)
        return f'File "{file}", line {line}'

    return _PLACE.sub(replace, traceback)
