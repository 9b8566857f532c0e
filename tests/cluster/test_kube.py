"""KubeCluster on a real cluster: API server, LeaderWorkerSet controller, kubelets."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kr_kfp.cluster.api import Event
from kr_kfp.cluster.kube import KubeCluster, connect
from kr_kfp.cluster.kube_access import RIGHTS, Right, check_served, missing_rights
from kr_kfp.cluster.kube_http import Api
from kr_kfp.cluster.kube_login import from_kubeconfig
from kr_kfp.errors import ConflictError, ForbiddenError, SetupError
from kr_kfp.names import HOLDER_ANNOTATION
from kr_kfp.runtime.clock import RealClock
from kr_kfp.runtime.group import Group
from tests.cluster.cluster import Cluster
from tests.cluster.groups import HOLD, container, group
from tests.cluster.rest import ApiError
from tests.cluster.space import Space
from tests.cluster.spare import Spare

Json = dict[str, Any]

LINES = """
import os, pathlib, signal, sys, time
index = os.environ["LWS_WORKER_INDEX"]
marker = pathlib.Path("/work/marker")
if marker.exists():
    print("held", index, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        signal.pause()
for number in range(400):
    print(f"{index}: line {number}", flush=True)
    if number % 100 == 0:
        time.sleep(1)
marker.write_text("")
pathlib.Path("/dev/termination-log").write_text(f"outcome of {index}")
"""


class Kube:
    """A cluster as the launcher sees it, and what it told."""

    def __init__(self, cluster: KubeCluster) -> None:
        self.cluster = cluster
        self.warnings: list[str] = []
        self.inbox: queue.Queue[Event] = queue.Queue()
        self.events: list[Event] = []

    def until(self, condition: Callable[[list[Event]], object], what: str, seconds: float = 180) -> list[Event]:
        """Wait until what was told so far is enough."""
        end = time.monotonic() + seconds
        while not condition(self.events):
            try:
                self.events.append(self.inbox.get(timeout=max(0.01, end - time.monotonic())))
            except queue.Empty:
                pytest.fail(f"{what}: not within {seconds} s; {[e.kind for e in self.events]}")
        return self.events

    def pods(self) -> dict[str, Json]:
        """Give the pods that exist, by UID."""
        found: dict[str, Json] = {}
        for event in self.events:
            if event.kind == "pod":
                found[event.value["metadata"]["uid"]] = event.value
            elif event.kind == "pod-gone":
                found.pop(event.value["metadata"]["uid"], None)
        return found

    def running(self, hosts: int, restarts: int = 0) -> bool:
        """Tell whether so many pods run, after so many restarts."""
        states = [_main(pod) for pod in self.pods().values()]
        return len([s for s in states if "running" in s.get("state", {}) and s["restartCount"] >= restarts]) == hosts


def _main(pod: Json) -> Json:
    return next((s for s in pod.get("status", {}).get("containerStatuses", []) if s["name"] == "main"), {})


def env_of(space: Space) -> dict[str, str]:
    return {"KUBECONFIG": str(space.cluster.places.kubeconfig), "KR_KFP_NAMESPACE": space.name}


@pytest.fixture
def kube(space: Space) -> Iterator[Kube]:
    """The test's namespace as administrator, from outside of the cluster."""
    warnings: list[str] = []
    cluster = connect("kubeconfig", env_of(space), warn=warnings.append)
    made = Kube(cluster)
    made.warnings = warnings
    yield made
    cluster.close()


def test_group_is_watched_to_its_end(kube: Kube) -> None:
    """From create to deletion: what happens is told, and when the group is gone all of its pods are."""
    made = kube.cluster.create_group(group("g", container(HOLD), size=2))
    with pytest.raises(ConflictError):
        kube.cluster.create_group(group("g", container(HOLD), size=2))
    watch = kube.cluster.watch("g", kube.inbox.put)
    kube.until(lambda _: kube.running(2), "two hosts that run")
    kinds = [event.kind for event in kube.events]
    assert kinds.index("group") < kinds.index("synced")
    assert {pod["metadata"]["name"] for pod in kube.pods().values()} == {"g-0", "g-0-1"}
    assert len(kube.cluster.list_pods("g")) == 2
    uid = made["metadata"]["uid"]
    kube.cluster.delete_group("g", uid="6f6e0a5c-0000-4000-8000-000000000000")
    found = kube.cluster.read_group("g")
    assert found is not None
    assert "deletionTimestamp" not in found["metadata"]
    kube.cluster.delete_group("g", uid=uid)
    kube.until(lambda events: "group-gone" in [event.kind for event in events], "the end of the group")
    assert kube.pods() == {}
    assert kube.cluster.list_pods("g") == []
    assert kube.cluster.read_group("g") is None
    kube.cluster.delete_group("g", uid=uid)
    watch.close()
    assert kube.warnings == []


def test_patch_under_a_version(kube: Kube) -> None:
    """The version that was read is good once."""
    made = kube.cluster.create_group(group("g", container(HOLD), size=1))
    patch = {"metadata": {"annotations": {HOLDER_ANNOTATION: "me"}}}
    with pytest.raises(ConflictError):
        kube.cluster.patch_group("g", patch=patch, resource_version=str(int(made["metadata"]["resourceVersion"]) - 1))
    for _ in range(10):
        # Its controller writes to it, too.
        found = kube.cluster.read_group("g")
        assert found is not None
        try:
            patched = kube.cluster.patch_group("g", patch=patch, resource_version=found["metadata"]["resourceVersion"])
        except ConflictError:
            continue
        assert patched["metadata"]["annotations"][HOLDER_ANNOTATION] == "me"
        return
    pytest.fail("every version was old")


def test_logs_of_all_hosts_are_whole(kube: Kube) -> None:
    """Every line of the first start once, on both hosts, and none of the second start."""
    kube.cluster.create_group(group("g", container(LINES), size=2))
    kube.cluster.watch("g", kube.inbox.put)
    got: dict[str, bytes] = {}
    threads: list[threading.Thread] = []

    def follow(pod: Json) -> None:
        got[pod["metadata"]["name"]] = b"".join(kube.cluster.follow_log(pod))

    kube.until(lambda _: kube.running(2), "two hosts that run")
    for pod in kube.pods().values():
        threads.append(threading.Thread(target=follow, args=(pod,), daemon=True))
        threads[-1].start()
    kube.until(lambda _: kube.running(2, restarts=1), "two hosts that hold")
    pods = kube.pods()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for index, name in enumerate(("g-0", "g-0-1")):
        assert got[name].decode().splitlines() == [f"{index}: line {number}" for number in range(400)]
    for pod in pods.values():
        index = pod["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"]
        assert _main(pod)["lastState"]["terminated"]["message"] == f"outcome of {index}"
        wait_for_log(kube.cluster, pod, f"held {index}\n".encode())
        assert kube.cluster.read_log(pod, previous=True, tail_bytes=9) == b"line 399\n"
        assert b"".join(kube.cluster.follow_log(pod)).decode().splitlines()[-1] == f"{index}: line 399"


def wait_for_log(cluster: KubeCluster, pod: Json, wanted: bytes) -> None:
    end = time.monotonic() + 10
    while cluster.read_log(pod) != wanted:
        assert time.monotonic() < end, cluster.read_log(pod)
        time.sleep(0.05)


def test_log_of_a_pod_that_was_replaced(kube: Kube, space: Space) -> None:
    """Another pod of the name is another pod: there is nothing to read of the one that is gone."""
    kube.cluster.create_group(group("g", container("print('a', flush=True)\n" + HOLD), size=1))
    kube.cluster.watch("g", kube.inbox.put)
    kube.until(lambda _: kube.running(1), "a host that runs")
    old = next(iter(kube.pods().values()))
    kube.cluster.delete_pod("g-0", uid=old["metadata"]["uid"], grace_seconds=0.5)
    kube.until(lambda _: old["metadata"]["uid"] not in kube.pods() and kube.running(1), "another pod of the name")
    assert kube.cluster.read_log(old) == b""
    assert b"".join(kube.cluster.follow_log(old)) == b""
    wait_for_log(kube.cluster, next(iter(kube.pods().values())), b"a\n")


def test_restart_takes_all_pods_away_and_starts_each_host_once(kube: Kube) -> None:
    """Old pods are gone before new ones come, no host of the old attempt starts again, and the number goes up."""
    name, clock = "g", RealClock()
    main = container(HOLD, env=[{"name": "KR_KFP_ATTEMPT", "value": "0"}])
    manifest = group(name, main, size=3, pod={"terminationGracePeriodSeconds": 30})
    manifest["metadata"]["annotations"] = {"kr-kfp.dev/identity": "i", HOLDER_ANNOTATION: kube.cluster.holder()}
    kube.cluster.watch(name, kube.inbox.put)
    launched = Group(kube.cluster, clock, name=name, hosts=3)
    launched.acquire(manifest)
    launched.sync()
    kube.until(lambda _: kube.running(3), "three hosts that run")
    first = set(kube.pods())
    began = time.monotonic()
    launched.restart(1.5)
    kube.until(lambda _: kube.running(3) and not first & set(kube.pods()), "three hosts of the next attempt")
    assert time.monotonic() - began < 30  # the pods' grace, which ends early
    assert (launched.attempt, launched.ran) == (1, 1.5)
    seen = {event.value["metadata"]["uid"]: event.value for event in kube.events if event.kind == "pod"}
    attempts = sorted(pod["spec"]["containers"][0]["env"][-1]["value"] for pod in seen.values())
    assert attempts == ["0", "0", "0", "1", "1", "1"]
    gone = [e.value["metadata"]["uid"] for e in kube.events if e.kind == "pod-gone"]
    last_old = max(
        at for at, e in enumerate(kube.events) if e.kind == "pod-gone" and e.value["metadata"]["uid"] in first
    )
    first_new = min(
        at for at, e in enumerate(kube.events) if e.kind == "pod" and e.value["metadata"]["uid"] not in first
    )
    assert set(gone) == first
    assert last_old < first_new
    launched.delete()
    assert launched.wait_gone(clock.now() + 30)


def test_lease_stands_for_the_launcher_and_goes_with_the_group(kube: Kube, space: Space) -> None:
    """Outside of a KFP pod a group is held by a Lease that it owns."""
    holder = kube.cluster.holder()
    manifest = group("g", container(HOLD), size=1)
    manifest["metadata"]["annotations"] = {HOLDER_ANNOTATION: holder}
    made = kube.cluster.create_group(manifest)
    lease = space.read("leases", holder.removeprefix("lease:"))
    assert lease is not None
    assert [owner["uid"] for owner in lease["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    assert kube.cluster.is_holder_alive(holder)
    assert not kube.cluster.is_holder_alive("lease:none")
    space.patch("leases", lease["metadata"]["name"], {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}})
    assert not kube.cluster.is_holder_alive(holder)
    kube.cluster.watch("g", kube.inbox.put)
    kube.cluster.delete_group("g", uid=made["metadata"]["uid"])
    kube.until(lambda events: "group-gone" in [event.kind for event in events], "the end of the group")
    end = time.monotonic() + 20
    while space.read("leases", lease["metadata"]["name"]) is not None:
        assert time.monotonic() < end, "the Lease stays"
        time.sleep(0.1)


def test_pods_that_are_refused_are_told_by_events(kube: Kube) -> None:
    """A service account that does not exist: only an Event of the StatefulSet says so."""
    manifest = group("g", container(HOLD), size=1, pod={"serviceAccountName": "nobody"})
    kube.cluster.create_group(manifest)
    kube.cluster.watch("g", kube.inbox.put)

    def refused(events: list[Event]) -> list[str]:
        notices = [event.value for event in events if event.kind == "notice"]
        return [n["message"] for n in notices if n["reason"] == "FailedCreate"]

    kube.until(refused, "an Event that says why")
    assert 'serviceaccount "nobody" not found' in refused(kube.events)[0]


def test_served_lws_is_new_enough(cluster: Cluster, kube: Kube, space: Space) -> None:
    """The schema that is really served has what a step needs; an unknown field is refused and named."""
    check_served(Api(from_kubeconfig("kubeconfig", env_of(space))))
    manifest = group("g", container(HOLD), size=1)
    manifest["spec"]["leaderWorkerTemplate"]["noSuchField"] = 1
    with pytest.raises(Exception, match=r'unknown field "spec.leaderWorkerTemplate.noSuchField"'):
        kube.cluster.create_group(manifest)


# --- as a service account ---------------------------------------------------------------------------------------------

RULES: list[Json] = [
    {
        "apiGroups": ["leaderworkerset.x-k8s.io"],
        "resources": ["leaderworkersets"],
        "verbs": ["create", "get", "list", "watch", "patch", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["get", "list", "watch"]},
]


def without(verb: str, resource: str) -> list[Json]:
    rules = json.loads(json.dumps(RULES))
    for rule in rules:
        if resource in rule["resources"]:
            rule["verbs"].remove(verb)
    return [rule for rule in rules if rule["verbs"]]


def log_in(space: Space, folder: Path, rules: list[Json]) -> tuple[dict[str, str], Path]:
    """Make an account with these rules; give a KFP pod's environment and the files that it would find mounted."""
    space.create_object("serviceaccounts", {"metadata": {"name": "runner"}})
    space.create_object("roles", {"metadata": {"name": "runner"}, "rules": rules})
    space.create_object(
        "rolebindings",
        {
            "metadata": {"name": "runner"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "runner"},
            "subjects": [{"kind": "ServiceAccount", "name": "runner"}],
        },
    )
    config = json.loads(space.cluster.places.kubeconfig.read_text(encoding="utf-8"))
    address = config["clusters"][0]["cluster"]
    (folder / "token").write_text(space.kubectl("create", "token", "runner"), encoding="utf-8")
    (folder / "namespace").write_text(space.name, encoding="utf-8")
    (folder / "ca.crt").write_bytes(Path(address["certificate-authority"]).read_bytes())
    host, port = address["server"].removeprefix("https://").split(":")
    env = {"KFP_POD_NAME": "launcher", "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    return env, folder


def make_launcher_pod(space: Space, **labels: str) -> Json:
    """Make a pod that stands for the launcher's own."""
    main = container(HOLD)
    del main["volumeMounts"]
    spec = {"serviceAccountName": "runner", "terminationGracePeriodSeconds": 1, "containers": [main]}
    return space.create_object("pods", {"metadata": {"name": "launcher", "labels": labels}, "spec": spec})


def test_from_a_kfp_pod(space: Space, tmp_path: Path) -> None:
    """With the rights of the Role alone, everything of a group's life works; the pod's UID holds it."""
    env, account = log_in(space, tmp_path, RULES)
    own = make_launcher_pod(space, **{"pipeline/runid": "r1"})
    warnings: list[str] = []
    kube = Kube(connect(None, env, account=account, warn=warnings.append))
    holder = kube.cluster.holder()
    assert holder == own["metadata"]["uid"]
    assert kube.cluster.where == f"namespace {space.name}"
    assert kube.cluster.is_holder_alive(holder)
    made = kube.cluster.create_group(group("g", container(HOLD), size=1))
    kube.cluster.watch("g", kube.inbox.put)
    kube.until(lambda _: kube.running(1), "a host that runs")
    kube.cluster.delete_group("g", uid=made["metadata"]["uid"])
    kube.until(lambda events: "group-gone" in [event.kind for event in events], "the end of the group")
    space.delete("pods", "launcher", gracePeriodSeconds=0)
    assert not kube.cluster.is_holder_alive(holder)
    kube.cluster.close()
    assert warnings == []


def test_a_pod_without_the_runs_label(space: Space, tmp_path: Path) -> None:
    """Such a pod is none of KFP's, and chooses nothing."""
    env, account = log_in(space, tmp_path, RULES)
    make_launcher_pod(space, app="notebook")
    with pytest.raises(SetupError, match="has no label pipeline/runid"):
        connect(None, env, account=account)


@pytest.mark.parametrize("right", RIGHTS, ids=lambda right: f"{right.verb}-{right.plural}")
def test_one_right_missing_is_named_before_anything_is_made(space: Space, tmp_path: Path, right: Right) -> None:
    """Verb, resource, namespace and account; no group exists afterwards."""
    rules = without(right.verb, right.plural)
    env, account = log_in(space, tmp_path, rules)
    who = f"system:serviceaccount:{space.name}:runner"
    if right == Right("get", RIGHTS[-1].resource):
        with pytest.raises(ForbiddenError) as caught:
            connect(None, env, account=account)
        said = f"{who} may not get pods in namespace {space.name}. Give it the rights: kr-kfp install"
    else:
        make_launcher_pod(space, **{"pipeline/runid": "r1"})
        cluster = connect(None, env, account=account)
        with pytest.raises(ForbiddenError) as caught:
            cluster.create_group(group("g", container(HOLD), size=1))
        said = (
            f"{who} may not: {right.verb} {right.plural} in namespace {space.name}. Give it the rights: kr-kfp install"
        )
    assert str(caught.value) == said
    assert space.items("leaderworkersets") == []


def test_rights_that_can_be_done_without(space: Space, tmp_path: Path) -> None:
    """Without events, logs and nodes a group runs all the same; each is told once."""
    env, account = log_in(space, tmp_path, RULES[:2])
    make_launcher_pod(space, **{"pipeline/runid": "r1"})
    warnings: list[str] = []
    kube = Kube(connect(None, env, account=account, warn=warnings.append))
    kube.cluster.create_group(group("g", container(HOLD), size=2))
    kube.cluster.watch("g", kube.inbox.put)
    kube.until(lambda _: kube.running(2), "two hosts that run")
    pods = list(kube.pods().values())
    assert [b"".join(kube.cluster.follow_log(pod)) for pod in pods] == [b"", b""]
    pods[0]["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        {"type": "ContainersReady", "status": "True"},
    ]
    assert kube.cluster.node_is_lost(pods[0])
    who, fix = f"system:serviceaccount:{space.name}:runner", "Give it the rights: kr-kfp install"
    end = time.monotonic() + 10
    while len(warnings) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    assert sorted(warnings) == [
        f"{who} may not get nodes in the cluster (a ClusterRole grants it). {fix}; "
        "that a node is lost is concluded from its pods",
        f"{who} may not get pods/log in namespace {space.name}. {fix}; logs of hosts are not shown",
        f"{who} may not list events in namespace {space.name}. {fix}; why pods are not made will not be told",
    ]
    kube.cluster.close()


def test_quota_is_told_in_its_own_words(space: Space, kube: Kube) -> None:
    """A quota on groups answers like a missing right, and is none."""
    count = "count/leaderworkersets.leaderworkerset.x-k8s.io"
    space.create_object("resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": {count: "0"}}})
    end = time.monotonic() + 30
    while count not in ((space.read("resourcequotas", "q") or {}).get("status") or {}).get("used", {}):
        assert time.monotonic() < end, "the quota does not count"
        time.sleep(0.1)
    with pytest.raises(ForbiddenError) as caught:
        kube.cluster.create_group(group("g", container(HOLD), size=1))
    assert "exceeded quota: q" in str(caught.value)
    assert "kr-kfp install" not in str(caught.value)


def test_missing_namespace_is_named(space: Space) -> None:
    """A namespace that does not exist is said so, and is not mistaken for a missing LeaderWorkerSet."""
    cluster = connect("kubeconfig", {**env_of(space), "KR_KFP_NAMESPACE": "no-such-namespace"})
    with pytest.raises(SetupError, match="Does namespace no-such-namespace exist"):
        cluster.create_group(group("g", container(HOLD), size=1))


def test_administrator_misses_no_right(space: Space) -> None:
    """One review answers for all rights."""
    assert missing_rights(Api(from_kubeconfig("kubeconfig", env_of(space))), space.name) == ()


# --- lost nodes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("may_read_nodes", [True, False], ids=["nodes", "no-nodes"])
def test_lost_node_is_noticed_and_its_pod_is_forced_away(
    space: Space, spare: Spare, tmp_path: Path, may_read_nodes: bool
) -> None:
    """The pod is told again until its node counts as lost; taking the group away does not wait for the node."""
    node = spare.add("lost", topology="2x2")
    if may_read_nodes:
        api = Api(from_kubeconfig("kubeconfig", env_of(space)))
        pod = None
    else:
        env, account = log_in(space, tmp_path, RULES)
        pod = make_launcher_pod(space, **{"pipeline/runid": "r1"})
        api = connect(None, env, account=account)._api
    kube = Kube(KubeCluster(api, pod=pod, lost_after=4.0))
    clock = RealClock()
    chosen = {"nodeSelector": {"cloud.google.com/gke-nodepool": "lost"}}
    made = kube.cluster.create_group(group("g", container(HOLD), size=1, pod=chosen))
    kube.cluster.watch("g", kube.inbox.put)
    kube.until(lambda _: kube.running(1), "a host that runs")
    host = next(iter(kube.pods().values()))
    assert not kube.cluster.node_is_lost(host)
    node.lose()
    kube.until(
        lambda events: kube.cluster.node_is_lost(next(iter(kube.pods().values()), host)), "a lost node", seconds=90
    )
    taken = Group(kube.cluster, clock, name="g", hosts=1)
    taken.manifest = made
    taken.delete()
    began = time.monotonic()
    assert taken.wait_gone(clock.now() + 30)
    assert time.monotonic() - began < 30  # the pod's grace, which a node that is gone never tells the end of
    with pytest.raises(ApiError):
        space.rest.get("pods", space.name, "g-0")
    kube.cluster.close()
