"""The table from Kubernetes' statuses and events to causes, with literal statuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kr_kfp.spec.diagnose import Category, Diagnosis, diagnose
from kr_kfp.wire import ErrorInfo, Outcome, outcome_message

Json = dict[str, Any]

IMAGE = "example.test/train:1"


def pod(host: int = 0, *, spec: Json | None = None, **status: Any) -> Json:
    """Build a pod of the group ``train-abc`` as LWS names and labels it."""
    return {
        "metadata": {
            "name": "train-abc-0" if host == 0 else f"train-abc-0-{host}",
            "uid": f"uid-{host}",
            "labels": {"leaderworkerset.sigs.k8s.io/worker-index": str(host)},
        },
        "spec": {"containers": [{"name": "main", "image": IMAGE}], **(spec or {})},
        "status": status,
    }


def waiting(reason: str, message: str = "", *, restarts: int = 0, last: Json | None = None, **more: Any) -> Json:
    """Build a pending pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    status = {
        "name": "main",
        "restartCount": restarts,
        "state": state,
        "lastState": {"terminated": last} if last else {},
    }
    return pod(phase="Pending", containerStatuses=[status], **more)


def ended(code: int, reason: str = "Error", message: str | None = None, *, restarts: int = 0) -> Json:
    """Build a pod whose container ended, and was started again if there are restarts."""
    terminated = {"exitCode": code, "reason": reason, "message": message}
    state, last = ({"running": {}}, terminated) if restarts else ({"terminated": terminated}, None)
    status = {"name": "main", "restartCount": restarts, "state": state, "lastState": {"terminated": last}}
    return pod(phase="Running", containerStatuses=[status])


def unscheduled(message: str, reason: str = "Unschedulable", **spec: Any) -> Json:
    """Build a pod that the scheduler has not placed."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return pod(phase="Pending", spec=spec, conditions=[condition])


def event(reason: str, message: str, about: str = "train-abc", **more: Any) -> Json:
    """Build a warning event."""
    return {"type": "Warning", "reason": reason, "message": message, "involvedObject": {"name": about}, **more}


def only(*pods: Json, **more: Any) -> Diagnosis:
    """Give the only diagnosis."""
    (found,) = diagnose(pods, **more)
    return found


GROUP: Json = {"metadata": {"name": "train-abc"}, "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 3}}}


@pytest.mark.parametrize(
    "healthy",
    [
        pod(),
        pod(phase="Pending", conditions=[{"type": "PodScheduled", "status": "True"}]),
        waiting("ContainerCreating"),
        waiting("PodInitializing"),
        pod(phase="Running", containerStatuses=[{"name": "main", "state": {"running": {}}, "restartCount": 0}]),
        ended(0, "Completed"),
        ended(0, "Completed", restarts=1),
        waiting("CrashLoopBackOff", restarts=1, last={"exitCode": 0, "reason": "Completed"}),
        pod(phase="Running", conditions=[{"type": "DisruptionTarget", "status": "False"}]),
    ],
    ids=[
        "new",
        "scheduled",
        "creating",
        "initialising",
        "running",
        "ended",
        "holding",
        "about-to-hold",
        "no-disruption",
    ],
)
def test_nothing_is_wrong(healthy: Json) -> None:
    """A pod on its way, running, ended well or holding its outcome gives no diagnosis."""
    assert diagnose([healthy]) == ()


def test_one_failed_pull_may_pass() -> None:
    """ErrImagePull names the image and is not permanent."""
    assert only(waiting("ErrImagePull", "rpc error: manifest unknown")) == Diagnosis(
        category=Category.IMAGE_PULL,
        pod="train-abc-0",
        host=0,
        summary="pod train-abc-0 cannot pull image example.test/train:1 (ErrImagePull)",
        detail="ErrImagePull: rpc error: manifest unknown",
        resolution="Push example.test/train:1, or correct its name and tag (base_image).",
        permanent=False,
    )


def test_back_off_of_a_pull_is_permanent() -> None:
    """ImagePullBackOff comes after repeated failures, so waiting is not expected to help."""
    found = only(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))
    assert found.permanent
    assert found.resolution == (
        "Check the name and tag of image example.test/train:1 (base_image), and that the node may read its registry."
    )


def test_a_repeated_pull_stays_permanent_between_two_tries() -> None:
    """ErrImagePull between two back-offs is permanent too: the BackOff event tells that it is a repeated one."""
    back_off = event("BackOff", f'Back-off pulling image "{IMAGE}"', "train-abc-0", count=3)
    assert only(waiting("ErrImagePull", "not found"), events=[back_off]).permanent


@pytest.mark.parametrize(
    ("message", "resolution"),
    [
        (
            "401 Unauthorized",
            f"Give the pull secret robot the right to read {IMAGE}, or correct the image's name (base_image).",
        ),
        ("no match for platform in manifest", f"Build {IMAGE} for the node's architecture."),
        ("toomanyrequests: limit", f"Wait, or pull {IMAGE} from a mirror: its registry limits the rate."),
        (
            "dial tcp: lookup example.test: no such host",
            f"Check that the nodes reach the registry of {IMAGE}: its name, DNS and firewall.",
        ),
        ("failed to resolve: not found", f"Push {IMAGE}, or correct its name and tag (base_image)."),
    ],
)
def test_the_registry_answer_decides_the_advice(message: str, resolution: str) -> None:
    """What to do about a failed pull follows from the registry's words."""
    status = {"name": "main", "state": {"waiting": {"reason": "ImagePullBackOff", "message": message}}}
    target = pod(phase="Pending", spec={"imagePullSecrets": [{"name": "robot"}]}, containerStatuses=[status])
    assert only(target).resolution == resolution


