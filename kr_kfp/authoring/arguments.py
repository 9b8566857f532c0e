"""The arguments of a call of a component: None, kr_kfp's own input, and how much fits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kr_kfp.errors import DeclarationError, Problem
from kr_kfp.wire import ARGUMENT_LIMIT, SCRATCH_INPUT, TASK_CONFIG_INPUT

__all__ = ["ARGUMENTS_LIMIT", "bind", "check_sizes"]

ARGUMENTS_LIMIT = ARGUMENT_LIMIT - 16 * 1024
"""Bytes of all constant arguments as JSON: KFP puts them with the rest of ExecutorInput (names, types, URIs of
artifacts, for which 16 KiB are left) into one argument of the command."""


def bind(name: str, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arguments of a call.

    Args:
        name: The component's name, for messages.
        inputs: The component's input specs (``kfp.dsl.structures.InputSpec``) by name.
        given: The arguments.

    Returns:
        The arguments to hand to KFP: without those that are None, where None is the default. KFP takes no None, but
        gives the function its default for what is left out.

    Raises:
        DeclarationError: With every problem.
    """
    problems = []
    if TASK_CONFIG_INPUT in given:
        message = "it is kr_kfp's own input: KFP fills it with the settings made on the task."
        fix = "leave it out, and set resources, env and the like on the task."
        problems.append(Problem(TASK_CONFIG_INPUT, message, fix))
    if SCRATCH_INPUT in given:
        message = "it is kr_kfp's own input, for a scratch location that a pipeline input gives."
        fix = "write .options(pathways=kr_kfp.Pathways(scratch=...)) before the call."
        problems.append(Problem(SCRATCH_INPUT, message, fix))
    arguments = {}
    for key, value in given.items():
        spec = inputs.get(key)
        if value is not None or spec is None:
            arguments[key] = value
        elif not (spec.optional and spec.default is None):
            default = f"{spec.default!r}" if spec.optional else "not optional"
            message = f"None cannot be given: KFP has no such value, and the default is {default}."
            problems.append(Problem(key, message, "leave it out, or give a value."))
    problems += check_sizes(inputs, arguments)
    if problems:
        subject = f"call of component {name!r}"
        raise DeclarationError(subject, problems)
    return arguments


def check_sizes(inputs: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Check that the constant arguments and defaults of a call fit into one argument of the command."""
    values = {key: spec.default for key, spec in inputs.items() if spec.default is not None} | dict(arguments)
    sizes = {key: _size(value) for key, value in values.items() if not hasattr(value, "channel_type")}
    total = sum(sizes.values()) + sum(len(key) + 6 for key in sizes)
    if total <= ARGUMENTS_LIMIT:
        return ()
    largest = max(sizes, key=lambda key: sizes[key])
    message = (
        f"it is {sizes[largest]:,} bytes as JSON, all constant arguments together {total:,}; {ARGUMENTS_LIMIT:,} fit "
        "into the command of a step."
    )
    return (Problem(largest, message, "pass large values as an artifact, or as a URI that the function reads."),)


def _size(value: Any) -> int:
    # default=str: task outputs inside dicts and lists count as their placeholder text.
    return len(json.dumps(value, default=str))
