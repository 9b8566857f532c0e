"""What kr_kfp relies on in the installed KFP: its commands, its executor, its local runner.

A failure here means that KFP changed, not that kr_kfp is wrong: read the named place in KFP, then the module of kr_kfp
that leans on it.
"""

# No postponed annotations: KFP 2.17 reads those of components as they are.

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl, local
from kfp.dsl import component_factory
from kfp.dsl.executor import Executor
from kfp.local.config import LocalExecutionConfig
from kfp.local.subprocess_task_handler import replace_python_executable

from kr_kfp.executor_input import KFP_EXECUTOR, OUR_EXECUTOR, with_executor
from kr_kfp.wire import ARGUMENT_LIMIT

PLACEHOLDER = ["--executor_input", "{{$}}", "--function_to_execute"]


@dsl.component(base_image="python:3.12")
def plain(text: str) -> str:
    """Give the text back."""
    return text


@dsl.component(base_image="python:3.12", packages_to_install=["one==1", "two"], pip_index_urls=["https://a/simple"])
def packaged(text: str) -> str:
    """Give the text back."""
    return text


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def bare(text: str) -> str:
    """Give the text back."""
    return text


@dsl.component(base_image="python:3.12", packages_to_install=["one==1"], target_image="mine:1")
def containerized(text: str) -> str:
    """Give the text back."""
    return text


@dsl.component(
    base_image="python:3.12",
    install_kfp_package=False,
    task_config_passthroughs=[dsl.TaskConfigField.ENV, dsl.TaskConfigField.RESOURCES],
)
def configured(config: dsl.TaskConfig) -> str:
    """Tell what came as TaskConfig, and in the ExecutorInput."""
    import json
    import sys

    given = json.loads(sys.argv[sys.argv.index("--executor_input") + 1])
    return json.dumps([vars(config), given["inputs"]])


def command_of(component: Any) -> list[str]:
    return list(component.component_spec.implementation.container.command)


