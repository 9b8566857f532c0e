"""Where the cluster keeps its files, and which names and addresses are its own.

Two folders: the *cache* (binaries and images, kept between runs, named by the digest of everything that decides their
content) and the *state* of one running cluster (removed when it stops). Several clusters may run side by side, each
with a number of its own: it decides the state folder, the network device, the addresses and the cgroups.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).parent
"""The folder of this package: the pinned Go modules and the C source lie beside this file."""

REPOSITORY = SOURCE.parents[1]
"""The project's own folder, which images are built from."""


def cache_root() -> Path:
    """Say where built things are kept: $KR_KFP_CLUSTER_CACHE, else kr-kfp/cluster in the user's cache folder."""
    chosen = os.environ.get("KR_KFP_CLUSTER_CACHE")
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "kr-kfp" / "cluster"


def digest_of(*parts: str | bytes | Path) -> str:
    """Digest texts and the contents of files, in their order, to 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Files, names and addresses of the cluster with this number (0 to 9, $KR_KFP_CLUSTER_NUMBER, by default 0)."""

    number: int = field(default_factory=lambda: int(os.environ.get("KR_KFP_CLUSTER_NUMBER", "0")))

    def __post_init__(self) -> None:
        """Refuse a number for which there are no addresses."""
        if not 0 <= self.number <= 9:
            msg = f"KR_KFP_CLUSTER_NUMBER={self.number}: must be 0 to 9"
            raise ValueError(msg)

    @property
    def state(self) -> Path:
        """The running cluster's folder, in $KR_KFP_CLUSTER_STATE or /var/tmp.

        Its path is short, since a Unix socket's holds 107 bytes, and it is not on a tmpfs: images go there.
        """
        return Path(os.environ.get("KR_KFP_CLUSTER_STATE", "/var/tmp")) / f"kr-kfp-cluster-{self.number}"

    @property
    def lock(self) -> Path:
        """Held while the cluster is started or stopped; beside the state, which comes and goes."""
        return self.state.with_name(self.state.name + ".lock")

    @property
    def used(self) -> Path:
        """Held, shared, by whoever uses the cluster: nobody else may stop it meanwhile."""
        return self.state.with_name(self.state.name + ".used")

    @property
    def device(self) -> str:
        """The bridge inside the cluster's network namespace, and the device that reaches it from this machine."""
        return f"krkfp{self.number}"

    @property
    def cgroup(self) -> str:
        """The cgroup, in every hierarchy, under which each node has its own."""
        return f"kr-kfp-cluster-{self.number}"

    @property
    def pods(self) -> str:
        """First two bytes of the addresses of nodes and pods, such as 10.210."""
        return f"10.{210 + 2 * self.number}"

    @property
    def services(self) -> str:
        """First two bytes of the addresses of services."""
        return f"10.{211 + 2 * self.number}"

    @property
    def gateway(self) -> str:
        """The address of the control plane, DNS and whatever else runs for the cluster."""
        return f"{self.pods}.0.1"

    @property
    def machine(self) -> str:
        """This machine's own address in the pods' network."""
        return f"{self.pods}.0.2"

    @property
    def server(self) -> str:
        """The API server's address, for this machine as for pods."""
        return f"https://{self.gateway}:6443"

    def node_address(self, node: int) -> str:
        """The address of a node: an own one for each, so that every kubelet has its usual port."""
        return f"{self.pods}.0.{10 + node}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's way in."""
        return self.state / "admin.kubeconfig"

    @property
    def logs(self) -> Path:
        """What the cluster's own processes print."""
        return self.state / "log"
