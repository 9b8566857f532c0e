"""What literal pods say about their hosts, as the kubelet and LWS write them (cases 12, 17, 21 and 22)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.observe import HostState, Phase, observe, pod_index, unix
from kr_kfp.wire import ErrorInfo, Outcome, outcome_message

Json = dict[str, Any]

STARTED = "2026-11-30T10:00:00Z"
BEGAN = 1796032800.0
FINISHED = "2026-11-30T10:01:00Z"
OVER = 1796032860.0

GOOD = Outcome(kind="ok", host=0, started=BEGAN + 1, ended=OVER)
BAD = Outcome(
    kind="exception",
    host=0,
    code=1,
    started=BEGAN + 1,
    ended=OVER,
    error=ErrorInfo(type="ValueError", message="boom"),
)


def pod(
    status: Json, *, index: int = 0, uid: str = "u0", attempt: int = 0, made: str = STARTED, deleted: str = ""
) -> Json:
    """Give a pod of the group ``g`` with this status."""
    name = f"g-0-{index}" if index else "g-0"
    metadata: Json = {
        "name": name,
        "uid": uid,
        "labels": {"leaderworkerset.sigs.k8s.io/worker-index": str(index)},
        "creationTimestamp": made,
    }
    if deleted:
        metadata["deletionTimestamp"] = deleted
    env = [{"name": "KR_KFP_ATTEMPT", "value": str(attempt)}]
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "env": env}]}, "status": status}


def status(state: Json, last: Json | None = None, restarts: int = 0, **fields: Any) -> Json:
    """Give the status of a pod whose main container is in this state."""
    main = {"name": "main", "restartCount": restarts, "state": state, "lastState": last or {}}
    return {"phase": "Running", "startTime": STARTED, "containerStatuses": [main], **fields}


def terminated(code: int, reason: str = "Error", message: str = "") -> Json:
    end: Json = {"exitCode": code, "reason": reason, "startedAt": STARTED, "finishedAt": FINISHED}
    return {"terminated": end | ({"message": message} if message else {})}


RUNNING: Json = {"running": {"startedAt": STARTED}}
HOLDING: Json = {"running": {"startedAt": "2026-11-30T10:01:01Z"}}


def one(*pods: Json, **given: Any) -> HostState:
    """Judge a group of one host."""
    (state,) = observe(pods, hosts=1, attempt=0, **given)
    return state


def waiting(reason: str) -> HostState:
    return HostState(index=0, phase=Phase.WAITING, pod="g-0", uid="u0", reason=reason)


def lost(reason: str, started: float = BEGAN, outcome: Outcome | None = None) -> HostState:
    return HostState(index=0, phase=Phase.LOST, pod="g-0", uid="u0", started=started, reason=reason, outcome=outcome)


def over(outcome: Outcome, digest: str = "") -> HostState:
    return HostState(
        index=0,
        phase=Phase.ENDED,
        pod="g-0",
        uid="u0",
        started=outcome.started or BEGAN,
        outcome=outcome,
        digest=digest,
    )


def test_no_pod() -> None:
    """A host without a pod waits, and is there in the answer."""
    assert observe([], hosts=2, attempt=0) == (
        HostState(index=0, phase=Phase.WAITING, reason="there is no pod yet"),
        HostState(index=1, phase=Phase.WAITING, reason="there is no pod yet"),
    )


def test_running() -> None:
    """A running container is a running host, since its start."""
    state = HostState(index=0, phase=Phase.RUNNING, pod="g-0", uid="u0", started=BEGAN)
    assert one(pod(status(RUNNING))) == state


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"phase": "Pending"}, "the pod is pending"),
        ({"phase": "Pending", "containerStatuses": None, "conditions": None}, "the pod is pending"),
        (status({"waiting": {"reason": "ContainerCreating"}}), "ContainerCreating"),
        (status({"waiting": {"reason": "PodInitializing"}}), "PodInitializing"),
        (
            status({"waiting": {"reason": "ErrImagePull", "message": "manifest unknown"}}),
            "ErrImagePull: manifest unknown",
        ),
        (
            status({"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "keys" not found'}}),
            'CreateContainerConfigError: secret "keys" not found',
        ),
        (status({"waiting": {"reason": "ImagePullBackOff"}}), "ImagePullBackOff"),
        (
            {
                "phase": "Pending",
                "conditions": [
                    {"type": "Ready", "status": "False", "reason": "x"},
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient google.com/tpu.",
                    },
                ],
            },
            "Unschedulable: 0/3 nodes are available: 3 Insufficient google.com/tpu.",
        ),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}, "the pod is pending"),
        (
            {"phase": "Pending", "containerStatuses": [{"name": "sidecar", "state": RUNNING}]},
            "the pod is pending",
        ),
    ],
)
def test_waiting(given: Json, reason: str) -> None:
    """A pod that has started nothing waits, and says why."""
    assert one(pod(given)) == waiting(reason)


def test_pod_without_status() -> None:
    """A pod that the kubelet has not seen yet waits."""
    assert one({**pod({}), "status": None}) == waiting("the pod is pending")


def test_evicted_without_container_statuses() -> None:
    """An evicted pod may have lost its container statuses altogether (case 21)."""
    given = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: memory.",
        "startTime": STARTED,
        "containerStatuses": None,
    }
    assert one(pod(given)) == lost("pod g-0 failed (Evicted: The node was low on resource: memory.)", started=0.0)


def test_failed_without_reason() -> None:
    """A failed pod that says nothing is lost all the same."""
    assert one(pod({"phase": "Failed", "startTime": STARTED})) == lost("pod g-0 failed", started=0.0)


def test_rejected_before_it_started() -> None:
    """A pod that its node refused before anything started is made anew and costs no restart."""
    given = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no chips"}
    assert one(pod(given)) == waiting("pod g-0 failed (UnexpectedAdmissionError: no chips)")


@pytest.mark.parametrize("outcome", [GOOD, BAD], ids=["ok", "exception"])
@pytest.mark.parametrize(
    "form", ["state", "last-and-waiting", "last-and-holding", "state-of-the-first"], ids=lambda form: form
)
def test_ended(outcome: Outcome, form: str) -> None:
    """The first end is found as state, and as lastState once the container waits or holds (case 12)."""
    end = terminated(outcome.code, "Error" if outcome.code else "Completed", outcome_message(outcome))
    given = {
        "state": status(end),
        "last-and-waiting": status({"waiting": {"reason": "CrashLoopBackOff"}}, end, 1),
        "last-and-holding": status(HOLDING, end, 1),
        "state-of-the-first": status(end, phase="Failed", startTime=STARTED),
    }[form]
    assert one(pod(given)) == over(outcome)


def test_ended_then_deleted() -> None:
    """Deleting a pod after its end does not undo the end."""
    end = terminated(0, "Completed", outcome_message(GOOD))
    assert one(pod(status(HOLDING, end, 1), deleted=FINISHED), gone=["u0"]) == over(GOOD)


def test_start_of_the_container_where_the_outcome_has_none() -> None:
    """An outcome that never got as far as its child counts from the container's start."""
    outcome = Outcome(kind="setup", host=0, code=64, ended=OVER, detail="no leader")
    assert one(pod(status(terminated(64, message=outcome_message(outcome))))) == over(outcome)


