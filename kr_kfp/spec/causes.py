"""The table from Kubernetes' reasons to causes: data for :mod:`kr_kfp.spec.diagnose`. Pure.

Where a row comes from is written beside each part. Texts are templates: ``{pod}``, ``{container}``, ``{image}``
and ``{reason}`` are put in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

__all__ = [
    "CONTAINER_WAITING",
    "DISRUPTIONS",
    "EVENTS",
    "EXIT_CODES",
    "POD_REASONS",
    "TERMINATED",
    "Category",
    "Rule",
]


class Category(StrEnum):
    """What kind of thing is wrong."""

    ADMISSION = "admission"
    """The node's kubelet refused the pod."""
    CANNOT_CREATE = "cannot-create"
    """The container could not be made: mount, security context, no command."""
    CANNOT_START = "cannot-start"
    """The container was made but its command could not be started."""
    CONFIG = "config"
    """A Secret, ConfigMap or one of its keys is missing."""
    CRASH_LOOP = "crash-loop"
    """A container ends again and again before anything of ours holds it."""
    DEADLINE = "deadline"
    """The pod's own ``activeDeadlineSeconds`` ended it."""
    DISRUPTED = "disrupted"
    """Kubernetes took the pod away, for another reason than those with a category of their own."""
    EVICTED = "evicted"
    """The node ran short of memory, disk or process ids, or somebody called the eviction API."""
    EXIT = "exit"
    """The container ended with an exit code of the program itself."""
    FORBIDDEN = "forbidden"
    """An admission controller refuses to let the pod be made."""
    GATED = "gated"
    """A queue holds the pod back (scheduling gates, such as Kueue's)."""
    IMAGE_NAME = "image-name"
    """The image's name cannot be parsed."""
    IMAGE_PULL = "image-pull"
    """The image cannot be pulled."""
    NODE_LOST = "node-lost"
    """The node is gone or unreachable."""
    NODE_SHUTDOWN = "node-shutdown"
    """The node is being shut down."""
    NOT_CREATED = "not-created"
    """The pod of a host does not exist yet."""
    OUT_OF_MEMORY = "out-of-memory"
    """The kernel killed the container for memory."""
    POD_SECURITY = "pod-security"
    """The namespace's Pod Security level refuses the pod."""
    PREEMPTED = "preempted"
    """A pod of higher priority, or the kubelet, took the place."""
    QUOTA = "quota"
    """The namespace's ResourceQuota is used up."""
    SANDBOX = "sandbox"
    """The pod's network or sandbox cannot be set up."""
    SERVICE_ACCOUNT = "service-account"
    """The pod's service account does not exist."""
    SIGNAL = "signal"
    """A signal ended the container."""
    UNKNOWN = "unknown"
    """A reason that is not in the table; Kubernetes' own text is in the detail."""
    UNSCHEDULABLE = "unschedulable"
    """No node can take the pod now."""
    VOLUME = "volume"
    """A volume cannot be attached or mounted."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row.

    Args:
        category: The kind of cause.
        summary: Template of the sentence that says what is wrong.
        resolution: Template of the sentence, in the imperative, that says what to do.
        permanent: Whether waiting does not cure it.
    """

    category: Category
    summary: str
    resolution: str
    permanent: bool = False


def _table(rows: Mapping[str, Rule]) -> Mapping[str, Rule]:
    return MappingProxyType(dict(rows))


_PULL = "pod {pod} cannot pull image {image} ({reason})"
_CHECK_IMAGE = "Check the name and tag of image {image} (base_image), and that the node may read its registry."

