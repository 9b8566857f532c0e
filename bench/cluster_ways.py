"""Three ways to run the same function on the same hosts to its end, as bench/cluster.py compares them."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster_seen import Life, Meter, Recorder, life, of_pod

import kr_kfp
from kr_kfp.spec.rights import RULES
from tests.cluster import cgroups
from tests.cluster.groups import LWS
from tests.cluster.images import TRAIN_IMAGE
from tests.cluster.kfp_pod import KfpPod
from tests.cluster.kfp_run import allow
from tests.cluster.launch import Launching, in_images
from tests.cluster.pki import Account
from tests.cluster.processes import wait_for
from tests.cluster.rest import Json

LIMIT = 400.0
"""Seconds after which a round is given up."""

HERE = Path(__file__).parent


def work(address: str, seconds: float) -> None:
    """Tell when it starts and ends, and be busy in between."""
    import socket
    import time

    def tell(what: str) -> None:
        host, port = address.rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"{socket.gethostname()} {what} {time.time()}\n".encode())

    tell("start")
    time.sleep(seconds)
    tell("end")


def step(hosts: int) -> Any:
    """Give the function as a step in this cluster's images."""
    return in_images(kr_kfp.component(hosts=hosts, framework="none")(work))


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run of one way.

    Args:
        life: The group's, as watches saw it.
        started: Start of the launcher.
        end: When the last host's work was done for the first time, by its own clock.
        exited: End of the launcher.
        starts: Most starts of user code on one host.
        rss_mb: The launcher's most resident memory.
        cpu_s: The launcher's processor seconds.
    """

    life: Life
    started: float
    end: float
    exited: float
    starts: int
    rss_mb: float
    cpu_s: float
    code: int = 0
    """The launcher's exit code: every run ends well, whatever it says."""

    @property
    def start_s(self) -> float:
        """Launcher start to LeaderWorkerSet accepted."""
        return self.life.accepted - self.started

    @property
    def running_s(self) -> float:
        """LeaderWorkerSet accepted to all hosts running."""
        return self.life.running - self.life.accepted

    @property
    def noticed_s(self) -> float:
        """Last host's end to the deletion being asked for."""
        return self.life.deleting - self.end

    @property
    def completion_s(self) -> float:
        """Last host's end to the launcher's exit."""
        return self.exited - self.end

    @property
    def delete_s(self) -> float:
        """Deletion asked for to the last pod gone."""
        return self.life.gone - self.life.deleting


