"""The launcher in a KFP-shaped pod on a real cluster: training to the end, failures, stops, adoption."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from kfp import dsl

import kr_kfp
import kr_kfp.testing
from kr_kfp.names import PODS_ANNOTATION
from kr_kfp_components.data.digits import digits
from kr_kfp_components.training.keras_classifier import keras_classifier
from tests.cluster.kfp_run import ACCOUNT
from tests.cluster.launch import Launching, nothing_is_left, shape, starts
from tests.cluster.processes import wait_for

TITLE = {"schemaTitle": "system.Dataset", "schemaVersion": "0.0.1"}


@kr_kfp.component(hosts=2, framework="none")
def act(mode: str, model: dsl.Output[dsl.Model]) -> str:
    """Do what the test says."""
    import contextlib
    import os
    import socket
    import time
    from pathlib import Path

    import kr_kfp

    ctx = kr_kfp.context()
    print("host", ctx.host, "attempt", ctx.attempt, "starts", flush=True)
    # Host 1 fails when host 0 has started, which a slow node may do much later.
    to_meet = mode in ("raise", "exit")
    if to_meet and ctx.is_leader:
        with socket.create_server(("", 8500)) as server:
            server.accept()[0].close()
    while to_meet and not ctx.is_leader:
        with contextlib.suppress(OSError), socket.create_connection((os.environ["LWS_LEADER_ADDRESS"], 8500), 5):
            break
    if mode == "raise" and ctx.host == 1:
        raise ValueError("boom on one")
    if mode == "exit" and ctx.host == 1:
        os._exit(3)
    if mode == "memory" and ctx.host == 1:
        data = []
        while True:
            data.append(bytearray(16 << 20))
    if mode == "wait":
        while not ctx.preempted():
            time.sleep(0.1)
        raise SystemExit(143)
    if mode == "short":
        time.sleep(20)
    if mode == "lost" and ctx.attempt == 0:
        time.sleep(600)
    if ctx.is_leader:
        Path(model.path).write_text(f"attempt {ctx.attempt}")
    return f"{ctx.hosts} hosts, attempt {ctx.attempt}"


def test_digits_on_four_hosts_of_four_chips(launching: Launching, tmp_path: Path) -> None:
    """16 devices, accuracy 0.95, artifacts and checkpoints in S3, one start of user code a host, nothing left."""
    data = kr_kfp.testing.run(digits, root=tmp_path).outputs["train"]
    launching.s3.put(launching.bucket, "in/train", Path(data.path).read_bytes())
    dataset = {"name": "train", "uri": f"s3://{launching.bucket}/in/train", "type": TITLE, "metadata": data.metadata}
    # Four CPU devices stand for the four chips that the nodes say they have.
    env = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    pod = launching.start(shape(keras_classifier, env=env), {"train": dataset}, epochs=8)
    ended = pod.wait(seconds=500)
    log = pod.log()
    assert ended.code == 0, log
    assert "output 'executor-logs'" not in log  # which is KFP's own to fill
    outputs = pod.outputs()
    assert outputs["parameterValues"]["accuracy"] >= 0.95
    model = outputs["artifacts"]["model"]["artifacts"][0]
    assert model["metadata"]["devices"] == 16
    assert model["metadata"]["hosts"] == 4
    lines = [line.partition("] ")[2] for line in log.splitlines()]
    facts = [json.loads(line) for line in lines if line.startswith("{") and "weights_sha256" in line]
    assert sorted(fact["host"] for fact in facts) == [0, 1, 2, 3]
    assert len({fact["weights_sha256"] for fact in facts}) == 1
    assert {(fact["global_batch"], fact["local_batch"]) for fact in facts} == {(128, 32)}
    key = model["uri"].removeprefix(f"s3://{launching.bucket}/")
    assert f"{key}/model.keras" in launching.s3.objects(launching.bucket)
    history = outputs["artifacts"]["history"]["artifacts"][0]["uri"].removeprefix(f"s3://{launching.bucket}/")
    assert len(json.loads(launching.s3.get(launching.bucket, history))["loss"]) == 8
    assert any("kr-kfp-checkpoints/step-" in name for name in launching.s3.objects(launching.bucket))
    nothing_is_left(launching)
    for secret in (launching.s3.writer.secret_key, launching.s3.writer.access_key):
        assert secret not in log
        assert secret not in json.dumps(pod.read())
    assert np.load(io.BytesIO(launching.s3.get(launching.bucket, "in/train")))["labels"].size > 0


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("raise", "host 1 failed: ValueError: boom on one"),
        ("exit", "host 1 failed: the process ended with exit code 3 before the function returned"),
    ],
)
def test_failing_host_fails_the_step(mode: str, said: str, launching: Launching) -> None:
    """The step is red at once, the termination message names host and reason, nothing is left."""
    pod = launching.start(shape(act), mode=mode)
    ended = pod.wait()
    assert ended.code == 1
    assert said in ended.message
    assert starts(pod.log()) == ["host 0 attempt 0 starts", "host 1 attempt 0 starts"]
    nothing_is_left(launching)


def test_out_of_memory(launching: Launching) -> None:
    """A host over its memory limit, which came through KFP's TaskConfig, is told as what it is."""
    pod = launching.pod(shape(act), mode="memory")
    pod.task_config = {"resources": {"limits": {"memory": "200Mi"}}}
    ended = pod.start().wait()
    assert ended.code == 1
    assert "host 1 failed: out of memory" in ended.message
    nothing_is_left(launching)


