"""The golden matrix: every row of the table in every layout, held against the facts of its row.

Hosts, chips, label, selector, tolerations, environment, ports and Pathways' arguments are computed here from the CSV and
from literal numbers, and not from kr_kfp's registry.
"""

from __future__ import annotations

from typing import Any

import pytest

from kr_kfp.authoring.component import component
from tests import crd
from tests.declared import compiled, once
from tests.shapes import ROWS, Case, Row, cases, manifests, representatives

Json = dict[str, Any]

POOL = "cloud.google.com/gke-nodepool"
PREFIX = "leaderworkerset.sigs.k8s.io"
SLICE_ID = {"fieldRef": {"fieldPath": f"metadata.labels['{PREFIX}/subgroup-index']"}}
HEAD = "$(LWS_LEADER_ADDRESS)"
SCRATCH = "--gcs_scratch_location=gs://bucket/tmp"

each_row = pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])


def selector(row: Row) -> dict[str, str]:
    """Give what the nodes of a row are selected by; its one machine was named."""
    if row.kind == "tpu":
        chosen = {"cloud.google.com/gke-tpu-accelerator": row.label, "cloud.google.com/gke-tpu-topology": row.topology}
    else:
        chosen = {"cloud.google.com/gke-accelerator": row.label}
    if len(row.machines) == 1:
        chosen["node.kubernetes.io/instance-type"] = row.machines[0]
    return chosen | ({"kubernetes.io/arch": "arm64"} if row.arm else {})


def tolerations(row: Row) -> list[Json]:
    found: list[Json] = [{"key": resource(row), "operator": "Exists", "effect": "NoSchedule"}]
    if row.arm:
        found.append({"key": "kubernetes.io/arch", "operator": "Equal", "value": "arm64", "effect": "NoSchedule"})
    return found


