"""The KFP-shaped pod behaves as KFP's own does (facts in kfp_pod.py), shown with plain programs instead of kr_kfp."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.groups import living
from tests.cluster.images import PYTHON_IMAGE
from tests.cluster.kfp_pod import KILL, KfpPod
from tests.cluster.kfp_run import KfpRun
from tests.cluster.kfp_step import LOGS, Step
from tests.cluster.processes import wait_for

SLOW_HANDLER = """
import os, pathlib, signal, sys, time
def leave(*_):
    began = time.monotonic()
    while time.monotonic() - began < 5:
        pathlib.Path("/var/run/argo/last-sign").write_text(f"{time.monotonic() - began:.2f}")
        time.sleep(0.02)
    print("handler done", flush=True)
    os._exit(3)
signal.signal(signal.SIGUSR1, leave)
signal.signal(signal.SIGTERM, leave)
pathlib.Path("/tmp/pid").write_text(str(os.getpid()))
print("ready", flush=True)
while True:
    time.sleep(1)
"""
"""Needs five seconds to leave, and notes how many it has got."""


def _step(code: str, **fields: object) -> Step:
    return Step(name="train", image=PYTHON_IMAGE, command=("python3", "-c", code), **fields)  # type: ignore[arg-type]


def test_command_gets_executor_input_and_hands_outputs_over(kfp_run: KfpRun) -> None:
    """The command finds the ExecutorInput in place of the placeholder; what it writes to the output file arrives."""
    code = """
import json, os, sys
given = json.loads(sys.argv[1])
assert os.path.isdir(os.path.dirname(given["outputs"]["parameters"]["Output"]["outputFile"]))
assert os.path.isdir("/s3/bucket")
print(sorted(given["outputs"]["artifacts"]))
values = {"parameterValues": {"Output": given["inputs"]["parameterValues"]["epochs"] + 1}}
with open(given["outputs"]["outputFile"], "w") as file:
    json.dump(values, file)
