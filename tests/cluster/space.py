"""A namespace for one test: what the test makes in it goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.cluster.cluster import Cluster
from tests.cluster.processes import wait_for
from tests.cluster.rest import ApiError, Json, Rest, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A namespace and the requests that tests make in it, as administrator."""

    cluster: Cluster
    rest: Rest
    name: str

    @classmethod
    def create(cls, cluster: Cluster, rest: Rest, name: str) -> Space:
        """Make the namespace and wait for its service account, without which no pod can be made."""
        rest.create("namespaces", None, {"metadata": {"name": name}})
        wait_for("the default service account", lambda: rest.find("serviceaccounts", name, "default") is not None)
        return cls(cluster=cluster, rest=rest, name=name)

    def remove(self) -> None:
        """Delete all that runs here, wait until it is gone, and leave the rest to the cluster.

        Pods are deleted by force: what a failed test left must not cost its grace period, and a pod on a node that a
        test has lost would never go. The namespace itself takes some seconds more, for which no test has to wait.
        """
        for resource in ("leaderworkersets", "statefulsets"):
            for item in self.rest.items(resource, self.name):
                self.rest.delete(resource, self.name, item["metadata"]["name"])
        wait_for(f"the end of all pods in {self.name}", self._empty)
        self.rest.delete("namespaces", None, self.name)

    def _empty(self) -> bool:
        pods = self.rest.items("pods", self.name)
        for pod in pods:
            self.rest.delete("pods", self.name, pod["metadata"]["name"], gracePeriodSeconds=0)
        return not pods and not self.rest.items("statefulsets", self.name)

    def create_object(self, resource: str, body: Json) -> Json:
        """Create an object here."""
        return self.rest.create(resource, self.name, body)

    def read(self, resource: str, name: str) -> Json | None:
        """Read an object here, or None."""
        return self.rest.find(resource, self.name, name)

    def items(self, resource: str, select: str = "") -> list[Json]:
        """List objects here."""
        return self.rest.items(resource, self.name, select=select)

    def patch(self, resource: str, name: str, body: Any) -> Json:
        """Change an object here."""
        return self.rest.patch(resource, self.name, name, body)

    def delete(self, resource: str, name: str, **options: Any) -> None:
        """Delete an object here."""
        self.rest.delete(resource, self.name, name, **options)

    def logs(self, pod: str, *, container: str = "main", previous: bool = False) -> str:
        """Read a container's log."""
        return self.rest.logs(self.name, pod, container=container, previous=previous)

    def first_line(self, pod: str, *, seconds: float = 120) -> str:
        """Wait for the first line that a pod's main container prints: a container runs before its log has anything."""
        wait_for(f"a line from {pod}", lambda: "\n" in self._log_if_any(pod), seconds=seconds)
        return self.logs(pod).splitlines()[0]

    def line(self, pod: str, start: str, *, seconds: float = 180) -> str:
        """Wait for a line with this start from a pod's main container, and give the rest of it."""

        def found() -> list[str]:
            lines = self._log_if_any(pod).splitlines()
            return [line.removeprefix(start) for line in lines if line.startswith(start)]

        wait_for(f"a line {start!r} from {pod}", lambda: bool(found()), seconds=seconds)
        return found()[0]

    def _log_if_any(self, pod: str) -> str:
        try:
            return self.logs(pod)
        except ApiError as error:
            if error.status in {400, 404}:  # the container has not started, the pod is not made yet
                return ""
            raise

    def watch(self, resource: str) -> Watch:
        """Record every change of a resource from now on."""
        return Watch(self.rest, resource, self.name)

    def run_in(self, pod: str, *command: str, container: str = "main") -> str:
        """Run a command in a container and give what it prints."""
        return self.kubectl("exec", pod, f"--container={container}", "--", *command)

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl in this namespace as administrator."""
        return self.cluster.kubectl(f"--namespace={self.name}", *arguments)
