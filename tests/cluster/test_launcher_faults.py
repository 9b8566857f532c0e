"""Faults of the cluster around a launcher in a KFP-shaped pod: who is named, what to do, what is left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

import kr_kfp
from kr_kfp.spec.rights import RULES
from tests.cluster.images import PYTHON_IMAGE
from tests.cluster.index import Index, serve_index
from tests.cluster.kfp_pod import KILL, Ended, KfpPod
from tests.cluster.kfp_run import allow
from tests.cluster.launch import Launching, install, nothing_is_left, shape, starts, uninstall
from tests.cluster.processes import wait_for
from tests.cluster.rest import Json
from tests.cluster.spare import Spare

REQUIRED = tuple(
    (verb, resource) for rule in RULES if not rule.without for resource in rule.resources for verb in rule.verbs
)
"""Rights without which no step can run: verb and resource."""

OPTIONAL = {
    ("get", "pods/log"): "logs of hosts are not shown",
    ("list", "events"): "why pods are not made will not be told",
    ("watch", "events"): "why pods are not made will not be told",
    ("get", "configmaps"): "KFP's defaults are taken in its place",
    ("get", "statefulsets"): "",
}
"""Rights that a step can do without, and what the warning says; nothing where a launcher has no use for it."""


@kr_kfp.component(hosts=2, framework="none")
def stay(mode: str) -> str:
    """Do what the test says."""
    import signal
    import time

    import kr_kfp

    ctx = kr_kfp.context()
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("host", ctx.host, "attempt", ctx.attempt, "starts", flush=True)
    while mode in ("wait", "deaf") or (mode == "lost" and ctx.attempt == 0):
        time.sleep(0.1)
    return f"{ctx.hosts} hosts, attempt {ctx.attempt}"


def both_start(pod: KfpPod, attempt: int = 0) -> None:
    """Wait until user code has started on both hosts."""
    for host in (0, 1):
        pod.wait_for_log(f"host {host} attempt {attempt} starts")


def failed(pod: KfpPod, *words: str, seconds: float = 240) -> Ended:
    """Wait for a failure whose termination message has these words and fits, and which told no error of the product."""
    ended = pod.wait(seconds=seconds)
    log = pod.log()
    print(log)
    assert ended.code == 1
    for word in words:
        assert word in ended.message
    assert "Traceback" not in log
    return ended


def test_image_that_cannot_be_pulled(launching: Launching) -> None:
    """The image is named once the grace is over, with what the node could not reach."""
    image = "kr-kfp.test/missing:1"
    pod = launching.start(shape(stay, base_image=image, start_grace="5s"), mode="wait")
    ended = failed(pod, f"cannot pull image {image} (", f"Check that the nodes reach the registry of {image}")
    # Whichever host's node tries first.
    assert re.match(r"stay failed in attempt 0: pod stay-[0-9a-f]{10}-0(-1)? cannot pull", ended.message)
    assert starts(pod.log()) == []
    nothing_is_left(launching)


def test_no_node_fits(launching: Launching) -> None:
    """After capacity_timeout the selector that no node has is named, and the resource that no node has enough of."""
    nowhere = launching.pod(shape(stay, accelerator="v6e-16", hosts=None, capacity_timeout="15s"), mode="wait")
    nowhere.start()
    large = launching.pod(shape(stay, capacity_timeout="15s"), mode="wait")
    large.path = ("large(0)",)
    large.task_config = {"resources": {"requests": {"cpu": "1000"}}}
    large.start()
    failed(
        nowhere,
        "not all hosts ran within capacity_timeout=15 s: 4 of 4 hosts wait: no node can take pod",
        "cloud.google.com/gke-tpu-accelerator=tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology=4x4",
        "Add a node pool with",
    )
    failed(large, "2 of 2 hosts wait: no node can take pod", "not enough free cpu", "Wait for nodes with free cpu")
    nothing_is_left(launching)


def test_terminate_while_hosts_wait(launching: Launching) -> None:
    """A step is stopped just so while its pods are pending."""
    pod = launching.pod(shape(stay), mode="wait")
    pod.task_config = {"nodeSelector": {"disk": "tape"}}
    pod.start()
    wait_for("pods of the group", lambda: len(launching.hosts()) == 2)
    assert pod.terminate().code == 1
    assert "stay was cancelled by SIGUSR1; its group of hosts was deleted" in pod.log()
    assert starts(pod.log()) == []
    nothing_is_left(launching)


def test_missing_service_account(launching: Launching) -> None:
    """An account that does not exist is known from the StatefulSet's event alone."""
    pod = launching.start(shape(stay, service_account="nobody", start_grace="3s"), mode="wait")
    failed(
        pod,
        "cannot be created: service account nobody does not exist",
        launching.run.space.name,
        "Create service account nobody in the namespace of the run, or name another one",
    )
    nothing_is_left(launching)


