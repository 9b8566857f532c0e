"""KubeCluster against a real HTTP server: what each request of the launcher becomes, and what its answers become."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from kr_kfp.cluster.api import Ports
from kr_kfp.cluster.kube import KubeCluster
from kr_kfp.cluster.kube_access import missing_features
from kr_kfp.cluster.kube_errors import Target
from kr_kfp.cluster.kube_http import Api
from kr_kfp.cluster.kube_lease import LEASES
from kr_kfp.errors import ConflictError, ForbiddenError, NotFoundError, SetupError
from kr_kfp.names import HOLDER_ANNOTATION
from kr_kfp.runtime.clock import RealClock
from kr_kfp.runtime.group import Group
from tests.kube_kit import DEADLINE, GROUP, Json, WatchedApi, connected, login, pod, until
from tests.kube_server import LWS_SCHEMA, Fault, KubeServer

OWN: Json = {
    "metadata": {"name": "launcher", "uid": "l1", "labels": {"pipeline/runid": "r1"}},
    "spec": {"containers": [{"name": "main"}]},
    "status": {"phase": "Running"},
}


@pytest.fixture
def server() -> Iterator[KubeServer]:
    """An API server."""
    server = KubeServer()
    yield server
    server.close()


def test_create_looks_first_and_is_strict(server: KubeServer) -> None:
    """The served schema and the rights are looked at, then the group is made with unknown fields refused."""
    with connected(server, pod=OWN) as (cluster, _):
        made = cluster.create_group(GROUP)
    assert made["metadata"] == {"name": "train-x", "uid": "uid-1", "namespace": "ml", "resourceVersion": "101"}
    assert [request.kind for request in server.requests] == [
        "GET /openapi/v3/apis/leaderworkerset.x-k8s.io/v1",
        "create selfsubjectrulesreviews",
        "create leaderworkersets",
    ]
    assert server.requests[-1].query == {"fieldValidation": "Strict"}
    assert server.requests[-1].body == GROUP


def test_create_of_what_exists(server: KubeServer) -> None:
    """A group of this name is a conflict, which the launcher answers by adopting."""
    server.put("leaderworkersets", GROUP)
    with connected(server, pod=OWN) as (cluster, _), pytest.raises(ConflictError) as caught:
        cluster.create_group(GROUP)
    assert (caught.value.status, caught.value.reason) == (409, "AlreadyExists")


def test_lws_is_not_installed(server: KubeServer) -> None:
    """A cluster without LeaderWorkerSet is told apart from a missing object, with the command that installs it."""
    server.documents.clear()
    with connected(server, pod=OWN) as (cluster, _), pytest.raises(SetupError) as caught:
        cluster.create_group(GROUP)
    assert str(caught.value) == (
        "this cluster serves leaderworkerset.x-k8s.io/v1 not at all. Install LeaderWorkerSet: kr-kfp install"
    )


def test_lws_serves_another_version(server: KubeServer) -> None:
    """The versions that are served are named."""
    server.documents = {
        "/apis/leaderworkerset.x-k8s.io": {"versions": [{"groupVersion": "leaderworkerset.x-k8s.io/v2"}]}
    }
    with connected(server, pod=OWN) as (cluster, _), pytest.raises(SetupError) as caught:
        cluster.create_group(GROUP)
    assert "serves leaderworkerset.x-k8s.io/v1 only as leaderworkerset.x-k8s.io/v2." in str(caught.value)


def test_lws_was_installed_a_moment_ago(server: KubeServer) -> None:
    """Its schema is published later than its version is served; that is no reason to refuse."""
    server.documents = {
        "/apis/leaderworkerset.x-k8s.io": {"versions": [{"groupVersion": "leaderworkerset.x-k8s.io/v1"}]}
    }
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.create_group(GROUP)["metadata"]["uid"] == "uid-1"


def test_lws_is_too_old(server: KubeServer) -> None:
    """What the served schema lacks is named, with the oldest version that has it."""
    schema = {
        "x-kubernetes-group-version-kind": [{"kind": "LeaderWorkerSet"}],
        "properties": {
            "spec": {
                "properties": {
                    "leaderWorkerTemplate": {
                        "properties": {
                            "restartPolicy": {"enum": ["Default", "RecreateGroupOnPodRestart"]},
                            "subGroupPolicy": {"properties": {"subGroupSize": {}}},
                        }
                    }
                }
            }
        },
    }
    server.documents = {"/openapi/v3/apis/leaderworkerset.x-k8s.io/v1": {"components": {"schemas": {"x": schema}}}}
    with connected(server, pod=OWN) as (cluster, _), pytest.raises(SetupError) as caught:
        cluster.create_group(GROUP)
    assert str(caught.value) == (
        "the LeaderWorkerSet of this cluster has no restartPolicy None, subGroupPolicyType, controller that leaves groups "
        "alone which are being deleted: it is older than 0.7.0. Install LeaderWorkerSet: kr-kfp install"
    )


def test_lws_cannot_delete_in_the_foreground(server: KubeServer) -> None:
    """0.6.0 has all fields that a step needs, but makes the pods of a deleted group anew for ever: 0.7.0's tell it."""
    schemas = copy.deepcopy(LWS_SCHEMA["components"]["schemas"])
    (schema,) = schemas.values()
    del schema["properties"]["spec"]["properties"]["rolloutStrategy"]["properties"]["rollingUpdateConfiguration"]
    server.documents = {"/openapi/v3/apis/leaderworkerset.x-k8s.io/v1": {"components": {"schemas": schemas}}}
    with connected(server, pod=OWN) as (cluster, _), pytest.raises(SetupError) as caught:
        cluster.create_group(GROUP)
    assert str(caught.value) == (
        "the LeaderWorkerSet of this cluster has no controller that leaves groups alone which are being deleted: it is "
        "older than 0.7.0. Install LeaderWorkerSet: kr-kfp install"
    )