def test_a_pull_without_secret_says_so() -> None:
    """An unauthorized pull of a pod without pull secrets says that it has none."""
    found = only(waiting("ErrImagePull", "pull access denied"))
    assert found.resolution.startswith("Give the node or service account (the pod has no pull secret) the right")


@pytest.mark.parametrize(
    ("reason", "message", "category", "permanent", "summary"),
    [
        ("InvalidImageName", "", "image-name", True, f"pod train-abc-0: {IMAGE} is not a valid image name"),
        (
            "ErrImageNeverPull",
            "",
            "image-pull",
            True,
            f"pod train-abc-0: image {IMAGE} is not on the node and its pull policy is Never",
        ),
        (
            "CreateContainerConfigError",
            'secret "token" not found',
            "config",
            True,
            "pod train-abc-0, container main: Secret token does not exist",
        ),
        (
            "CreateContainerConfigError",
            'configmap "settings" not found',
            "config",
            True,
            "pod train-abc-0, container main: ConfigMap settings does not exist",
        ),
        (
            "CreateContainerConfigError",
            "couldn't find key password in Secret team/token",
            "config",
            True,
            "pod train-abc-0, container main: Secret token has no key password",
        ),
        (
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root",
            "config",
            True,
            "pod train-abc-0, container main: its configuration cannot be resolved",
        ),
        (
            "CreateContainerError",
            "no command specified",
            "cannot-create",
            True,
            f"pod train-abc-0: container main of image {IMAGE} cannot be created",
        ),
        (
            "CreateContainerError",
            "context deadline exceeded",
            "cannot-create",
            False,
            f"pod train-abc-0: container main of image {IMAGE} cannot be created",
        ),
        (
            "RunContainerError",
            'exec: "python3": executable file not found in $PATH',
            "cannot-start",
            True,
            f"pod train-abc-0: container main of image {IMAGE} cannot be started",
        ),
        ("SomethingNew", "odd", "unknown", False, "pod train-abc-0: container main waits (SomethingNew)"),
    ],
)
def test_waiting_containers(reason: str, message: str, category: str, permanent: bool, summary: str) -> None:
    """Every reason for waiting has its category, its permanence and a summary with the names in it."""
    found = only(waiting(reason, message))
    assert (found.category, found.permanent, found.summary) == (category, permanent, summary)
    assert found.detail == f"{reason}: {message}".removesuffix(": ")