@dataclass(slots=True, kw_only=True)
class Lab:
    """What all ways share.

    Args:
        launching: A KFP run in a namespace of the cluster.
        recorder: What hosts report to.
        folder: For files.
        hosts: Hosts of a group.
        seconds: For how long user code is busy.
    """

    launching: Launching
    recorder: Recorder
    folder: Path
    hosts: int
    seconds: float
    manifest: Json = field(default_factory=dict)
    """The LeaderWorkerSet that kr_kfp made, without what belongs to that run."""

    def kr_kfp_pod(self) -> tuple[KfpPod, Meter]:
        """Start the launcher in a pod of KFP's shape."""
        pod = self.launching.start(step(self.hosts), address=self.recorder.address, seconds=self.seconds)
        cgroup = cgroups.ROOT / ("" if cgroups.unified() else "memory") / self.launching.run.space.cluster.places.cgroup
        return pod, Meter(of_pod(cgroup, pod.uid)).start()

    def kr_kfp(self, meter: Meter, pod: KfpPod) -> None:
        """Wait for the launcher's end.

        Raises:
            RuntimeError: If the step failed; with its log.
        """
        ended = pod.wait(seconds=LIMIT)
        if ended.code:
            raise RuntimeError(pod.log())
        meter.wait(10)
        pod.delete(grace_seconds=0)

    def keep_manifest(self, group: Json) -> None:
        """Keep what another way applies: the same LeaderWorkerSet under another name, owned by nobody."""
        metadata = {key: group["metadata"].get(key, {}) for key in ("labels", "annotations")}
        self.manifest = {
            "apiVersion": group["apiVersion"],
            "kind": group["kind"],
            "metadata": {"name": "by-kubectl", **metadata},
            "spec": group["spec"],
        }

    def account(self, name: str) -> Path:
        """Make an account with a launcher's rights, and its kubeconfig."""
        space = self.launching.run.space
        space.create_object("serviceaccounts", {"metadata": {"name": name}})
        allow(space, name, [rule.to_json() for rule in RULES], account=name)
        made = Account(user=name, token=space.kubectl("create", "token", name).strip())
        file = self.folder / f"{name}.kubeconfig"
        places = space.cluster.places
        authority = space.cluster.plane.authority.certificate
        file.write_text(made.kubeconfig(places.server, authority), encoding="utf-8")
        return file

    def kubectl(self, kubeconfig: Path, *, manifest: Json, live: list[int]) -> None:
        """Apply a manifest, watch the pods until all hosts have ended, and delete it."""
        space = self.launching.run.space
        program = space.cluster.programs.bin / "kubectl"
        cache = self.folder / "kubectl-cache"
        base = [str(program), f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}", f"--namespace={space.name}"]
        name = manifest["metadata"]["name"]

        def run(*words: str, text: str = "") -> None:
            with subprocess.Popen(
                [*base, *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
            ) as child:
                live.append(child.pid)
                child.communicate(text)
                if child.returncode:
                    msg = f"kubectl {words[0]} ended with {child.returncode}"
                    raise RuntimeError(msg)

        run("apply", "--filename=-", text=json.dumps(manifest))
        status = ".status.containerStatuses[0]"
        fields = f"{{.metadata.name}}|{{{status}.state.terminated.exitCode}}|{{{status}.lastState.terminated.exitCode}}"
        words = ["get", "pods", f"--selector={LWS}/name={name}", "--watch", f'--output=jsonpath={fields}{{"\\n"}}']
        with subprocess.Popen([*base, *words], stdout=subprocess.PIPE, text=True) as child:
            live.append(child.pid)
            ended = set()
            for line in child.stdout or ():
                pod, *codes = line.strip().split("|")
                if any(codes):
                    ended.add(pod)
                if len(ended) == self.hosts:
                    break
            child.kill()
        run("delete", "leaderworkerset", name)

    def predecessor(self, kubeconfig: Path) -> subprocess.Popen[bytes]:
        """Start the predecessor's launcher: its own manifest, its own policy, user code as the container's command."""
        manifest = self.folder / "predecessor.json"
        code = f"{inspect.getsource(work)}\nwork({self.recorder.address!r}, {self.seconds})"
        container = {"name": "main", "image": TRAIN_IMAGE, "command": ["python3", "-u", "-c", code]}
        template = {
            "size": self.hosts,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "workerTemplate": {"spec": {"containers": [container]}},
        }
        spec = {"replicas": 1, "leaderWorkerTemplate": template}
        head = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        body = {**head, "metadata": {"name": "by-predecessor"}, "spec": spec}
        manifest.write_text(json.dumps(body), encoding="utf-8")
        words = [sys.executable, str(HERE / "predecessor.py"), str(kubeconfig), self.launching.run.space.name]
        return subprocess.Popen([*words, str(manifest)])


def seen(lab: Lab, way: Callable[[], Meter]) -> Round:
    """Run one way to its end and put together what was seen of it."""
    space = lab.launching.run.space
    with space.watch("leaderworkersets") as groups, space.watch("pods") as pods:
        meter = way()
        wait_for(
            "all of the group gone", lambda: not lab.launching.hosts() and not lab.launching.groups(), seconds=LIMIT
        )
        time.sleep(0.2)  # the watches' last lines
        if not lab.manifest:
            lab.keep_manifest(groups.changes[0].object)
        found = life(groups, pods)
    made = Round(
        life=found,
        started=meter.started,
        end=lab.recorder.end(found.name),
        exited=meter.ended,
        starts=max(lab.recorder.starts(found.name).values()),
        rss_mb=meter.rss_mb,
        cpu_s=meter.cpu_s,
    )
    lab.recorder.forget(found.name)
    return made


def kr_kfp_way(lab: Lab) -> Round:
    """Run once by kr_kfp."""

    def way() -> Meter:
        pod, meter = lab.kr_kfp_pod()
        lab.kr_kfp(meter, pod)
        return meter

    return seen(lab, way)


def kubectl_way(lab: Lab, kubeconfig: Path) -> Round:
    """Run once by kubectl."""

    def way() -> Meter:
        live: list[int] = []
        meter = Meter(lambda: live).start()
        begun = time.time()
        lab.kubectl(kubeconfig, manifest=lab.manifest, live=live)
        meter.ended = time.time()
        meter.stop()
        meter.started = begun
        return meter

    return seen(lab, way)


def predecessor_way(lab: Lab, kubeconfig: Path) -> Round:
    """Run once in the predecessor's way."""
    codes: list[int] = []

    def way() -> Meter:
        child = lab.predecessor(kubeconfig)
        meter = Meter(lambda: [child.pid]).start()
        try:
            codes.append(child.wait(LIMIT))
        finally:
            child.kill()
        meter.wait(10)
        return meter

    made = seen(lab, way)
    return replace(made, code=codes[0])
