"""The local cluster makes the pods that LWS makes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kr_kfp.cluster.local_lws import LABEL, MAIN, merge_patch, size, wants_pods, webhook_pod

Json = dict[str, Any]

TPU = {"limits": {"google.com/tpu": "4"}}


def group(hosts: int, container: Json | None = None, **template: Any) -> Json:
    """Build a group named ``t``."""
    worker = {"spec": {"containers": [{"name": MAIN, **(container or {})}]}}
    return {
        "metadata": {"name": "t"},
        "spec": {"leaderWorkerTemplate": {"size": hosts, "workerTemplate": worker, **template}},
    }


def variables(made: Json) -> dict[str, str]:
    """Give the variables of a pod's container."""
    return {entry["name"]: entry.get("value", "") for entry in made["spec"]["containers"][0]["env"]}


def test_names_are_those_of_lws() -> None:
    """The label prefix and the container's name are written twice, for a quick start, and must be the same."""
    from kr_kfp.spec import leaderworkerset, pod

    assert (LABEL, MAIN) == (leaderworkerset.LABEL, pod.CONTAINER)


def test_leader_and_workers_may_differ() -> None:
    """The leader has its own template where there is one; nothing given is changed."""
    leader = {
        "metadata": {"labels": {"role": "head"}, "annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "rm"}, {"name": MAIN, "image": "head"}]},
    }
    given = group(2, {"image": "worker"}, leaderTemplate=leader)
    before = copy.deepcopy(given)
    first, second = webhook_pod(given, 0), webhook_pod(given, 1)
    assert given == before
    assert first["metadata"] == {
        "name": "t-0",
        "namespace": "local",
        "labels": {"role": "head", f"{LABEL}/name": "t", f"{LABEL}/group-index": "0", f"{LABEL}/worker-index": "0"},
        "annotations": {"a": "b"},
    }
    assert [c["name"] for c in first["spec"]["containers"]] == ["rm", MAIN]
    assert (second["metadata"]["name"], second["spec"]["containers"][0]["image"]) == ("t-0-1", "worker")
    assert second["metadata"]["annotations"] == {}


def test_injected_variables_come_first_and_win() -> None:
    """LWS's variables stand before the user's; of the user's own double ones the first counts."""
    env = [
        {"name": "A", "value": "1"},
        {"name": "LWS_WORKER_INDEX", "value": "7"},
        {"name": "A", "value": "2"},
    ]
    made = webhook_pod(group(3, {"env": env}), 2)
    assert list(variables(made).items()) == [
        ("LWS_LEADER_ADDRESS", "127.0.0.1"),
        ("LWS_GROUP_SIZE", "3"),
        ("LWS_WORKER_INDEX", "2"),
        ("A", "1"),
    ]


def test_tpu_variables() -> None:
    """All hosts of a group are peers, each with a port of its own on this machine, and come last."""
    made = variables(webhook_pod(group(3, {"env": [{"name": "A", "value": "1"}], "resources": TPU}), 2))
    assert list(made.items())[3:] == [
        ("A", "1"),
        ("TPU_WORKER_HOSTNAMES", "127.0.0.1,127.0.0.1,127.0.0.1"),
        ("TPU_WORKER_ID", "2"),
        ("TPU_NAME", "t-0"),
        ("TPU_PROCESS_ADDRESSES", "127.0.0.1:8476,127.0.0.1:8477,127.0.0.1:8478"),
        ("TPU_PROCESS_PORT", "8478"),
    ]


@pytest.mark.parametrize("name", ["TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES"])
def test_own_tpu_variables_switch_injection_off(name: str) -> None:
    """With one of the two set by the user, LWS sets none of them."""
    made = variables(webhook_pod(group(2, {"env": [{"name": name, "value": "x"}], "resources": TPU}), 1))
    assert {key: value for key, value in made.items() if key.startswith("TPU_")} == {name: "x"}


def test_an_own_tpu_port_is_used() -> None:
    """The user's port stands in every address."""
    env = [{"name": "TPU_PROCESS_PORT", "value": "9000"}]
    made = variables(webhook_pod(group(2, {"env": env, "resources": TPU}), 1))
    assert (made["TPU_PROCESS_ADDRESSES"], made["TPU_PROCESS_PORT"]) == ("127.0.0.1:9000,127.0.0.1:9000", "9000")


def test_a_leader_without_tpu_is_no_tpu_worker() -> None:
    """As with Pathways: workers are numbered from 0, and the leader gets no TPU variables."""
    leader = {"spec": {"containers": [{"name": MAIN}]}}
    given = group(3, {"resources": TPU}, leaderTemplate=leader)
    ids = [variables(webhook_pod(given, index)).get("TPU_WORKER_ID") for index in range(3)]
    assert ids == [None, "0", "1"]
    assert variables(webhook_pod(given, 1))["TPU_WORKER_HOSTNAMES"] == "127.0.0.1,127.0.0.1"


@pytest.mark.parametrize(
    ("hosts", "members", "kind", "expected"),
    [
        pytest.param(4, 2, "LeaderWorker", ["0", "0", "1", "1"], id="two-slices"),
        pytest.param(4, 4, None, ["0", "0", "0", "0"], id="one"),
        pytest.param(2, 1, None, ["0", "1"], id="one-host-each"),
        pytest.param(5, 2, "LeaderExcluded", [None, "0", "0", "1", "1"], id="leader-excluded"),
        pytest.param(5, 2, None, ["0", "0", "0", "1", "1"], id="leader-beside-them"),
    ],
)
def test_sub_groups(hosts: int, members: int, kind: str | None, expected: list[str | None]) -> None:
    """Pods carry the index of their sub-group as LWS counts it."""
    policy: Json = {"subGroupSize": members} | ({"subGroupPolicyType": kind} if kind else {})
    given = group(hosts, subGroupPolicy=policy)
    labels = [webhook_pod(given, index)["metadata"]["labels"] for index in range(hosts)]
    assert [label.get(f"{LABEL}/subgroup-index") for label in labels] == expected


def test_tpu_variables_of_a_sub_group() -> None:
    """Each slice has its own numbers and peers."""
    policy = {"subGroupSize": 2, "subGroupPolicyType": "LeaderWorker"}
    given = group(4, {"resources": TPU}, subGroupPolicy=policy)
    made = [variables(webhook_pod(given, index)) for index in range(4)]
    assert [env["TPU_WORKER_ID"] for env in made] == ["0", "1", "0", "1"]
    assert [env["TPU_PROCESS_ADDRESSES"] for env in made] == [
        "127.0.0.1:8476,127.0.0.1:8477",
        "127.0.0.1:8476,127.0.0.1:8477",
        "127.0.0.1:8478,127.0.0.1:8479",
        "127.0.0.1:8478,127.0.0.1:8479",
    ]


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch(target: Any, patch: Any, result: Any) -> None:
    """The examples of RFC 7386, appendix A; nothing given is changed."""
    before = copy.deepcopy((target, patch))
    assert merge_patch(target, patch) == result
    assert (target, patch) == before


@pytest.mark.parametrize(
    ("replicas", "deleted", "wants"), [(1, False, True), (None, False, True), (0, False, False), (1, True, False)]
)
def test_when_a_group_has_pods(replicas: int | None, deleted: bool, wants: bool) -> None:
    """Pods are wanted while the group has a replica, which is the default, and is not being deleted."""
    given = group(3)
    if replicas is not None:
        given["spec"]["replicas"] = replicas
    if deleted:
        given["metadata"]["deletionTimestamp"] = "2026-11-30T05:18:43.684989Z"
    assert (wants_pods(given), size(given)) == (wants, 3)
