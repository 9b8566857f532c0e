"""Statuses and events of a group -> what is wrong, in words, and what to do about it. Pure.

The causes are rows of :mod:`kr_kfp.spec.causes`, the names come from :mod:`kr_kfp.spec.messages`; this module finds the
row. A reason that is in no row gives :attr:`Category.UNKNOWN` with Kubernetes' own text. Nothing in a status is taken
for granted: an evicted pod has no container statuses, and every list and field may be null.

How user code itself ended is told by its outcome (:mod:`kr_kfp.spec.outcome`); an exit code is explained here only as
far as Kubernetes knows it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kr_kfp.errors import WireError
from kr_kfp.spec.causes import (
    CONTAINER_WAITING,
    DISRUPTIONS,
    EVENTS,
    EXIT_CODES,
    POD_REASONS,
    TERMINATED,
    Category,
    Rule,
)
from kr_kfp.spec.leaderworkerset import LABEL
from kr_kfp.spec.messages import literal, missing_config, pull_advice, refusal, scheduling
from kr_kfp.spec.outcome import headline
from kr_kfp.wire import parse_message

__all__ = ["Category", "Diagnosis", "diagnose"]

Json = Mapping[str, Any]

_DETAIL_LIMIT = 1000
"""Characters of Kubernetes' text in a detail; a scheduler's message over many kinds of nodes stays below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One thing that is wrong with one pod, or with the making of one.

    Args:
        category: What kind of thing.
        pod: The pod's name, or that of the object whose event told it.
        host: 0-based index in the group (label ``leaderworkerset.sigs.k8s.io/worker-index``); None if unknown.
        summary: What is wrong, with the names of pod, image, Secret, account or resource.
        detail: Kubernetes' own reason and message.
        resolution: What to do, in the imperative.
        permanent: Waiting does not cure it: the launcher fails the step once it has lasted for a grace. False for
            what may pass by itself and for lost capacity, after which a restart of the group helps.
    """

    category: Category
    pod: str
    host: int | None = None
    summary: str
    detail: str = ""
    resolution: str
    permanent: bool = False

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.summary}{detail}. {self.resolution}"


def diagnose(pods: Sequence[Json], group: Json | None = None, events: Sequence[Json] = ()) -> tuple[Diagnosis, ...]:
    """Say what is wrong with a group.

    Args:
        pods: The group's pods; their status may be of any shape.
        group: The LeaderWorkerSet, to notice hosts without a pod; None leaves that out.
        events: Event objects (core/v1 or events.k8s.io/v1) of the group, its StatefulSets and its pods. Read are those
            that say what no status says (FailedCreate, FailedMount, ...), about pods that have not started, and
            BackOff, which makes a failed image pull a repeated one.

    Returns:
        Nothing if all is well. Permanent causes come first; within both halves the order is that of the hosts, and
        causes that events tell come last.
    """
    repeated = {
        _about(event) for event in events if "pulling image" in _message(event) and _text(event, "reason") == "BackOff"
    }
    found = [d for pod in sorted(pods, key=_order) for d in _pod(pod, repeated)]
    told = list(_events(events, pods, _text(_map(group or {}, "metadata"), "name"))) or list(
        _missing(pods, group or {})
    )
    return tuple(sorted(dict.fromkeys([*found, *told]), key=lambda d: not d.permanent))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Whom a row is about: the names that its templates may use."""

    pod: str
    host: int | None = None
    container: str = ""
    image: str = ""

    def apply(self, rule: Rule, reason: str, message: str, **changes: Any) -> Diagnosis:
        """Fill a row in; ``changes`` are fields that are known better than the row knows them."""
        names = {"pod": self.pod, "container": self.container, "image": self.image or "(none)", "reason": reason}
        values: dict[str, Any] = {
            "category": rule.category,
            "summary": rule.summary.format(**names),
            "detail": _detail(reason, message),
            "resolution": rule.resolution.format(**names),
            "permanent": rule.permanent,
        }
        return Diagnosis(pod=self.pod, host=self.host, **(values | changes))


def _pod(pod: Json, repeated: Collection[str]) -> Iterator[Diagnosis]:
    """Judge one pod: what was done to the whole of it hides what its containers say."""
    status, spec, place = _map(pod, "status"), _map(pod, "spec"), _place(pod)
    whole = _failed(status, place) or _disrupted(status, place)
    if whole:
        yield whole
        return
    images = {_text(c, "name"): _text(c, "image") for key in _CONTAINERS for c in _maps(spec, key)}
    for key in ("initContainerStatuses", "containerStatuses"):
        for container in _maps(status, key):
            name = _text(container, "name")
            image = images.get(name) or _text(container, "image")
            at = _Place(pod=place.pod, host=place.host, container=name, image=image)
            told = _container(container, at, spec, repeated=place.pod in repeated)
            if told:
                yield told
    yield from _unscheduled(status, place, spec)


