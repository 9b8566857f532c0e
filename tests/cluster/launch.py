"""A KFP run with everything that a launcher step needs around it: rights, an object store, credentials for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from click.testing import CliRunner

from kr_kfp.cli.main import cli
from tests.cluster.images import LAUNCHER_IMAGE, TRAIN_IMAGE
from tests.cluster.kfp_pod import KfpPod
from tests.cluster.kfp_run import ACCOUNT, KfpRun
from tests.cluster.kfp_step import Step
from tests.cluster.processes import wait_for
from tests.cluster.rest import Json
from tests.cluster.space import Space
from tests.servers.s3 import S3Server

SECRET = "mlpipeline-minio-artifact"

CLUSTER_IMAGES: Mapping[str, Any] = {
    "base_image": TRAIN_IMAGE,
    "launcher_image": LAUNCHER_IMAGE,
    "packages_to_install": [],
    "install_kfp_package": False,
    "install_kr_kfp_package": False,
}
"""Options of a step in the images of this cluster, whose pods reach no package index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launching:
    """One run in a namespace, and where its artifacts lie.

    Args:
        run: The run.
        s3: The store.
        bucket: Its bucket.
    """

    run: KfpRun
    s3: S3Server
    bucket: str

    @classmethod
    def create(cls, space: Space, s3: S3Server) -> Launching:
        """Give the account its rights by ``kr-kfp install``, and KFP's configuration of its object store."""
        bucket = s3.make_bucket()
        run = KfpRun.create(space, root=f"s3://{bucket}/v2/artifacts")
        install(space)
        keys = {"accesskey": s3.writer.access_key, "secretkey": s3.writer.secret_key}
        space.create_object("secrets", {"metadata": {"name": SECRET}, "stringData": keys})
        reference = {"secretName": SECRET, "accessKeyKey": "accesskey", "secretKeyKey": "secretkey"}
        default = {
            "endpoint": s3.endpoint.removeprefix("http://"),
            "disableSSL": True,
            "region": s3.region,
            "forcePathStyle": True,
            "credentials": {"fromEnv": False, "secretRef": reference},
        }
        data = {"providers": yaml.safe_dump({"s3": {"default": default}})}
        space.create_object("configmaps", {"metadata": {"name": "kfp-launcher"}, "data": data})
        return cls(run=run, s3=s3, bucket=bucket)

    def start(self, component: Any, artifacts: Mapping[str, Json] | None = None, **arguments: Any) -> KfpPod:
        """Start the pod of a compiled component as KFP's back end does."""
        return self.pod(component, artifacts, **arguments).start()

    def pod(self, component: Any, artifacts: Mapping[str, Json] | None = None, **arguments: Any) -> KfpPod:
        """Give the pod of a compiled component, not started yet."""
        return KfpPod(run=self.run, step=Step.compile(component), arguments=arguments, artifacts=artifacts or {})

    def groups(self) -> list[str]:
        """Name the LeaderWorkerSets that are there."""
        return [group["metadata"]["name"] for group in self.run.space.items("leaderworkersets")]

    def hosts(self) -> dict[str, Json]:
        """Give the training pods by name."""
        pods = self.run.space.items("pods", "leaderworkerset.sigs.k8s.io/name")
        return {pod["metadata"]["name"]: pod for pod in pods}


def devices(number: int) -> dict[str, str]:
    """Give variables with which JAX shows so many CPU devices on a host, in place of chips that only the node claims."""
    return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={number}"}


def install(space: Space, *words: str) -> Json:
    """Give KFP's account a launcher's rights in a namespace, by the product's own command."""
    return _kr_kfp(space, "install", "--service-account", ACCOUNT, *words)


def uninstall(space: Space) -> None:
    """Take the rights of the namespace's accounts back, by the product's own command."""
    _kr_kfp(space, "uninstall")


def _kr_kfp(space: Space, command: str, *words: str) -> Json:
    """Execute a command on a namespace, see that it succeeds, and give its JSON."""
    arguments = [command, "--namespace", space.name, *words, "--json"]
    done = CliRunner(env={"KUBECONFIG": str(space.cluster.places.kubeconfig)}).invoke(cli, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    found: Json = json.loads(done.stdout)
    return found


def in_images(step: Any, **changes: Any) -> Any:
    """Give a step in the images of this cluster."""
    return step.options(**{**CLUSTER_IMAGES, **changes})


def shape(step: Any, **changes: Any) -> Any:
    """Give a step in the images of this cluster, which shows the logs of all hosts."""
    return in_images(step, **{"logs": "all", **changes})


def nothing_is_left(launching: Launching) -> None:
    """Wait until the run has left neither group nor training pods nor what belongs to them."""
    space = launching.run.space
    kinds = ("leaderworkersets", "statefulsets")
    wait_for("nothing left", lambda: not launching.hosts() and not any(space.items(kind) for kind in kinds))


def starts(log: str) -> list[str]:
    """Give who says that user code starts."""
    return sorted(line.partition("] ")[2] for line in log.splitlines() if line.endswith(" starts"))
