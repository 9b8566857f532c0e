"""A pod of KFP's shape: it runs a step's command exactly as KFP's back end and Argo run it, without either.

What it imitates was observed on KFP 2.17 with Argo 4.0.5 (source: kubeflow/pipelines 7b70c7b95f,
argo-workflows v4.0.5), unless "(source)" says that it was read in their Go code.

| fact | here |
|---|---|
| process 1 of ``main`` is Argo's emissary; its child is KFP's launcher, leader of a process group; its child is the component's command, in that group | `kfp-shape emissary`, `kfp-shape launcher` (go/kfp/main.go), put into the pod by an init container, as theirs are |
| SIGTERM goes to the whole group: KFP's launcher dies at once, the emissary looks once a second and ends, and with process 1 everything is killed; a Python command has 0 to 1 s and prints into broken pipes | the same programs' work: no handler in the launcher, one look a second in the emissary, output through a pipe |
| ``terminate_run``: Argo signals by exec, the pod stays and fails; with the annotation ``workflows.argoproj.io/kill-cmd-main`` that command runs instead, ``%d`` being the signal; it comes again about every 10 s | `KfpPod.terminate` |
| a deleted executor pod is made again by Argo: other UID, same execution id and output URIs, no flag; in the first seconds under the same name, later under another | `KfpPod.again` |
| every failing program shows as exit code 1 | the launcher's exit code |
| ``/dev/termination-log`` of the program is the pod's message | nothing to do: it is Kubernetes' own |
| labels ``pipeline/runid``, ``workflows.argoproj.io/workflow``; annotation ``workflows.argoproj.io/node-name``, ending in ``executor(n)``; owner: the Workflow, as controller | `KfpPod._pod`; the Workflow is a custom resource without a controller (`kfp_run.py`) |
| env: KFP_POD_NAME, KFP_POD_UID, Argo's; no run id, no namespace, no credentials | `KfpPod._main` |
| no resources on ``main`` when RESOURCES is passed through; capabilities dropped, RuntimeDefault seccomp, the image's user; restartPolicy Never, grace 30 s, Istio off | `KfpPod._main`, `KfpPod._pod` |
| containers ``wait`` and ``main``, in this order; empty folders at /gcs, /s3, /minio, /.local, /.cache, /.config (source) | the same |
| ``{{$}}`` is replaced by the ExecutorInput; defaults of parameters are in it; folders of all outputs exist | the launcher, `Step.executor_input` |
| outputs with no local file: a warning, green; a parameter without a value: the step fails | the launcher |
| an output ``executor-logs`` that the component does not declare | `Step.executor_input` |

Left out, since no step of kr_kfp's depends on it: MLMD, the download of input artifacts onto the launcher's pod, the
upload of files that lie at an output's local path, the cache.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.images import KFP_IMAGE
from tests.cluster.kfp_run import ACCOUNT, KfpRun
from tests.cluster.kfp_step import Step, as_text
from tests.cluster.processes import wait_for
from tests.cluster.rest import ApiError, Json

ARGO = "workflows.argoproj.io"
KILL = f"{ARGO}/kill-cmd-main"

_PROGRAM = "/var/run/argo/kfp-shape"
_SCRATCH = {
    "var-run-argo": "/var/run/argo",
    "tmp-dir-argo": "/tmp",
    "gcs-scratch": "/gcs",
    "s3-scratch": "/s3",
    "minio-scratch": "/minio",
    "dot-local-scratch": "/.local",
    "dot-cache-scratch": "/.cache",
    "dot-config-scratch": "/.config",
}
"""Empty folders of ``main``, by the names that Argo and KFP give them."""

_AGAIN_SECONDS = 10.0
"""Between two signals of Argo to a program that has not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How ``main`` ended."""

    code: int
    reason: str
    message: str
    """What the program wrote to its termination log."""
    finished: str
    """When, by the kubelet's clock."""


