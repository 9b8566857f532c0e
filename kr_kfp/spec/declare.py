"""From the arguments of a declaration to a StepSpec: backend, hosts and defaults, with every problem at once."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

from kr_kfp.errors import Problem
from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.check import check_arguments, check_misplaced
from kr_kfp.spec.check_pathways import PLACEHOLDER, check_fit
from kr_kfp.spec.durations import parse_duration
from kr_kfp.spec.options import DEFAULTS, MAX_RESTARTS, MAX_RESTARTS_SPOT
from kr_kfp.spec.pod import reserved
from kr_kfp.spec.step import RUN_TIME_SCRATCH, Backend, Pathways, Shape, StepSpec

__all__ = ["declare", "describe_shape"]

Given = Mapping[str, Any]


def declare(
    given: Given,
    *,
    name: str,
    image: str,
    keywords: Collection[str] = (),
    inherited: Given | None = None,
    requirement: str | None = None,
) -> tuple[StepSpec | None, tuple[Problem, ...]]:
    """Make a step of what was declared.

    Args:
        given: The arguments that were given.
        name: Name of the component function.
        image: Image of the training containers.
        keywords: Names that ``dsl.component`` takes.
        inherited: Arguments of the step that this one is another shape of (``options()``). Where one of them does
            not fit the new shape it is dropped instead of refused: the author did not ask for it here.
        requirement: What pip installs where kr_kfp is absent.

    Returns:
        The step and no problems, or None and all problems.
    """
    problems = list(check_arguments(given, keywords=keywords))
    wrong = {_argument(problem) for problem in problems}
    mine = {key: value for key, value in given.items() if key not in wrong}
    known = "accelerator" not in wrong  # else nothing can be said that depends on the shape
    accelerator = mine.get("accelerator", (inherited or {}).get("accelerator")) if known else None
    shape = resolve(accelerator) if accelerator is not None else None
    values: Given = {**_fitting(inherited or {}, mine, shape), **mine}
    hosts, found = _hosts(values, shape) if known else (None, [])
    problems += found
    backend, reason, found = _backend(values, shape, hosts)
    problems += found
    values, problems = _without_misplaced(values, given, mine, backend, problems)
    processes, found = _processes(values, shape, known=known)
    misplaced = {problem.path for problem in problems}
    problems += [problem for problem in found if problem.path not in misplaced]
    problems += [*_reserved(given.get("env", values.get("env")), backend), *_together(values, backend)]
    if backend == "pathways":
        problems += [found for found in check_fit(values, shape, known=known) if _argument(found) not in wrong]
    if problems:
        return None, tuple(sorted(problems, key=lambda problem: _place(problem, list(given))))
    return _step(
        values,
        name=name,
        image=image,
        requirement=requirement,
        backend=backend or "pod",
        reason=reason,
        shape=shape,
        hosts=hosts or 1,
        processes=processes,
    ), ()


def describe_shape(shape: Shape | None) -> str:
    """Name an accelerator with what it resolved to, since a bare ``v4-8`` counts cores and ``v5e-8`` chips."""
    if shape is None:
        return "CPU"
    if shape.kind == "gpu":
        return f"{shape.name} ({_count(shape.chips_per_host, 'GPU')} on each host)"
    size = f"{_count(shape.chips, 'chip')} on {_count(shape.hosts, 'host')}"
    return f"{shape.name} ({shape.family}, topology {shape.topology}: {size})"


def _without_misplaced(
    values: Given, given: Given, mine: Given, backend: Backend | None, problems: list[Problem]
) -> tuple[Given, list[Problem]]:
    """Drop inherited arguments that mean nothing for the backend, and refuse those that were given now."""
    misplaced = check_misplaced(given, backend or "")
    fitting = {k: v for k, v in values.items() if k in mine or not check_misplaced({k: v}, backend or "")}
    # What means nothing here need not be right.
    kept = [problem for problem in problems if _argument(problem) not in {other.path for other in misplaced}]
    return fitting, [*kept, *misplaced]


def _fitting(inherited: Given, mine: Given, shape: Shape | None) -> dict[str, Any]:
    """Give the inherited arguments that still mean something for the new shape."""
    dropped = set()
    if "accelerator" in mine or "slices" in mine:
        tpu = shape is not None and shape.kind == "tpu"
        # A TPU's hosts follow from its topology, and only TPUs come in slices.
        dropped |= {"hosts"} if tpu else {"slices"}
        if shape is not None and _slices(shape, 2):
            dropped.add("slices")
        if inherited.get("processes_per_host") == "gpu" and (shape is None or tpu):
            dropped.add("processes_per_host")
    return {key: value for key, value in inherited.items() if key not in dropped}


def _hosts(values: Given, shape: Shape | None) -> tuple[int | None, list[Problem]]:
    given, slices = values.get("hosts"), values.get("slices", DEFAULTS["slices"])
    if shape is not None and shape.kind == "tpu":
        total = shape.hosts * slices
        if given not in (None, total):
            per_slice = f"{shape.chips} / {shape.chips_per_host} = {_count(shape.hosts, 'host')}"
            times = f", times {slices} slices = {_count(total, 'host')}" if slices > 1 else ""
            message = (
                f"{given} contradicts {shape.name}: topology {shape.topology} is {_count(shape.chips, 'chip')} with "
                f"{shape.chips_per_host} on each host, {per_slice}{times}."
            )
            return None, [Problem("hosts", message, f"leave it out or write {total}.")]
        return total, _slices(shape, slices)
    if slices > 1:
        message = f"{slices} slices of {describe_shape(shape)}: only TPUs come in slices."
        return None, [Problem("slices", message, "leave it out, and say with hosts= how many hosts there are.")]
    return given or 1, []


def _slices(shape: Shape, slices: int) -> list[Problem]:
    """Refuse slices that GKE does not join: those of one host, and v3 (GKE's multislice documentation)."""
    if slices == 1 or (shape.hosts > 1 and shape.family != "v3"):
        return []
    if shape.family == "v3":
        return [Problem("slices", f"{slices} slices of {shape.name}: v3 has no multislice.", "leave it out.")]
    # LWS up to 0.9 numbers sub-groups of one pod wrongly (kubernetes-sigs/lws#918), and from 0.10 on those beside a
    # leader that is in none.
    message = f"{slices} slices of {describe_shape(shape)}: GKE joins slices of several hosts only."
    return [Problem("slices", message, "leave it out, or choose a larger accelerator.")]


def _backend(values: Given, shape: Shape | None, hosts: int | None) -> tuple[Backend | None, str, list[Problem]]:
    asked = values.get("backend", DEFAULTS["backend"])
    what = f"{describe_shape(shape)}, {_count(hosts or 1, 'host')} in all"
    if asked == "auto":
        if hosts is None:
            return None, "", []
        return ("pod" if hosts == 1 else "lws"), f"auto: {what}", []
    if asked == "pod" and hosts is not None and hosts > 1:
        message = f"'pod' is one pod, but this is {what}."
        return None, "", [Problem("backend", message, "write backend='lws' or leave it out.")]
    return cast("Backend", asked), f"asked for by backend={asked!r}", []


def _processes(values: Given, shape: Shape | None, *, known: bool) -> tuple[int, list[Problem]]:
    name = "processes_per_host"
    given = values.get(name, DEFAULTS[name])
    gpus = shape.chips_per_host if shape is not None and shape.kind == "gpu" else 0
    if given == 1 or not known:
        return 1, []
    if given == "gpu" and not gpus:
        return 1, [
            Problem(name, f"'gpu' is one process for each GPU, but this is {describe_shape(shape)}.", "give a number.")
        ]
    if shape is not None and shape.kind == "tpu":
        return 1, [Problem(name, f"{given} processes cannot share the TPU chips of a host.", "leave it out.")]
    if values.get("framework") == "jax":
        fix = "leave it out: one JAX process drives all devices of its host; or write framework='torch'."
        return 1, [Problem(name, f"{given} processes on each host are for PyTorch, but framework is 'jax'.", fix)]
    return (gpus if given == "gpu" else int(given)), []


def _together(values: Given, backend: Backend | None) -> list[Problem]:
    """Find arguments that do not fit together, apart from the shape."""
    problems = []
    if backend == "lws" and values.get("launcher_resources") and values.get("passthrough", True):
        message = (
            "with passthrough, KFP sends resources set on the task to the training pods and gives the launcher none."
        )
        fix = "add passthrough=False (settings made on the task then stay on the launcher), or leave it out."
        problems.append(Problem("launcher_resources", message, fix))
    if values.get("install_kr_kfp_package") is False and values.get("kr_kfp_package_path"):
        message = f"{values['kr_kfp_package_path']!r} is what to install, but install_kr_kfp_package is False."
        problems.append(Problem("kr_kfp_package_path", message, "leave one of the two out."))
    return problems


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _reserved(env: Any, backend: Backend | None) -> list[Problem]:
    """Find variables that LWS or kr_kfp sets; on one pod only kr_kfp's own."""
    names = [name for name in env if isinstance(name, str)] if isinstance(env, Mapping) else []
    return [
        Problem(f"env[{name!r}]", f"{setter}.", "choose another name, or leave it out.")
        for name in names
        if (setter := reserved(name, backend or "") if backend != "pod" or name.startswith("KR_KFP_") else "")
    ]


def _argument(problem: Problem) -> str:
    return re.split(r"[\[. ]", problem.path, maxsplit=1)[0]


def _place(problem: Problem, order: list[str]) -> int:
    name = _argument(problem)
    return order.index(name) if name in order else len(order)


def _seconds(values: Given, name: str) -> float | None:
    value = values.get(name, DEFAULTS[name])
    return None if value is None else parse_duration(value)


def _step(
    values: Given,
    *,
    name: str,
    image: str,
    requirement: str | None,
    backend: Backend,
    reason: str,
    shape: Shape | None,
    hosts: int,
    processes: int,
) -> StepSpec:
    def value(key: str) -> Any:
        return values.get(key, DEFAULTS[key])

    spot = value("spot")
    restarts = value("max_restarts")
    if restarts is None:
        restarts = MAX_RESTARTS_SPOT if spot else MAX_RESTARTS
    hosts_trusted = values.get("pip_trusted_hosts")
    shm = value("shm")
    return StepSpec(
        name=name,
        backend=backend,
        reason=reason,
        shape=shape,
        hosts=hosts,
        slices=value("slices"),
        framework=value("framework"),
        processes_per_host=processes,
        env=tuple(dict(value("env")).items()),
        timeout=_seconds(values, "timeout"),
        capacity_timeout=_seconds(values, "capacity_timeout"),
        start_grace=_seconds(values, "start_grace"),
        finish_grace=_seconds(values, "finish_grace") or 0.0,
        terminate_grace=_seconds(values, "terminate_grace") or 0.0,
        max_restarts=restarts,
        retry_on=tuple(sorted({item.__name__ if isinstance(item, type) else str(item) for item in value("retry_on")})),
        spot=spot,
        logs=value("logs"),
        cluster=value("cluster"),
        image=image,
        launcher_image=value("launcher_image"),
        checkpoint_root=value("checkpoint_root"),
        stream_inputs=tuple(value("stream_inputs")),
        requirement=requirement,
        index_urls=tuple(values.get("pip_index_urls") or ()),
        trusted_hosts=None if hosts_trusted is None else tuple(hosts_trusted),
        labels=tuple(dict(value("labels")).items()),
        annotations=tuple(dict(value("annotations")).items()),
        pathways=_pathways(values.get("pathways")),
        # NCCL and PyTorch's loaders pass data between processes there, and 64 MB are soon full.
        shm=bool(shm) if shm is not None else shape is not None and shape.kind == "gpu",
        shm_size=shm if isinstance(shm, str) else "",
        pod_security=value("pod_security"),
        service_account=value("service_account"),
        api_token=value("api_token"),
    )


def _pathways(given: Pathways | None) -> Pathways | None:
    """Give the settings as plain values, without the pipeline's placeholders."""
    if given is None:
        return None
    scratch: Any = given.scratch
    if scratch is not None and (not isinstance(scratch, str) or PLACEHOLDER.search(scratch)):
        scratch = RUN_TIME_SCRATCH
    return replace(
        given,
        scratch=scratch,
        xla_flags=tuple(given.xla_flags),
        head_selector=dict(given.head_selector),
        resource_manager=dict(given.resource_manager),
        proxy=dict(given.proxy),
    )