def test_digest_of_a_cut_message() -> None:
    """An outcome that was cut to 4,096 bytes comes with the digest by which its whole is found in the log."""
    long = replace(GOOD, outputs={"parameters": {"x": "y" * 9000}})
    digest = json.loads(outcome_message(long))["digest"]
    assert len(digest) == 64
    state = one(pod(status(HOLDING, terminated(0, "Completed", outcome_message(long)), 1)))
    assert state == over(replace(GOOD, outputs=None), digest)


def test_unread_outcome_of_a_holder_that_restarted() -> None:
    """After two ends lastState is that of a holding runner: the outcome is in its log alone."""
    state = one(pod(status(HOLDING, terminated(143), 2)))
    assert state == HostState(index=0, phase=Phase.ENDED, pod="g-0", uid="u0", started=BEGAN, unread=True)


@pytest.mark.parametrize(("code", "reason"), [(137, "Error"), (143, "Error"), (255, "Unknown"), (137, "Unknown")])
def test_killed_without_message(code: int, reason: str) -> None:
    """A container that was killed from outside left no outcome: the host is lost."""
    assert one(pod(status(terminated(code, reason)))) == lost(
        f"the container of pod g-0 ended with {reason} (exit code {code})"
    )


def test_status_unknown() -> None:
    """The kubelet's own placeholder for a container that it cannot find is a loss."""
    given = status(terminated(137, "ContainerStatusUnknown", "The container could not be located"))
    assert one(pod(given)) == lost("the container of pod g-0 ended with ContainerStatusUnknown (exit code 137)")


