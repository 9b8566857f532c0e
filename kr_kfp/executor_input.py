"""KFP's ExecutorInput and command as values: what launcher and host change in them.

Pure and standard library only. ExecutorInput is the JSON that KFP's driver puts in place of ``{{$}}``
(kubeflow/pipelines ``api/v2alpha1/pipeline_spec.proto``, message ExecutorInput): inputs with ``parameterValues`` and
``artifacts``, outputs with ``parameters`` (an ``outputFile`` each), ``artifacts`` (a URI each) and ``outputFile``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

from kr_kfp.errors import WireError
from kr_kfp.wire import EXECUTOR_INPUT_MARK, SCRATCH_INPUT, TASK_CONFIG_INPUT, Json

__all__ = [
    "CHECKPOINT_FOLDER",
    "KFP_EXECUTOR",
    "OUR_EXECUTOR",
    "artifact_uris",
    "attempt_uri",
    "checkpoint_dir",
    "host_input",
    "output_uris",
    "pod_folder",
    "restore_python",
    "split_command",
    "take_scratch",
    "take_task_config",
    "with_executor",
    "without_logs",
]

KFP_EXECUTOR = "kfp.dsl.executor_main"
"""KFP's module that runs a lightweight component (kfp/dsl/component_factory.py, EXECUTOR_MODULE)."""

OUR_EXECUTOR = "kr_kfp.runtime.executor"

CHECKPOINT_FOLDER = "kr-kfp-checkpoints"
"""Beside the outputs of a task: ``<pipeline root>/<pipeline>/<run>/<task>/kr-kfp-checkpoints``."""

_LOGS = "executor-logs"
"""Output of every task that no component declares: KFP's launcher fills it with what its task printed
(kubeflow/pipelines ``backend/src/v2/component/launcher_v2.go``)."""

_TOKEN = re.compile(r"(?<=-m )" + re.escape(KFP_EXECUTOR) + r"(?=\s|$)")


def split_command(command: Sequence[str]) -> tuple[tuple[str, ...], Json]:
    """Take the ExecutorInput out of KFP's command.

    Args:
        command: KFP's command with its arguments, placeholders resolved.

    Returns:
        The command with EXECUTOR_INPUT_MARK in place of the JSON, and the ExecutorInput.

    Raises:
        WireError: If there is no ``--executor_input`` with JSON behind it.
    """
    parts = list(command)
    try:
        # The last one counts: an earlier text of that name could only be part of the user's source.
        at = len(parts) - 1 - parts[::-1].index("--executor_input") + 1
        value = json.loads(parts[at])
    except (ValueError, IndexError) as problem:
        msg = f"no --executor_input with JSON in KFP's command: {problem}"
        raise WireError(msg) from problem
    parts[at] = EXECUTOR_INPUT_MARK
    return tuple(parts), value


def restore_python(command: Sequence[str], python: str) -> list[str]:
    """Undo in the ExecutorInput what kfp.local did to the user's values.

    kfp.local replaces ``python3`` by its interpreter's path in every argument (kfp/local/subprocess_task_handler.py,
    replace_python_executable), those within texts that the user passes too. In KFP's own script that is meant.

    Args:
        command: KFP's command.
        python: What became of the text ``python3`` on the way.
    """
    parts = list(command)
    if python != "python3":
        for at, part in enumerate(parts[:-1]):
            if part == "--executor_input":
                parts[at + 1] = parts[at + 1].replace(python, "python3")
    return parts


def with_executor(command: Sequence[str]) -> tuple[str, ...]:
    """Replace exactly KFP's executor module by ours in KFP's command.

    Raises:
        WireError: If KFP's command does not hold the module once, as it would after a change in KFP.
    """
    parts = list(command)
    hits = []
    for at, part in enumerate(parts):
        if part == KFP_EXECUTOR and at and parts[at - 1] == "-m":
            hits.append((at, OUR_EXECUTOR))
        elif '"$program_path/ephemeral_component.py"' in part and _TOKEN.search(part):
            hits.append((at, _TOKEN.sub(OUR_EXECUTOR, part, count=1)))
    if len(hits) != 1:
        msg = f"KFP's command holds '-m {KFP_EXECUTOR}' {len(hits)} times, not once: is it a Python component?"
        raise WireError(msg)
    parts[hits[0][0]] = hits[0][1]
    return tuple(parts)


def take_task_config(executor_input: Json) -> tuple[Json, Json]:
    """Take kr_kfp's own input out of the ExecutorInput.

    Returns:
        The ExecutorInput without it, and KFP's TaskConfig as camelCase JSON (empty if there was none).
    """
    rest, given = _take(executor_input, TASK_CONFIG_INPUT)
    config = given or {}
    return rest, {key: value for key, value in config.items() if value}


def take_scratch(executor_input: Json) -> tuple[Json, str]:
    """Take the scratch location that a pipeline gave to Pathways out of the ExecutorInput.

    Returns:
        The ExecutorInput without it, and the location (empty if there was none).
    """
    rest, given = _take(executor_input, SCRATCH_INPUT)
    return rest, str(given or "")