def test_schema_that_may_not_be_read(server: KubeServer) -> None:
    """Without the right to the schema the create request has to tell."""
    server.fail("GET /openapi/v3/apis/leaderworkerset.x-k8s.io/v1", Fault(status=403, reason="Forbidden"))
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.create_group(GROUP)["metadata"]["uid"] == "uid-1"


def test_missing_rights_are_all_named_before_anything_is_made(server: KubeServer) -> None:
    """What is not in the rules is asked for one by one; what is then denied is listed, and nothing was created."""
    server.rules = [
        {"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods", "pods/log"]},
        {"verbs": ["create", "get"], "apiGroups": ["leaderworkerset.x-k8s.io"], "resources": ["*"]},
        {"verbs": ["delete"], "apiGroups": [""], "resources": ["pods"], "resourceNames": ["one"]},
        {"verbs": ["*"], "apiGroups": ["apps"], "resources": ["*"]},
    ]
    server.allowed = {"watch leaderworkersets": True, "list leaderworkersets": True}
    api = WatchedApi(server, account="system:serviceaccount:ml:pipeline-runner")
    with pytest.raises(ForbiddenError) as caught:
        KubeCluster(api, pod=OWN).create_group(GROUP)
    assert str(caught.value) == (
        "system:serviceaccount:ml:pipeline-runner may not: patch, delete leaderworkersets; delete pods in namespace ml. "
        "Give it the rights: kr-kfp install"
    )
    assert server.count("create selfsubjectaccessreviews") == 5
    assert server.count("create leaderworkersets") == 0


@pytest.mark.parametrize("first", ["get leaderworkersets", "list pods"])
def test_missing_rights_are_all_named_at_the_first_that_is_refused(server: KubeServer, first: str) -> None:
    """What a launcher asks for before it makes anything tells of the other missing rights too."""
    server.fail(first, Fault(status=403, reason="Forbidden"))
    server.rules = [{"verbs": ["*"], "apiGroups": ["leaderworkerset.x-k8s.io"], "resources": ["*"]}]
    server.allowed = {"watch pods": True, "get pods": True}
    api = WatchedApi(server, account="system:serviceaccount:ml:pipeline-runner")
    cluster = KubeCluster(api, pod=OWN)
    with pytest.raises(ForbiddenError, match="may not: list, delete pods"):
        cluster.read_group("train-x") if first.startswith("get") else cluster.list_pods("train-x")


def test_missing_namespace(server: KubeServer) -> None:
    """404 on create is about the namespace, since the kind was found."""
    message = 'namespaces "ml" not found'
    server.fail("create leaderworkersets", Fault(status=404, reason="NotFound", message=message))
    with connected(server, pod=OWN) as (cluster, _), pytest.raises(SetupError) as caught:
        cluster.create_group(GROUP)
    assert str(caught.value) == (
        'create leaderworkersets train-x in namespace ml: namespaces "ml" not found. Does namespace ml exist?'
    )


