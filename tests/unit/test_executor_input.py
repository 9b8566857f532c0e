"""KFP's ExecutorInput and command, and what launcher and host change in them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from kr_kfp import executor_input as ei
from kr_kfp.errors import WireError
from kr_kfp.wire import EXECUTOR_INPUT_MARK

INPUT: dict[str, Any] = {
    "inputs": {"parameterValues": {"epochs": 3, "kr_kfp_task_config": {"nodeSelector": {"a": "b"}, "affinity": None}}},
    "outputs": {
        "outputFile": "/run/train/executor_output.json",
        "parameters": {"Output": {"outputFile": "/run/train/Output"}},
        "artifacts": {"model": {"artifacts": [{"name": "model", "uri": "s3://b/root/p/run/train/model?region=x"}]}},
    },
}
SCRIPT = 'printf "%s" "$0" > "$program_path/ephemeral_component.py"\n_KFP_RUNTIME=true python3 -m kfp.dsl.executor_main --x "$@"'
COMMAND = [
    "sh",
    "-ec",
    SCRIPT,
    "def f(): pass  # kfp.dsl.executor_main",
    "--executor_input",
    json.dumps(INPUT),
    "--f",
    "f",
]


def test_split_command() -> None:
    """The ExecutorInput is taken out of the command and marked."""
    parts, value = ei.split_command(COMMAND)
    assert parts == (*COMMAND[:5], EXECUTOR_INPUT_MARK, "--f", "f")
    assert value == INPUT


def test_split_command_takes_the_last() -> None:
    """The user's source may be that very text."""
    parts, value = ei.split_command(["--executor_input", "x = 1", *COMMAND])
    assert value == INPUT
    assert parts[1] == "x = 1"


def test_command_without_executor_input() -> None:
    """A container component's command is refused by name."""
    with pytest.raises(WireError, match="no --executor_input with JSON in KFP's command"):
        ei.split_command(["sh", "-c", "true"])


def test_with_executor_replaces_one_token() -> None:
    """Only KFP's own module token is replaced, not the text in user code."""
    changed = ei.with_executor(COMMAND)
    assert "python3 -m kr_kfp.runtime.executor --x" in changed[2]
    assert changed[3] == COMMAND[3]
    assert ei.with_executor(["python3", "-m", "kfp.dsl.executor_main", "--f"]) == (
        "python3",
        "-m",
        "kr_kfp.runtime.executor",
        "--f",
    )


@pytest.mark.parametrize("command", [["sh", "-c", "true"], [*COMMAND, "-m", "kfp.dsl.executor_main"]])
def test_with_executor_refuses_doubt(command: list[str]) -> None:
    """No token or two of them is an error, as after a change in KFP."""
    with pytest.raises(WireError, match="times, not once"):
        ei.with_executor(command)


def test_take_task_config() -> None:
    """kr_kfp's own input leaves the function's, and only what was set is kept."""
    rest, config = ei.take_task_config(INPUT)
    assert rest["inputs"]["parameterValues"] == {"epochs": 3}
    assert config == {"nodeSelector": {"a": "b"}}
    assert "kr_kfp_task_config" in INPUT["inputs"]["parameterValues"]


def test_without_logs() -> None:
    """What KFP's launcher fills itself is not given to hosts, who would miss it; the rest stays, the original too."""
    logs, model = ({"artifacts": [{"uri": f"gs://b/{name}"}]} for name in ("logs", "model"))
    given = {"outputs": {"artifacts": {"executor-logs": logs, "model": model}, "outputFile": "/o"}}
    assert ei.without_logs(given) == {"outputs": {"artifacts": {"model": model}, "outputFile": "/o"}}
    assert list(given["outputs"]["artifacts"]) == ["executor-logs", "model"]
    assert ei.without_logs({"inputs": {}}) == {"inputs": {}}


@pytest.mark.parametrize(
    ("uri", "attempt", "expected"),
    [
        ("s3://b/k", 0, "s3://b/k"),
        ("s3://b/k", 2, "s3://b/k-r2"),
        ("s3://b/k/", 1, "s3://b/k-r1"),
        ("minio://b/k?region=x&endpoint=y", 1, "minio://b/k-r1?region=x&endpoint=y"),
        ("", 1, ""),
    ],
)
def test_attempt_uri(uri: str, attempt: int, expected: str) -> None:
    """Attempt 0 keeps KFP's own place; later ones stay beside it, under the run's prefix."""
    assert ei.attempt_uri(uri, attempt) == expected


def test_host_input() -> None:
    """Every process has its own output files; artifacts lie where the attempt says."""
    mine = ei.host_input(INPUT, folder="/w/process-0", attempt=1)
    assert mine["outputs"] == {
        "outputFile": "/w/process-0/executor_output.json",
        "parameters": {"Output": {"outputFile": "/w/process-0/parameters/Output"}},
        "artifacts": {"model": {"artifacts": [{"name": "model", "uri": "s3://b/root/p/run/train/model-r1?region=x"}]}},
    }


def test_pod_folder() -> None:
    """A step of one pod has a folder of its own in each run and iteration, and the same one over its retries."""
    pod = "digits-fzm5n-system-container-impl-{}"
    bare = {"inputs": {"parameterValues": {"item": 1}}, "outputs": {"outputFile": "/tmp/kfp_outputs/output.json"}}
    first = ei.pod_folder("train", bare, pod_name=pod.format(1))
    assert re.fullmatch("train-[0-9a-f]{10}", first)
    assert ei.pod_folder("train", bare, pod_name=pod.format(2)) == first
    assert ei.pod_folder("train", bare, pod_name="digits-abcde-system-container-impl-1") != first
    other = {**bare, "inputs": {"parameterValues": {"item": 2}}}
    assert ei.pod_folder("train", other, pod_name=pod.format(1)) != first
    # With outputs their place is what counts.
    with_outputs = ei.pod_folder("train", INPUT, pod_name=pod.format(1))
    assert ei.pod_folder("train", INPUT, pod_name="another") == with_outputs
    # On this machine it is the task's folder.
    assert ei.pod_folder("train", {"outputs": {"outputFile": "/a/train/o"}}, pod_name="") != ei.pod_folder(
        "train", {"outputs": {"outputFile": "/b/train/o"}}, pod_name=""
    )


def test_checkpoint_dir() -> None:
    """Beside the artifacts; under checkpoint_root if named; beside the output file only locally; else none."""
    bare = {"outputs": {"outputFile": "/run/train/executor_output.json"}}
    assert ei.checkpoint_dir(INPUT, None, "r/x", local=False) == "s3://b/root/p/run/train/kr-kfp-checkpoints"
    assert ei.checkpoint_dir(INPUT, "gs://c/", "r/x", local=False) == "gs://c/r/x"
    assert ei.checkpoint_dir(bare, None, "r/x", local=True) == "/run/train/kr-kfp-checkpoints"
    assert ei.checkpoint_dir(bare, None, "r/x", local=False) == ""
