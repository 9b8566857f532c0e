"""kr_kfp's launcher on a real cluster, against ``kubectl apply`` of the same manifest and the predecessor's way.

The same function runs on four hosts in each way, in turn: kr_kfp in a pod of KFP's shape, kubectl, kr_kfp again (what
noise alone does), the predecessor (bench/predecessor.py). Beside them one quiet job of each way runs for ten minutes,
whose requests are counted in the API server's audit log, by account. The group's life is what watches of this program
see; the end is the last statement of user code by the host's own clock, so that the kubelet's reporting, the runner and
the upload of outputs are in it.

Aims: end to exit at most 1.5 s (median), one start of user code, start at most 1.5 s over kubectl, 200 requests an hour
and 120 MB. In the closing line ``start_s`` is what kr_kfp takes longer than kubectl, launcher start to LeaderWorkerSet
accepted.

``--quick`` makes two rounds and is quiet for a minute. It needs what tests/cluster needs (CONTRIBUTING.md) and uses the
cluster that ``make cluster-up`` left running; otherwise it starts one and stops it.
"""

from __future__ import annotations

import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # the cluster is the tests' own

from cluster_seen import Meter, Recorder, Request, per_hour, requests
from cluster_ways import Lab, Round, kr_kfp_way, kubectl_way, predecessor_way

from tests.cluster import requirements
from tests.cluster.cluster import Cluster, using
from tests.cluster.groups import is_running
from tests.cluster.kfp_pod import KfpPod
from tests.cluster.kfp_run import ACCOUNT, install_workflows
from tests.cluster.launch import Launching
from tests.cluster.processes import wait_for
from tests.cluster.rest import ApiError, Rest
from tests.cluster.space import Space
from tests.servers.s3 import run_s3

QUICK = "--quick" in sys.argv[1:]
ROUNDS = 2 if QUICK else 5
HOSTS, BUSY = 4, 4.0
QUIET_HOSTS, QUIET = 2, 60.0 if QUICK else 600.0
SETTLE, MARGIN = 10.0, 45.0
"""Seconds from all hosts running to the quiet time, and for which the quiet job outlasts it at most."""

WAYS = ("kr_kfp", "kubectl", "predecessor")


@dataclass(slots=True)
class Quiet:
    """One job of each way that says nothing for a while.

    Args:
        lab: With a namespace of its own.
    """

    lab: Lab
    begin: float = 0.0
    pod: KfpPod | None = None
    meters: dict[str, Meter] = field(default_factory=dict)
    _kubectl: threading.Thread | None = None
    _predecessor: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start all three and wait until all hosts run."""
        lab = self.lab
        accounts = {name: lab.account(name) for name in WAYS[1:]}
        self.pod, self.meters["kr_kfp"] = lab.kr_kfp_pod()
        wait_for("the launcher's group", lambda: bool(lab.launching.groups()), seconds=240)
        lab.keep_manifest(lab.launching.run.space.items("leaderworkersets")[0])
        live: list[int] = []
        self.meters["kubectl"] = Meter(lambda: live).start()
        given = {"manifest": lab.manifest, "live": live}
        self._kubectl = threading.Thread(target=lab.kubectl, args=(accounts["kubectl"],), kwargs=given)
        self._kubectl.start()
        child = self._predecessor = lab.predecessor(accounts["predecessor"])
        self.meters["predecessor"] = Meter(lambda: [child.pid]).start()
        hosts = len(WAYS) * lab.hosts
        wait_for("all quiet hosts", lambda: sum(map(is_running, lab.launching.hosts().values())) == hosts, seconds=240)
        self.begin = time.time() + SETTLE

    def finish(self) -> dict[str, list[Request]]:
        """Wait until the quiet time is over, end the jobs and give the requests of each way."""
        time.sleep(max(0.0, self.begin + QUIET - time.time()))
        self.stop()
        assert self.pod is not None  # noqa: S101 # started
        ended = self.pod.wait(seconds=2 * MARGIN)
        if ended.code:
            raise RuntimeError(self.pod.log())
        if self._kubectl is not None:
            self._kubectl.join()
        for meter in self.meters.values():
            meter.stop()
        space = self.lab.launching.run.space
        log = space.cluster.places.logs / "audit.log"
        names = dict(zip(WAYS, (ACCOUNT, *WAYS[1:]), strict=True))
        return {way: requests(log, f"system:serviceaccount:{space.name}:{name}") for way, name in names.items()}

    def stop(self) -> None:
        """End the predecessor's launcher, which would run user code again and again."""
        if self._predecessor is not None:
            self._predecessor.kill()
            self._predecessor.wait()


@contextmanager
def running() -> Iterator[Cluster]:
    """Give the cluster that runs, else one that is stopped afterwards."""
    requirements.install()
    if why := requirements.reason():
        sys.exit(why)
    stays = Cluster.exists()
    cluster = Cluster.running() or Cluster.start()
    with using(cluster.places):
        yield cluster
    if not stays:
        cluster.stop()


def is_served(admin: Rest, resource: str) -> bool:
    """Tell whether a custom resource that was defined just now can be used."""
    try:
        admin.items(resource)
    except ApiError as problem:
        if problem.status == 404:
            return False
        raise
    return True


