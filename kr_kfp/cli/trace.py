"""A user's part of a traceback: without the frames of kr_kfp, KFP and Python's import machinery."""

from __future__ import annotations

import traceback
from pathlib import Path

import kfp

import kr_kfp

__all__ = ["short_trace"]

_FRAMES = 8
"""Frames shown, the innermost ones; more than a person reads."""

_OURS = tuple(f"{Path(module.__file__ or '').parent}/" for module in (kr_kfp, kfp))


def short_trace(problem: BaseException) -> str:
    """Format an exception, its causes included, for the person whose code raised it."""
    whole = traceback.TracebackException.from_exception(problem)
    part: traceback.TracebackException | None = whole
    while part is not None:
        theirs = [frame for frame in part.stack if _is_theirs(frame.filename)]
        part.stack = traceback.StackSummary.from_list(theirs[-_FRAMES:])
        part = part.__cause__ or part.__context__
    return "".join(whole.format()).rstrip()


def _is_theirs(name: str) -> bool:
    return not name.startswith(("<frozen importlib", *_OURS)) and "/importlib/" not in name
