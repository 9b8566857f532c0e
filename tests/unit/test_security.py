"""What pods of a group may do: as KFP's own by default, as Kubernetes' ``restricted`` profile demands if asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.launch import Inherited, Launch
from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.security import secure
from kr_kfp.spec.step import Pathways, StepSpec
from tests import crd, pss

Json = dict[str, Any]

LAUNCH = Launch(
    name="train-0123456789",
    run="run-1",
    task="train",
    identity="run-1/train",
    holder="uid",
    payload=("payload",),
    init=("sh", "-c", "provide"),
)
CPU = StepSpec(name="train", backend="lws", image="python:3.12", hosts=2)
SETTINGS = Pathways(scratch="gs://bucket/tmp", version="jax-0.10.0", colocated_python="registry.test/sidecar:1")
STEPS = {
    "cpu": CPU,
    "gpu": replace(CPU, shape=resolve("h100x8"), shm=True),
    "tpu": replace(CPU, shape=resolve("v5p-16")),
    "slices": replace(CPU, shape=resolve("v5p-16"), hosts=4, slices=2),
    "pathways": replace(CPU, backend="pathways", shape=resolve("v5p-16"), hosts=2, pathways=SETTINGS),
}
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pods(step: StepSpec, launch: Launch = LAUNCH) -> dict[str, Json]:
    group = build(step, launch)["spec"]["leaderWorkerTemplate"]
    return {role: group[role]["spec"] for role in ("leaderTemplate", "workerTemplate") if role in group}


def contexts(spec: Json) -> dict[str, Json | None]:
    return {c["name"]: c.get("securityContext") for c in [*spec.get("initContainers", []), *spec["containers"]]}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_restricted_pods_pass_the_profile(step: StepSpec) -> None:
    """Every container of every pod of every kind of group passes, Pathways' servers included."""
    step = replace(step, pod_security="restricted")
    assert {role: pss.violations(spec) for role, spec in pods(step).items()} == {key: [] for key in pods(step)}
    assert crd.validate(build(step, LAUNCH)) == []
    for spec in pods(step).values():
        assert spec["securityContext"] == {
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "fsGroup": 1000,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        assert set(map(str, contexts(spec).values())) == {str({"runAsNonRoot": True, **CONFINED})}


def test_the_profile_is_not_passed_by_chance() -> None:
    """KFP's own default does not pass: its user may be root."""
    assert pss.violations(pods(CPU)["workerTemplate"]) == [
        "kr-kfp: runAsNonRoot is not true",
        "main: runAsNonRoot is not true",
    ]


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_default_is_that_of_kfp(step: StepSpec) -> None:
    """User code and kr_kfp's are confined as KFP's executors are; servers are left as their makers run them."""
    found = {name: context for spec in pods(step).values() for name, context in contexts(spec).items()}
    mine = {"kr-kfp": CONFINED, "main": CONFINED}
    servers = ["pathways-rm", "pathways-proxy", "colocated-python-sidecar", "pathways-worker"]
    assert found == {**mine, **(dict.fromkeys(servers) if step.pathways else {})}
    assert all("securityContext" not in spec for spec in pods(step).values())


def test_what_the_launchers_pod_says() -> None:
    """A user of the launcher's pod is kept; root and privileges are not, where the profile forbids them."""
    context = {"runAsUser": 0, "privileged": True, "runAsGroup": 7, "readOnlyRootFilesystem": False}
    spec: Json = {
        "securityContext": {"runAsUser": 4711, "fsGroup": 12, "supplementalGroups": [5]},
        "containers": [{"name": "main", "securityContext": context}],
    }
    restricted = secure(replace(CPU, pod_security="restricted"), spec, users=["main"])
    assert restricted["securityContext"] == {
        "runAsUser": 4711,
        "runAsGroup": 1000,
        "fsGroup": 12,
        "supplementalGroups": [5],
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert restricted["containers"][0]["securityContext"] == {
        "runAsGroup": 7,
        "readOnlyRootFilesystem": False,
        "runAsNonRoot": True,
        **CONFINED,
    }
    assert pss.violations(restricted) == []
    default = secure(CPU, spec, users=["main"])
    assert default["securityContext"] == spec["securityContext"]
    assert default["containers"][0]["securityContext"] == {**CONFINED, **context}


def test_servers_do_not_inherit_a_context() -> None:
    """What KFP says of the launcher's pod is about user code: workers get it under the restricted profile alone."""
    launch = replace(LAUNCH, inherited=Inherited(pod={"securityContext": {"runAsUser": 7, "fsGroup": 8}}))
    step = STEPS["pathways"]
    found = pods(step, launch)
    assert found["leaderTemplate"]["securityContext"] == {"runAsUser": 7, "fsGroup": 8}
    assert "securityContext" not in found["workerTemplate"]
    restricted = pods(replace(step, pod_security="restricted"), launch)["workerTemplate"]
    assert (restricted["securityContext"]["runAsUser"], restricted["securityContext"]["fsGroup"]) == (7, 8)


def test_folders_that_any_user_can_write_to() -> None:
    """KFP's emptyDirs are there for user code and for what brings kr_kfp; a mount of the user's own stays."""
    spec = pods(STEPS["pathways"])["leaderTemplate"]
    mounts = {c["name"]: [m["mountPath"] for m in c.get("volumeMounts", [])] for c in spec["initContainers"]}
    main = [m["mountPath"] for m in spec["containers"][0]["volumeMounts"]]
    scratch = ["/gcs", "/s3", "/minio", "/.local", "/.cache", "/.config"]
    assert mounts == {"kr-kfp": ["/kr-kfp", *scratch], "pathways-rm": [], "pathways-proxy": []}
    assert main == ["/kr-kfp", *scratch]
    config = {"volumes": [{"name": "mine"}], "volumeMounts": [{"name": "mine", "mountPath": "/.cache/"}]}
    own = pods(CPU, replace(LAUNCH, task_config=config))["workerTemplate"]["containers"][0]
    assert [m["name"] for m in own["volumeMounts"] if m["mountPath"].startswith("/.cache")] == ["mine"]


@pytest.mark.parametrize("step", [CPU, STEPS["pathways"]], ids=["lws", "pathways"])
def test_account_and_token(step: StepSpec) -> None:
    """No pod gets a token unless it is asked for, and then only where the function runs; an account can be named."""
    assert [spec["automountServiceAccountToken"] for spec in pods(step).values()] == [False] * len(pods(step))
    launch = replace(LAUNCH, inherited=Inherited(pod={"serviceAccountName": "launcher"}))
    assert {spec["serviceAccountName"] for spec in pods(step, launch).values()} == {"launcher"}
    asked = replace(step, api_token=True, service_account="trainer")
    found = pods(asked, launch)
    assert {spec["serviceAccountName"] for spec in found.values()} == {"trainer"}
    tokens = [spec["automountServiceAccountToken"] for spec in found.values()]
    assert tokens == ([True] if step.backend == "lws" else [True, False])