@dataclass(slots=True, kw_only=True)
class KfpPod:
    """One execution of a step: one pod after the other, with the same ExecutorInput.

    Args:
        run: The run that it belongs to.
        step: What it runs.
        arguments: Values of its parameters.
        artifacts: Its input artifacts, by name.
        task_config: What was set on the task and is passed through; nothing if None.
        labels: Set on the task: they land on this pod (facts: "TaskConfig").
        annotations: The same.
        fields: Further fields of the pod's spec that were set on the task, such as imagePullSecrets.
        main: Further fields of the container ``main``.
        folders: EmptyDirs that were set on the task (kfp.kubernetes.empty_dir_mount), by name, and where they are.
        path: Where the task is in the pipeline: loops and nested pipelines, such as
            ``("for-loop-1(0)", "iteration-item(0)")``.
    """

    run: KfpRun
    step: Step
    arguments: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Json] = field(default_factory=dict)
    task_config: Json | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    fields: Json = field(default_factory=dict)
    main: Json = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    path: Sequence[str] = ()
    attempt: int = 0
    """KFP's retry of the task: the number in ``executor(n)``."""
    name: str = ""
    uid: str = ""
    executor_input: Json = field(default_factory=dict)

    def start(self) -> KfpPod:
        """Make the pod."""
        self.executor_input = self.step.executor_input(
            root=f"{self.run.root}/{self.step.name}",
            arguments=self.arguments,
            artifacts=self.artifacts,
            task_config=self.task_config,
        )
        return self._make(self._new_name())

    def again(self, *, same_name: bool = False, retry: bool = False, seconds: float = 180) -> KfpPod:
        """Make the next pod of this execution, when the present one is gone or has ended.

        Args:
            same_name: As Argo does in the first seconds of a pod, and KFP's retry of a run.
            retry: As KFP's own retry of a task: the node is the next ``executor(n)``; the failed pod stays.
            seconds: How long to wait until the present pod is gone, where the name is the same.
        """
        self.attempt += int(retry)
        if not same_name:
            return self._make(self._new_name())
        deadline = time.monotonic() + seconds
        while (found := self.read()) is not None and found["metadata"]["uid"] == self.uid:
            if time.monotonic() > deadline:
                msg = f"pod {self.name} is still there after {seconds:.0f} s"
                raise TimeoutError(msg)
            time.sleep(0.1)
        return self._make(self.name)

    def read(self) -> Json | None:
        """Read the pod as it is now; None if it is gone."""
        return self.run.space.read("pods", self.name)

    def log(self) -> str:
        """Read what ``main`` has printed."""
        return self.run.space.logs(self.name)

    def wait(self, *, seconds: float = 240) -> Ended:
        """Wait until ``main`` has ended.

        Raises:
            TimeoutError: It has not, for so long; with the pod's status and log.
        """
        deadline = time.monotonic() + seconds
        while (ended := self.ended()) is None:
            if time.monotonic() > deadline:
                status = (self.read() or {}).get("status")
                msg = f"{self.name} has not ended after {seconds:.0f} s: {json.dumps(status)}\n{self._log_if_any()}"
                raise TimeoutError(msg)
            time.sleep(0.1)
        return ended

    def ended(self) -> Ended | None:
        """Say how ``main`` ended; None while it has not, or has not started."""
        found = self.read()
        if found is None:
            msg = f"pod {self.name} is gone"
            raise LookupError(msg)
        state = _state(found)
        if "terminated" not in state:
            return None
        end = state["terminated"]
        return Ended(
            code=end["exitCode"],
            reason=end.get("reason", ""),
            message=end.get("message", ""),
            finished=end["finishedAt"],
        )

    def outputs(self) -> Json:
        """Give the executor's output, which a step that succeeded handed over (parameterValues, artifacts)."""
        text = self.run.space.logs(self.name, container="wait")
        found: Json = json.loads(text)
        return found

    def wait_for_log(self, text: str, *, seconds: float = 180) -> str:
        """Wait until ``main`` has printed a text, and give its log.

        Raises:
            TimeoutError: It has not, for so long; with the log.
        """
        deadline = time.monotonic() + seconds
        while text not in (log := self._log_if_any()):
            if time.monotonic() > deadline:
                msg = f"{self.name} has not printed {text!r} after {seconds:.0f} s:\n{log}"
                raise TimeoutError(msg)
            time.sleep(0.1)
        return log

    def terminate(self, *, seconds: float = 180) -> Ended:
        """Stop the step as Argo does when KFP terminates the run: the pod stays.

        The signal is sent at once and about every 10 s again, until ``main`` has ended.
        """
        deadline = time.monotonic() + seconds
        while (ended := self.ended()) is None:
            if time.monotonic() > deadline:
                msg = f"{self.name} goes on {seconds:.0f} s after it was terminated:\n{self._log_if_any()}"
                raise TimeoutError(msg)
            self.signal(15)
            next_signal = min(time.monotonic() + _AGAIN_SECONDS, deadline)
            while self.ended() is None and time.monotonic() < next_signal:
                time.sleep(0.1)
        return ended

    def signal(self, number: int) -> None:
        """Send one signal as Argo does: by the annotation's command if there is one, else to process 1."""
        found = self.read()
        command = ((found or {}).get("metadata", {}).get("annotations") or {}).get(KILL)
        words = json.loads(command) if command else [_PROGRAM, "kill", str(number), "1"]
        try:
            self.run.space.run_in(self.name, *(word.replace("%d", str(number), 1) for word in words))
        except RuntimeError as problem:
            # It may have ended while the command ran, and taken that along; the pod's status tells so a moment later.
            try:
                wait_for(f"the end of {self.name}", lambda: self.ended() is not None, seconds=20)
            except TimeoutError:
                raise problem from None

    def delete(self, *, grace_seconds: int | None = None) -> None:
        """Delete the pod, as a drain does."""
        options = {} if grace_seconds is None else {"gracePeriodSeconds": grace_seconds}
        self.run.space.delete("pods", self.name, **options)

    def _new_name(self) -> str:
        return f"{self.run.workflow}-system-container-impl-{secrets.randbelow(10**10):010}"

    def _log_if_any(self) -> str:
        try:
            return self.log()
        except ApiError:
            return ""  # main has not started

    def _make(self, name: str) -> KfpPod:
        made = self.run.space.create_object("pods", self._pod(name))
        self.name, self.uid = name, made["metadata"]["uid"]
        return self

    def _pod(self, name: str) -> Json:
        parts = (f"{self.run.workflow}(0)", "root(0)", *self.path, f"{self.step.name}(0)", f"executor({self.attempt})")
        labels = {
            "pipeline/runid": self.run.id,
            "pipelines.kubeflow.org/v2_component": "true",
            f"{ARGO}/workflow": self.run.workflow,
            f"{ARGO}/completed": "false",
            **self.step.labels,
            **self.labels,
        }
        annotations = {
            f"{ARGO}/node-id": name,
            f"{ARGO}/node-name": ".".join(parts),
            "kubectl.kubernetes.io/default-container": "main",
            "sidecar.istio.io/inject": "false",
            **self.step.annotations,
            **self.annotations,
        }
        owner = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "name": self.run.workflow,
            "uid": self.run.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        shared = [{"name": "var-run-argo", "mountPath": "/var/run/argo"}]
        return {
            "metadata": {"name": name, "labels": labels, "annotations": annotations, "ownerReferences": [owner]},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 30,
                "serviceAccountName": ACCOUNT,
                "initContainers": [
                    {
                        "name": "init",
                        "image": KFP_IMAGE,
                        "command": ["/kfp-shape", "copy", "/var/run/argo"],
                        "volumeMounts": shared,
                    }
                ],
                "containers": [
                    {"name": "wait", "image": KFP_IMAGE, "command": ["/kfp-shape", "wait"], "volumeMounts": shared},
                    self._main(name),
                ],
                "volumes": [{"name": volume, "emptyDir": {}} for volume in (*_SCRATCH, *self.folders)],
                **self.fields,
            },
        }

    def _main(self, name: str) -> Json:
        own = {"KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
        fields = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in own.items()]
        argo = {"ARGO_CONTAINER_NAME": "main", "ARGO_NODE_ID": name, "ARGO_INCLUDE_SCRIPT_OUTPUT": "false"}
        launcher = [_PROGRAM, "launcher", as_text(self.executor_input), "--", *self.step.words()]
        # The kubelet expands $(VAR) and $$ in what it starts; Argo and KFP hand these words to it as they are.
        return {
            "name": "main",
            "image": self.step.image,
            "command": [_PROGRAM, "emissary", "--"],
            "args": launcher,
            "env": [*fields, *({"name": key, "value": value} for key, value in argo.items())],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumeMounts": [
                {"name": volume, "mountPath": path} for volume, path in {**_SCRATCH, **self.folders}.items()
            ],
            **self.main,
        }


def _state(pod: Json) -> Json:
    statuses = pod["status"].get("containerStatuses", [])
    found: Json = next((status["state"] for status in statuses if status["name"] == "main"), {})
    return found