def without_logs(executor_input: Json) -> Json:
    """Give the ExecutorInput without the output that KFP's launcher fills itself: it is no business of hosts."""
    rest = copy.deepcopy(executor_input)
    ((rest.get("outputs") or {}).get("artifacts") or {}).pop(_LOGS, None)
    return rest


def _take(executor_input: Json, name: str) -> tuple[Json, Any]:
    """Take the value of an input parameter out of a copy of the ExecutorInput; None if there is none."""
    rest = copy.deepcopy(executor_input)
    values = (rest.get("inputs") or {}).get("parameterValues") or {}
    return rest, values.pop(name, None)


def attempt_uri(uri: str, attempt: int) -> str:
    """Give the place of an output for one attempt: KFP's own for attempt 0, ``<uri>-r<n>`` after a restart.

    A host that was cut off and comes back can then not overwrite what a later attempt committed. Query parameters,
    which KFP puts on s3:// and minio:// URIs, stay at the end.
    """
    if attempt == 0 or not uri:
        return uri
    path, mark, query = uri.partition("?")
    return f"{path.rstrip('/')}-r{attempt}{mark}{query}"


def _output_artifacts(executor_input: Json) -> Iterator[tuple[str, Json]]:
    for name, group in ((executor_input.get("outputs") or {}).get("artifacts") or {}).items():
        for artifact in group.get("artifacts") or ():
            yield name, artifact


def artifact_uris(executor_input: Json) -> dict[str, Json]:
    """Give every input and output artifact by its URI, as ExecutorInput describes it."""
    inputs = ((executor_input.get("inputs") or {}).get("artifacts") or {}).values()
    found = [artifact for group in inputs for artifact in group.get("artifacts") or ()]
    found += [artifact for _, artifact in _output_artifacts(executor_input)]
    return {artifact["uri"]: artifact for artifact in found if artifact.get("uri")}


def output_uris(executor_input: Json) -> dict[str, str]:
    """Give the URI of every output artifact."""
    return {name: artifact.get("uri", "") for name, artifact in _output_artifacts(executor_input)}


def checkpoint_dir(executor_input: Json, checkpoint_root: str | None, identity: str, *, local: bool) -> str:
    """Give the checkpoint folder of a task: the same for every host, attempt and retry.

    Args:
        executor_input: KFP's ExecutorInput.
        checkpoint_root: The component's own root, or None.
        identity: What tells this task of this run from every other; the folder under ``checkpoint_root``.
        local: Whether the step runs on this machine: KFP's output file then lies where it stays.

    Returns:
        ``<checkpoint_root>/<identity>``; else a folder beside the output artifacts; else, locally, beside KFP's output
        file; else empty.
    """
    if checkpoint_root:
        return f"{checkpoint_root.rstrip('/')}/{identity}"
    for uri in output_uris(executor_input).values():
        path = uri.partition("?")[0]
        if path:
            return f"{posixpath.dirname(path.rstrip('/'))}/{CHECKPOINT_FOLDER}"
    output_file = (executor_input.get("outputs") or {}).get("outputFile", "")
    # In a pod KFP's output file lies on the pod's own disk, which no restart survives.
    if local and output_file:
        return posixpath.join(posixpath.dirname(output_file), CHECKPOINT_FOLDER)
    return ""


def pod_folder(name: str, executor_input: Json, *, pod_name: str) -> str:
    """Give the folder under ``checkpoint_root`` of a step of one pod: equal over retries, another one for another run.

    Nothing tells such a pod its run or task. But the URIs of its outputs are of this task and iteration alone, and the
    pod's name begins with the Workflow's, which is the run's (seen on KFP 2.17). Without outputs, iterations of a loop
    are told apart by their arguments.

    Args:
        name: The step's name.
        executor_input: KFP's ExecutorInput.
        pod_name: ``KFP_POD_NAME``, such as ``digits-fzm5n-system-container-impl-1``; empty on this machine.
    """
    places = sorted(posixpath.dirname(uri.rstrip("/")) for uri in output_uris(executor_input).values() if uri)
    own = posixpath.dirname((executor_input.get("outputs") or {}).get("outputFile", ""))
    place = places[0] if places else pod_name.partition("-system-container-")[0] or own
    arguments = json.dumps(executor_input.get("inputs") or {}, sort_keys=True)
    return f"{name}-{hashlib.sha256(f'{place}?{arguments}'.encode()).hexdigest()[:10]}"


def host_input(executor_input: Json, *, folder: str, attempt: int) -> Json:
    """Give one process's own ExecutorInput: its output files in its own folder, its artifacts at the attempt's URIs.

    Args:
        executor_input: KFP's ExecutorInput, as the payload carries it.
        folder: Where this process's output files go.
        attempt: 0-based attempt of the group.
    """
    mine = copy.deepcopy(executor_input)
    outputs = mine.setdefault("outputs", {})
    outputs["outputFile"] = posixpath.join(folder, "executor_output.json")
    for name, parameter in (outputs.get("parameters") or {}).items():
        parameter["outputFile"] = posixpath.join(folder, "parameters", name)
    for _, artifact in _output_artifacts(mine):
        artifact["uri"] = attempt_uri(artifact.get("uri", ""), attempt)
    return mine