@pytest.mark.parametrize(
    ("message", "resolution"),
    [
        ('secret "token" not found', "Create Secret token in the namespace of the run, or correct env=."),
        ("couldn't find key a in ConfigMap team/settings", "Add the key a to ConfigMap settings, or correct env=."),
    ],
)
def test_missing_configuration_says_what_to_create(message: str, resolution: str) -> None:
    """A missing Secret, ConfigMap or key is named in the advice."""
    assert only(waiting("CreateContainerConfigError", message)).resolution == resolution


def test_an_init_container_is_looked_at_too() -> None:
    """The waiting reason of an init container is told with its own image."""
    status = {"name": "kr-kfp", "state": {"waiting": {"reason": "ImagePullBackOff", "message": ""}}}
    spec = {"initContainers": [{"name": "kr-kfp", "image": "example.test/launcher:2"}]}
    found = only(pod(1, phase="Pending", spec=spec, initContainerStatuses=[status]))
    assert (found.pod, found.host) == ("train-abc-0-1", 1)
    assert found.summary == "pod train-abc-0-1 cannot pull image example.test/launcher:2 (ImagePullBackOff)"


@pytest.mark.parametrize(
    ("code", "reason", "category", "permanent", "summary"),
    [
        (1, "Error", "exit", True, "pod train-abc-0: container main ended with exit code 1"),
        (126, "Error", "cannot-start", True, "pod train-abc-0: the command of container main is not executable"),
        (127, "Error", "cannot-start", True, "pod train-abc-0: a command of container main was not found in image"),
        (
            128,
            "StartError",
            "cannot-start",
            True,
            f"pod train-abc-0: container main of image {IMAGE} cannot be started",
        ),
        (128, "ContainerCannotRun", "cannot-start", True, "pod train-abc-0: container main of image"),
        (
            134,
            "Error",
            "signal",
            True,
            "pod train-abc-0: native code of container main aborted (SIGABRT, exit code 134)",
        ),
        (135, "Error", "signal", True, "pod train-abc-0: container main died of a bus error (SIGBUS, exit code 135)"),
        (137, "Error", "signal", False, "pod train-abc-0: container main was killed (SIGKILL, exit code 137)"),
        (137, "OOMKilled", "out-of-memory", True, "pod train-abc-0: the kernel killed container main for memory"),
        (137, "ContainerStatusUnknown", "node-lost", False, "pod train-abc-0: its node no longer knows how"),
        (
            139,
            "Error",
            "signal",
            True,
            "pod train-abc-0: native code of container main crashed (SIGSEGV, exit code 139)",
        ),
        (143, "Error", "signal", False, "pod train-abc-0: container main was asked to stop (SIGTERM, exit code 143)"),
        (136, "Error", "signal", True, "pod train-abc-0: container main was ended by SIGFPE (exit code 136)"),
        (170, "Error", "signal", True, "pod train-abc-0: container main was ended by signal 42 (exit code 170)"),
        (255, "Error", "exit", True, "pod train-abc-0: container main ended with exit code 255"),
        (1, "NewReason{x}", "unknown", False, "pod train-abc-0: container main ended (NewReason{x})"),
    ],
)
@pytest.mark.parametrize("restarts", [0, 1], ids=["first-start", "holding"])
def test_ended_containers(restarts: int, code: int, reason: str, category: str, permanent: bool, summary: str) -> None:
    """The end is told from ``state`` and, once the kubelet has restarted the container, from ``lastState``."""
    found = only(ended(code, reason, restarts=restarts))
    assert (found.category, found.permanent) == (category, permanent)
    assert found.summary.startswith(summary)
    assert found.detail == f"{reason}, exit code {code}"


def test_memory_advice_keeps_its_braces() -> None:
    """The advice of a row may hold braces: it is a template and must not eat them."""
    assert only(ended(137, "OOMKilled")).resolution == (
        "Raise the memory limit (set_memory_limit), use a smaller batch, or set retry_on={'oom'}."
    )


