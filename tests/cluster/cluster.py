"""A cluster that starts, grows, and stops; after a crash the next start clears what was left."""

from __future__ import annotations

import fcntl
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import build, cgroups, network, store
from tests.cluster.control_plane import NODES, ControlPlane
from tests.cluster.evidence import FOLDER, keep_cluster_logs
from tests.cluster.lws import Lws
from tests.cluster.namespaces import Namespaces
from tests.cluster.node import Node, NodeSpec, tpu_node
from tests.cluster.places import Places
from tests.cluster.processes import Process, wait_for

DEFAULT_NODES = (NodeSpec(number=0), *(tpu_node(number, pool="v5e-16") for number in range(1, 5)))
"""A node without chips, and one TPU slice of four hosts with four chips each."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A running cluster."""

    places: Places
    programs: build.Programs
    corner: Namespaces
    images: Path
    """A containerd root folder with all images."""
    nodes: dict[str, Node] = field(default_factory=dict)

    @classmethod
    def start(cls, specs: Iterable[NodeSpec] = DEFAULT_NODES, *, places: Places | None = None) -> Cluster:
        """Start a cluster with these nodes, all of them ready, and LeaderWorkerSet; build what is missing first."""
        places = places or Places()
        programs = build.programs()
        images = store.store(programs)
        with build.locked(places.lock):
            refuse_if_used(places)
            clear(places)
            try:
                return cls._start(places, programs, images, tuple(specs))
            except BaseException:
                keep_cluster_logs(places, FOLDER / time.strftime("start-%Y%m%d-%H%M%S"))
                clear(places)
                raise

    @classmethod
    def _start(cls, places: Places, programs: build.Programs, images: Path, specs: tuple[NodeSpec, ...]) -> Cluster:
        places.state.mkdir(parents=True, mode=0o755)
        cgroups.create(places.cgroup)
        corner = Namespaces.create(pause=programs.bin / "pause", logs=places.logs, cgroup=places.cgroup)
        corner.holder.record(places.state / "holder.pid")
        cluster = cls(places=places, programs=programs, corner=corner, images=images)
        cluster._hide_writes()
        network.connect(places, corner)
        plane = cluster.plane
        plane.prepare()
        (places.state / "cni").mkdir()
        (places.state / "cni" / "pods.conflist").write_text(network.plugin_config(places), encoding="utf-8")
        with ThreadPoolExecutor() as pool:
            nodes = [pool.submit(cluster._prepare_node, spec) for spec in specs]
            plane.start()
            lws = pool.submit(Lws(plane=plane, manifests=programs.lws_manifests).start)
            for prepared in nodes:
                node = prepared.result()
                node.start_kubelet()
                cluster.nodes[node.spec.name] = node
            for node in cluster.nodes.values():
                cluster._finish_node(node)
            lws.result()
        for name in cluster.nodes:
            wait_for(f"readiness of {name}", lambda name=name: cluster._ready(name), hint=f"See {places.logs}.")  # type: ignore[misc]
        (places.state / "ready").write_text(str(images), encoding="utf-8")
        return cluster

    @classmethod
    def running(cls, *, places: Places | None = None) -> Cluster | None:
        """Find the cluster that runs, if one does, its start was completed, and programs and images are today's."""
        places = places or Places()
        holder, ready = Process.read(places.state / "holder.pid"), places.state / "ready"
        if holder is None or not ready.exists():
            return None
        programs = build.programs()
        images = store.place(programs)
        if ready.read_text(encoding="utf-8") != str(images):
            return None
        corner = Namespaces(holder=holder, logs=places.logs)
        cluster = cls(places=places, programs=programs, corner=corner, images=images)
        for path in sorted(places.state.glob("node-*/spec.json")):
            spec = NodeSpec(**json.loads(path.read_text(encoding="utf-8")))
            cluster.nodes[spec.name] = cluster._node(spec)
        return cluster

    @classmethod
    def exists(cls, *, places: Places | None = None) -> bool:
        """Say whether a cluster of this number runs, of whatever state."""
        return Process.read((places or Places()).state / "holder.pid") is not None

    @property
    def plane(self) -> ControlPlane:
        """The control plane."""
        return ControlPlane(places=self.places, bin=self.programs.bin, corner=self.corner)

    def stop(self) -> None:
        """Stop everything and remove every trace but the logs that `keep_logs` copied."""
        with build.locked(self.places.lock):
            self.corner.end()
            clear(self.places)

    def add_node(self, spec: NodeSpec) -> Node:
        """Add a node and wait until it is ready.

        Raises:
            ValueError: There is no account for a node of this number, or the node exists.
        """
        if not 0 <= spec.number < NODES or spec.name in self.nodes:
            msg = f"node {spec.number}: must be new and below {NODES}"
            raise ValueError(msg)
        node = self._prepare_node(spec)
        node.start_kubelet()
        self.nodes[spec.name] = node
        self._finish_node(node)
        wait_for(f"readiness of {spec.name}", lambda: self._ready(spec.name), hint=f"See {self.places.logs}.")
        return node

    def remove_node(self, name: str) -> None:
        """Take a node out of the cluster and off this machine."""
        self.nodes.pop(name).remove()
        self.kubectl("delete", "node", name, "--ignore-not-found")

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as administrator and give what it prints."""
        return self.plane.kubectl(*arguments, text=text)

    def _node(self, spec: NodeSpec) -> Node:
        return Node(spec=spec, places=self.places, bin=self.programs.bin, corner=self.corner, images=self.images)

    def _prepare_node(self, spec: NodeSpec) -> Node:
        node = self._node(spec)
        node.prepare()
        node.start_containerd()
        return node

    def _finish_node(self, node: Node) -> None:
        """Give a node its chips: the kubelet leaves a resource alone that no device plugin of its own offers."""
        name = node.spec.name
        wait_for(f"{name} to register", lambda: node.lives() and self._exists(f"nodes/{name}"), seconds=240)
        if node.spec.chips:
            path = "google.com~1tpu"
            patch = [
                {"op": "add", "path": f"/status/{kind}/{path}", "value": str(node.spec.chips)}
                for kind in ("capacity", "allocatable")
            ]
            self.kubectl("patch", "node", name, "--subresource=status", "--type=json", f"--patch={json.dumps(patch)}")

    def _exists(self, thing: str) -> bool:
        return bool(self.kubectl("get", thing, "--ignore-not-found", "--output=name"))

    def _ready(self, name: str) -> bool:
        node: dict[str, Any] = json.loads(self.kubectl("get", f"nodes/{name}", "--output=json"))
        conditions = {c["type"]: c["status"] for c in node["status"]["conditions"]}
        return conditions.get("Ready") == "True" and "taints" not in node["spec"]

    def _hide_writes(self) -> None:
        """Let what programs write to fixed places of this machine go to the cluster's own folder."""
        self.corner.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        for place in ("/var/lib", "/var/log"):
            over = self.places.state / "writes" / Path(place).name
            for part in ("upper", "work"):
                (over / part).mkdir(parents=True)
            options = f"lowerdir={place},upperdir={over / 'upper'},workdir={over / 'work'}"
            self.corner.run("mount", "-t", "overlay", "overlay", "-o", options, place)


@contextmanager
def using(places: Places) -> Iterator[None]:
    """Keep others from stopping the cluster."""
    with places.used.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def refuse_if_used(places: Places) -> None:
    """Refuse to stop a cluster that somebody uses.

    Raises:
        RuntimeError: Somebody does, such as tests in another copy of the repository.
    """
    with places.used.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            msg = f"cluster {places.number} is used by other tests. Wait, or choose another KR_KFP_CLUSTER_NUMBER."
            raise RuntimeError(msg) from None


def clear(places: Places) -> None:
    """Remove what a cluster of this number left: processes, network device, cgroups, files. Touches nothing else."""
    cgroups.clear(places.cgroup)
    network.wait_until_gone(places)
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()]
    inside = [mount for mount in mounted if Path(mount).is_relative_to(places.state)]
    if inside:
        msg = f"still mounted, so {places.state} is not removed: {', '.join(inside)}"
        raise RuntimeError(msg)
    if places.state.exists():
        shutil.rmtree(places.state)
