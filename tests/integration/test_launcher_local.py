"""The launcher on the local cluster: real processes, real JAX collectives, real ends (issue: it must show)."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from kr_kfp.cluster.local import LocalCluster, list_groups
from kr_kfp.names import PODS_ANNOTATION
from tests.local_kit import until
from tests.steps import fault, launching, left_over, starts_of

TRAIN = Path(__file__).parent.parent / "steps.py"


def line_of(text: str) -> int:
    """Give the line of tests/steps.py that holds ``text``."""
    lines = TRAIN.read_text(encoding="utf-8").splitlines()
    return 1 + next(i for i, line in enumerate(lines) if text in line)


@pytest.fixture(name="root")
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KR_KFP_LOCAL_ROOT", str(tmp_path / "c"))
    monkeypatch.setenv("KR_KFP_SOURCE_fault", f"{TRAIN}:{line_of('def fault(')}")
    return tmp_path


def arguments(root: Path, mode: str, **more: object) -> dict[str, object]:
    return {"mode": mode, "mark": str(root / "mark"), **more}


def test_good_end(root: Path) -> None:
    """Two hosts, one JAX program: outputs of the leader, one start of user code each, nothing left."""
    with launching(fault, root / "task", arguments(root, "ok")) as launch:
        assert launch.wait() == 0
        output = launch.output()
    assert output["parameterValues"] == {"Output": 0}
    assert output["artifacts"]["model"]["artifacts"][0]["metadata"] == {"attempt": 0}
    assert (root / "task" / "model").read_text() == "weights of attempt 0"
    assert starts_of(root / "mark") == ["start host=0 attempt=0", "start host=1 attempt=0"]
    assert left_over(str(root)) == []
    assert [p.name for p in (root / "c").iterdir() if not p.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("mode", "headline", "text"),
    [
        ("raise", "ValueError: boom on purpose", 'raise ValueError("boom on purpose")'),
        ("kill", "the process ended with signal SIGKILL before the function returned", ""),
        (
            "segfault",
            "the process ended with signal SIGSEGV before the function returned (Fatal Python error: Segmentation fault)",
            "ctypes.string_at(0)",
        ),
        ("exit", "the process ended with exit code 3 before the function returned", ""),
    ],
)
@pytest.mark.parametrize("on", [0, 1])
def test_host_fails_while_others_are_in_a_collective(mode: str, headline: str, text: str, on: int, root: Path) -> None:
    """The step fails soon after; the last lines name host, end and line in the user's file; nothing is left."""
    with launching(fault, root / "task", arguments(root, mode, on=on)) as launch:
        until(lambda: len(starts_of(root / "mark")) == 2, "both hosts' functions", 240)
        begun = time.monotonic()
        assert launch.wait() == 1
        assert time.monotonic() - begun < 90, "JAX's own barrier waits for 300 s"
        log = launch.text()
    tail = log.splitlines()[-4:]
    assert f"kr_kfp: fault failed in attempt 0: host {on} failed: {headline}" in tail
    message = launch.termination.read_text()
    assert f"host {on} failed: {headline}" in message
    if text:
        assert f"kr_kfp:   at {TRAIN}:{line_of(text)} in fault(): {text}" in tail
        assert f"{TRAIN}:{line_of(text)}" in message
    assert left_over(str(root)) == []
    assert not (root / "task" / "executor_output.json").exists()


def test_out_of_memory_of_the_child(root: Path) -> None:
    """A child over its memory limit is killed and named as such, as the kubelet would."""
    config = {"resources": {"limits": {"memory": "700Mi"}}}
    with launching(fault, root / "task", arguments(root, "memory", collective=False), task_config=config) as launch:
        assert launch.wait() == 1
        log = launch.text()
    assert "host 1 failed: out of memory: the kernel killed the process (OOMKilled, exit code 137)" in log
    assert left_over(str(root)) == []


@pytest.mark.parametrize(("grace", "code"), [("2m", 0), ("5s", 1)])
def test_leader_that_ends_later(grace: str, code: int, root: Path) -> None:
    """A leader that ends 30 s after the workers is fine with 2 min, a failure naming it with 5 s."""
    step = fault.options(finish_grace=grace)
    with launching(step, root / "task", arguments(root, "late", on=0, seconds=30.0)) as launch:
        assert launch.wait() == code
        log = launch.text()
    if code:
        assert "host 0 was still running 5 s after host 1 had ended well (finish_grace)" in log
    assert left_over(str(root)) == []


def test_leader_that_ends_later_without_jax(root: Path) -> None:
    """The same without a framework's barrier: the launcher itself counts finish_grace."""
    step = fault.options(finish_grace="3s", framework="none")
    with launching(step, root / "task", arguments(root, "late", on=0, seconds=60.0, collective=False)) as launch:
        assert launch.wait() == 1
        log = launch.text()
    assert "host 0 was still running 3 s after host 1 had ended well (finish_grace)" in log
    assert left_over(str(root)) == []


def test_host_killed_once_restarts_the_group(root: Path) -> None:
    """A host whose runner is killed is lost: attempt 1 runs on all hosts and its results alone are committed."""
    with launching(fault, root / "task", arguments(root, "lose-host")) as launch:
        assert launch.wait() == 0
        log, output = launch.text(), launch.output()
    assert "host 1 was lost" in log
    assert "restarting the group as attempt 1 (2 restarts left after it)" in log
    assert output["parameterValues"] == {"Output": 1}
    artifact = output["artifacts"]["model"]["artifacts"][0]
    assert artifact["uri"] == str(root / "task" / "model-r1")
    assert (root / "task" / "model-r1").read_text() == "weights of attempt 1"
    assert not (root / "task" / "model").exists()
    assert starts_of(root / "mark") == [
        "start host=0 attempt=0",
        "start host=0 attempt=1",
        "start host=1 attempt=0",
        "start host=1 attempt=1",
    ]
    assert left_over(str(root)) == []