def test_our_own_termination_message_is_read() -> None:
    """An outcome in the termination message becomes its headline, not a line of JSON."""
    error = ErrorInfo(type="ValueError", message="no data\nat all")
    message = outcome_message(Outcome(kind="exception", host=0, code=1, error=error))
    assert only(ended(1, message=message)).detail == "Error, exit code 1: ValueError: no data"


@pytest.mark.parametrize("message", ['{"v": 99, "kind": "ok"}', '{"v": 1, "kind": "ok", "x": 2}', "{", "[]", "null"])
def test_foreign_termination_messages_are_only_text(message: str) -> None:
    """A termination message of another protocol or program is quoted as it is."""
    assert only(ended(1, message=message)).detail == f"Error, exit code 1: {message}"


@pytest.mark.parametrize(
    ("restarts", "last", "category"),
    [
        (1, {"exitCode": 1, "reason": "Error"}, "exit"),
        (2, {"exitCode": 1, "reason": "Error"}, "crash-loop"),
        (5, {"exitCode": 137, "reason": "OOMKilled"}, "out-of-memory"),
        (5, {"exitCode": 127, "reason": "Error"}, "cannot-start"),
        (0, None, "crash-loop"),
    ],
    ids=["first-restart-is-the-plan", "again", "memory", "no-python3", "no-last-state"],
)
def test_crash_loops(restarts: int, last: Json | None, category: str) -> None:
    """A crash loop is told by what ended the container; only a second restart of a plain exit is a loop."""
    assert only(waiting("CrashLoopBackOff", "back-off 10s", restarts=restarts, last=last)).category == category


@pytest.mark.parametrize("null", [None, []], ids=["null", "empty"])
@pytest.mark.parametrize("host", [0, 2])
def test_an_evicted_pod_has_no_container_statuses(host: int, null: object) -> None:
    """Case 21: reason and message come from the pod, all lists of its status may be null."""
    status: Json = {
        "phase": "Failed",
        "reason": "Evicted",
        "message": "The node was low on resource: ephemeral-storage.",
        "conditions": null,
        "containerStatuses": null,
        "initContainerStatuses": null,
    }
    found = only(pod(host, **status))
    name = "train-abc-0" if host == 0 else "train-abc-0-2"
    assert (found.category, found.host, found.permanent) == (Category.EVICTED, host, False)
    assert found.summary == f"pod {name} was evicted from its node"
    assert found.detail == "Evicted: The node was low on resource: ephemeral-storage."


@pytest.mark.parametrize(
    ("reason", "category", "permanent"),
    [
        ("NodeShutdown", "node-shutdown", False),
        ("Shutdown", "node-shutdown", False),
        ("Terminated", "node-shutdown", False),
        ("NodeLost", "node-lost", False),
        ("Preempting", "preempted", False),
        ("DeadlineExceeded", "deadline", True),
        ("UnexpectedAdmissionError", "admission", False),
        ("NodeAffinity", "admission", False),
        ("OutOfcpu", "admission", False),
        ("OutOfgoogle.com/tpu", "admission", False),
        ("Novelty", "unknown", False),
        ("", "unknown", False),
    ],
)
def test_failed_pods(reason: str, category: str, permanent: bool) -> None:
    """A pod that failed as a whole is told by its own reason, whatever its containers say."""
    container = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    found = only(pod(phase="Failed", reason=reason, message="because", containerStatuses=[container]))
    assert (found.category, found.permanent) == (category, permanent)
    assert found.detail == f"{reason}: because".removeprefix(": ")


