"""What a compiled pipeline would create: each kr_kfp step in words, with its manifest. Nothing is sent anywhere.

Works from the IR alone, so it shows what KFP will really be given.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from google.protobuf import json_format
from kfp.dsl.base_component import BaseComponent

from kr_kfp.errors import WireError
from kr_kfp.names import group_name
from kr_kfp.runtime import bootstrap
from kr_kfp.spec.accelerators import selectors
from kr_kfp.spec.codec import load_step
from kr_kfp.spec.launch import Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.pod import LIBRARY
from kr_kfp.spec.step import StepSpec
from kr_kfp.spec.words import words
from kr_kfp.wire import Payload, chunks, pack, unpack

__all__ = ["StepPlan", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step of a pipeline, as it would run.

    Args:
        name: The executor's component, such as ``train``.
        step: The step; None for a component that kr_kfp did not make.
        words: What runs where and why, a sentence each.
        selectors: Node selectors.
        manifest: The LeaderWorkerSet, with ``<...>`` for what only the run knows; for a pod the container as KFP gets
            it.
        payload_bytes: Bytes of the packed payload, before KFP puts in the arguments.
    """

    name: str
    step: StepSpec | None
    words: tuple[str, ...]
    selectors: Mapping[str, str]
    manifest: Mapping[str, Any]
    payload_bytes: int = 0


def plan(target: BaseComponent) -> tuple[StepPlan, ...]:
    """Say what each step of a pipeline or component would create.

    Args:
        target: A pipeline or component; its IR is built as the compiler would.
    """
    spec = json_format.MessageToDict(target.pipeline_spec)
    platform = json_format.MessageToDict(target.platform_spec) if target.platform_spec else {}
    executors = (spec.get("deploymentSpec") or {}).get("executors") or {}
    kubernetes = ((platform.get("platforms") or {}).get("kubernetes") or {}).get("deploymentSpec") or {}
    found = []
    for label in _in_order(spec, executors):
        container = executors[label].get("container")
        if container is not None:
            settings = (kubernetes.get("executors") or {}).get(label) or {}
            found.append(_step(label.removeprefix("exec-"), container, settings))
    return tuple(found)


def _in_order(spec: Mapping[str, Any], executors: Mapping[str, Any]) -> list[str]:
    """Order executors as their tasks run; the maps of a protobuf message have no order of their own."""
    components = spec.get("components") or {}
    order: dict[str, None] = {}

    def visit(component: Mapping[str, Any]) -> None:
        if "executorLabel" in component:
            order[component["executorLabel"]] = None
        tasks = (component.get("dag") or {}).get("tasks") or {}
        needs = {name: sorted(task.get("dependentTasks") or ()) for name, task in sorted(tasks.items())}
        for name in TopologicalSorter(needs).static_order():
            visit(components.get(tasks[name]["componentRef"]["name"]) or {})

    visit(spec["root"])
    return [label for label in order if label in executors]


def _step(name: str, container: dict[str, Any], settings: dict[str, Any]) -> StepPlan:
    command = list(container.get("command") or ())
    try:
        verb, packed, inner = bootstrap.split(command)
    except WireError:
        plain = (f"a plain KFP step in one pod, image {container.get('image')}",)
        return StepPlan(name=name, step=None, words=plain, selectors={}, manifest=_task(container, settings))
    step = load_step(unpack(packed))
    chosen = dict(selectors(step.shape)) if step.shape else {}
    if verb == "run":
        manifest = _task(container, settings)
        return StepPlan(name=name, step=step, words=words(step), selectors=chosen, manifest=manifest)
    payload = chunks(pack(Payload(command=(*inner, *container.get("args", ())), executor_input={}).to_json()))
    size = sum(map(len, payload))
    init = bootstrap.prefix("provide", "", requirement=step.requirement)
    launch = Launch(
        # The hash of run and task is not known before the run.
        name=f"{group_name(step.name, '').rpartition('-')[0]}-<hash>",
        run="<run>",
        task=name,
        identity="<run>/<task>",
        holder="<uid of the launcher's pod>",
        payload=(f"<payload: {size} bytes and the arguments>",),
        checkpoint_dir=step.checkpoint_root or "<pipeline root>/<pipeline>/<run>/<task>/kr-kfp-checkpoints",
        init=("sh", "-c", f"<script: {len(init[2])} bytes>", *init[3:], LIBRARY),
    )
    return StepPlan(
        name=name,
        step=step,
        words=words(step),
        selectors=chosen,
        manifest=build(step, launch),
        payload_bytes=size,
    )


def _task(container: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Give what KFP gets, in an order of its own; protobuf's maps have none."""
    order = ("image", "command", "args")
    ordered = {key: container[key] for key in (*order, *sorted(container.keys() - set(order))) if key in container}
    return {"container": _short(_sorted(ordered)), **({"kubernetes": _sorted(settings, deep=True)} if settings else {})}


def _sorted(value: Any, *, deep: bool = False) -> Any:
    """Sort the keys of all objects inside, and with ``deep`` of this one."""
    if isinstance(value, dict):
        keys = sorted(value) if deep else value
        return {key: _sorted(value[key], deep=True) for key in keys}
    return [_sorted(item, deep=True) for item in value] if isinstance(value, list) else value


def _short(container: dict[str, Any]) -> dict[str, Any]:
    """Give a container with long texts of its command cut, for people to read."""
    short = copy.copy(container)
    for key in ("command", "args"):
        if key in short:
            short[key] = [p if len(p) <= 200 else f"<{len(p.encode())} bytes: {p[:60]!r}...>" for p in short[key]]
    return short
