"""Checks of single values by kind: whole numbers, choices, images, environment, labels.

Limits are Kubernetes' own (k8s.io/apimachinery ``pkg/util/validation``) and KFP's (``dsl/pipeline_task.py`` for cpu
and memory).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from kr_kfp.errors import Problem
from kr_kfp.spec.step import ConfigKey, Secret

__all__ = [
    "annotation_map",
    "cpu_and_memory",
    "env",
    "image",
    "label_map",
    "launcher_resources",
    "object_name",
    "one_of",
    "retry_on",
    "shm",
    "text",
    "texts",
    "whole",
    "wrong_type",
    "yes_or_no",
]

Check = Callable[[str, Any], Iterable[Problem]]

_ENV_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_CPU = re.compile(r"([0-9]*[.])?[0-9]+m?")
_MEMORY = re.compile(r"[0-9]+(E|Ei|P|Pi|T|Ti|G|Gi|M|Mi|K|Ki)?")
_OURS = ("kr-kfp.dev/", "leaderworkerset.sigs.k8s.io/")
_OUR_KEYS = frozenset(
    {"app.kubernetes.io/managed-by", "sidecar.istio.io/inject", "workflows.argoproj.io/kill-cmd-main"}
)


def wrong_type(path: str, value: Any, wanted: str) -> Problem:
    """Say that a value is of a wrong type."""
    return Problem(path, f"{value!r} is of type {type(value).__name__}.", f"give {wanted}.")


def whole(least: int, more: str = "") -> Check:
    """Make a check for a whole number of at least ``least``."""

    def check(path: str, value: Any) -> Iterator[Problem]:
        # True is an int to Python, and never meant as one.
        if isinstance(value, bool) or not isinstance(value, int):
            yield wrong_type(path, value, f"a whole number from {least}{more}")
        elif value < least:
            yield Problem(path, f"{value} is less than {least}.", f"give a whole number from {least}{more}.")

    return check


def one_of(*choices: str) -> Check:
    """Make a check for one of several words."""

    def check(path: str, value: Any) -> Iterator[Problem]:
        if value not in choices:
            close = difflib.get_close_matches(str(value), choices, n=1)
            fix = f"did you mean {close[0]!r}?" if close else f"choose {_or(choices)}."
            yield Problem(path, f"{value!r} is not one of {_or(choices)}.", fix)

    return check


def yes_or_no(path: str, value: Any) -> Iterator[Problem]:
    """Check for True or False."""
    if not isinstance(value, bool):
        yield wrong_type(path, value, "True or False")


def text(path: str, value: Any) -> Iterator[Problem]:
    """Check for a text that is not empty."""
    if not isinstance(value, str):
        yield wrong_type(path, value, "a text")
    elif not value.strip():
        yield Problem(path, "it is empty.", "give a text, or leave it out.")


def image(path: str, value: Any) -> Iterator[Problem]:
    """Check for the name of an image."""
    if not isinstance(value, str) or not value or re.search(r"\s", value):
        yield Problem(path, f"{value!r} is no image name.", "give a name such as 'python:3.12'.")


def texts(path: str, value: Any) -> Iterator[Problem]:
    """Check for a list of texts; a text alone would be read letter by letter."""
    if isinstance(value, str):
        yield Problem(path, f"{value!r} is a text, not a list.", f"write [{value!r}].")
    elif not isinstance(value, list | tuple):
        yield wrong_type(path, value, "a list of texts")
    else:
        for at, item in enumerate(value):
            yield from text(f"{path}[{at}]", item)


def env(path: str, value: Any) -> Iterator[Problem]:
    """Check the environment: names that Kubernetes takes; texts, Secret or ConfigKey as values."""
    if not isinstance(value, Mapping):
        yield wrong_type(path, value, "a dict of names and texts, such as {'LOG_LEVEL': 'debug'}")
        return
    for name, item in value.items():
        where = f"{path}[{name!r}]"
        if not isinstance(name, str) or not _ENV_NAME.fullmatch(name):
            yield Problem(where, f"{name!r} is no name of an environment variable.", "use letters, digits and _.")
        elif isinstance(item, Secret | ConfigKey):
            yield from _reference(where, item)
        elif not isinstance(item, str):
            kind = "a text, Secret(name, key) or ConfigKey(name, key)"
            fix = f"write {str(item)!r}." if isinstance(item, bool | int | float) else f"give {kind}."
            yield Problem(where, f"{item!r} is of type {type(item).__name__}, not text.", fix)
        elif "\0" in item:
            yield Problem(where, "the text holds a zero byte.", "leave it out: no process can have it.")


def _reference(where: str, item: Secret | ConfigKey) -> Iterator[Problem]:
    kind = type(item).__name__
    # Dataclasses do not check the types of their fields.
    name, key = str(item.name), str(item.key)
    if len(name) > 253 or not _SUBDOMAIN.fullmatch(name):
        fix = "use lower-case letters, digits, - and ., at most 253."
        yield Problem(f"{where}.name", f"{item.name!r} is no name of a Kubernetes {kind}.", fix)
    if len(key) > 253 or not _KEY.fullmatch(key):
        fix = "use letters, digits, -, _ and ., at most 253."
        yield Problem(f"{where}.key", f"{item.key!r} is no key of a Kubernetes {kind}.", fix)


def label_map(path: str, value: Any) -> Iterator[Problem]:
    """Check Kubernetes labels."""
    for where, item in _metadata(path, value):
        if isinstance(item, Problem):
            yield item
        elif item and (len(item) > 63 or not _QUALIFIED.fullmatch(item)):
            fix = "use at most 63 letters, digits, -, _ and ., with a letter or digit at both ends."
            yield Problem(where, f"{item!r} is no value of a Kubernetes label.", fix)


def annotation_map(path: str, value: Any) -> Iterator[Problem]:
    """Check Kubernetes annotations."""
    size = 0
    for _, item in _metadata(path, value):
        if isinstance(item, Problem):
            yield item
        else:
            size += len(item.encode())
    if size > 256 * 1024:
        yield Problem(path, f"the values are {size:,} bytes together; Kubernetes takes 262,144.", "shorten them.")


def _metadata(path: str, value: Any) -> Iterator[tuple[str, str | Problem]]:
    if not isinstance(value, Mapping):
        yield path, wrong_type(path, value, "a dict of names and texts")
        return
    for key, item in value.items():
        where = f"{path}[{key!r}]"
        prefix, slash, name = str(key).rpartition("/")
        if not isinstance(key, str) or len(name) > 63 or not _QUALIFIED.fullmatch(name):
            fix = "use at most 63 letters, digits, -, _ and . after an optional prefix such as 'team.example/'."
            yield where, Problem(where, f"{key!r} is no name of a Kubernetes label or annotation.", fix)
        elif slash and (len(prefix) > 253 or not _SUBDOMAIN.fullmatch(prefix)):
            yield (
                where,
                Problem(where, f"the prefix {prefix!r} is no DNS name.", "use a prefix such as 'team.example/'."),
            )
        elif key.startswith(_OURS) or key in _OUR_KEYS:
            yield where, Problem(where, "kr_kfp or LeaderWorkerSet sets it itself.", "leave it out.")
        elif not isinstance(item, str):
            yield where, Problem(where, f"{item!r} is of type {type(item).__name__}.", f"write {str(item)!r}.")
        else:
            yield where, item


def retry_on(path: str, value: Any) -> Iterator[Problem]:
    """Check what is worth a restart: ``oom``, exit codes, exception names or classes."""
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        yield wrong_type(path, value, "a set, such as {'oom', 42, 'ConnectionError'}")
        return
    for item in value:
        where = f"{path}[{item!r}]"
        if isinstance(item, bool) or not isinstance(item, str | int | type):
            yield wrong_type(where, item, "'oom', an exit code, or the name of an exception class")
        elif isinstance(item, int) and not 1 <= item <= 255:
            yield Problem(where, f"{item} is no exit code of a failure.", "give a code from 1 to 255.")
        elif isinstance(item, type) and not issubclass(item, BaseException):
            yield Problem(where, f"{item.__name__} is no exception class.", "give an exception class or its name.")
        elif isinstance(item, str) and not (item.isidentifier() or (item.isdecimal() and 1 <= int(item) <= 255)):
            fix = "give 'oom', an exit code, or the name of an exception class without its module."
            yield Problem(where, f"{item!r} names no failure.", fix)


def launcher_resources(path: str, value: Any) -> Iterator[Problem]:
    """Check cpu and memory of the launcher pod; they become both its requests and its limits."""
    return cpu_and_memory(path, value, who="a launcher")


def cpu_and_memory(path: str, value: Any, *, who: str) -> Iterator[Problem]:
    """Check amounts of cpu and memory, which are all that ``who`` may ask for."""
    if not isinstance(value, Mapping):
        yield wrong_type(path, value, "a dict such as {'cpu': '500m', 'memory': '512Mi'}")
        return
    forms = {"cpu": (_CPU, "'500m' or '2'"), "memory": (_MEMORY, "'512Mi' or '2Gi'")}
    for key, item in value.items():
        where = f"{path}[{key!r}]"
        if key not in forms:
            yield Problem(where, f"{who} has cpu and memory only.", "leave it out.")
        elif not isinstance(item, str) or not forms[key][0].fullmatch(item):
            yield Problem(where, f"{item!r} is no amount of {key}.", f"write {forms[key][1]}.")


def object_name(path: str, value: Any) -> Iterator[Problem]:
    """Check for the name of an object of Kubernetes."""
    if not isinstance(value, str):
        yield wrong_type(path, value, "a name")
    elif len(value) > 253 or not _SUBDOMAIN.fullmatch(value):
        fix = "use lower-case letters, digits, - and ., at most 253."
        yield Problem(path, f"{value!r} is no name of an object of Kubernetes.", fix)


def shm(path: str, value: Any) -> Iterator[Problem]:
    """Check whether, and up to which size, ``/dev/shm`` is the pod's own memory."""
    if not isinstance(value, bool | str):
        yield wrong_type(path, value, "True, False or a size such as '16Gi'")
    elif isinstance(value, str) and not _MEMORY.fullmatch(value):
        yield Problem(path, f"{value!r} is no amount of memory.", "write '16Gi' or the like.")


def _or(choices: Collection[str]) -> str:
    *first, last = [repr(choice) for choice in choices]
    return f"{', '.join(first)} or {last}"