def test_a_failed_pod_without_any_reason_is_told_by_its_container() -> None:
    """Phase Failed alone says nothing: the container's end does."""
    container = {"name": "main", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    assert only(pod(phase="Failed", containerStatuses=[container])).category == Category.EXIT


def test_phase_unknown_is_a_lost_node() -> None:
    """A pod in phase Unknown sits on a node that does not answer."""
    found = only(pod(phase="Unknown"))
    assert (found.category, found.detail) == (Category.NODE_LOST, "Unknown")


@pytest.mark.parametrize(
    ("reason", "category"),
    [
        ("PreemptionByScheduler", "preempted"),
        ("DeletionByTaintManager", "node-lost"),
        ("DeletionByPodGC", "node-lost"),
        ("EvictionByEvictionAPI", "evicted"),
        ("TerminationByKubelet", "node-shutdown"),
        ("WorkloadEvicted", "disrupted"),
        (None, "disrupted"),
    ],
)
def test_disruptions(reason: str | None, category: str) -> None:
    """DisruptionTarget explains a container that was killed."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "text"}
    container = {"name": "main", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}
    found = only(pod(phase="Running", conditions=[condition], containerStatuses=[container]))
    assert (found.category, found.permanent) == (category, False)
    assert found.resolution.startswith("Let the group restart")


@pytest.mark.parametrize(
    ("message", "summary", "resolution"),
    [
        (
            "0/5 nodes are available: 5 Insufficient google.com/tpu. preemption: 0/5 nodes are available.",
            "no node can take pod train-abc-0 now: not enough free google.com/tpu",
            "Wait for nodes with free google.com/tpu, or add some.",
        ),
        (
            "0/5 nodes are available: 5 node(s) didn't match Pod's node affinity/selector.",
            (
                "no node can take pod train-abc-0 now: some nodes do not match its selector "
                "(cloud.google.com/gke-tpu-topology=4x4)"
            ),
            "Add a node pool with cloud.google.com/gke-tpu-topology=4x4, or correct accelerator=.",
        ),
        (
            "0/3 nodes are available: 3 node(s) had untolerated taint {google.com/tpu: present}.",
            "no node can take pod train-abc-0 now: a taint keeps it out (google.com/tpu: present)",
            "Tolerate the taint google.com/tpu: present (kfp-kubernetes add_toleration).",
        ),
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint(s) {dedicated: }, 2 Insufficient cpu.",
            "no node can take pod train-abc-0 now: not enough free cpu; a taint keeps it out (dedicated)",
            "Wait for nodes with free cpu, or add some.",
        ),
        (
            '0/3 nodes are available: persistentvolumeclaim "data" not found.',
            "no node can take pod train-abc-0 now: PersistentVolumeClaim data does not exist",
            "Create PersistentVolumeClaim data.",
        ),
        (
            "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules.",
            "no node can take pod train-abc-0 now: its topology is taken by another group",
            "Wait for a free node pool, or add one.",
        ),
        ("no nodes", "no node can take pod train-abc-0 now", "Look at the nodes: kubectl describe nodes."),
        (
            "{odd} {0}",
            "no node can take pod train-abc-0 now",
            "Look at the nodes: kubectl describe nodes.",
        ),
    ],
)
def test_unschedulable(message: str, summary: str, resolution: str) -> None:
    """Unschedulable never is permanent; the scheduler's message is kept and its causes are named."""
    found = only(unscheduled(message, nodeSelector={"cloud.google.com/gke-tpu-topology": "4x4"}))
    assert found == Diagnosis(
        category=Category.UNSCHEDULABLE,
        pod="train-abc-0",
        host=0,
        summary=summary,
        detail=f"Unschedulable: {message}",
        resolution=resolution,
        permanent=False,
    )


def test_a_gated_pod_waits_for_its_queue() -> None:
    """A scheduling gate is the queue's, not a lack of nodes."""
    assert only(unscheduled("Scheduling is blocked", "SchedulingGated")).category == Category.GATED


FORBIDDEN = 'create Pod train-abc-0 in StatefulSet train-abc failed error: pods "train-abc-0" is forbidden: '


@pytest.mark.parametrize(
    ("message", "category", "permanent", "summary"),
    [
        (
            'error looking up service account team/robot: serviceaccount "robot" not found',
            "service-account",
            True,
            "pod train-abc-0 cannot be created: service account robot does not exist",
        ),
        (
            "exceeded quota: team-quota, requested: google.com/tpu=4, used: google.com/tpu=4",
            "quota",
            False,
            "pod train-abc-0 cannot be created: quota team-quota is used up",
        ),
        (
            "failed quota: team-quota: must specify limits.memory for: main",
            "quota",
            True,
            "pod train-abc-0 cannot be created: quota team-quota wants requests or limits that the pod does not have",
        ),
        (
            'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
            "pod-security",
            True,
            "pod train-abc-0 cannot be created: it violates the namespace's Pod Security level restricted:latest",
        ),
        ("no", "forbidden", False, "a pod of train-abc-0 cannot be created"),
    ],
)
def test_pods_that_are_refused(message: str, category: str, permanent: bool, summary: str) -> None:
    """Case 25: the only hint at a pod that is never made is an event on its controller."""
    found = only(events=[event("FailedCreate", FORBIDDEN + message)], group=GROUP)
    assert (found.category, found.permanent, found.summary, found.pod) == (category, permanent, summary, "train-abc-0")
    assert found.host == 0
    assert found.detail == f"FailedCreate: {FORBIDDEN}{message}"


@pytest.mark.parametrize(
    ("level", "resolution"),
    [
        (
            "restricted:latest",
            "Write pod_security='restricted' for the step. If it is written already, take from the task what the detail "
            "names.",
        ),
        ("baseline:v1.30", "Take from the task what the detail names, or run it in another namespace."),
    ],
)
def test_what_lets_a_pod_pass(level: str, resolution: str) -> None:
    """A level that kr_kfp has a setting for is answered by it."""
    found = only(events=[event("FailedCreate", f'{FORBIDDEN}violates PodSecurity "{level}": hostPath')], group=GROUP)
    assert found.resolution == resolution


@pytest.mark.parametrize("verb", ["create", "Create"])
def test_a_refused_worker_is_told_by_its_index(verb: str) -> None:
    """The host of a pod that was never made follows from its name; its StatefulSet has the name of the leader's pod."""
    message = f"{verb} Pod train-abc-0-2 in StatefulSet train-abc-0 failed error: exceeded quota: q, requested: cpu=1"
    found = only(pod(0), pod(1), events=[event("FailedCreate", message, "train-abc-0")], group=GROUP)
    assert (found.pod, found.host) == ("train-abc-0-2", 2)


def test_a_pod_that_was_made_at_a_later_try_is_no_problem() -> None:
    """FailedCreate about a pod that exists is history."""
    assert diagnose([pod(0)], events=[event("FailedCreate", FORBIDDEN + "exceeded quota: q, x")]) == ()


def test_equal_events_are_told_once() -> None:
    """A controller repeats its event with every try."""
    assert len(diagnose([], events=[event("FailedCreate", FORBIDDEN + "no")] * 3)) == 1


@pytest.mark.parametrize(
    ("reason", "category"),
    [("FailedMount", "volume"), ("FailedAttachVolume", "volume"), ("FailedCreatePodSandBox", "sandbox")],
)
def test_events_of_a_pod_that_has_not_started(reason: str, category: str) -> None:
    """A pod stuck in ContainerCreating says why only through events; both event APIs are read."""
    stuck = waiting("ContainerCreating")
    note = {"type": "Warning", "reason": reason, "note": 'secret "s" not found', "regarding": {"name": "train-abc-0"}}
    for told in (event(reason, 'secret "s" not found', "train-abc-0"), note):
        found = only(stuck, events=[told])
        assert (found.category, found.host, found.detail) == (category, 0, f'{reason}: secret "s" not found')


def test_events_of_a_running_pod_are_history() -> None:
    """A mount that failed before the container ran does not matter any more."""
    running = pod(phase="Running", containerStatuses=[{"name": "main", "state": {"running": {"startedAt": "x"}}}])
    assert diagnose([running], events=[event("FailedMount", "late", "train-abc-0")]) == ()


@pytest.mark.parametrize(
    ("reason", "kind"), [("Pulled", "Normal"), ("FailedMount", "Normal"), ("Unhealthy", "Warning")]
)
def test_other_events_say_nothing(reason: str, kind: str) -> None:
    """Events that are no warnings, or that a status tells better, are left out."""
    assert diagnose([waiting("ContainerCreating")], events=[event(reason, "x", "train-abc-0", type=kind)]) == ()


def test_hosts_without_a_pod_are_named() -> None:
    """A group of three with one pod says which hosts have none."""
    found = only(pod(1), group=GROUP)
    assert (found.category, found.pod, found.host) == (Category.NOT_CREATED, "train-abc", 0)
    assert found.summary == "group train-abc has no pod yet for hosts 0, 2 of 3"


@pytest.mark.parametrize(
    "group",
    [
        None,
        {},
        {"metadata": None, "spec": None},
        {**GROUP, "spec": {**GROUP["spec"], "replicas": 0}},
        {**GROUP, "metadata": {"name": "train-abc", "deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
    ids=["none", "empty", "null", "stopped", "deleted"],
)
def test_a_group_that_is_to_have_no_pods_misses_none(group: Json | None) -> None:
    """Between two attempts, while it is deleted, or unknown, nothing is missing."""
    assert diagnose([], group=group) == ()


def test_permanent_causes_come_first() -> None:
    """The launcher reads the first: permanent ones before others, then by host."""
    transient = unscheduled("0/1 nodes are available: 1 Insufficient cpu.")
    bad = {"name": "main", "state": {"waiting": {"reason": "InvalidImageName", "message": ""}}}
    found = diagnose([pod(2, containerStatuses=[bad]), transient, pod(1, containerStatuses=[bad])])
    assert [(d.host, d.category) for d in found] == [(1, "image-name"), (2, "image-name"), (0, "unschedulable")]


def test_a_diagnosis_reads_as_sentences() -> None:
    """The text has the summary, Kubernetes' words in brackets, and the advice."""
    assert str(only(ended(127))) == (
        "pod train-abc-0: a command of container main was not found in image example.test/train:1 (exit code 127) "
        "(Error, exit code 127). Use an image (base_image) that has sh and python3."
    )


def test_long_messages_are_cut() -> None:
    """A detail holds at most 1,000 characters on one line."""
    detail = only(unscheduled("x\ny" * 2000)).detail
    assert len(detail) == 1000
    assert detail.startswith("Unschedulable: x yx y")
    assert detail.endswith(" ...")


ODD: list[Any] = [None, [], {}, "text", 0, [None], {"name": None}]


@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
@pytest.mark.parametrize(
    "field",
    [
        "metadata",
        "spec",
        "status",
        "metadata.name",
        "metadata.labels",
        "spec.containers",
        "spec.initContainers",
        "spec.nodeSelector",
        "spec.imagePullSecrets",
        "status.phase",
        "status.reason",
        "status.conditions",
        "status.containerStatuses",
        "status.initContainerStatuses",
    ],
)
def test_no_shape_of_a_status_crashes(field: str, odd: Any) -> None:
    """Every field may be missing, null or of another type (cases 21 and 22)."""
    target = waiting("ImagePullBackOff", "denied")
    *path, last = field.split(".")
    inner = target
    for key in path:
        inner = inner[key]
    inner[last] = odd
    assert len(diagnose([target], group=GROUP, events=[{}, {"involvedObject": odd, "reason": "FailedCreate"}])) >= 1


@pytest.mark.parametrize("odd", ODD, ids=json.dumps)
@pytest.mark.parametrize("field", ["state", "lastState", "restartCount", "name", "image"])
def test_no_shape_of_a_container_status_crashes(field: str, odd: Any) -> None:
    """The fields of a container status may be of any type too."""
    status = {"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {}}}
    assert len(diagnose([pod(containerStatuses=[{**status, field: odd}])])) <= 1