def resource(row: Row) -> str:
    return {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu"}[row.kind]


def devices(row: Row) -> int:
    """Give the devices that JAX shows on a host: v3, tpu7x and tpu7 have two for each chip."""
    return row.per_host * (2 if row.family in ("v3", "tpu7x", "tpu7") else 1)


def env(container: Json) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def chips(row: Row) -> Json:
    amount = {resource(row): str(row.per_host)}
    return {"limits": amount, "requests": amount}


@each_row
def test_numbers(row: Row) -> None:
    """Hosts times chips of a host are the chips of the slice, in the table and in every step made of it."""
    assert row.hosts * row.per_host == row.chips
    layouts = list(cases(row))
    assert layouts
    for case in layouts:
        step = case.step()
        assert step.shape is not None
        found = (step.hosts, step.slices, step.shape.chips, step.shape.chips_per_host, step.devices)
        assert found == (case.hosts, case.slices, row.chips, row.per_host, devices(row) * case.hosts), case.id
        backend = {"pod": "pod", "pathways": "pathways", "pathways-slices": "pathways"}.get(case.layout, "lws")
        assert step.backend == backend, case.id
        assert step.shm is (row.kind == "gpu"), case.id


@each_row
def test_groups(row: Row) -> None:
    """Size, sub-groups, exclusive node pools, selector, tolerations, chips and environment of every group."""
    for case in cases(row):
        if case.layout == "pod":
            continue
        manifest = case.manifest()
        check_layout(case, manifest)
        if case.layout.startswith("pathways"):
            check_pathways(case, manifest["spec"]["leaderWorkerTemplate"])
        else:
            check_hosts(case, manifest["spec"]["leaderWorkerTemplate"])


def check_layout(case: Case, manifest: Json) -> None:
    row, group = case.row, manifest["spec"]["leaderWorkerTemplate"]
    single = case.layout.startswith("pathways")
    assert group["size"] == case.hosts + single, case.id
    assert ("leaderTemplate" in group) is single, case.id
    assert group["restartPolicy"] == "None", case.id
    assert manifest["spec"]["startupPolicy"] == ("LeaderReady" if single else "LeaderCreated"), case.id
    apart = row.kind == "tpu" and row.hosts > 1
    subgroups = apart and (case.slices > 1 or single)
    policy = {"subGroupSize": row.hosts, "subGroupPolicyType": "LeaderExcluded" if single else "LeaderWorker"}
    assert group.get("subGroupPolicy") == (policy if subgroups else None), case.id
    exclusive = {k: v for k, v in manifest["metadata"]["annotations"].items() if k.startswith(PREFIX)}
    name = f"{PREFIX}/{'subgroup-' if subgroups else ''}exclusive-topology"
    assert exclusive == ({name: POOL} if apart else {}), case.id


def check_hosts(case: Case, group: Json) -> None:
    row, pod = case.row, group["workerTemplate"]["spec"]
    (main,) = pod["containers"]
    assert pod["nodeSelector"] == selector(row), case.id
    assert pod["tolerations"] == tolerations(row), case.id
    assert main["resources"] == chips(row), case.id
    memory = {volume["name"]: volume for volume in pod["volumes"]}.get("kr-kfp-shm")
    assert memory == ({"name": "kr-kfp-shm", "emptyDir": {"medium": "Memory"}} if row.kind == "gpu" else None), case.id
    found = env(main)
    assert (found["KR_KFP_HOSTS"], found["KR_KFP_DEVICES"]) == (str(case.hosts), str(devices(row))), case.id
    assert (found["JAX_COORDINATOR_ADDRESS"], found["MASTER_ADDR"], found["MASTER_PORT"]) == (
        f"{HEAD}:8482",
        HEAD,
        "29400",
    ), case.id
    wanted = {
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": f"{HEAD}:8080",
        "MEGASCALE_SLICE_ID": SLICE_ID,
    }
    assert {k: v for k, v in found.items() if k.startswith("MEGASCALE")} == (wanted if case.slices > 1 else {}), case.id
    # LWS sets these; it sets none if a user sets one of the first two.
    assert not {k for k in found if k.startswith(("TPU_", "LWS_"))}, case.id


def check_pathways(case: Case, group: Json) -> None:
    row, head, pod = case.row, group["leaderTemplate"]["spec"], group["workerTemplate"]["spec"]
    elastic = ["--num_elastic_slices=1"] if case.slices > 1 else []
    manager, proxy = head["initContainers"][1:]
    assert [c["name"] for c in (manager, proxy)] == ["pathways-rm", "pathways-proxy"], case.id
    assert manager["args"] == [
        "--server_port=29001",
        SCRATCH,
        "--node_type=resource_manager",
        f"--instance_count={case.slices}",
        f"--instance_type={row.pathways}",
    ], case.id
    address = f"--resource_manager_address={HEAD}:29001"
    assert proxy["args"] == ["--server_port=29000", address, SCRATCH, *elastic], case.id
    (main,), (worker,) = head["containers"], pod["containers"]
    assert worker["args"] == ["--server_port=29005", address, SCRATCH], case.id
    ports = {c["name"]: [port["containerPort"] for port in c["ports"]] for c in (manager, proxy, worker)}
    assert ports == {
        "pathways-rm": [29001, 29002],
        "pathways-proxy": [29000],
        "pathways-worker": [29005, 29006, 8471, 8080],
    }, case.id
    assert (pod["nodeSelector"], pod["tolerations"], worker["resources"]) == (
        selector(row),
        tolerations(row),
        chips(row),
    ), case.id
    assert not {"nodeSelector", "tolerations"} & head.keys(), case.id
    assert "resources" not in main, case.id
    found = env(main)
    assert (found["JAX_PLATFORMS"], found["JAX_BACKEND_TARGET"]) == ("proxy", "grpc://localhost:29000"), case.id
    assert (found["KR_KFP_HOSTS"], found["KR_KFP_DEVICES"]) == ("1", str(devices(row) * case.hosts)), case.id
    assert not {k for k in found if k.startswith(("MEGASCALE", "TPU_", "JAX_COORDINATOR", "MASTER"))}, case.id
    megascale = {k: v for k, v in env(worker).items() if k.startswith("MEGASCALE")}
    wanted = {
        "MEGASCALE_GRPC_ENABLE_XOR_TRACER": "false",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_COORDINATOR_ADDRESS": HEAD,
        "MEGASCALE_SLICE_ID": SLICE_ID,
    }
    assert megascale == (wanted if case.slices > 1 else {}), case.id


def test_every_family_is_there() -> None:
    """The representatives have every family, every layout that it has, and one Pathways layout of each that has any."""
    layouts: dict[str, set[str]] = {}
    for row in representatives():
        layouts.setdefault(row.family, set()).update(case.layout for case in cases(row))
    gpus = {row.family for row in ROWS if row.kind == "gpu"}
    everything = {"pod", "group-of-one", "hosts", "slices", "pathways", "pathways-slices"}
    assert {family: found for family, found in layouts.items() if family not in gpus} == {
        "v3": {"pod", "group-of-one", "hosts"},
        **dict.fromkeys(("v4", "v5e", "v5p", "v6e", "tpu7x", "tpu7"), everything),
    }
    assert {family: layouts[family] for family in gpus} == {family: {"pod", "group-of-one", "hosts"} for family in gpus}
    assert {row.family for row in ROWS} == set(layouts)


@pytest.mark.parametrize(("name", "manifest"), manifests().items(), ids=manifests())
def test_the_crd_takes_it(name: str, manifest: Json) -> None:
    """LWS's schema takes each representative in each layout, without pruning a field."""
    assert crd.validate(manifest) == [], name


def train(epochs: int) -> int:
    return epochs


SINGLE = [row for row in representatives() if row.hosts == 1]


@pytest.mark.parametrize("row", SINGLE, ids=[row.id for row in SINGLE])
def test_pods(row: Row, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A step in one pod asks KFP for its chips and for the nodes of its row."""
    (pod, *_) = cases(row)
    step = component(train, **pod.given)
    ir, platform = compiled(once(step), tmp_path_factory)
    container = ir["deploymentSpec"]["executors"]["exec-train"]["container"]
    assert container["resources"]["accelerator"] == {
        "count": str(row.per_host),
        "resourceCount": str(row.per_host),
        "resourceType": resource(row),
        "type": resource(row),
    }
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]["exec-train"]
    assert settings["nodeSelector"]["labels"] == selector(row)
    assert settings["tolerations"] == tolerations(row)
    memory = [{"volumeName": "kr-kfp-shm", "mountPath": "/dev/shm", "medium": "Memory"}]
    assert settings.get("emptyDirMounts", []) == (memory if row.kind == "gpu" else [])
