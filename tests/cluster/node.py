"""One node: a containerd and a kubelet of its own, with its own address, files and cgroup."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.cluster import cgroups, network
from tests.cluster.images import PAUSE_IMAGE
from tests.cluster.namespaces import Namespaces
from tests.cluster.places import Places
from tests.cluster.processes import Process, wait_for
from tests.cluster.store import link_tree


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What a node offers."""

    number: int
    chips: int = 0
    """TPU chips: the extended resource google.com/tpu."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The node's name in the cluster."""
        return f"node-{self.number}"


def tpu_node(
    number: int, *, pool: str, accelerator: str = "tpu-v5-lite-podslice", topology: str = "4x4", chips: int = 4
) -> NodeSpec:
    """Describe a node as GKE labels it, by default one host of a v5e 4x4 slice."""
    labels = {
        "cloud.google.com/gke-nodepool": pool,
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    return NodeSpec(number=number, chips=chips, labels=labels)


@dataclass(slots=True, kw_only=True)
class Node:
    """A node's processes and files."""

    spec: NodeSpec
    places: Places
    bin: Path
    corner: Namespaces
    images: Path
    """A containerd root folder with all images in it, which is only read."""

    @property
    def folder(self) -> Path:
        """The node's files."""
        return self.places.state / self.spec.name

    @property
    def address(self) -> str:
        """The node's own address."""
        return self.places.node_address(self.spec.number)

    @property
    def socket(self) -> Path:
        """Where its containerd listens."""
        return self.folder / "containerd.sock"

    def prepare(self) -> None:
        """Write the node's files; its images are links to the common ones, so this takes no space."""
        self.folder.mkdir(parents=True)
        link_tree(self.images, self.folder / "containerd")
        (self.folder / "spec.json").write_text(json.dumps(asdict(self.spec)), encoding="utf-8")
        (self.folder / "containerd.toml").write_text(self._containerd(), encoding="utf-8")
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet(), indent=1), encoding="utf-8")
        cgroups.create(f"{self.places.cgroup}/{self.spec.name}")
        network.add_address(self.places, self.corner, self.address)

    def start_containerd(self) -> None:
        """Start the container runtime."""
        config = ["--config", str(self.folder / "containerd.toml")]
        path = f"{self.bin}:/usr/sbin:/usr/bin:/sbin:/bin"  # it looks up its shim and iptables
        process = self.corner.start(
            f"{self.spec.name}-containerd", [self.bin / "containerd", *config], env={"PATH": path}
        )
        process.record(self.folder / "containerd.pid")

    def start_kubelet(self) -> None:
        """Start the kubelet, as soon as the container runtime can be reached."""
        wait_for(f"containerd of {self.spec.name}", self.socket.exists, hint=f"See {self.places.logs}.")
        labels = ",".join(f"{name}={value}" for name, value in self.spec.labels.items())
        arguments = [
            f"--kubeconfig={self.places.state / self.spec.name}.kubeconfig",
            f"--config={self.folder / 'kubelet.json'}",
            f"--hostname-override={self.spec.name}",
            f"--node-ip={self.address}",
            f"--root-dir={self.folder / 'kubelet'}",
            f"--cert-dir={self.folder / 'pki'}",
            f"--node-labels={labels}",
        ]
        process = self.corner.start(f"{self.spec.name}-kubelet", [self.bin / "kubelet", *arguments])
        process.record(self.folder / "kubelet.pid")

    def lives(self) -> bool:
        """Say that the node's kubelet runs.

        Raises:
            RuntimeError: It has ended; with the end of its log. Too many files or inotify instances are the usual
                cause: a node needs 8 of the latter (fs.inotify.max_user_instances).
        """
        if Process.read(self.folder / "kubelet.pid") is None:
            log = (self.places.logs / f"{self.spec.name}-kubelet.log").read_text(encoding="utf-8")
            msg = f"the kubelet of {self.spec.name} has ended:\n{log[-2000:]}"
            raise RuntimeError(msg)
        return True

    def cut_off(self) -> None:
        """Kill kubelet and containerd: the cluster hears no more of the node, though its containers run on."""
        for name in ("kubelet", "containerd"):
            process = Process.read(self.folder / f"{name}.pid")
            if process is not None:
                process.signal(signal.SIGKILL)
                wait_for(f"end of {name}", lambda process=process: not process.alive(), seconds=60)  # type: ignore[misc]

    def lose(self) -> None:
        """Cut the node off and kill its containers, as when the machine is switched off."""
        self.cut_off()
        cgroups.kill(f"{self.places.cgroup}/{self.spec.name}")

    def remove(self) -> None:
        """Kill all of the node and remove its files."""
        self.lose()
        for line in reversed(
            Path(f"/proc/{self.corner.holder.pid}/mountinfo").read_text(encoding="utf-8").splitlines()
        ):
            mount = line.split()[4]
            if Path(mount).is_relative_to(self.folder):
                self.corner.run("umount", "--lazy", mount)
        shutil.rmtree(self.folder)

    def recover(self) -> None:
        """Start the node's programs again; no error if they run."""
        if Process.read(self.folder / "containerd.pid") is None:
            self.socket.unlink(missing_ok=True)
            self.start_containerd()
        if Process.read(self.folder / "kubelet.pid") is None:
            self.start_kubelet()

    def _kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": 10250,
            "healthzBindAddress": self.address,
            "healthzPort": 10248,
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.places.cgroup}/{self.spec.name}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "podLogsDir": str(self.folder / "logs"),
            "volumePluginDir": str(self.folder / "plugins"),
            "clusterDNS": [self.places.gateway],
            "clusterDomain": "cluster.local",
            "resolvConf": "",  # pods know the cluster's names only
            "maxPods": 500,
            "serializeImagePulls": False,
            "nodeStatusUpdateFrequency": "2s",
            # The machine is shared: a full disk elsewhere must not evict pods here.
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self.places.state / "pki" / "ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
        }

    def _containerd(self) -> str:
        return f"""\
version = 3
root = "{self.folder}/containerd"
state = "{self.folder}/containerd-state"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{self.socket}"

[plugins."io.containerd.internal.v1.opt"]
  path = "{self.folder}/opt"

[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  # Containers and sandboxes may forbid to lower a process's OOM score, which every sandbox otherwise asks for.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "{self.places.state}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = false
  BinaryName = "{self.bin}/runc"
"""