def test_read_and_patch(server: KubeServer) -> None:
    """A patch carries the version it is meant for; another version is a conflict, a missing group is not found."""
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.read_group("train-x") is None
        made = cluster.create_group(GROUP)
        version = made["metadata"]["resourceVersion"]
        patched = cluster.patch_group("train-x", patch={"spec": {"replicas": 0}}, resource_version=version)
        assert (patched["spec"], server.requests[-1].body["metadata"]) == ({"replicas": 0}, {"resourceVersion": "101"})
        assert cluster.read_group("train-x") == patched
        with pytest.raises(ConflictError):
            cluster.patch_group("train-x", patch={"spec": {"replicas": 1}}, resource_version=version)
        with pytest.raises(NotFoundError):
            cluster.patch_group("train-y", patch={}, resource_version="1")


def test_delete_group(server: KubeServer) -> None:
    """In the foreground, under the UID; another group of the name, and none, are left in peace."""
    with connected(server, pod=OWN) as (cluster, _):
        made = cluster.create_group(GROUP)
        cluster.delete_group("train-x", uid="another")
        assert cluster.read_group("train-x") == made
        cluster.delete_group("train-x", uid="uid-1")
        cluster.delete_group("train-y", uid="uid-1")
    assert server.of("delete leaderworkersets")[1].body == {
        "propagationPolicy": "Foreground",
        "preconditions": {"uid": "uid-1"},
    }


@pytest.mark.parametrize(
    ("name", "grace", "body"),
    [
        ("train-x-0-1", None, {"preconditions": {"uid": "u"}}),
        ("train-x-0-1", 2.0, {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 2}),
        ("train-x-0-10", 0.3, {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 1}),
        ("train-x-0-1", 0.0, {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 0}),
        (
            "train-x-0",
            2.0,
            {"preconditions": {"uid": "u"}, "gracePeriodSeconds": 2, "propagationPolicy": "Foreground"},
        ),
    ],
)
def test_delete_pod(server: KubeServer, name: str, grace: float | None, body: Json) -> None:
    """Grace in whole seconds, rounded up; a leader goes with its workers before another one comes."""
    server.put("pods", {"metadata": {"name": name, "uid": "u"}})
    with connected(server, pod=OWN) as (cluster, _):
        cluster.delete_pod(name, uid="u", grace_seconds=grace)
        cluster.delete_pod(name, uid="of another")
        cluster.delete_pod("gone", uid="u")
    assert server.of("delete pods")[0].body == body


def test_delete_pods(server: KubeServer) -> None:
    """Each is deleted under its UID; one that is gone is no error."""
    names = [f"train-x-0-{number}" for number in range(1, 20)]
    for name in names[1:]:
        server.put("pods", {"metadata": {"name": name}})
    with connected(server) as (cluster, _):
        cluster.delete_pods([(name, f"u-{name}") for name in names], grace_seconds=2.0)
    asked = server.of("delete pods")
    assert sorted(request.path.rpartition("/")[2] for request in asked) == sorted(names)
    for request in asked:
        uid = f"u-{request.path.rpartition('/')[2]}"
        assert request.body == {"preconditions": {"uid": uid}, "gracePeriodSeconds": 2}


def test_list_pods(server: KubeServer) -> None:
    """The group's pods and no others."""
    mine, other = server.put("pods", pod(0)), pod(0)
    other["metadata"] = {"name": "y-0", "labels": {"leaderworkerset.sigs.k8s.io/name": "y"}}
    server.put("pods", other)
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.list_pods("train-x") == [mine]


def test_what_a_launcher_in_a_pod_is(server: KubeServer) -> None:
    """Its own pod, whose UID holds groups, fixed ports, and the namespace for people."""
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.own_pod() == OWN
        assert cluster.holder() == "l1"
        assert cluster.ports("train-x") == Ports(jax=8482, torch=29400, megascale=8080)
        assert cluster.where == "namespace ml"