def test_node_shutdown_keeps_container_statuses() -> None:
    """A pod of a node that shut down is Failed with its container's end: lost, by the container."""
    given = status(terminated(143), phase="Failed", reason="Terminated", message="Pod was terminated")
    assert one(pod(given)) == lost("the container of pod g-0 ended with Error (exit code 143)")


@pytest.mark.parametrize(
    ("end", "code", "detail"),
    [
        (terminated(1), 1, "the runner did not start: Error, exit code 1"),
        (terminated(0, "Completed"), 1, "the runner did not start: Completed, exit code 0"),
        (
            terminated(128, "StartError", 'exec: "sh": executable file not found in $PATH\n'),
            128,
            'the runner did not start: StartError, exit code 128: exec: "sh": executable file not found in $PATH',
        ),
        (terminated(128, "StartError"), 128, "the runner did not start: StartError, exit code 128"),
        (
            terminated(127),
            127,
            "the runner did not start: Error, exit code 127. Use an image (base_image) that has sh and python3.",
        ),
        (
            terminated(64, message="kr_kfp: the image has no pip"),
            64,
            "the runner did not start: Error, exit code 64: kr_kfp: the image has no pip",
        ),
        (
            terminated(1, message="x" * 900),
            1,
            "the runner did not start: Error, exit code 1: " + "x" * 800,
        ),
    ],
    ids=["1", "0", "start-error", "start-error-silent", "no-python", "other-message", "long"],
)
def test_no_outcome_and_not_killed(end: Json, code: int, detail: str) -> None:
    """A container that ended by itself without an outcome has a broken image or command: the step's own fault."""
    outcome = Outcome(kind="setup", host=0, code=code, ended=OVER, detail=detail)
    assert one(pod(status(end))) == over(outcome)


def test_out_of_memory_without_message() -> None:
    """The whole container was killed for memory: user code's doing, by Kubernetes' word."""
    outcome = Outcome(kind="signal", host=0, code=137, signal=9, oom=True, ended=OVER)
    assert one(pod(status(terminated(137, "OOMKilled")))) == over(outcome)


def test_out_of_memory_with_message() -> None:
    """The child alone was killed; that it was for memory, Kubernetes adds to the runner's word."""
    outcome = Outcome(kind="signal", host=0, code=137, signal=9, started=BEGAN + 1, ended=OVER)
    given = status(terminated(137, "OOMKilled", outcome_message(outcome)))
    assert one(pod(given)) == over(replace(outcome, oom=True))


def test_good_end_with_a_process_killed_for_memory() -> None:
    """A helper process killed for memory does not spoil an outcome that is good."""
    given = status(terminated(0, "OOMKilled", outcome_message(GOOD)))
    assert one(pod(given)) == over(GOOD)