def test_quota_exceeded(launching: Launching) -> None:
    """A host that the quota leaves no room for is named with the quota; the other one is taken away."""
    hard = {"pods": "2"}
    launching.run.space.create_object("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": hard}})
    wait_for("the quota", lambda: _quota(launching).get("pods") == "2")
    pod = launching.start(shape(stay, capacity_timeout="20s"), mode="wait")
    failed(
        pod,
        "not all hosts ran within capacity_timeout=20 s: 1 of 2 hosts wait: pod",
        "-0-1 cannot be created: quota few is used up",
        "requested: pods=1, used: pods=2, limited: pods=2",
        "raise quota few",
    )
    assert starts(pod.log()) == ["host 0 attempt 0 starts"]
    nothing_is_left(launching)


def _quota(launching: Launching) -> Json:
    found: Json = (launching.run.space.read("resourcequotas", "few") or {}).get("status", {}).get("hard", {})
    return found


def without(launching: Launching, verb: str, resource: str) -> str:
    """Make an account that has all rights of a launcher but one, and give its name."""
    space, account = launching.run.space, f"no-{verb}-{resource.replace('/', '-')}"
    space.create_object("serviceaccounts", {"metadata": {"name": account}})
    rules = []
    for rule in RULES:
        verbs = [v for v in rule.verbs if v != verb or resource not in rule.resources]
        rules += [{**rule.to_json(), "verbs": verbs}] if verbs else []
    allow(space, account, rules, account=account)
    return account


def start_without(launching: Launching, rights: Any, step: Any) -> Mapping[tuple[str, str], KfpPod]:
    """Start a step once for each right, as different tasks, each under an account that lacks it."""
    pods = {}
    for verb, resource in rights:
        account = without(launching, verb, resource)
        pod = launching.pod(step, mode="end")
        pod.path, pod.fields = (f"{account}(0)",), {"serviceAccountName": account}
        pods[verb, resource] = pod.start()
    return pods


def test_each_right_that_is_needed(launching: Launching) -> None:
    """Without it nothing is made, and the message names verb, resource, namespace, account and the command."""
    where = launching.run.space.name
    with launching.run.space.watch("leaderworkersets") as groups:
        pods = start_without(launching, REQUIRED, shape(stay))
        assert len(pods) == 10
        for (verb, resource), pod in pods.items():
            ended = pod.wait()
            assert ended.code == 1
            account = f"system:serviceaccount:{where}:{pod.fields['serviceAccountName']}"
            assert ended.message.replace("may not: ", "may not ") == (
                f"stay: {account} may not {verb} {resource} in namespace {where}. Give it the rights: kr-kfp install"
            )
            assert "could not delete" not in pod.log()
            assert "Traceback" not in pod.log()
        assert groups.changes == []


def test_each_right_that_can_be_done_without(launching: Launching) -> None:
    """The step succeeds, with one warning that says what is missed, or none where nothing is."""
    pods = start_without(launching, OPTIONAL, shape(stay, hosts=1, backend="lws"))
    where = launching.run.space.name
    for (verb, resource), pod in pods.items():
        ended = pod.wait()
        assert ended.code == 0, pod.log()
        assert pod.outputs()["parameterValues"]["Output"] == "1 hosts, attempt 0"
        account = f"system:serviceaccount:{where}:{pod.fields['serviceAccountName']}"
        warnings = [line for line in pod.log().splitlines() if "may not" in line]
        said = f"{account} may not {verb} {resource} in namespace {where}. Give it the rights: kr-kfp install; "
        missed = OPTIONAL[verb, resource]
        assert len(warnings) == (1 if missed else 0), pod.log()
        assert not missed or said in warnings[0]
        assert missed in " ".join(warnings)
    nothing_is_left(launching)


def evict(launching: Launching, name: str) -> None:
    """Evict a pod through the API, as a drain does."""
    space = launching.run.space
    where = {"name": name, "namespace": space.name}
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": where,
        "deleteOptions": {"gracePeriodSeconds": 1},
    }
    space.rest.open("POST", f"api/v1/namespaces/{space.name}/pods/{name}/eviction", body).close()


def test_evicted_hosts(launching: Launching) -> None:
    """An eviction costs a restart; when none is left the step fails with the pod, the eviction and what to do."""
    pod = launching.start(shape(stay, max_restarts=1), mode="wait")
    both_start(pod)
    (leader,) = [name for name in launching.hosts() if name.endswith("-0")]
    evict(launching, leader)
    both_start(pod, attempt=1)
    evict(launching, f"{leader}-1")
    failed(
        pod,
        f"stay failed in attempt 1: host 1 was lost: pod {leader}-1 was deleted while it ran "
        "(EvictionByEvictionAPI: Eviction API: evicting) (restarts left: 0 of max_restarts=1)",
        "Hosts were lost, the function did not fail. Raise max_restarts",
    )
    log = pod.log()
    assert "restarting the group as attempt 1 (0 restarts left after it)" in log
    assert starts(log) == [f"host {host} attempt {attempt} starts" for host in (0, 1) for attempt in (0, 1)]
    nothing_is_left(launching)


