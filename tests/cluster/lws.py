"""The LeaderWorkerSet controller: upstream's own manifests, its program as a process beside the control plane.

Everything is as upstream installs it (custom resources, roles, webhooks and their selectors), with two exceptions that
the missing pod asks for: the API server reaches the webhooks by address instead of through a service, and the serving
certificate is the cluster's instead of one that the controller manages.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.processes import Process, wait_for

_PORT = 9443
_HEALTH = "127.0.0.1:8082"  # inside the cluster's own network

_NOT_HERE = ("Deployment", "Service", "Secret")
"""Kinds of upstream's manifests that belong to the pod that is a process here."""


@dataclass(slots=True, kw_only=True)
class Lws:
    """The controller and its webhooks."""

    plane: ControlPlane
    manifests: Path
    """All of upstream's default installation, one YAML stream."""
    process: Process | None = None

    def start(self) -> None:
        """Start the controller and install the manifests; webhooks answer when this returns."""
        state = self.plane.places.state
        objects = [o for o in yaml.load_all(self.manifests.read_text("utf-8"), yaml.CSafeLoader) if o]
        kept = [self._adapted(o) for o in objects if o["kind"] not in _NOT_HERE]
        hooks = [o for o in kept if o["kind"].endswith("WebhookConfiguration")]
        self.plane.apply([o for o in kept if o not in hooks])
        certificate, key = self.plane.authority.sign("lws", "/CN=lws", names=["IP:127.0.0.1"])
        folder = state / "lws"
        folder.mkdir()
        (folder / "tls.crt").write_bytes(certificate.read_bytes())
        (folder / "tls.key").write_bytes(key.read_bytes())
        (folder / "config.json").write_text(json.dumps(_config(folder)), encoding="utf-8")
        kubeconfig = self.plane.kubeconfig("lws-manager")
        arguments = [f"--config={folder / 'config.json'}", f"--kubeconfig={kubeconfig}"]
        self.process = self.plane.corner.start("lws-manager", [self.plane.bin / "lws-manager", *arguments])
        wait_for(
            "the webhooks of LeaderWorkerSet", self._listens, hint=f"See {self.plane.places.logs / 'lws-manager.log'}."
        )
        self.plane.apply(hooks)

    def _adapted(self, thing: dict[str, Any]) -> dict[str, Any]:
        """Point webhooks at the process: in their own configurations, and for conversion in custom resources."""
        spec = thing.get("spec") or {}
        if thing["kind"] == "CustomResourceDefinition":
            spec.pop("conversion", None)  # one version is served: nothing to convert
        for hook in thing.get("webhooks") or ():
            path = hook["clientConfig"]["service"]["path"]
            authority = base64.b64encode(self.plane.authority.certificate.read_bytes()).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{_PORT}{path}", "caBundle": authority}
        return thing

    def _listens(self) -> bool:
        probe = f"exec 3<>/dev/tcp/127.0.0.1/{_PORT}"
        try:
            self.plane.corner.run("bash", "-c", probe)
        except RuntimeError:
            return False
        return True


def _config(folder: Path) -> dict[str, object]:
    return {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "internalCertManagement": {"enable": False},
        "leaderElection": {"leaderElect": False},
        "webhook": {"port": _PORT, "certDir": str(folder)},
        "metrics": {"bindAddress": "127.0.0.1:8444"},
        "health": {"healthProbeBindAddress": _HEALTH},
    }