_CONTAINERS = ("initContainers", "containers")


def _failed(status: Json, place: _Place) -> Diagnosis | None:
    """Read the reason of a pod that failed as a whole."""
    phase, reason, message = _text(status, "phase"), _text(status, "reason"), _text(status, "message")
    if phase == "Unknown":
        return place.apply(POD_REASONS["NodeLost"], reason or phase, message)
    if phase != "Failed" or not (reason or message):
        return None
    other = Rule(Category.UNKNOWN, "pod {pod} failed", "Look at its events: kubectl describe pod {pod}.")
    key = "OutOf" if reason.startswith("OutOf") else reason
    return place.apply(POD_REASONS.get(key, other), reason, message)


def _disrupted(status: Json, place: _Place) -> Diagnosis | None:
    for condition in _maps(status, "conditions"):
        if _text(condition, "type") == "DisruptionTarget" and _text(condition, "status") == "True":
            reason = _text(condition, "reason")
            other = Rule(Category.DISRUPTED, "Kubernetes took pod {pod} away", "Let the group restart.")
            return place.apply(DISRUPTIONS.get(reason, other), reason, _text(condition, "message"))
    return None


def _container(container: Json, place: _Place, spec: Json, *, repeated: bool) -> Diagnosis | None:
    state, last = _map(container, "state"), _map(container, "lastState")
    ended = _ended(_map(state, "terminated") or _map(last, "terminated"), place)
    reason = _text(_map(state, "waiting"), "reason")
    if reason in ("", "ContainerCreating", "PodInitializing"):
        return ended
    if reason == "CrashLoopBackOff" and _map(last, "terminated"):
        # A first restart is the plan: the runner ends with the user's exit code, is started again and holds.
        if ended and ended.category is Category.EXIT and _number(container.get("restartCount")) > 1:
            return place.apply(CONTAINER_WAITING[reason], reason, ended.detail)
        return ended
    return _waiting(_map(state, "waiting"), place, spec, repeated=repeated)


def _waiting(waiting: Json, place: _Place, spec: Json, *, repeated: bool) -> Diagnosis:
    """Fill in a waiting container's row, made more exact by what the message names."""
    reason, message = _text(waiting, "reason"), _text(waiting, "message")
    other = Rule(
        Category.UNKNOWN,
        "pod {pod}: container {container} waits ({reason})",
        "Look at its events: kubectl describe pod {pod}.",
    )
    rule = CONTAINER_WAITING.get(reason, other)
    changes: dict[str, Any] = {}
    if rule.category is Category.CONFIG and (missing := missing_config(message)):
        changes = {
            "summary": f"pod {place.pod}, container {place.container}: {missing[0]}",
            "resolution": missing[1],
        }
    elif reason in ("ErrImagePull", "ImagePullBackOff"):
        secrets = [_text(secret, "name") for secret in _maps(spec, "imagePullSecrets")]
        changes = {"permanent": rule.permanent or repeated}
        if advice := pull_advice(message, place.image, secrets):
            changes["resolution"] = advice
    elif re.search(r"context deadline exceeded|is reserved for", message):
        # Under load the runtime answers so for a container that it makes a moment later.
        changes = {"permanent": False}
    return place.apply(rule, reason, message, **changes)


def _ended(terminated: Json, place: _Place) -> Diagnosis | None:
    """Explain how a container ended; None if it did not, or ended well."""
    reason, code = _text(terminated, "reason"), _number(terminated.get("exitCode"))
    rule = TERMINATED.get(reason)
    if rule is None and code == 0:
        return None
    rule = rule or EXIT_CODES.get(code) or _exit_rule(code, reason)
    return place.apply(rule, f"{reason or 'Error'}, exit code {code}", _said(_text(terminated, "message")))


def _said(message: str) -> str:
    """Give a termination message as people read it: ours is an outcome."""
    try:
        ours = parse_message(message)
    except WireError:
        return message
    return headline(ours[0]) if ours else message


def _exit_rule(code: int, reason: str) -> Rule:
    if reason not in ("", "Error", "Completed"):
        return Rule(
            Category.UNKNOWN,
            f"pod {{pod}}: container {{container}} ended ({literal(reason)})",
            "Look at its events: kubectl describe pod {pod}.",
        )
    if 128 < code <= 128 + 64:
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(code - 128, f"signal {code - 128}")
        summary = f"pod {{pod}}: container {{container}} was ended by {name} (exit code {code})"
        return Rule(Category.SIGNAL, summary, "Read its log from the end.", permanent=True)
    summary = f"pod {{pod}}: container {{container}} ended with exit code {code}"
    return Rule(Category.EXIT, summary, "Read the log of container {container} of pod {pod}.", permanent=True)