@pytest.fixture
def nodes_right(launching: Launching) -> Iterator[None]:
    """Give the launcher the right to read nodes, which is the whole cluster's, and take it back."""
    install(launching.run.space, "--nodes")
    yield
    uninstall(launching.run.space)


def test_node_gone(launching: Launching, nodes_right: None, spare: Spare) -> None:
    """A node that is gone costs a restart on other nodes, its pod goes by force; without a restart left it is named."""
    node = spare.add("lost", topology="2x2").spec.name
    pool = {"key": "cloud.google.com/gke-nodepool", "values": ["lost"]}
    elsewhere = {"matchExpressions": [{**pool, "operator": "NotIn"}]}
    there = {"matchExpressions": [{**pool, "operator": "In"}]}
    pods = []
    for restarts in (1, 0):
        label = f"r{restarts}"
        pod = launching.pod(shape(stay, max_restarts=restarts, labels={"test": label}), mode="lost")
        pod.path = (f"{label}(0)",)
        required = {"nodeSelectorTerms": [elsewhere]}
        pod.fields = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
        apart = {"labelSelector": {"matchLabels": {"test": label}}, "topologyKey": "kubernetes.io/hostname"}
        prefer = [{"weight": 100, "preference": there}]
        pod.task_config = {
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": prefer},
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
            }
        }
        pods.append(pod.start())
    for pod in pods:
        both_start(pod)
    lost = [name for name, host in launching.hosts().items() if host["spec"]["nodeName"] == node]
    assert len(lost) == 2
    spare.cluster.nodes[node].lose()
    wait_for("doubt about the node", lambda: all(_ready(launching, name) == "False" for name in lost))
    spare.cluster.kubectl("delete", "node", node)
    restarted, given_up = pods
    said = [f"node {node} of pod {name} is gone" for name in lost]
    ended = failed(given_up, "restarts left: 0 of max_restarts=0", "kubectl get events")
    assert any(words in ended.message for words in said)
    assert restarted.wait().code == 0, restarted.log()
    assert restarted.outputs()["parameterValues"]["Output"] == "2 hosts, attempt 1"
    assert any(words in restarted.log() for words in said)
    nothing_is_left(launching)


def _ready(launching: Launching, name: str) -> str:
    pod = launching.run.space.read("pods", name) or {}
    conditions = pod.get("status", {}).get("conditions", [])
    return next((str(c["status"]) for c in conditions if c["type"] == "Ready"), "")


def test_second_signal(launching: Launching) -> None:
    """A signal during the clean-up changes nothing: hosts that are deaf to SIGTERM go, then the launcher ends."""
    pod = launching.start(shape(stay), mode="deaf")
    both_start(pod)
    pod.signal(15)
    pod.signal(15)
    failed(pod, "stay was cancelled by SIGUSR1; its group of hosts was deleted")
    assert "deleted group" in pod.log()
    nothing_is_left(launching)


def test_sigterm_without_the_kill_command(launching: Launching) -> None:
    """Where the annotation was lost, the launcher has less than a second: enough to ask for the group's deletion."""
    pod = launching.pod(shape(stay), mode="wait")
    annotations = {key: value for key, value in pod.step.annotations.items() if key != KILL}
    assert len(annotations) == len(pod.step.annotations) - 1
    pod.step = replace(pod.step, annotations=annotations)
    pod.start()
    both_start(pod)
    assert pod.terminate().code != 0
    nothing_is_left(launching)


@pytest.fixture(name="index")
def index_for_pods(launching: Launching) -> Iterator[Index]:
    """Serve KFP's own package to pods, as a package index does."""
    with serve_index(launching.run.space.cluster.places.machine, "kfp") as index:
        yield index


@kr_kfp.component(hosts=2, framework="none")
def look(module: str) -> str:
    """Tell where kr_kfp comes from."""
    import sys

    import kr_kfp

    print("host", kr_kfp.context().host, "attempt", kr_kfp.context().attempt, "starts", flush=True)
    return f"{kr_kfp.__file__} {module in sys.modules}"


def test_plain_python_image(launching: Launching, index: Index) -> None:
    """An image with Python alone trains: kr_kfp comes from the launcher's image, KFP's package by KFP's own pip step."""
    step = shape(
        look,
        base_image=PYTHON_IMAGE,
        install_kfp_package=True,
        pip_index_urls=[index.url],
        pip_trusted_hosts=[index.host],
        # Debian's own Python, which stands in for the public image's, would refuse.
        env={"PIP_BREAK_SYSTEM_PACKAGES": "1"},
    )
    pod = launching.start(step, module="kubernetes")
    ended = pod.wait()
    assert ended.code == 0, pod.log()
    assert pod.outputs()["parameterValues"]["Output"] == "/kr-kfp/lib/kr_kfp/__init__.py False"
    assert starts(pod.log()) == ["host 0 attempt 0 starts", "host 1 attempt 0 starts"]
    assert [name for name in index.asked() if "kr" in name] == []
    nothing_is_left(launching)
