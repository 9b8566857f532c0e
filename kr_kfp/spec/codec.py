"""The StepSpec as JSON: what travels in a component's command, with the protocol's version.

Fields that are empty (None, no entries, no text) are left out; everything else is written, so that a later change of a
default does not change a step that was compiled before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from kr_kfp.errors import WireError
from kr_kfp.spec.step import ConfigKey, EnvVar, Pathways, Secret, Shape, StepSpec
from kr_kfp.wire import PROTOCOL, Json

__all__ = ["LAUNCHER_RESOURCES", "SOURCE", "dump_step", "load_step", "with_source"]

SOURCE = "source"
"""Key of the shipped source, beside the step's fields; there only where a kubelet would change it on its way."""

LAUNCHER_RESOURCES = "launcher_resources"
"""Key of the launcher pod's cpu and memory, which only the author's side needs: they are set on the task."""

_BESIDE = frozenset({"v", SOURCE, LAUNCHER_RESOURCES})
_PAIRS = ("labels", "annotations")
_TUPLES = ("retry_on", "stream_inputs", "index_urls", "trusted_hosts")
_FIELDS = frozenset(field.name for field in fields(StepSpec))
_EPHEMERAL_FILE = '"$program_path/ephemeral_component.py"'


def dump_step(
    step: StepSpec, *, source: str | None = None, launcher_resources: Mapping[str, str] | None = None
) -> Json:
    """Give a step as JSON-ready values with the protocol version.

    Args:
        step: The step.
        source: The source that KFP's command carries, where it has to travel packed too (see :func:`with_source`).
        launcher_resources: The launcher pod's cpu and memory.
    """
    data: Json = {"v": PROTOCOL}
    for field in fields(StepSpec):
        value = getattr(step, field.name)
        if field.name == "env":
            value = [[name, _dump_value(given)] for name, given in value]
        elif field.name in ("shape", "pathways"):
            value = asdict(value) if value else None
        elif isinstance(value, tuple):
            value = [list(item) if isinstance(item, tuple) else item for item in value]
        # trusted_hosts tells None (trust the index URLs) from empty (trust none).
        if value is not None and (value not in ("", []) or field.name == "trusted_hosts"):
            data[field.name] = value
    if source is not None:
        data[SOURCE] = source
    if launcher_resources:
        data[LAUNCHER_RESOURCES] = dict(launcher_resources)
    return data


def load_step(data: Mapping[str, Any]) -> StepSpec:
    """Read a step.

    Raises:
        WireError: If it is of another protocol version or not a step.
    """
    version = data.get("v")
    if version != PROTOCOL:
        msg = f"step of protocol {version!r}, this is protocol {PROTOCOL}: compile the component again with this kr_kfp"
        raise WireError(msg)
    values = {key: value for key, value in data.items() if key not in _BESIDE}
    unknown = sorted(set(values) - _FIELDS)
    if unknown:
        msg = f"not a step: unknown fields {', '.join(unknown)}"
        raise WireError(msg)
    try:
        # None is not written, and for some fields it is not the default.
        values.setdefault("capacity_timeout", None)
        values["env"] = tuple(_load_variable(entry) for entry in values.get("env", ()))
        values["shape"] = Shape(**values["shape"]) if "shape" in values else None
        if "pathways" in values:
            given = values["pathways"]
            values["pathways"] = Pathways(**{**given, "xla_flags": tuple(given.get("xla_flags", ()))})
        for key in _PAIRS:
            values[key] = tuple((str(name), str(value)) for name, value in values.get(key, ()))
        for key in _TUPLES:
            if key in values:
                values[key] = tuple(values[key])
        return StepSpec(**values)
    except (TypeError, ValueError, KeyError) as problem:
        msg = f"not a step: {problem}"
        raise WireError(msg) from problem


def with_source(command: Sequence[str], data: Mapping[str, Any]) -> tuple[str, ...]:
    """Put the author's source back into KFP's command.

    The kubelet turns ``$$`` into ``$`` and expands ``$(NAME)`` in the command of each pod, source included. Where the
    source holds such text it travels packed beside the step, and this undoes what happened to KFP's copy.

    Args:
        command: KFP's own command.
        data: The unpacked step, as :func:`dump_step` made it.

    Returns:
        The command with the source as it was written; unchanged if the step carries none.
    """
    parts = list(command)
    source = data.get(SOURCE)
    if source is not None:
        for at, part in enumerate(parts[:-1]):
            if _EPHEMERAL_FILE in part:
                parts[at + 1] = source
                break
    return tuple(parts)


def _dump_value(value: str | Secret | ConfigKey) -> Any:
    if isinstance(value, Secret):
        return {"secret": [value.name, value.key]}
    if isinstance(value, ConfigKey):
        return {"config": [value.name, value.key]}
    return value


def _load_variable(entry: Sequence[Any]) -> EnvVar:
    name, value = entry
    if isinstance(value, str):
        return name, value
    [(kind, (owner, key))] = value.items()
    if kind == "secret":
        return name, Secret(owner, key)
    if kind == "config":
        return name, ConfigKey(owner, key)
    msg = f"env {name}: unknown kind {kind!r}"
    raise ValueError(msg)