"""
    step = _step(
        code,
        args=("{{$}}",),
        inputs={"parameters": {"epochs": {"parameterType": "NUMBER_INTEGER", "defaultValue": 3.0}}},
        outputs={
            "parameters": {"Output": {"parameterType": "NUMBER_DOUBLE"}},
            "artifacts": {"model": {"artifactType": {"schemaTitle": "system.Model", "schemaVersion": "0.0.1"}}},
        },
    )
    pod = KfpPod(run=kfp_run, step=step).start()
    assert pod.wait().code == 0
    wait_for("the wait container", lambda: pod.run.space.logs(pod.name, container="wait") != "")
    assert pod.outputs() == {"parameterValues": {"Output": 4.0}}
    assert pod.log().splitlines()[0] == f"['{LOGS}', 'model']"
    assert "Warning: output artifact model has no local file, its URI is kept: " + kfp_run.root in pod.log()


def test_every_failure_is_exit_code_one_with_the_programs_message(kfp_run: KfpRun) -> None:
    """A program's own exit code is hidden; its termination message is the pod's."""
    code = "import sys; open('/dev/termination-log', 'w').write('host 2 failed'); sys.exit(7)"
    ended = KfpPod(run=kfp_run, step=_step(code)).start().wait()
    assert (ended.code, ended.reason, ended.message) == (1, "Error", "host 2 failed")


def test_missing_output_parameter_fails_the_step(kfp_run: KfpRun) -> None:
    """A parameter that the component declares and the program does not write fails a step that exited 0."""
    step = _step("pass", outputs={"parameters": {"Output": {"parameterType": "STRING"}}})
    pod = KfpPod(run=kfp_run, step=step).start()
    assert pod.wait().code == 1
    assert 'failed to read output parameter name="Output"' in pod.log()


def test_terminate_leaves_a_program_less_than_two_seconds(kfp_run: KfpRun) -> None:
    """Without the kill command, a program that gets SIGTERM is killed when the emissary looks next, and prints no more."""
    pod = KfpPod(run=kfp_run, step=_step(SLOW_HANDLER)).start()
    pod.wait_for_log("ready")
    ended = pod.terminate()
    assert ended.code == 143
    assert "handler done" not in pod.log()
    found = pod.read()
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]


def test_terminate_through_the_kill_command_lets_a_program_end(kfp_run: KfpRun) -> None:
    """With the kill command the program alone gets the signal that it chose, and its handler runs and prints to its end."""
    kill = json.dumps(["/bin/sh", "-c", "[ %d = 15 ] && kill -USR1 $(cat /tmp/pid)"])
    pod = KfpPod(run=kfp_run, step=_step(SLOW_HANDLER, annotations={KILL: kill})).start()
    pod.wait_for_log("ready")
    ended = pod.terminate()
    assert ended.code == 1
    assert "handler done" in pod.log()


def test_next_pod_has_another_uid_and_the_same_outputs(kfp_run: KfpRun) -> None:
    """A pod that is deleted comes again with another UID, the same node name and the same output URIs."""
    step = _step(SLOW_HANDLER, outputs={"artifacts": {"model": {"artifactType": {"schemaTitle": "system.Model"}}}})
    pod = KfpPod(run=kfp_run, step=step).start()
    pod.wait_for_log("ready")
    first = pod.read()
    pod.delete()
    pod.again(same_name=True)
    second = pod.read()
    assert first is not None
    assert second is not None
    assert first["metadata"]["name"] == second["metadata"]["name"]
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert first["metadata"]["annotations"] == second["metadata"]["annotations"]
    assert _args(first) == _args(second)
    pod.wait_for_log("ready")
    pod.again(retry=True)
    third = pod.read()
    assert third is not None
    assert third["metadata"]["name"] != second["metadata"]["name"]
    name = "workflows.argoproj.io/node-name"
    assert second["metadata"]["annotations"][name] == f"{kfp_run.workflow}(0).root(0).train(0).executor(0)"
    assert third["metadata"]["annotations"][name] == f"{kfp_run.workflow}(0).root(0).train(0).executor(1)"


def _args(pod: dict[str, object]) -> object:
    spec = pod["spec"]
    assert isinstance(spec, dict)
    return next(c["args"] for c in spec["containers"] if c["name"] == "main")


def test_pod_is_best_effort_and_goes_with_its_workflow(kfp_run: KfpRun) -> None:
    """The pod asks for no resources, and is collected when the run's Workflow is deleted."""
    with kfp_run.space.watch("pods") as pods:
        pod = KfpPod(run=kfp_run, step=_step("import time; time.sleep(100)")).start()
        found = pod.read()
        assert found is not None
        assert found["status"]["qosClass"] == "BestEffort"
        kfp_run.delete()
        pods.until(lambda changes: not living(changes), what="end of the pod")


def test_wait_container_ends_after_a_main_that_was_killed(kfp_run: KfpRun) -> None:
    """When main is killed for memory, nothing tells its code, and the pod ends all the same."""
    pod = KfpPod(
        run=kfp_run,
        step=_step("data = bytearray(500_000_000)"),
        main={"resources": {"limits": {"memory": "64Mi"}}},
    ).start()
    assert pod.wait().code != 0
    wait_for("the pod's end", lambda: ((pod.read() or {})["status"]["phase"]) == "Failed")


COMPILED = """
components:
  comp-plain: {executorLabel: exec-plain}
deploymentSpec:
  executors:
    exec-plain:
      container: {image: image, command: [python3], env: [{name: A, value: a}]}
root:
  dag:
    tasks:
      plain: {componentRef: {name: comp-plain}}
---
platforms:
  kubernetes:
    deploymentSpec:
      executors:
        exec-plain: {nodeSelector: {labels: {pool: a}}, podMetadata: {labels: {team: b}}}
"""


def test_settings_that_the_rig_does_not_know_are_refused(tmp_path: Path) -> None:
    """A compiled task with settings for the pod that the rig would drop is an error, not a different pod."""
    file = tmp_path / "pipeline.yaml"
    file.write_text(COMPILED, encoding="utf-8")
    with pytest.raises(ValueError, match=r"plain has settings that this rig does not apply: env, nodeSelector$"):
        Step.load(file)