def test_launcher_killed_and_started_again_adopts_the_running_group(root: Path) -> None:
    """A launcher killed by SIGKILL leaves its group; the next one adopts it and user code does not start twice."""
    given = arguments(root, "wait")
    with launching(fault, root / "task", given) as first:
        first.until("step on host 0")
        first.process.kill()
        first.wait()
    with launching(fault, root / "task", given) as second:
        second.until("adopted the running group")
        (root / "mark.go").touch()
        assert second.wait() == 0
        assert second.output()["parameterValues"] == {"Output": 0}
    assert starts_of(root / "mark") == ["start host=0 attempt=0", "start host=1 attempt=0"]
    assert left_over(str(root)) == []


def test_launcher_killed_adopts_the_finished_group(root: Path) -> None:
    """The same when the group ended while no launcher lived."""
    given = arguments(root, "wait")
    with launching(fault, root / "task", given) as first:
        first.until("step on host 0")
        first.process.kill()
        first.wait()
    (root / "mark.go").touch()
    until(lambda: _all_ended(root / "c"), "both hosts' outcomes")
    with launching(fault, root / "task", given) as second:
        assert second.wait() == 0
        assert second.output()["parameterValues"] == {"Output": 0}
    assert starts_of(root / "mark") == ["start host=0 attempt=0", "start host=1 attempt=0"]
    assert left_over(str(root)) == []


def test_launcher_killed_and_a_host_replaced_meanwhile(root: Path) -> None:
    """The next launcher knows which pods ran: the new one is no host of this attempt, and the group is restarted."""
    step, given = fault.options(framework="none"), arguments(root, "wait", collective=False)
    with launching(step, root / "task", given) as first:
        cluster, uids = LocalCluster(), until(lambda: _noted(root / "c"), "what the launcher writes down")
        first.process.kill()
        first.wait()
    (group,) = list_groups()
    pods = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in cluster.list_pods(group["metadata"]["name"])}
    assert uids == [uid[:8] for uid in sorted(pods, key=lambda uid: pods[uid])]
    worker = next(uid for uid, name in pods.items() if name.endswith("-0-1"))
    cluster.delete_pod(pods[worker], uid=worker)
    with launching(step, root / "task", given) as second:
        second.until("restarting the group as attempt 1")
        (root / "mark.go").touch()
        assert second.wait() == 0
        log, output = second.text(), second.output()
    assert "adopted the running group" in log
    assert "host 1 was lost: the pod that it ran in went away while no launcher watched" in log
    assert output["parameterValues"] == {"Output": 1}
    assert left_over(str(root)) == []


def _noted(folder: Path) -> list[str]:
    """Give what the launcher wrote down about the only group's pods."""
    groups = list_groups() if folder.exists() else []
    said = [group["metadata"]["annotations"].get(PODS_ANNOTATION, "") for group in groups]
    return said[0].partition(":")[2].split(",") if any(said) else []


def _all_ended(folder: Path) -> bool:
    return len(list(folder.glob("*/pods/*/work/outcome"))) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT], ids=lambda n: n.name)
def test_stopped_at_random_moments(number: signal.Signals, root: Path) -> None:
    """SIGTERM, SIGUSR1 and Ctrl-C to the launcher at random moments, twice in a row now and then, leave no process."""
    moments = random.Random(int(number))
    for turn in range(7):
        folder = root / f"task-{turn}"
        # Without JAX: the moments that matter are the launcher's, and most lie in its first second.
        step = fault.options(framework="none")
        given = arguments(root, "sleep", seconds=600.0, collective=False)
        with launching(step, folder, given, env={"KR_TEST_TURN": f"{root}-{turn}"}) as launch:
            pause = moments.choice([0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2]) * moments.random()
            time.sleep(pause)
            launch.process.send_signal(number)
            if moments.random() < 0.4:
                time.sleep(0.1 * moments.random())
                launch.process.send_signal(number)
            code = launch.wait()
        assert code != 0, f"turn {turn} after {pause:.2f} s"
        assert left_over(f"{root}-{turn}") == [], f"turn {turn} after {pause:.2f} s:\n{launch.text()[-2000:]}"


def test_notebook_with_a_token_runs_locally(root: Path) -> None:
    """A mounted service-account token and the API server's address, as in notebooks, choose no cluster."""
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with launching(fault, root / "task", arguments(root, "ok", collective=False), env=env) as launch:
        assert launch.wait() == 0
        assert "on the local cluster" in launch.text()


def test_kfp_pod_is_not_local(root: Path) -> None:
    """In a KFP executor pod the local cluster is never taken silently."""
    with launching(
        fault, root / "task", arguments(root, "ok"), env={"KFP_POD_NAME": "p", "KR_KFP_RUN_DIR": str(root)}
    ) as launch:
        assert launch.wait() == 64
        said = "KFP_POD_NAME is set, so this is a KFP pod, but KUBERNETES_SERVICE_HOST is not"
        assert said in launch.termination.read_text()
    assert not (root / "mark").exists()