# state.waiting.reason: kubelet pkg/kubelet/images/types.go and pkg/kubelet/container/sync_result.go.
CONTAINER_WAITING = _table(
    {
        # One failed pull happens to every registry; the back-off comes after repeated ones.
        "ErrImagePull": Rule(Category.IMAGE_PULL, _PULL, _CHECK_IMAGE),
        "ImagePullBackOff": Rule(Category.IMAGE_PULL, _PULL, _CHECK_IMAGE, permanent=True),
        "RegistryUnavailable": Rule(Category.IMAGE_PULL, _PULL, "Check that the registry of {image} is up."),
        "ImageInspectError": Rule(
            Category.IMAGE_PULL,
            "pod {pod}: the node cannot inspect image {image} ({reason})",
            "Delete the broken image from the node, or use a node without it.",
        ),
        "SignatureValidationFailed": Rule(
            Category.IMAGE_PULL,
            "pod {pod}: the signature of image {image} is not accepted ({reason})",
            "Sign image {image} as the node's policy asks.",
            permanent=True,
        ),
        "ErrImageNeverPull": Rule(
            Category.IMAGE_PULL,
            "pod {pod}: image {image} is not on the node and its pull policy is Never",
            "Set the pull policy to IfNotPresent, or load image {image} onto the nodes.",
            permanent=True,
        ),
        "InvalidImageName": Rule(
            Category.IMAGE_NAME,
            "pod {pod}: {image} is not a valid image name",
            "Correct base_image: write registry/name:tag in lower case, without a scheme.",
            permanent=True,
        ),
        "CreateContainerConfigError": Rule(
            Category.CONFIG,
            "pod {pod}, container {container}: its configuration cannot be resolved",
            "Create what the detail names in the namespace of the run, or correct env=.",
            permanent=True,
        ),
        "CreateContainerError": Rule(
            Category.CANNOT_CREATE,
            "pod {pod}: container {container} of image {image} cannot be created",
            "Correct the mounts, security context or command that the detail names.",
            permanent=True,
        ),
        "RunContainerError": Rule(
            Category.CANNOT_START,
            "pod {pod}: container {container} of image {image} cannot be started",
            "Use an image (base_image) that has sh and python3 and can run on the node's architecture.",
            permanent=True,
        ),
        "CrashLoopBackOff": Rule(
            Category.CRASH_LOOP,
            "pod {pod}: container {container} ends again and again",
            "Read the log of container {container} of pod {pod}, and correct what ends it.",
            permanent=True,
        ),
        "PostStartHookError": Rule(
            Category.CANNOT_START,
            "pod {pod}: the postStart hook of container {container} failed",
            "Correct the hook, or find what adds it to the pod (a sidecar injector).",
            permanent=True,
        ),
    }
)

# state.terminated.reason: containerd's and cri-o's, as the kubelet hands them on.
TERMINATED = _table(
    {
        "OOMKilled": Rule(
            Category.OUT_OF_MEMORY,
            "pod {pod}: the kernel killed container {container} for memory (OOMKilled)",
            "Raise the memory limit (set_memory_limit), use a smaller batch, or set retry_on={{'oom'}}.",
            permanent=True,
        ),
        "StartError": CONTAINER_WAITING["RunContainerError"],
        "ContainerCannotRun": CONTAINER_WAITING["RunContainerError"],
        # The kubelet has lost sight of the container: it restarted, or the node was away (exit code 137 is made up).
        "ContainerStatusUnknown": Rule(
            Category.NODE_LOST,
            "pod {pod}: its node no longer knows how container {container} ended (ContainerStatusUnknown)",
            "Let the group restart; look at the node if it happens again.",
        ),
        "DeadlineExceeded": Rule(
            Category.DEADLINE,
            "pod {pod} ran longer than its activeDeadlineSeconds",
            "Use timeout= instead of a deadline on the pod.",
            permanent=True,
        ),
    }
)

_SHUTDOWN = Rule(
    Category.NODE_SHUTDOWN,
    "pod {pod} ended because its node is being shut down ({reason})",
    "Let the group restart on another node; set spot=False if that happens too often.",
)
_REFUSED = Rule(
    Category.ADMISSION,
    "the node refused pod {pod} ({reason})",
    "Let the pod be made anew; look at the node's devices if it happens again.",
)
_FULL = Rule(
    Category.ADMISSION,
    "the node had no room left for pod {pod} when it arrived ({reason})",
    "Let the pod be made anew; look for pods that are bound to nodes by hand if it happens again.",
)

# status.reason of a pod with phase Failed: kubelet pkg/kubelet/{eviction,nodeshutdown,lifecycle}.
POD_REASONS = _table(
    {
        "Evicted": Rule(
            Category.EVICTED,
            "pod {pod} was evicted from its node",
            "Request what the step really uses (set_memory_request) and write less to the disk.",
        ),
        "NodeShutdown": _SHUTDOWN,  # it came when the shutdown had begun
        "Shutdown": _SHUTDOWN,  # until 1.21
        "Terminated": _SHUTDOWN,  # since 1.22, with "imminent node shutdown" as message
        "NodeLost": Rule(
            Category.NODE_LOST,
            "the node of pod {pod} is lost",
            "Let the group restart on another node.",
        ),
        "Preempting": Rule(
            Category.PREEMPTED,
            "the kubelet put pod {pod} out for a critical pod",
            "Let the group restart; give the step a priority class if it happens again.",
        ),
        "DeadlineExceeded": TERMINATED["DeadlineExceeded"],
        "UnexpectedAdmissionError": _REFUSED,  # mostly a device plugin that has just restarted
        "TopologyAffinityError": _REFUSED,
        "NodeAffinity": _REFUSED,
        "NodePorts": _REFUSED,
        "TaintToleration": _REFUSED,
        "OutOf": _FULL,  # begins the reason; the resource's name follows, as in OutOfcpu or OutOfgoogle.com/tpu
    }
)