def test_pod_deleted_restarts_the_group(launching: Launching) -> None:
    """A training pod that goes is an infrastructure loss: all start anew, and one attempt's results count."""
    pod = launching.start(shape(act), mode="lost")
    pod.wait_for_log("host 1 attempt 0 starts")
    pod.wait_for_log("host 0 attempt 0 starts")
    victim = next(name for name in launching.hosts() if name.endswith("-0-1"))
    launching.run.space.delete("pods", victim, gracePeriodSeconds=1)
    ended = pod.wait()
    assert ended.code == 0, pod.log()
    assert pod.outputs()["parameterValues"]["Output"] == "2 hosts, attempt 1"
    model = pod.outputs()["artifacts"]["model"]["artifacts"][0]["uri"]
    assert model.endswith("/model-r1")
    assert launching.s3.get(launching.bucket, model.removeprefix(f"s3://{launching.bucket}/")) == b"attempt 1"
    assert starts(pod.log()) == [f"host {host} attempt {attempt} starts" for host in (0, 1) for attempt in (0, 1)]
    nothing_is_left(launching)


def test_terminate_deletes_the_group(launching: Launching) -> None:
    """KFP's terminate comes through the kill command: group gone, step red, and the log says what was done."""
    pod = launching.start(shape(act), mode="wait")
    pod.wait_for_log("host 0 attempt 0 starts")
    ended = pod.terminate()
    assert ended.code != 0
    assert "was cancelled by SIGUSR1; its group of hosts was deleted" in pod.log()
    nothing_is_left(launching)


def test_next_launcher_adopts(launching: Launching) -> None:
    """The launcher's pod is deleted in mid-training: the hosts train on, the next launcher takes over, user code ran once."""
    pod = launching.start(shape(act), mode="short")
    pod.wait_for_log("host 0 attempt 0 starts")
    before = {name: host["metadata"]["uid"] for name, host in launching.hosts().items()}
    pod.delete()
    pod.again(same_name=True)
    ended = pod.wait()
    assert ended.code == 0, pod.log()
    assert "adopted the running group" in pod.log()
    assert pod.outputs()["parameterValues"]["Output"] == "2 hosts, attempt 0"
    assert len(before) == 2
    nothing_is_left(launching)


