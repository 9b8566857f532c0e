"""The ``launch`` verb: from KFP's command to exit code. Surroundings are read here; the work is the Launcher's."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kr_kfp.cluster.api import Cluster, Event, Manifest
from kr_kfp.cluster.choose import choose
from kr_kfp.errors import ClusterError, DeclarationError, ForbiddenError, KrKfpError, SetupError
from kr_kfp.executor_input import (
    artifact_uris,
    checkpoint_dir,
    split_command,
    take_scratch,
    take_task_config,
    without_logs,
)
from kr_kfp.names import group_name
from kr_kfp.runtime import bootstrap
from kr_kfp.runtime.clock import RealClock
from kr_kfp.runtime.group import HeldError
from kr_kfp.runtime.host import write_termination
from kr_kfp.runtime.launcher import Launcher
from kr_kfp.runtime.logs import LogPump
from kr_kfp.runtime.picture import StoppedError
from kr_kfp.runtime.results import write_results
from kr_kfp.runtime.say import say, write_line
from kr_kfp.spec import local_task
from kr_kfp.spec.check_task import check_scratch, check_task_config
from kr_kfp.spec.codec import load_step, with_source
from kr_kfp.spec.inherit import check_own_pod, inherit, owners
from kr_kfp.spec.launch import Inherited, Launch
from kr_kfp.spec.pod import LIBRARY
from kr_kfp.spec.step import StepSpec
from kr_kfp.storage import settings, sources
from kr_kfp.wire import ExitCode, Json, Payload, chunks, pack, unpack

__all__ = ["Identity", "identify", "main", "make_launch"]

_SAME_AT_ONCE = 100

HELD_PATIENCE = 120.0
"""Seconds to wait for a launcher that holds the group and may be leaving: twice a pod's usual grace, and more."""

