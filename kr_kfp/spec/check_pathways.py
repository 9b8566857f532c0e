"""Checks of ``pathways=``, and of what must fit it: slices, accelerator, framework, the step's own JAX. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kr_kfp.errors import Problem
from kr_kfp.spec import check_values as values
from kr_kfp.spec.pathways import jax_of
from kr_kfp.spec.step import RUN_TIME_SCRATCH, Pathways, Shape

__all__ = ["PLACEHOLDER", "check_fit", "check_pathways", "fits", "is_gs", "pinned_jax"]

PLACEHOLDER = re.compile(r"\{\{(?:channel:|\$)[^{}]*\}\}")
"""A pipeline input, a task's output or a KFP placeholder, as text."""

_GS = re.compile(r"gs://[a-z0-9][a-z0-9_.-]{1,220}[a-z0-9](/\S*)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_PINNED = re.compile(r"jax(?:\[[^\]]*\])?\s*==\s*(\d+\.\d+(?:\.\d+)?)\s*(?:;.*)?")
_EXAMPLE = "pathways=kr_kfp.Pathways(scratch='gs://bucket/folder', version='20260423-jax_0.10.0')"


def is_gs(text: str) -> bool:
    """Tell whether a text is a folder of Google Cloud Storage, the only place that the servers can use as scratch."""
    return _GS.fullmatch(text) is not None


def fits(one: str, other: str) -> bool:
    """Tell whether a JAX and servers for another JAX go together: the same major and minor version.

    Google asks for the same version; one of its images was tested with two (AXL:60-63), so that a patch is let pass.
    """
    return one.split(".")[:2] == other.split(".")[:2]


def pinned_jax(packages: Sequence[Any]) -> str:
    """Give the JAX version that ``packages_to_install`` pins; empty if it pins none."""
    found = [match[1] for item in packages if isinstance(item, str) and (match := _PINNED.fullmatch(item.strip()))]
    return found[-1] if found else ""


def check_pathways(path: str, value: Any) -> Iterator[Problem]:
    """Check the fields of one :class:`kr_kfp.Pathways`, each alone."""
    if not isinstance(value, Pathways):
        yield values.wrong_type(path, value, f"a Pathways, such as {_EXAMPLE}")
        return
    yield from _scratch(f"{path}.scratch", value.scratch)
    yield from _versions(path, value)
    yield from values.image(f"{path}.images", value.images)
    yield from values.whole(0)(f"{path}.elastic_slices", value.elastic_slices)
    if value.colocated_python is not None:
        yield from _colocated(path, value)
    yield from _flags(f"{path}.xla_flags", value.xla_flags)
    yield from values.label_map(f"{path}.head_selector", value.head_selector)
    for name in ("resource_manager", "proxy"):
        yield from values.cpu_and_memory(f"{path}.{name}", getattr(value, name), who="a Pathways server")


def _scratch(path: str, value: Any) -> Iterator[Problem]:
    if value is None or hasattr(value, "channel_type"):
        return
    if not isinstance(value, str):
        yield values.wrong_type(path, value, "a text such as 'gs://bucket/folder'")
    elif not (is_gs(value) or PLACEHOLDER.search(value) or value == RUN_TIME_SCRATCH):
        message = f"{value!r} is no folder of Google Cloud Storage, which is all that the servers can use."
        yield Problem(path, message, "write 'gs://bucket/folder'; the bucket must exist.")


def _versions(path: str, value: Pathways) -> Iterator[Problem]:
    where = f"{path}.version"
    tag: Any = value.version  # dataclasses do not check the types of their fields
    jax: Any = value.jax
    if tag is None:
        message = "it is missing, and a default would drift away from the step's JAX."
        yield Problem(where, message, "give the tag of the images for your JAX, such as '20260423-jax_0.10.0'.")
    elif not isinstance(tag, str) or not _TAG.fullmatch(tag):
        yield Problem(where, f"{tag!r} is no image tag.", "give a tag such as '20260423-jax_0.10.0'.")
    if jax is not None and (not isinstance(jax, str) or not _VERSION.fullmatch(jax)):
        yield Problem(f"{path}.jax", f"{jax!r} is no version of JAX.", "give one such as '0.10.0'.")


def _colocated(path: str, value: Pathways) -> Iterator[Problem]:
    where, image = f"{path}.colocated_python", value.colocated_python
    wrong = list(values.image(where, image))
    yield from wrong
    if wrong or not isinstance(image, str) or not isinstance(value.version, str):
        return
    theirs, servers = jax_of(Pathways(version=image)), jax_of(value)
    if theirs and servers and not fits(theirs, servers):
        message = f"{image!r} is made for JAX {theirs}, but the servers' tag {value.version!r} is for JAX {servers}."
        yield Problem(where, message, f"take the image for JAX {servers}.")


def _flags(path: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, str) or not isinstance(value, list | tuple):
        yield values.wrong_type(path, value, "a tuple such as ('--xla_tpu_enable_async_collective_fusion=true',)")
        return
    for at, flag in enumerate(value):
        if not isinstance(flag, str) or not re.fullmatch(r"--xla_\S+", flag):
            yield Problem(f"{path}[{at}]", f"{flag!r} is no flag of XLA.", "write '--xla_<name>=<value>'.")


def check_fit(given: Mapping[str, Any], shape: Shape | None, *, known: bool) -> Iterable[Problem]:
    """Find what a step with ``backend="pathways"`` lacks or has too much of.

    Args:
        given: The arguments of the step that are right each for itself.
        shape: The accelerator.
        known: Whether the accelerator was understood.
    """
    if known:
        yield from _shape(shape)
    if given.get("framework", "auto") not in ("auto", "jax"):
        message = f"{given['framework']!r} cannot run on Pathways, which is a back end of JAX."
        yield Problem("framework", message, "write framework='jax' or leave it out.")
    pathways = given.get("pathways")
    if pathways is None:
        yield Problem("pathways", "it is missing: the servers need an image tag and a scratch folder.", f"{_EXAMPLE}.")
    elif isinstance(pathways, Pathways):
        yield from _together(given, pathways)


def _shape(shape: Shape | None) -> Iterator[Problem]:
    if shape is None or shape.kind != "tpu":
        what = shape.name if shape else "no accelerator"
        fix = "give a TPU, such as accelerator='v5p-32', or write backend='lws'."
        yield Problem("backend", f"'pathways' drives TPUs, but this is {what}.", fix)
    elif not shape.pathways_type:
        where = f" on {shape.machine}" if shape.machine else ""
        message = f"'pathways' has no instance type for {shape.name}{where}."
        yield Problem("backend", message, "write backend='lws', or choose another accelerator.")


def _together(given: Mapping[str, Any], pathways: Pathways) -> Iterator[Problem]:
    slices = given.get("slices", 1)
    if pathways.elastic_slices > slices:
        # pathwaysutils 0.1.13 experimental/gke/jobset.py:481-485 refuses it too.
        message = f"{pathways.elastic_slices} slices may be missing, but the step has {slices}."
        yield Problem("pathways.elastic_slices", message, f"give at most {slices}.")
    servers, own = jax_of(pathways), pinned_jax(given.get("packages_to_install") or ())
    if servers and own and not fits(servers, own):
        message = f"{pathways.version!r} is for JAX {servers}, but packages_to_install pins JAX {own}."
        yield Problem("pathways.version", message, f"take the images for JAX {own}, or install jax=={servers}.")