@contextmanager
def labs(cluster: Cluster) -> Iterator[tuple[Lab, Lab]]:
    """Give a namespace for the rounds and one for the quiet jobs; both are removed afterwards."""
    admin = Rest(kubeconfig=cluster.places.kubeconfig)
    install_workflows(admin)
    for kind in ("leaderworkersets", "workflows"):
        wait_for(f"{kind} to be served", partial(is_served, admin, kind))
    with (
        tempfile.TemporaryDirectory() as name,
        run_s3(Path(name, "s3"), host=cluster.places.machine) as s3,
        Recorder(cluster.places.machine) as recorder,
    ):
        spaces, made = [], []
        try:
            for kind, hosts, seconds in (("rounds", HOSTS, BUSY), ("quiet", QUIET_HOSTS, QUIET + SETTLE + MARGIN)):
                spaces.append(Space.create(cluster, admin, f"bench-{kind}-{secrets.token_hex(3)}"))
                folder = Path(name, kind)
                folder.mkdir()
                launching = Launching.create(spaces[-1], s3)
                made.append(Lab(launching=launching, recorder=recorder, folder=folder, hosts=hosts, seconds=seconds))
            yield made[0], made[1]
        finally:
            for space in spaces:
                space.remove()
            recorder.shutdown()


def measure(lab: Lab) -> dict[str, list[Round]]:
    """Run all ways in turn."""
    kubectl, predecessor = (lab.account(name) for name in WAYS[1:])
    turns: list[tuple[str, Callable[[], Round]]] = [
        ("kr_kfp", lambda: kr_kfp_way(lab)),
        ("kubectl", lambda: kubectl_way(lab, kubectl)),
        ("again", lambda: kr_kfp_way(lab)),
        ("predecessor", lambda: predecessor_way(lab, predecessor)),
    ]
    for _, warm in turns[:2]:
        warm()  # uncounted: caches of files and of kubectl
    rounds: dict[str, list[Round]] = {name: [] for name, _ in turns}
    for number in range(ROUNDS):
        for name, way in turns:
            begun = time.monotonic()
            rounds[name].append(way())
            one = rounds[name][-1]
            took = time.monotonic() - begun
            print(
                f"round {number + 1}/{ROUNDS}, {name}: start {one.start_s:.2f} s, end to delete {one.noticed_s:.2f} s, "
                f"end to exit {one.completion_s:.2f} s, {one.starts} starts; {took:.0f} s in all",
                flush=True,
            )
    return rounds


def spread(values: Sequence[float]) -> str:
    """Give median, least and most."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def table(rounds: dict[str, list[Round]], quiet: Quiet, made: dict[str, list[Request]]) -> list[list[str]]:
    """Put together all measures of all ways."""
    end = quiet.begin + QUIET
    failed = [sum(one.code != 0 for one in rounds[way]) for way in WAYS]
    rows = [["", *WAYS], ["runs told as failed, although all ended well", *map(str, failed)]]
    for title, name in (
        ("launcher start to LeaderWorkerSet accepted, s", "start_s"),
        ("accepted to all hosts running, s", "running_s"),
        ("last host's end to deletion asked for, s", "noticed_s"),
        ("last host's end to launcher's exit, s", "completion_s"),
        ("starts of user code on a host", "starts"),
        ("deletion asked for to all pods gone, s", "delete_s"),
        ("launcher's memory, MB", "rss_mb"),
        ("launcher's processor time, s", "cpu_s"),
    ):
        rows.append([title, *(spread([getattr(one, name) for one in rounds[way]]) for way in WAYS)])
    inside = [sum(quiet.begin <= request.at < end for request in made[way]) for way in WAYS]
    rows.append([f"requests in {QUIET:.0f} quiet s", *map(str, inside)])
    rows.append(["requests of a job with a quiet hour", *(f"{per_hour(made[w], quiet.begin, end):.0f}" for w in WAYS)])
    rows.append(["memory of the quiet job's launcher, MB", *(f"{quiet.meters[way].rss_mb:.0f}" for way in WAYS)])
    rows.append([f"its processor time in {QUIET:.0f} s and more", *(f"{quiet.meters[w].cpu_s:.2f}" for w in WAYS)])
    return rows


def main() -> None:
    """Measure and print."""
    with running() as cluster, labs(cluster) as (lab, quiet_lab):
        quiet = Quiet(quiet_lab)
        try:
            quiet.start()
            rounds = measure(lab)
            made = quiet.finish()
        finally:
            quiet.stop()
    rows = table(rounds, quiet, made)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    ours, again, by_hand = (rounds[name] for name in ("kr_kfp", "again", "kubectl"))
    for title, name in (("end to exit", "completion_s"), ("start", "start_s")):
        both = [statistics.median(getattr(one, name) for one in half) for half in (ours, again)]
        print(f"A/A, {title}: {both[0]:.2f} and {both[1]:.2f} s")
    verbs = {f"{request.verb} {request.uri.partition('?')[0].rpartition('/')[2]}" for request in made["kr_kfp"]}
    print(f"kr_kfp's requests: {', '.join(sorted(verbs))}")
    start = statistics.median(one.start_s for one in ours) - statistics.median(one.start_s for one in by_hand)
    all_ours = [*ours, *again]
    print(
        f"completion_s={statistics.median(one.completion_s for one in all_ours):.2f} "
        f"starts={max(one.starts for one in all_ours)} "
        f"requests_per_hour={per_hour(made['kr_kfp'], quiet.begin, quiet.begin + QUIET):.0f} "
        f"rss_mb={max(quiet.meters['kr_kfp'].rss_mb, *(one.rss_mb for one in all_ours)):.0f} start_s={start:.2f}"
    )


if __name__ == "__main__":
    main()