def write_program(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def executor_input(folder: Path) -> dict[str, Any]:
    return {
        "inputs": {"parameterValues": {"text": "x"}},
        "outputs": {
            "outputFile": str(folder / "out" / "executor_output.json"),
            "parameters": {"Output": {"outputFile": str(folder / "Output")}},
        },
    }


def test_executor_module() -> None:
    """KFP's executor is still the module that kr_kfp replaces (kfp/dsl/component_factory.py)."""
    assert component_factory.EXECUTOR_MODULE == KFP_EXECUTOR == "kfp.dsl.executor_main"


@pytest.mark.parametrize("component", [plain, packaged, bare], ids=["plain", "packaged", "bare"])
def test_executor_in_the_command_of_a_lightweight_component(component: Any) -> None:
    """Replacing the module changes KFP's script alone, there once; pip's part and the source stay."""
    command = command_of(component)
    changed = with_executor(command)
    assert list(changed[:-2]) == command[:-2]
    assert changed[-1] == command[-1]
    assert command[-2].count(KFP_EXECUTOR) == 1
    assert changed[-2] == command[-2].replace(KFP_EXECUTOR, OUR_EXECUTOR)
    assert f"_KFP_RUNTIME=true python3 -m {OUR_EXECUTOR} " in changed[-2]
    assert component.component_spec.implementation.container.args == [*PLACEHOLDER, component.name]


def test_executor_in_the_command_of_a_containerized_component() -> None:
    """With target_image the module is an argument of its own, behind pip's script."""
    command = command_of(containerized)
    assert command[:2] == ["sh", "-c"]
    assert command[3:] == ["python3", "-m", "kfp.dsl.executor_main"]
    assert with_executor(command) == (*command[:3], "python3", "-m", OUR_EXECUTOR)


def test_command_without_pip() -> None:
    """With nothing to install there is no pip script: the command begins with KFP's own ``sh -ec``."""
    command = command_of(bare)
    assert command[:2] == ["sh", "-ec"]
    assert len(command) == 4
    assert command[2].startswith("program_path=$(mktemp -d)\n")


@pytest.mark.parametrize("component", [plain, packaged, containerized], ids=["plain", "packaged", "containerized"])
def test_pip_script_ends_in_the_command(component: Any) -> None:
    """The first three elements are pip's part, which hands on to the rest (kr_kfp.runtime.prepare.after_pip)."""
    command = command_of(component)
    assert command[:2] == ["sh", "-c"]
    assert "pip install" in command[2]
    assert command[2].rstrip().endswith('&& "$0" "$@"')
    assert command[3] in ("sh", "python3")


def test_pip_script_alone(tmp_path: Path) -> None:
    """``sh -c SCRIPT true`` runs pip and nothing else, and ends with pip's code."""
    log = tmp_path / "log"
    write_program(tmp_path / "python3", f'#!/bin/sh\necho "$@" >> "{log}"\nexit "$CODE"\n')
    write_program(tmp_path / "pip", "#!/bin/sh\n")
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = [*command_of(packaged)[:3], "true"]
    assert subprocess.run(script, env={**env, "CODE": "0"}, check=False).returncode == 0
    calls = log.read_text(encoding="utf-8").splitlines()
    assert len(calls) == 2
    assert calls[0] == (
        "-m pip install --quiet --no-warn-script-location --index-url https://a/simple "
        "--trusted-host https://a/simple one==1 two"
    )
    assert all(call.startswith("-m pip install ") for call in calls)
    assert subprocess.run(script, env={**env, "CODE": "3"}, check=False).returncode == 3


def test_local_runner_rewrites_python3_but_in_the_source() -> None:
    """kfp.local puts its Python's path for python3 everywhere but in what follows KFP's script."""
    command = command_of(plain)
    full = [
        "sh",
        "-c",
        "python3 -m x",
        "chunk-python3",
        *command[:-1],
        "print('python3')",
        "--executor_input",
        "python3",
    ]
    changed = replace_python_executable(full, "/venv/bin/python")
    assert changed[:4] == ["sh", "-c", "/venv/bin/python -m x", "chunk-/venv/bin/python"]
    assert changed[-4] == command[-2].replace("python3", "/venv/bin/python")
    assert changed[-3:] == ["print('python3')", "--executor_input", "/venv/bin/python"]


def test_local_runner_leaves_python() -> None:
    """The word python alone is not replaced."""
    assert replace_python_executable(["python", "python3.12"], "/p") == ["python", "/p.12"]


@pytest.mark.parametrize(
    ("cluster_spec", "written"),
    [
        (None, True),
        ({"cluster": {}, "task": {"type": "workerpool0", "index": 0}}, True),
        ({"cluster": {}, "task": {"type": "workerpool1", "index": 0}}, False),
    ],
    ids=["none", "chief", "worker"],
)
def test_worker_writes_no_output(
    cluster_spec: dict[str, Any] | None, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KFP's executor writes its output file on the chief alone, by CLUSTER_SPEC (kfp/dsl/executor.py)."""
    if cluster_spec is not None:
        monkeypatch.setenv("CLUSTER_SPEC", json.dumps(cluster_spec))
    given = executor_input(tmp_path)
    output = Executor(executor_input=given, function_to_execute=plain.python_func).execute()
    path = Path(given["outputs"]["outputFile"])
    assert output == (str(path) if written else None)
    assert path.exists() is written
    if written:
        assert json.loads(path.read_text(encoding="utf-8")) == {"parameterValues": {"Output": "x"}}


def test_set_path_keeps_the_uri() -> None:
    """``artifact.set_path`` moves the local path and keeps the URI; ``artifact.path = x`` changes the URI."""
    artifact = dsl.Model(name="m", uri="gs://bucket/a/m", metadata={})
    assert artifact.path == "/gcs/bucket/a/m"
    artifact.set_path("/work/m")
    assert (artifact.path, artifact.uri) == ("/work/m", "gs://bucket/a/m")
    other = dsl.Model(name="m", uri="gs://bucket/a/m", metadata={})
    other.path = "/gcs/bucket/b"
    assert (other.path, other.uri) == ("/gcs/bucket/b", "gs://bucket/b")


def test_local_task_config_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kfp.local has no TaskConfig: the input is null, and every field of it is None (case 8)."""
    # What init sets goes with the test.
    monkeypatch.setattr(LocalExecutionConfig, "instance", LocalExecutionConfig.instance)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path), raise_on_error=True)
    config, inputs = json.loads(configured().output)
    assert config == {
        "affinity": None,
        "env": None,
        "node_selector": None,
        "resources": None,
        "tolerations": None,
        "volume_mounts": None,
        "volumes": None,
    }
    assert inputs == {"parameterValues": {"config": None}}


@pytest.mark.skipif(sys.platform != "linux", reason="MAX_ARG_STRLEN is Linux's")
def test_longest_argument() -> None:
    """Linux takes an argument of 131,071 bytes and refuses one more (MAX_ARG_STRLEN)."""
    assert ARGUMENT_LIMIT == 131_071
    assert subprocess.run(["true", "x" * ARGUMENT_LIMIT], check=False).returncode == 0
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true", "x" * (ARGUMENT_LIMIT + 1)], check=False)