# reason of the condition DisruptionTarget: core/v1 types.go.
DISRUPTIONS = _table(
    {
        "PreemptionByScheduler": Rule(
            Category.PREEMPTED,
            "pod {pod} was preempted by a pod of higher priority",
            "Let the group restart; give the step a priority class if it happens too often.",
        ),
        "PreemptionByKubeScheduler": Rule(  # its name before 1.26
            Category.PREEMPTED,
            "pod {pod} was preempted by a pod of higher priority",
            "Let the group restart; give the step a priority class if it happens too often.",
        ),
        "DeletionByTaintManager": Rule(
            Category.NODE_LOST,
            "pod {pod} was deleted because its node has a taint that it does not tolerate",
            "Let the group restart on another node.",
        ),
        "DeletionByPodGC": Rule(
            Category.NODE_LOST,
            "pod {pod} was deleted because its node no longer exists",
            "Let the group restart on another node.",
        ),
        "EvictionByEvictionAPI": Rule(
            Category.EVICTED,
            "pod {pod} was evicted through the API, as a node drain does",
            "Let the group restart; protect the step with a PodDisruptionBudget if it happens too often.",
        ),
        "TerminationByKubelet": Rule(
            Category.NODE_SHUTDOWN,
            "the kubelet ended pod {pod}: node pressure, node shutdown or a critical pod",
            "Let the group restart.",
        ),
    }
)

# Exit codes without a reason of their own; over 128 they are 128 plus the signal's number.
EXIT_CODES: Mapping[int, Rule] = MappingProxyType(
    {
        126: Rule(
            Category.CANNOT_START,
            "pod {pod}: the command of container {container} is not executable (exit code 126)",
            "Use an image (base_image) whose python3 may be executed by the container's user.",
            permanent=True,
        ),
        127: Rule(
            Category.CANNOT_START,
            "pod {pod}: a command of container {container} was not found in image {image} (exit code 127)",
            "Use an image (base_image) that has sh and python3.",
            permanent=True,
        ),
        134: Rule(
            Category.SIGNAL,
            "pod {pod}: native code of container {container} aborted (SIGABRT, exit code 134)",
            "Read its log from the end; JAX aborts so when another host of the group has gone.",
            permanent=True,
        ),
        135: Rule(
            Category.SIGNAL,
            "pod {pod}: container {container} died of a bus error (SIGBUS, exit code 135)",
            "Give the pod more shared memory: /dev/shm is 64 MiB unless an emptyDir of medium Memory is mounted.",
            permanent=True,
        ),
        137: Rule(
            Category.SIGNAL,
            "pod {pod}: container {container} was killed (SIGKILL, exit code 137)",
            "Look at the node: SIGKILL comes from the kernel for memory, or follows a SIGTERM that was not obeyed.",
        ),
        139: Rule(
            Category.SIGNAL,
            "pod {pod}: native code of container {container} crashed (SIGSEGV, exit code 139)",
            "Read the stack that faulthandler printed into its log.",
            permanent=True,
        ),
        143: Rule(
            Category.SIGNAL,
            "pod {pod}: container {container} was asked to stop (SIGTERM, exit code 143)",
            "Look for what deleted or drained the pod; let the group restart.",
        ),
    }
)

# reason of Events of type Warning that say what no status says.
EVENTS = _table(
    {
        "FailedCreate": Rule(
            Category.FORBIDDEN,
            "a pod of {pod} cannot be created",
            "Ask for what the detail names, or change the step so that it is not needed.",
        ),
        "FailedMount": Rule(
            Category.VOLUME,
            "pod {pod}: a volume cannot be mounted",
            "Create the volume, Secret or ConfigMap that the detail names in the namespace of the run.",
        ),
        "FailedAttachVolume": Rule(
            Category.VOLUME,
            "pod {pod}: a volume cannot be attached to its node",
            "Use a volume that many nodes may mount (ReadWriteMany or ReadOnlyMany).",
        ),
        "FailedCreatePodSandBox": Rule(
            Category.SANDBOX,
            "pod {pod}: its sandbox or network cannot be set up",
            "Look at the network plugin of the node, and at its free addresses.",
        ),
    }
)