@pytest.mark.parametrize(
    ("metadata", "status", "alive"),
    [
        ({}, {"phase": "Running"}, True),
        ({}, {"phase": "Pending"}, True),
        ({}, {"phase": "Failed"}, False),
        ({}, {"phase": "Succeeded"}, False),
        ({}, {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"terminated": {}}}]}, True),
        ({}, {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"terminated": {"a": 1}}}]}, False),
        ({}, {"phase": "Running", "containerStatuses": [{"name": "wait", "state": {"terminated": {"a": 1}}}]}, True),
        ({"deletionTimestamp": "2000-01-01T00:00:00Z"}, {"phase": "Running"}, False),
        ({"deletionTimestamp": "2999-01-01T00:00:00Z"}, {"phase": "Running"}, True),
    ],
)
def test_holder_in_a_pod(server: KubeServer, metadata: Json, status: Json, alive: bool) -> None:
    """A launcher is at work until its pod is gone, terminal, or should have been gone."""
    labels = {"pipeline/runid": "r1"}
    server.put("pods", {"metadata": {"name": "other", "uid": "l2", "labels": labels, **metadata}, "status": status})
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.is_holder_alive("l2") is alive
        assert cluster.is_holder_alive("l3") is False
        assert cluster.is_holder_alive("") is False
    assert server.requests[0].query["labelSelector"] == "pipeline/runid=r1"


def test_a_lease_stands_for_a_launcher_outside_of_pods(server: KubeServer) -> None:
    """It is made before the group, renewed each minute, owned by the group, and the group names it as its holder."""
    with connected(server) as (cluster, api):
        holder = cluster.holder()
        assert cluster.own_pod() is None
        assert not cluster.is_holder_alive(holder)
        annotated = {**GROUP, "metadata": {"name": "train-x", "annotations": {HOLDER_ANNOTATION: holder}}}
        made = cluster.create_group(annotated)
        assert cluster.is_holder_alive(holder)
        lease = api.get(LEASES, holder.removeprefix("lease:"), namespace="ml")
        assert lease["metadata"]["ownerReferences"] == [
            {
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "name": "train-x",
                "uid": made["metadata"]["uid"],
            }
        ]
        assert lease["spec"]["leaseDurationSeconds"] == 180
        until(lambda: server.count("patch leases") >= 4)
        assert set(api.pauses.waited) == {60.0}
        server.remove("leases", holder.removeprefix("lease:"))
        until(lambda: server.of("patch leases")[-1])
        assert not cluster.is_holder_alive(holder)
        assert api.warnings == []


