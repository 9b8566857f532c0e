"""etcd, API server, controllers, scheduler, DNS and service proxy: the programs of a real control plane."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.namespaces import Namespaces
from tests.cluster.pki import Account, Authority
from tests.cluster.places import Places
from tests.cluster.processes import Process, wait_for

NODE_LOSS_SECONDS = 12
"""After this long without news of a node its pods are not ready (40 in Kubernetes; shorter, for tests that wait)."""

LWS_USER = "system:serviceaccount:lws-system:lws-controller-manager"
"""Whom LeaderWorkerSet's own role binding names."""

NODES = 8
"""Nodes that may join: their accounts are made with the API server's."""

AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # Requests of pods count (what a quiet launcher costs); those of the machinery would drown them.
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"], "omitStages": []},
        {"level": "None"},
    ],
}


@dataclass(slots=True, kw_only=True)
class ControlPlane:
    """The control plane's processes by name, in the namespaces where all of the cluster runs."""

    places: Places
    bin: Path
    corner: Namespaces
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def authority(self) -> Authority:
        """The cluster's certificate authority."""
        return Authority(folder=self.places.state / "pki")

    def kubeconfig(self, name: str) -> Path:
        """The file with an account's way in."""
        return self.places.state / f"{name}.kubeconfig"

    def prepare(self) -> None:
        """Write keys, certificates, accounts and configuration files."""
        state, pki = self.places.state, self.places.state / "pki"
        authority = Authority.create(pki)
        service = "kubernetes.default.svc"
        authority.sign(
            "api",
            "/CN=kube-apiserver",
            names=[
                *(f"DNS:{name}" for name in ("kubernetes", "kubernetes.default", service, f"{service}.cluster.local")),
                *(f"IP:{address}" for address in (self.places.gateway, f"{self.places.services}.0.1", "127.0.0.1")),
            ],
        )
        authority.sign("kubelet-client", "/O=system:masters/CN=apiserver-kubelet-client")
        authority.key_pair("accounts")
        accounts = {
            "admin": Account.create("admin", "system:masters"),
            "kube-controller-manager": Account.create("system:kube-controller-manager"),
            "kube-scheduler": Account.create("system:kube-scheduler"),
            "kube-proxy": Account.create("system:kube-proxy"),
            "lws-manager": Account.create(LWS_USER),
            **{f"node-{n}": Account.create(f"system:node:node-{n}", "system:nodes") for n in range(NODES)},
        }
        for name, account in accounts.items():
            self.kubeconfig(name).write_text(
                account.kubeconfig(self.places.server, authority.certificate), encoding="utf-8"
            )
            self.kubeconfig(name).chmod(0o600)
        (pki / "tokens.csv").write_text("".join(account.line() for account in accounts.values()), encoding="utf-8")
        (pki / "tokens.csv").chmod(0o600)
        (state / "audit-policy.json").write_text(json.dumps(AUDIT), encoding="utf-8")
        (state / "Corefile").write_text(self._corefile(), encoding="utf-8")

    def start(self) -> None:
        """Start everything; the API server answers when this returns."""
        self._start("etcd", self._etcd())
        self._start("kube-apiserver", self._api_server())
        self._wait("the API server", lambda: self._asks("/readyz"))
        self._start("kube-controller-manager", self._controllers())
        self._start("kube-scheduler", self._scheduler())
        self._start("coredns", ["-conf", str(self.places.state / "Corefile")])
        self._start("kube-proxy", self._proxy())

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as administrator, on this machine, and give what it prints.

        Raises:
            RuntimeError: It failed; with what it printed.
        """
        command = [str(self.bin / "kubectl"), f"--kubeconfig={self.kubeconfig('admin')}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            msg = f"kubectl {' '.join(arguments)}: {done.stderr.strip()}"
            raise RuntimeError(msg)
        return done.stdout

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Create or change objects."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", text=text)

    def _start(self, name: str, arguments: list[str]) -> None:
        self.processes[name] = self.corner.start(name, [self.bin / name, *arguments])

    def _wait(self, what: str, probe: Callable[[], bool]) -> None:
        dead = [name for name, process in self.processes.items() if not process.alive()]
        hint = f"See {self.places.logs}. {f'Ended: {dead}' if dead else ''}"
        wait_for(what, probe, seconds=180, hint=hint)

    def _asks(self, path: str) -> bool:
        try:
            return self.kubectl("get", f"--raw={path}") == "ok"
        except RuntimeError:
            return False

    def _etcd(self) -> list[str]:
        client = "http://127.0.0.1:2379"  # inside the cluster's own network
        return [
            f"--data-dir={self.places.state / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",  # the data is worth nothing after a crash of the machine
            "--log-level=warn",
        ]

    def _api_server(self) -> list[str]:
        pki, gateway = self.places.state / "pki", self.places.gateway
        return [
            "--etcd-servers=http://127.0.0.1:2379",
            "--secure-port=6443",
            f"--bind-address={gateway}",
            f"--advertise-address={gateway}",
            f"--service-cluster-ip-range={self.places.services}.0.0/16",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'api.crt'}",
            f"--tls-private-key-file={pki / 'api.key'}",
            f"--cert-dir={pki}",
            f"--token-auth-file={pki / 'tokens.csv'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",  # nodes have addresses, no names to resolve
            f"--service-account-key-file={pki / 'accounts.pub'}",
            f"--service-account-signing-key-file={pki / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
            f"--audit-policy-file={self.places.state / 'audit-policy.json'}",
            f"--audit-log-path={self.places.logs / 'audit.log'}",
        ]

    def _controllers(self) -> list[str]:
        pki = self.places.state / "pki"
        return [
            f"--kubeconfig={self.kubeconfig('kube-controller-manager')}",
            f"--service-account-private-key-file={pki / 'accounts.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--node-monitor-grace-period={NODE_LOSS_SECONDS}s",
            "--node-monitor-period=1s",
            f"--flex-volume-plugin-dir={self.places.state / 'plugins'}",
            "--bind-address=127.0.0.1",
        ]

    def _scheduler(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig('kube-scheduler')}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
        ]

    def _proxy(self) -> list[str]:
        return [
            f"--kubeconfig={self.kubeconfig('kube-proxy')}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={self.places.pods}.0.0/16",
            "--hostname-override=node-0",
            # Connection tracking is the machine's own affair: its limit cannot be set from in here, and asking for
            # another one than it has ends the program.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]

    def _corefile(self) -> str:
        # Two blocks, since a template comes before whatever else is in its own.
        return f"""\
cluster.local:53 in-addr.arpa:53 {{
  bind {self.places.gateway}
  errors
  cache 1
  kubernetes cluster.local in-addr.arpa {{
    endpoint {self.places.server}
    kubeconfig {self.kubeconfig("admin")}
    ttl 1
  }}
}}
.:53 {{
  bind {self.places.gateway}
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
"""