def _unscheduled(status: Json, place: _Place, spec: Json) -> Iterator[Diagnosis]:
    for condition in _maps(status, "conditions"):
        if _text(condition, "type") != "PodScheduled" or _text(condition, "status") != "False":
            continue
        reason, message = _text(condition, "reason"), _text(condition, "message")
        if reason == "SchedulingGated":
            rule = Rule(
                Category.GATED,
                "pod {pod} is held back by a scheduling gate",
                "Wait for the queue to admit the group, or look at its queue (Kueue's Workload).",
            )
        else:
            causes, advice = scheduling(message, _map(spec, "nodeSelector"))
            what = f": {literal('; '.join(causes))}" if causes else ""
            rule = Rule(Category.UNSCHEDULABLE, f"no node can take pod {{pod}} now{what}", literal(advice))
        yield place.apply(rule, reason, message)


def _events(events: Sequence[Json], pods: Sequence[Json], group: str) -> Iterator[Diagnosis]:
    """Explain warnings about pods that do not exist or have not started."""
    by_name = {_text(_map(pod, "metadata"), "name"): pod for pod in pods}
    for event in events:
        name, reason, message = _about(event), _text(event, "reason"), _message(event)
        rule = EVENTS.get(reason)
        if rule is None or _text(event, "type") == "Normal":
            continue
        if reason == "FailedCreate":
            pod = re.search(r"create Pod (\S+) in StatefulSet", message, re.IGNORECASE)
            place = _Place(pod=pod[1], host=_host_by_name(pod[1], group)) if pod else _Place(pod=name)
            if place.pod not in by_name:  # else a later try succeeded
                yield place.apply(refusal(message) or rule, reason, message)
        elif name in by_name and not _has_started(by_name[name]):
            yield _place(by_name[name]).apply(rule, reason, message)


def _missing(pods: Sequence[Json], group: Json) -> Iterator[Diagnosis]:
    """Name the hosts that have no pod, if the group is meant to have pods now."""
    spec, metadata = _map(group, "spec"), _map(group, "metadata")
    size = _number(_map(spec, "leaderWorkerTemplate").get("size"), 1)
    have = {_host(pod) for pod in pods}
    hosts = [index for index in range(size) if index not in have]
    if not spec or not hosts or metadata.get("deletionTimestamp") or _number(spec.get("replicas"), 1) == 0:
        return
    listed = f"host{'' if len(hosts) == 1 else 's'} {', '.join(map(str, hosts))}"
    yield Diagnosis(
        category=Category.NOT_CREATED,
        pod=_text(metadata, "name"),
        host=hosts[0],
        summary=f"group {_text(metadata, 'name')} has no pod yet for {listed} of {size}",
        resolution="Wait; if it stays so, look at the events of the group's StatefulSets.",
    )


def _about(event: Json) -> str:
    return _text(_map(event, "involvedObject") or _map(event, "regarding"), "name")


def _message(event: Json) -> str:
    return _text(event, "message") or _text(event, "note")


def _place(pod: Json) -> _Place:
    return _Place(pod=_text(_map(pod, "metadata"), "name") or "(without a name)", host=_host(pod))


def _host(pod: Json) -> int | None:
    index = _text(_map(_map(pod, "metadata"), "labels"), f"{LABEL}/worker-index")
    return int(index) if re.fullmatch(r"[0-9]+", index) else None


def _host_by_name(pod: str, group: str) -> int | None:
    """Tell the host of a pod that was never made by LWS's pattern: ``<group>-0`` leads, ``<group>-0-<i>`` follows."""
    index = re.fullmatch(rf"{re.escape(group)}-0(?:-([0-9]+))?", pod)
    return int(index[1] or 0) if index else None


def _order(pod: Json) -> tuple[bool, int, str]:
    host = _host(pod)
    return host is None, host or 0, _text(_map(pod, "metadata"), "name")


def _has_started(pod: Json) -> bool:
    states = [_map(c, "state") for c in _maps(_map(pod, "status"), "containerStatuses")]
    return any(_map(state, "running") or _map(state, "terminated") for state in states)


def _map(value: Json, key: str) -> Json:
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else {}


def _maps(value: Json, key: str) -> list[Json]:
    inner = value.get(key)
    return [item for item in inner if isinstance(item, Mapping)] if isinstance(inner, (list, tuple)) else []


def _text(value: Json, key: str) -> str:
    inner = value.get(key)
    return inner if isinstance(inner, str) else ""


def _number(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) else default


def _detail(reason: str, message: str) -> str:
    text = ": ".join(part for part in (reason, " ".join(message.split())) if part)
    return text if len(text) <= _DETAIL_LIMIT else f"{text[: _DETAIL_LIMIT - 4]} ..."