@pytest.mark.parametrize(("age", "alive"), [(170, True), (190, False)])
def test_a_lease_expires(server: KubeServer, age: int, alive: bool) -> None:
    """A launcher that stopped renewing three minutes ago is dead."""
    renewed = (datetime.now(UTC) - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    server.put("leases", {"metadata": {"name": "l"}, "spec": {"renewTime": renewed, "leaseDurationSeconds": 180}})
    with connected(server) as (cluster, _):
        assert cluster.is_holder_alive("lease:l") is alive


def test_times_are_the_servers(server: KubeServer) -> None:
    """A clock that is wrong here makes no other launcher's Lease expire."""
    ahead = datetime.now(UTC) + timedelta(hours=1)
    server.put("pods", pod(0))
    server.fail("get pods", Fault(body=b"{}", headers={"Date": ahead.strftime("%a, %d %b %Y %H:%M:%S GMT")}))
    api = Api(login(server))
    begun = time.time()
    assert begun <= api.now() <= time.time()
    api.request("GET", "/api/v1/namespaces/ml/pods/train-x-0", Target(verb="get", resource="pods"))
    # Told in whole seconds; it stood still while the request was made.
    assert ahead.timestamp() - 1.0 <= api.now() <= ahead.timestamp() + time.time() - begun


def doubtful(since: str = "2026-01-01T00:00:00Z") -> Json:
    value = pod(0, uid="p0")
    value["status"]["conditions"][0] |= {"status": "False", "lastTransitionTime": since}
    return value


def node(status: str, since: str) -> Json:
    condition = {"type": "Ready", "status": status, "lastTransitionTime": since}
    return {"metadata": {"name": "n1"}, "status": {"conditions": [condition]}}


def now(ago: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_pod_that_is_well_costs_no_request(server: KubeServer) -> None:
    """Nodes are asked for only when their pod is in doubt."""
    restarting = doubtful()
    restarting["status"]["conditions"][1]["status"] = "False"
    moment = time.time()
    with connected(server, pod=OWN) as (cluster, _):
        cluster._nodes._now = lambda: moment
        assert not cluster.node_is_lost(pod(0))
        assert not cluster.node_is_lost(restarting)
        assert not cluster.node_is_lost({**pod(0), "spec": {}})
        assert not cluster.node_is_lost(pod(0, deletionTimestamp="2999-01-01T00:00:00Z"))
        assert not cluster.node_is_lost(pod(0, deletionTimestamp=now(8)))
    assert server.requests == []


@pytest.mark.parametrize(
    ("status", "ago", "lost"),
    [("Unknown", 70, True), ("False", 70, True), ("Unknown", 50, False), ("True", 70, False)],
)
def test_a_silent_node_is_lost_after_a_while(server: KubeServer, status: str, ago: float, lost: bool) -> None:
    """With the right to nodes, the node itself decides."""
    server.put("nodes", node(status, now(ago)), namespace="")
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.node_is_lost(doubtful()) is lost
        assert cluster.node_is_lost(doubtful()) is lost
    assert server.count("get nodes") == 1


def test_a_node_that_is_gone_is_lost(server: KubeServer) -> None:
    """A Node object that was deleted will not come back."""
    with connected(server, pod=OWN) as (cluster, _):
        assert cluster.node_is_lost(doubtful())


@pytest.mark.parametrize(("ago", "lost"), [(70, True), (50, False)])
def test_without_the_right_to_nodes_the_pod_decides(server: KubeServer, ago: float, lost: bool) -> None:
    """One warning, then how long the pod is in doubt."""
    denied = 'User "u" cannot get resource "nodes" in API group "" at the cluster scope'
    server.fail("get nodes", Fault(status=403, reason="Forbidden", message=denied))
    with connected(server, pod=OWN) as (cluster, api):
        assert cluster.node_is_lost(doubtful(now(ago))) is lost
        assert cluster.node_is_lost({**pod(0, uid="p1", deletionTimestamp=now(ago + 10))}) is lost
        assert api.warnings == [
            "u may not get nodes in the cluster (a ClusterRole grants it). Give it the rights: kr-kfp install; "
            "that a node is lost is concluded from its pods"
        ]
    assert server.count("get nodes") == 1


def test_an_outage_says_nothing_about_nodes(server: KubeServer) -> None:
    """While the API server does not answer, no node is lost."""
    server.fail("get nodes", *[Fault(status=503)] * 10)
    with connected(server, pod=OWN) as (cluster, api):
        assert not cluster.node_is_lost(doubtful())
        assert sum(api.pauses.waited) <= 5.0


def test_a_group_on_a_lost_node_is_taken_away_by_force(server: KubeServer) -> None:
    """The leader goes first; a worker on a lost node goes by force when its StatefulSet goes, not before."""
    server.put("leaderworkersets", {**GROUP, "metadata": {"name": "train-x", "uid": "g"}})
    lost = doubtful()
    lost["metadata"] |= {"name": "train-x-0-1", "uid": "p1"}
    lost["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/worker-index"] = "1"
    lost["spec"] = {"nodeName": "gone"}
    server.put("nodes", node("True", now(500)), namespace="")
    server.put("pods", lost)
    server.put("pods", pod(2, uid="p2"))
    server.put("pods", pod(0, uid="p0"))

    def asked() -> list[tuple[str, int, str]]:
        bodies = [(r.path.rpartition("/")[2], r.body) for r in server.of("delete pods")]
        return [(name, body["gracePeriodSeconds"], body.get("propagationPolicy", "")) for name, body in bodies]

    clock = RealClock()
    with connected(server, pod=OWN) as (cluster, _):
        group = Group(cluster, clock, name="train-x", hosts=3)
        group.manifest = cluster.read_group("train-x")
        watch = cluster.watch("train-x", clock.put)
        group.sync()
        group.delete()
        assert asked() == [("train-x-0", 2, "Foreground"), ("train-x-0-2", 2, "")]
        lost["metadata"]["deletionTimestamp"] = now(-30)
        server.put("pods", lost)
        assert not group.wait_gone(time.time() + 0.5)
        assert asked()[2:] == [("train-x-0-1", 0, "")]
        for name in ("train-x-0", "train-x-0-1", "train-x-0-2"):
            server.remove("pods", name)
        server.remove("leaderworkersets", "train-x")
        assert group.wait_gone(time.time() + DEADLINE)
        watch.close()


def test_the_schema_of_the_tests_is_the_served_one() -> None:
    """The schema that stands for a cluster's own has what a step needs."""
    assert missing_features(LWS_SCHEMA["components"]["schemas"]) == ()
    assert missing_features({}) == ()
