"""The local cluster: each host of a group is a process on this machine.

Same protocol and same environment as on Kubernetes, so that every local run exercises the launcher's one code path. A
supervisor process per group (:mod:`kr_kfp.cluster.supervisor`) plays LeaderWorkerSet controller and kubelet; it
outlives the launcher, so that the next launcher can adopt the group, and deletes its group when nobody has asked for
it for KR_KFP_LOCAL_ORPHAN_SECONDS (180). Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kr_kfp.cluster import local_client as client
from kr_kfp.cluster.api import Manifest, Ports, Sink, Watch
from kr_kfp.cluster.local_lws import LABEL, check
from kr_kfp.cluster.local_places import LOG, LOG_END, Place, claim_port, group_place, hold, is_held, open_root
from kr_kfp.cluster.local_processes import start_time
from kr_kfp.cluster.local_watch import LocalWatch, follow
from kr_kfp.errors import ConflictError, NotFoundError, SetupError, UnavailableError

__all__ = ["ORPHAN_ENV", "LocalCluster", "list_groups"]

ORPHAN_ENV = "KR_KFP_LOCAL_ORPHAN_SECONDS"
"""Seconds without a connection after which a supervisor deletes its group; read when the group is made."""

_ORPHAN_SECONDS = 180.0

_PORTS = range(20_000, 30_000)
"""Below what Linux (32768) and macOS (49152) give out by themselves, so that nobody gets one by chance."""

_CREATE_PATIENCE = 30.0


class LocalCluster:
    """Runs groups on this machine; see :class:`kr_kfp.cluster.api.Cluster` for what each request does."""

    where = "the local cluster"

    def ports(self, name: str) -> Ports:
        """Choose free ports, the same for a name as long as they stay free.

        Raises:
            UnavailableError: If there are no three.
        """
        root = open_root()
        first = int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(_PORTS)
        found: list[int] = []
        for step in range(len(_PORTS)):
            port = _PORTS[(first + step) % len(_PORTS)]
            if _is_free(port) and claim_port(root, port, name):
                found.append(port)
                if len(found) == 3:
                    return Ports(*found)
        msg = f"no three ports are free between {_PORTS.start} and {_PORTS.stop}"
        raise UnavailableError(msg)

    def own_pod(self) -> Manifest | None:
        """Give None: a local launcher runs in no pod."""
        return None

    @property
    def is_local(self) -> bool:
        """Hosts are processes of this machine."""
        return True

    def config_map(self, name: str) -> dict[str, str]:
        """Give nothing: the surroundings' own credentials are used here."""
        del name
        return {}

    def holder(self) -> str:
        """Identify this launcher by process id and start time."""
        return f"local-{os.getpid()}-{start_time(os.getpid())}"

    def is_holder_alive(self, holder: str) -> bool:
        """Tell whether that process lives; another one of its id started at another time."""
        found = re.fullmatch(r"local-(\d+)-(\d+)", holder)
        return found is not None and start_time(int(found[1])) == found[2]

    def create_group(self, manifest: Manifest) -> Manifest:
        """Start a supervisor for the group, clearing up first after one that was killed.

        Raises:
            ConflictError: If one of this name exists, one that is being deleted too.
            ClusterError: If the manifest is not one that can be run here.
            SetupError: If the root folder or the orphan time cannot be used.
            UnavailableError: If the supervisor does not come up.
        """
        check(manifest)
        place = group_place(manifest["metadata"]["name"])
        orphan_seconds = _orphan_seconds()
        lock_fd = self._hold(place)
        try:
            client.clear_dead(place)
            client.clear_others(place.folder.parent)
            return client.start(place, lock_fd, manifest, orphan_seconds)
        finally:
            os.close(lock_fd)

    def _hold(self, place: Place) -> int:
        """Take the lock of a group that does not exist; one that is just coming or going is waited for."""
        end = time.monotonic() + _CREATE_PATIENCE
        while (lock_fd := hold(place)) is None:
            try:
                client.ask(place, {"verb": "read"})
            except NotFoundError:
                if time.monotonic() < end:
                    continue
            msg = f"group {place.name} exists"
            raise ConflictError(msg, status=409, reason="AlreadyExists")
        return lock_fd

    def read_group(self, name: str) -> Manifest | None:
        """Read a group; None if there is none."""
        try:
            found: Manifest = client.ask(group_place(name), {"verb": "read"})
        except NotFoundError:
            return None
        return found

    def patch_group(self, name: str, *, patch: Manifest, resource_version: str) -> Manifest:
        """Apply a merge patch; ``spec.replicas`` 0 takes all pods away, 1 makes them from the template of then.

        Raises:
            ConflictError: If it is of another version by now.
            NotFoundError: If it is gone.
        """
        patched: Manifest = client.ask(
            group_place(name), {"verb": "patch", "patch": patch, "version": resource_version}
        )
        return patched

    def delete_group(self, name: str, *, uid: str) -> None:
        """Ask for the end of all its processes, its folder and its supervisor; another one of its name stays."""
        self._ask_if_there(group_place(name), {"verb": "delete", "uid": uid})

    def list_pods(self, name: str) -> list[Manifest]:
        """List the group's pods, the ones being deleted too."""
        try:
            found: list[Manifest] = client.ask(group_place(name), {"verb": "pods"})
        except NotFoundError:
            return []
        return found

    def delete_pod(self, name: str, *, uid: str, grace_seconds: float | None = None) -> None:
        """Delete this very pod; another comes in its place, with a leader all pods do. Grace 0 kills at once."""
        # Leaders are <group>-0, workers <group>-0-<1...>, so that the end of the name tells which it is.
        found = re.fullmatch(r"(.+?)-0(?:-[1-9]\d*)?", name)
        if found is not None:
            place = group_place(found[1])
            self._ask_if_there(place, {"verb": "delete-pod", "name": name, "uid": uid, "grace": grace_seconds})

    def delete_pods(self, pods: Sequence[tuple[str, str]], *, grace_seconds: float) -> None:
        """Delete these very pods, given by name and UID."""
        for name, uid in pods:
            self.delete_pod(name, uid=uid, grace_seconds=grace_seconds)

    def _ask_if_there(self, place: Place, request: Manifest) -> None:
        try:
            client.ask(place, request)
        except NotFoundError:
            return

    def watch(self, name: str, sink: Sink) -> Watch:
        """Tell of a group until it is gone: its pods are then told to be gone too, if its supervisor was killed."""
        return LocalWatch(group_place(name), sink)

    def wait_gone(self, name: str, timeout: float) -> bool:
        """Wait until a group, its processes and its folder are gone; False if ``timeout`` seconds passed first."""
        place = group_place(name)
        end = time.monotonic() + timeout
        while is_held(place):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    def read_log(self, pod: Manifest, *, previous: bool = False, tail_bytes: int | None = None) -> bytes:
        """Read the log of the container's current start, or of the one before; nothing if there is none (any more)."""
        try:
            logs = [path for path in _pod_folder(pod).glob(f"{LOG}*") if path.suffix != LOG_END]
            logs.sort(key=lambda path: int(path.name.removeprefix(LOG)))
            wanted = logs[-2:-1] if previous else logs[-1:]
            with wanted[0].open("rb") as file:
                if tail_bytes is not None:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - tail_bytes))
                return file.read()
        except (IndexError, FileNotFoundError):
            return b""

    def follow_log(self, pod: Manifest) -> Iterator[bytes]:
        """Give the log of the first start as it is written, until that start has ended or the pod is gone."""
        return follow(_place(pod), _pod_folder(pod))

    def node_is_lost(self, pod: Manifest) -> bool:
        """Give False: the only node is this machine."""
        del pod
        return False


def list_groups() -> list[Manifest]:
    """List the groups that run on this machine for this user; looking does not keep one alive.

    Raises:
        SetupError: If the root folder cannot be used.
    """
    found = []
    for folder in sorted(open_root().iterdir()):
        if (folder / "lock").exists():
            try:
                found.append(client.ask(Place(folder), {"verb": "peek"}))
            except (NotFoundError, UnavailableError):
                continue  # Gone meanwhile, or left behind by a supervisor that was killed.
    return found


def _place(pod: Manifest) -> Place:
    return group_place(pod["metadata"]["labels"][f"{LABEL}/name"])


def _pod_folder(pod: Manifest) -> Path:
    return _place(pod).pod(pod["metadata"]["name"], pod["metadata"]["uid"])


def _orphan_seconds() -> float:
    given = os.environ.get(ORPHAN_ENV, "")
    try:
        return float(given) if given else _ORPHAN_SECONDS
    except ValueError as problem:
        msg = f"{ORPHAN_ENV}={given!r} is no number of seconds. Set it to one, or unset it"
        raise SetupError(msg) from problem


def _is_free(port: int) -> bool:
    """Tell whether a server could listen on the port, on any address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
