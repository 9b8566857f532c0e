"""What is wrong with the arguments of a declaration: pure functions that give every problem at once.

Each function looks at one value (:func:`check_arguments` at all of them, each alone). Whether the arguments fit
together is judged where they become a step, in :mod:`kr_kfp.spec.declare`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from kr_kfp.errors import Problem
from kr_kfp.spec import check_values as values
from kr_kfp.spec.accelerators import UnknownAcceleratorError, resolve
from kr_kfp.spec.check_pathways import PLACEHOLDER, check_pathways
from kr_kfp.spec.durations import EXAMPLES, parse_duration
from kr_kfp.spec.options import OPTIONS
from kr_kfp.spec.step import ConfigKey, Gpu, Pathways, Secret, Tpu

__all__ = ["REFUSED_KEYWORDS", "check_arguments", "check_misplaced", "check_placeholders", "check_value"]

REFUSED_KEYWORDS: Mapping[str, Problem] = {
    "task_config_passthroughs": Problem(
        "task_config_passthroughs",
        "kr_kfp sets it itself: all six fields, so that settings made on a task reach the training pods.",
        "leave it out, or use passthrough=False.",
    ),
}
"""Keywords of ``dsl.component`` that kr_kfp needs for itself."""

_WHAT = {
    "pod": "which is one pod without a launcher",
    "lws": "which runs the function on every host",
    "pathways": "which runs the function once, on a head without accelerators",
}

_AT_RUN_TIME = frozenset({"pathways.scratch"})
"""What a pipeline input may give: the launcher resolves it before it makes the group."""


def check_arguments(given: Mapping[str, Any], *, keywords: Collection[str] = ()) -> tuple[Problem, ...]:
    """Check every argument alone.

    Args:
        given: The arguments that were given, by name.
        keywords: Names that ``dsl.component`` takes.

    Returns:
        All problems, in the order in which the arguments were given.
    """
    problems: list[Problem] = []
    for name, value in given.items():
        if name in REFUSED_KEYWORDS and value is not None:
            problems.append(REFUSED_KEYWORDS[name])
        elif name not in OPTIONS and name not in keywords:
            problems.append(_unknown(name, keywords))
        else:
            # A placeholder in a number or a duration is not also of a wrong type.
            problems += check_placeholders(name, value) or check_value(name, value)
    return tuple(problems)


def check_value(name: str, value: Any) -> tuple[Problem, ...]:
    """Check the type and range of one argument; keywords that only KFP reads are left to KFP."""
    option = OPTIONS.get(name)
    if value is None and (option is None or option.none):
        return ()
    check = _CHECKS.get(name)
    return tuple(check(name, value)) if check else ()


def check_misplaced(given: Mapping[str, Any], backend: str) -> tuple[Problem, ...]:
    """Name the arguments that mean nothing for this backend."""
    if backend not in _WHAT:
        return ()
    return tuple(
        Problem(name, f"{value!r} means nothing for backend {backend!r}, {_WHAT[backend]}.", f"{fix}.")
        for name, value in given.items()
        if value is not None and name in OPTIONS and (fix := getattr(OPTIONS[name], f"not_for_{backend}"))
    )


def check_placeholders(path: str, value: Any) -> tuple[Problem, ...]:
    """Find pipeline inputs, task outputs and KFP placeholders where a constant is needed, however deep.

    Args:
        path: Where the value stands.
        value: Any value; texts, dicts, lists and dataclasses are searched, and KFP's pipeline channels are told by
            their text, so that nothing of KFP is needed here.
    """
    return tuple(
        Problem(
            where,
            f"{text} is known only when the pipeline runs, but the step's shape and options are fixed when it is "
            "compiled.",
            f"give a constant. So must be all of: {', '.join(OPTIONS)}. Values that change from run to run are "
            "arguments of the function.",
        )
        for where, text in _placeholders(path, value)
    )


def _placeholders(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        found = PLACEHOLDER.search(value)
        if found:
            yield path, repr(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _placeholders(f"{path} key", key)
            yield from _placeholders(f"{path}[{key!r}]", item)
    elif isinstance(value, list | tuple | set | frozenset):
        for at, item in enumerate(value):
            yield from _placeholders(f"{path}[{at}]", item)
    elif isinstance(value, Secret | ConfigKey | Tpu | Gpu | Pathways):
        places = {f"{path}.{field.name}": getattr(value, field.name) for field in fields(value)}
        for where, item in places.items():
            yield from _placeholders(where, None if where in _AT_RUN_TIME else item)
    elif hasattr(value, "pattern") and hasattr(value, "channel_type"):
        yield path, str(value)


def _unknown(name: str, keywords: Collection[str]) -> Problem:
    known = sorted({*OPTIONS, *keywords} - set(REFUSED_KEYWORDS))
    close = difflib.get_close_matches(name, known, n=2)
    fix = f"did you mean {' or '.join(close)}?" if close else f"leave it out; there are: {', '.join(known)}."
    return Problem(name, "kr_kfp.component has no such argument, and dsl.component has none either.", fix)


def _accelerator(path: str, value: Any) -> Iterable[Problem]:
    if not isinstance(value, str | Tpu | Gpu):
        return [values.wrong_type(path, value, "a name such as 'v5litepod-16', or Tpu(...), or Gpu(...)")]
    try:
        resolve(value)
    except UnknownAcceleratorError as error:
        return [error.problem]
    return []


def _backend(path: str, value: Any) -> Iterable[Problem]:
    return values.one_of("auto", "pod", "lws", "pathways")(path, value)


def _duration(path: str, value: Any) -> Iterable[Problem]:
    try:
        parse_duration(value)
    except ValueError as error:
        return [Problem(path, f"{error}.", f"write {EXAMPLES}.")]
    return []


def _processes(path: str, value: Any) -> Iterable[Problem]:
    return [] if value == "gpu" else values.whole(1, " or 'gpu'")(path, value)


def _cluster(path: str, value: Any) -> Iterable[Problem]:
    form = r"local|kubeconfig(:\S+)?|gke:[^/\s:]+/[^/\s]+/[^/\s]+"
    if isinstance(value, str) and re.fullmatch(form, value):
        return []
    fix = "write 'kubeconfig', 'kubeconfig:<context>', 'gke:<project>/<location>/<name>' or 'local'."
    return [Problem(path, f"{value!r} names no cluster.", fix)]


def _checkpoint_root(path: str, value: Any) -> Iterable[Problem]:
    if isinstance(value, str) and re.fullmatch(r"[a-z][a-z0-9+.-]*://\S+|/\S*", value):
        return []
    return [Problem(path, f"{value!r} is no URI.", "write a URI such as 'gs://bucket/folder'.")]


_CHECKS: Mapping[str, Callable[[str, Any], Iterable[Problem]]] = {
    "accelerator": _accelerator,
    "hosts": values.whole(1),
    "slices": values.whole(1),
    "backend": _backend,
    "framework": values.one_of("auto", "jax", "torch", "none"),
    "processes_per_host": _processes,
    "env": values.env,
    "timeout": _duration,
    "capacity_timeout": _duration,
    "start_grace": _duration,
    "finish_grace": _duration,
    "terminate_grace": _duration,
    "max_restarts": values.whole(0),
    "retry_on": values.retry_on,
    "spot": values.yes_or_no,
    "logs": values.one_of("leader", "all", "none"),
    "cluster": _cluster,
    "launcher_image": values.image,
    "launcher_resources": values.launcher_resources,
    "checkpoint_root": _checkpoint_root,
    "stream_inputs": values.texts,
    "shm": values.shm,
    "pod_security": values.one_of("kfp", "restricted"),
    "service_account": values.object_name,
    "api_token": values.yes_or_no,
    "labels": values.label_map,
    "annotations": values.annotation_map,
    "passthrough": values.yes_or_no,
    "pathways": check_pathways,
    "install_kr_kfp_package": values.yes_or_no,
    "kr_kfp_package_path": values.text,
    "base_image": values.image,
    "target_image": values.image,
    "packages_to_install": values.texts,
    "pip_index_urls": values.texts,
    "pip_trusted_hosts": values.texts,
    "install_kfp_package": values.yes_or_no,
    "use_venv": values.yes_or_no,
}