_HELD_PAUSE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which task of which run this is.

    Args:
        run: KFP's run id; locally the name of the run's folder.
        task: The task's name; locally the name of its folder.
        key: What tells this task of this run from every other: equal over retries, different over loop iterations.
    """

    run: str
    task: str
    key: str


def main(packed: str, command: Sequence[str]) -> int:
    """Run KFP's command on a group of hosts.

    Args:
        packed: The packed StepSpec.
        command: KFP's own command, placeholders resolved.

    Returns:
        0 if every host ended well; 1 if the step failed; 75 if it was stopped; 64 if the surroundings are wrong.
    """
    clock = RealClock()
    _catch_signals(clock)
    data = unpack(packed)
    step = load_step(data)
    parts, given = split_command(with_source(command, data))
    executor_input, task_config = take_task_config(given)
    try:
        cluster = choose(step.cluster, os.environ, warn=lambda text: say(f"warning: {text}"))
        with _pid_file(clock):
            return _launch(step, cluster, clock, (parts, executor_input, task_config))
    except KrKfpError as problem:
        return _end(ExitCode.SETUP, [f"{step.name}: {problem}"])


def _launch(step: StepSpec, cluster: Cluster, clock: RealClock, given: tuple[tuple[str, ...], Json, Json]) -> int:
    say(f"{step.name}: backend {step.backend} ({step.reason or 'chosen'}) on {cluster.where}")
    for ordinal in range(_SAME_AT_ONCE):
        launch = make_launch(step, cluster, given, os.environ, ordinal=ordinal)
        if launch.inherited.told:
            say(f"{step.name}: hosts inherit from this pod: {'; '.join(launch.inherited.told)}")
        try:
            return _run_when_free(step, cluster, clock, launch, given[1])
        except HeldError as held:
            # Two iterations of a local loop over equal values look alike; in a cluster no two tasks do.
            if not cluster.is_local:
                raise SetupError(str(held)) from held
    msg = f"{_SAME_AT_ONCE} groups of {step.name} with equal arguments run at once"
    raise SetupError(msg)


def _run_when_free(step: StepSpec, cluster: Cluster, clock: RealClock, launch: Launch, executor_input: Json) -> int:
    """Run the launcher; in a cluster wait for an earlier one that holds the group and whose pod is still leaving.

    Raises:
        HeldError: If the other one stays.
    """
    patience = clock.now() + (0.0 if cluster.is_local else HELD_PATIENCE)
    while True:
        logs = LogPump(step.name, step.logs, write_line)
        launcher = Launcher(cluster, clock, step=step, launch=launch, say=say, logs=logs)
        try:
            return _run(launcher, step, executor_input)
        except HeldError as held:
            if clock.now() >= patience:
                raise
            say(f"{held}; waiting for its end")
        if (event := clock.next_event(clock.now() + _HELD_PAUSE)) and event.kind in ("signal", "stop"):
            return _end(ExitCode.STOPPED, [f"{step.name} was stopped while another launcher held its group"])


def _run(launcher: Launcher, step: StepSpec, executor_input: Json) -> int:
    try:
        report = launcher.run()
        if report.ok:
            write_results(executor_input, report.outputs)
    except StoppedError as stop:
        return _stopped(launcher, step, stop.number)
    except ClusterError as problem:
        launcher.clean_up()
        said = "" if isinstance(problem, ForbiddenError) else "the cluster failed a request: "
        return _end(ExitCode.FAILED, [f"{step.name}: {said}{problem}"])
    for warning in report.warnings:
        say(f"warning: {warning}")
    # After success hosts only hold; waiting for their end would hold back the next step. Local ones are ours to end.
    launcher.clean_up(wait=not report.ok or launcher.cluster.is_local)
    if report.ok:
        return ExitCode.OK
    return _end(ExitCode.FAILED, report.lines)


def _stopped(launcher: Launcher, step: StepSpec, number: int) -> int:
    """Act first, write afterwards: in a KFP pod there may be less than a second."""
    name = signal.Signals(number).name if number else "a stop file"
    if number == signal.SIGTERM and _is_drain(launcher.cluster.own_pod()):
        # Argo's terminate comes as SIGUSR1; this one is a drain or preemption of the launcher's own node.
        return _end(ExitCode.STOPPED, [f"{step.name}: the launcher's pod is leaving; its next one adopts the group"])
    launcher.clean_up()
    return _end(ExitCode.STOPPED, [f"{step.name} was cancelled by {name}; its group of hosts was deleted"])


def _is_drain(pod: Manifest | None) -> bool:
    annotations = ((pod or {}).get("metadata") or {}).get("annotations") or {}
    return "workflows.argoproj.io/kill-cmd-main" in annotations


def make_launch(
    step: StepSpec,
    cluster: Cluster,
    given: tuple[tuple[str, ...], Json, Json],
    env: Mapping[str, str],
    *,
    ordinal: int = 0,
) -> Launch:
    """Put together what this launch adds to the step.

    Args:
        step: The step.
        cluster: Where it runs.
        given: KFP's command with the mark, its ExecutorInput, and the TaskConfig.
        env: The launcher's environment.
        ordinal: Tells groups of equal identity apart that run at once on the local cluster.
    """
    command, executor_input, task_config = given
    executor_input, scratch = take_scratch(executor_input)
    pod = cluster.own_pod()
    _check_settings(step, cluster, pod, task_config=task_config, scratch=scratch)
    if cluster.is_local:
        task_config = _with_task_env(step, task_config, env)
    identity = identify(executor_input, pod)
    key = f"{identity.key}#{ordinal}" if ordinal else identity.key
    name = group_name(step.name, key)
    folder = f"{identity.run}/{hashlib.sha256(key.encode()).hexdigest()[:10]}"
    checkpoints = checkpoint_dir(executor_input, step.checkpoint_root, folder, local=cluster.is_local)
    stores = _stores(executor_input, checkpoints, cluster) if pod is not None else ()
    options = {**_options(step, stores), "source": _source(step, pod, env)}
    payload = Payload(command=command, executor_input=without_logs(executor_input), options=options)
    return Launch(
        name=name,
        run=identity.run,
        task=identity.task,
        identity=key,
        holder=cluster.holder(),
        payload=chunks(pack(payload.to_json())),
        checkpoint_dir=checkpoints,
        ports=cluster.ports(name),
        task_config=task_config,
        inherited=Inherited() if pod is None else inherit(pod, step),
        owners=() if pod is None else owners(pod),
        init=_init(step),
        env=tuple(settings.env_entries(stores)),
        scratch=scratch,
    )


def _check_settings(step: StepSpec, cluster: Cluster, pod: Manifest | None, *, task_config: Json, scratch: str) -> None:
    """Look at what is known only now: the task's settings, what its inputs say, the launcher's own pod.

    Raises:
        DeclarationError: With all problems.
    """
    problems = [*check_task_config(step, task_config), *check_scratch(step, scratch, needed=not cluster.is_local)]
    problems += () if pod is None else check_own_pod(pod)
    if problems:
        subject = f"settings of task {step.name!r}"
        raise DeclarationError(subject, problems)


def _options(step: StepSpec, stores: Sequence[settings.StoreSettings]) -> Json:
    """Give what the runner has to know of the step."""
    return {
        "name": step.name,
        "hosts": step.runners,
        "framework": step.framework,
        "processes_per_host": step.processes_per_host,
        "finish_grace": step.finish_grace,
        "stores": settings.dump_stores(stores),
        "stream_inputs": list(step.stream_inputs),
    }


def _init(step: StepSpec) -> tuple[str, ...]:
    """Give the command of the init container."""
    prefix = bootstrap.prefix(
        "provide",
        "",
        requirement=step.requirement,
        index_urls=step.index_urls,
        trusted_hosts=step.trusted_hosts,
    )
    return (*prefix, LIBRARY)


def _stores(executor_input: Json, checkpoints: str, cluster: Cluster) -> tuple[settings.StoreSettings, ...]:
    """Find out how each artifact's store is reached, as KFP does it: names of Secrets, never their values."""
    artifacts = artifact_uris(executor_input)
    infos = {uri: str((item.get("metadata") or {}).get(sources.SESSION_INFO, "")) for uri, item in artifacts.items()}
    used = [*artifacts, *filter(None, [checkpoints])]
    return sources.resolve(used, infos, cluster.config_map(sources.CONFIG_MAP))