def test_next_launcher_learns_of_a_replaced_host(launching: Launching) -> None:
    """A host goes while there is no launcher: the pod in its place looks like any other, and the group is restarted."""
    pod = launching.start(shape(act), mode="lost")
    pod.wait_for_log("all 2 hosts run")
    wait_for("what the launcher writes down", lambda: PODS_ANNOTATION in _annotations(launching))
    pod.delete()
    before = launching.hosts()
    victim = next(name for name in before if name.endswith("-0-1"))
    uid = before[victim]["metadata"]["uid"]
    launching.run.space.delete("pods", victim, gracePeriodSeconds=1)
    wait_for("the pod in its place", lambda: launching.hosts().get(victim, before[victim])["metadata"]["uid"] != uid)
    pod.again(same_name=True)
    ended = pod.wait()
    assert ended.code == 0, pod.log()
    said = (
        "host 1 was lost: the pod that it ran in went away while no launcher watched; restarting the group as attempt 1"
    )
    assert said in pod.log()
    assert pod.outputs()["parameterValues"]["Output"] == "2 hosts, attempt 1"
    nothing_is_left(launching)


def _annotations(launching: Launching) -> dict[str, str]:
    (group,) = launching.run.space.items("leaderworkersets")
    found: dict[str, str] = group["metadata"]["annotations"]
    return found


def test_deleted_run_takes_its_group_along(launching: Launching) -> None:
    """The group is owned by the Workflow: deleting the run collects it."""
    pod = launching.start(shape(act), mode="wait")
    pod.wait_for_log("host 1 attempt 0 starts")
    (name,) = launching.groups()
    owners = launching.run.space.items("leaderworkersets")[0]["metadata"]["ownerReferences"]
    assert [(owner["kind"], owner["name"]) for owner in owners] == [("Workflow", launching.run.workflow)]
    launching.run.delete()
    nothing_is_left(launching)
    assert name.startswith("act-")


@kr_kfp.component(hosts=2, framework="none")
def train_the_classifier_of_handwritten_digits_with_every_augmentation_that_the_team_has_thought_of_so_far_and_some_more() -> (
    int
):
    """Give the number of hosts."""
    import kr_kfp

    return kr_kfp.context().hosts


def test_long_names(launching: Launching) -> None:
    """A long function in a loop of a nested pipeline: all pods of its groups are made, under names that differ (case 9)."""
    step = shape(
        train_the_classifier_of_handwritten_digits_with_every_augmentation_that_the_team_has_thought_of_so_far_and_some_more
    )
    nested = (
        "a-nested-pipeline-with-a-name-that-is-much-longer-than-any-label-of-kubernetes-may-ever-be-in-all-its-life"
    )
    pods = []
    for item in (0, 1):
        pod = launching.pod(step)
        pod.path = (f"{nested}(0)", "for-loop-1(0)", f"iteration-item({item})")
        pods.append(pod.start())
    for pod in pods:
        assert pod.wait().code == 0, pod.log()
        assert pod.outputs()["parameterValues"]["Output"] == 2
    names = {re.search(r"created group (\S+)", pod.log())[1] for pod in pods}  # type: ignore[index]
    assert len(names) == 2
    assert {len(name) for name in names} <= {*range(40)}
    nothing_is_left(launching)


def test_hosts_are_confined_and_inherit(launching: Launching) -> None:
    """Training pods run as the launcher's account, without its token, confined as KFP's own, with the task's settings."""
    pod = launching.pod(shape(act), mode="wait")
    pod.labels = {"team": "vision"}
    pod.task_config = {"env": [{"name": "LEVEL", "value": "debug"}], "nodeSelector": {"kubernetes.io/os": "linux"}}
    pod.start()
    pod.wait_for_log("host 1 attempt 0 starts")
    for host in launching.hosts().values():
        spec = host["spec"]
        (main,) = spec["containers"]
        assert spec["serviceAccountName"] == ACCOUNT
        assert spec["automountServiceAccountToken"] is False
        assert spec["nodeSelector"]["kubernetes.io/os"] == "linux"
        assert host["metadata"]["labels"]["team"] == "vision"
        assert {"name": "LEVEL", "value": "debug"} in main["env"]
        assert main["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "sidecar.istio.io/inject" in host["metadata"]["annotations"]
        references = [entry["valueFrom"]["secretKeyRef"] for entry in main["env"] if "secretKeyRef" in str(entry)]
        assert {reference["name"] for reference in references} == {"mlpipeline-minio-artifact"}
        assert launching.s3.writer.secret_key not in json.dumps(host)
    pod.terminate()
    nothing_is_left(launching)