def test_runner_found_itself_killed() -> None:
    """A runner that finds at its second start that it was killed is lost."""
    outcome = Outcome(kind="lost", host=0, code=137, started=BEGAN + 1)
    given = status(HOLDING, terminated(137, message=outcome_message(outcome)), 1)
    assert one(pod(given)) == lost("the runner was killed", started=BEGAN + 1, outcome=outcome)


def test_terminated_from_outside() -> None:
    """A runner that got SIGTERM is lost, with its own sentence."""
    outcome = Outcome(kind="terminated", host=0, code=143, started=BEGAN + 1, detail="SIGTERM came from outside")
    given = status(terminated(143, message=outcome_message(outcome)))
    assert one(pod(given)) == lost("SIGTERM came from outside", started=BEGAN + 1, outcome=outcome)


def test_deleted_while_it_ran() -> None:
    """A pod with a deletion timestamp is lost while its container still runs."""
    assert one(pod(status(RUNNING), deleted=FINISHED)) == lost("pod g-0 was deleted while it ran")


def test_gone_while_it_ran() -> None:
    """A pod that vanished is judged by its last known state."""
    assert one(pod(status(RUNNING)), gone=["u0"]) == lost("pod g-0 was deleted while it ran")


def test_gone_before_it_started() -> None:
    """A pod that vanished before anything started in it costs nothing."""
    assert one(pod({"phase": "Pending"}), gone=["u0"]) == waiting("the pod was deleted before it started")


def test_disruption() -> None:
    """The reason of a preemption is in the pod's DisruptionTarget condition; one that is False says nothing."""
    target = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "preempted by default/big",
    }
    given = status(RUNNING, conditions=[{"type": "Ready", "status": "True"}, target])
    assert one(pod(given, deleted=FINISHED)) == lost(
        "pod g-0 was deleted while it ran (PreemptionByScheduler: preempted by default/big)"
    )
    given = status(RUNNING, conditions=[{**target, "status": "False"}])
    assert one(pod(given, deleted=FINISHED)) == lost("pod g-0 was deleted while it ran")


def test_disruption_whose_host_has_ended() -> None:
    """SIGKILL or SIGTERM is how a deleted host ends; the reason is why it was deleted."""
    target = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "evicting"}
    given = status(terminated(137), conditions=[target])
    reason = "pod g-0 was deleted while it ran (EvictionByEvictionAPI: evicting)"
    assert one(pod(given, deleted=FINISHED)) == one(pod(given), gone=["u0"]) == lost(reason)
    outcome = Outcome(kind="terminated", host=0, code=143, started=BEGAN + 1, detail="SIGTERM came from outside")
    given = status(terminated(143, message=outcome_message(outcome)), conditions=[target])
    reason = "SIGTERM came from outside (EvictionByEvictionAPI: evicting)"
    assert one(pod(given, deleted=FINISHED)) == lost(reason, started=BEGAN + 1, outcome=outcome)


def test_lost_node() -> None:
    """A running pod on a lost node is lost; another one on it that has ended is not."""
    why = {"u0": "node n1 is gone"}
    assert one(pod(status(RUNNING)), lost=why) == lost("node n1 is gone")
    end = terminated(0, "Completed", outcome_message(GOOD))
    assert one(pod(status(end)), lost=why) == over(GOOD)


def test_replaced_while_it_ran() -> None:
    """A pod that ran, then one of the same name with another UID: the second must not start user code again."""
    first, second = pod(status(RUNNING)), pod({"phase": "Pending"}, uid="u1", made=FINISHED)
    reason = "pod g-0 was replaced by another of the same name while it ran"
    assert one(first, second) == lost(reason)
    assert one(second, first) == lost(reason)


def test_replaced_after_its_end() -> None:
    """The first pod's outcome stands although another pod has taken its name (case 12)."""
    end = terminated(0, "Completed", outcome_message(GOOD))
    second = pod(status(RUNNING), uid="u1", made=FINISHED)
    assert one(pod(status(end)), second, gone=["u0"]) == over(GOOD)