def _with_task_env(step: StepSpec, task_config: Json, env: Mapping[str, str]) -> Json:
    """Put into the TaskConfig, which kfp.local leaves empty, the variables that were set on the task."""
    given = local_task.task_env(step.name, step.env, env)
    entries = [{"name": name, "value": value.replace("$", "$$")} for name, value in given.items()]
    return {**task_config, "env": [*(task_config.get("env") or ()), *entries]} if entries else task_config


def identify(executor_input: Json, pod: Manifest | None) -> Identity:
    """Tell which task of which run this is.

    In a KFP pod by the pod's own labels and annotations: placeholders would defeat KFP's cache. Locally by the folder
    that kfp.local made for the task, and by the arguments, since iterations of a local loop share that folder.
    """
    if pod is not None:
        metadata = pod["metadata"]
        run = (metadata.get("labels") or {}).get("pipeline/runid", "")
        node = (metadata.get("annotations") or {}).get("workflows.argoproj.io/node-name", metadata["name"])
        head, mark, _ = node.rpartition(".executor(")
        return Identity(run=run, task=head if mark else node, key=f"{run}/{head if mark else node}")
    place = Path((executor_input.get("outputs") or {}).get("outputFile") or "task").absolute().parent
    arguments = json.dumps(executor_input.get("inputs") or {}, sort_keys=True)
    digest = hashlib.sha256(arguments.encode()).hexdigest()[:16]
    return Identity(run=place.parent.name, task=place.name, key=f"{place}?{digest}")


def _source(step: StepSpec, pod: Manifest | None, env: Mapping[str, str]) -> str:
    """Give ``file:line`` of the function on the author's machine: from the pod's annotation, locally from env."""
    annotations = ((pod or {}).get("metadata") or {}).get("annotations") or {}
    return annotations.get("kr-kfp.dev/source", "") or env.get(f"KR_KFP_SOURCE_{step.name}", "")


def _end(code: int, lines: Sequence[str]) -> int:
    """Give the diagnosis to the log and, as all that KFP shows, to the termination message."""
    write_termination("\n".join(lines)[-4000:])
    for line in lines:
        say(line)
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    return code


def _catch_signals(clock: RealClock) -> None:
    """Hand signals to the inbox; the main loop sees them between two steps, so nothing is cut in the middle."""

    def hand_in(number: int, _frame: FrameType | None) -> None:
        clock.put(Event("signal", number))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, hand_in)


@contextlib.contextmanager
def _pid_file(clock: RealClock) -> Iterator[None]:
    """Tell the kill command whom to signal; a stop file that is there already means: stop at once."""
    # In a pod /tmp is the container's own; the kill command looks there too.
    folder = os.environ.get("KR_KFP_RUN_DIR") or ("/tmp" if "KFP_POD_NAME" in os.environ else "")  # noqa: S108
    if not folder:
        yield
        return
    pid, stop = Path(folder, bootstrap.PID_FILE), Path(folder, bootstrap.STOP_FILE)
    pid.write_text(f"{os.getpid()}\n", encoding="ascii")
    if stop.exists():
        clock.put(Event("stop", 0))
    try:
        yield
    finally:
        pid.unlink(missing_ok=True)
        stop.unlink(missing_ok=True)