def test_replaced_before_it_started() -> None:
    """A pod that never started leaves its place to the next one."""
    first = pod({"phase": "Failed", "reason": "UnexpectedAdmissionError"})
    second = pod(status(RUNNING), uid="u1", made=FINISHED)
    state = HostState(index=0, phase=Phase.RUNNING, pod="g-0", uid="u1", started=BEGAN)
    assert one(first, second, gone=["u0"]) == state


@pytest.mark.parametrize("state", [RUNNING, terminated(0, "Completed", outcome_message(GOOD))], ids=["runs", "ended"])
def test_replaced_while_nobody_looked(state: Json) -> None:
    """Whatever the second pod does or has done: user code ran in the first, as was written down then."""
    seen = observe([pod(status(state), uid="u1", made=FINISHED)], hosts=1, attempt=0, noted=["u0"])
    reason = "the pod that it ran in went away while no launcher watched"
    assert seen == (HostState(index=0, phase=Phase.LOST, pod="g-0", uid="u1", reason=reason, up=state is RUNNING),)


def test_away_while_nobody_looked() -> None:
    """No second pod has come yet; the other host goes on."""
    worker = pod(status(RUNNING), index=1, uid="w0-and-more")
    lost_host, other = observe([worker], hosts=2, attempt=0, noted=["u0", "w0"])
    assert (lost_host.phase, lost_host.pod, lost_host.uid) == (Phase.LOST, "", "")
    assert (other.phase, other.uid) == (Phase.RUNNING, "w0-and-more")


def test_several_that_wait() -> None:
    """Of pods that all wait, the newest tells why."""
    first = pod({"phase": "Pending"})
    second = pod(status({"waiting": {"reason": "ErrImagePull"}}), uid="u1", made=FINISHED)
    assert one(second, first, gone=["u0"]) == replace(waiting("ErrImagePull"), uid="u1")


def test_other_attempts_and_indices_are_left_out() -> None:
    """Pods of an earlier attempt, or outside the group's size, are not looked at."""
    mine = pod(status(RUNNING), index=1, uid="u1", attempt=1)
    others = [pod(status(terminated(1)), uid="old"), pod(status(terminated(1)), index=7, uid="far", attempt=1)]
    assert observe([*others, mine], hosts=2, attempt=1) == (
        HostState(index=0, phase=Phase.WAITING, reason="there is no pod yet"),
        HostState(index=1, phase=Phase.RUNNING, pod="g-0-1", uid="u1", started=BEGAN),
    )


def test_worker_failed_while_the_leader_runs() -> None:
    """Every host is judged by its own pod (case 17)."""
    bad = replace(BAD, host=2)
    pods = [
        pod(status(terminated(1, message=outcome_message(bad))), index=2, uid="u2"),
        pod(status(RUNNING)),
        pod(status(RUNNING), index=1, uid="u1"),
    ]
    states = observe(pods, hosts=3, attempt=0)
    assert [state.phase for state in states] == [Phase.RUNNING, Phase.RUNNING, Phase.ENDED]
    assert states[2].outcome == bad


def test_container_is_found_by_name() -> None:
    """A sidecar's end is not the host's, wherever it stands in the list."""
    given = status(RUNNING)
    given["containerStatuses"].insert(0, {"name": "sidecar", "restartCount": 0, "state": terminated(1)})
    assert one(pod(given)).phase is Phase.RUNNING


def test_unix() -> None:
    """Kubernetes writes seconds, with or without a fraction (MicroTime)."""
    assert unix(STARTED) == BEGAN
    assert unix("2026-11-30T10:00:00.250000Z") == BEGAN + 0.25
    assert unix("2026-11-30T12:00:00+02:00") == BEGAN
    assert unix(None) == 0.0
    assert unix("") == 0.0


def test_pod_index() -> None:
    """The index is LWS's label; a pod without labels is the leader."""
    assert pod_index(pod({}, index=3)) == 3
    assert pod_index({"metadata": {"name": "x"}}) == 0
