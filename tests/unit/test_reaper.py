"""The reaper's objects."""

from __future__ import annotations

import pytest

from kr_kfp.runtime.__main__ import main
from kr_kfp.spec.reaper import reaper
from kr_kfp.spec.rights import is_ours
from kr_kfp.wire import ExitCode


def test_every_namespace_gets_its_own() -> None:
    """Account, role, binding and CronJob of one name, in each namespace once, known as what install made."""
    made = reaper(["ada", "grace", "ada"], image="launcher:1")
    assert [(m["kind"], m["metadata"]["namespace"], m["metadata"]["name"]) for m in made[:4]] == [
        ("ServiceAccount", "ada", "kr-kfp-reaper"),
        ("Role", "ada", "kr-kfp-reaper"),
        ("RoleBinding", "ada", "kr-kfp-reaper:kr-kfp-reaper"),
        ("CronJob", "ada", "kr-kfp-reaper"),
    ]
    assert [m["metadata"]["namespace"] for m in made[4:]] == ["grace"] * 4
    assert {m["metadata"]["labels"]["app.kubernetes.io/managed-by"] for m in made} == {"kr-kfp"}
    assert all(is_ours(m) for m in made)


def test_the_role_is_small() -> None:
    """It may look at what decides about a group, and delete groups; nothing else."""
    role = reaper(["ada"], image="launcher:1")[1]
    assert role["rules"] == [
        {
            "apiGroups": ["leaderworkerset.x-k8s.io"],
            "resources": ["leaderworkersets"],
            "verbs": ["get", "list", "delete"],
        },
        {"apiGroups": ["argoproj.io"], "resources": ["workflows"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
    ]


def test_the_job_runs_the_verb_for_its_namespace() -> None:
    """One container of the given image, as nobody in particular, without a second one beside it."""
    job = reaper(["ada"], image="launcher:1", schedule="0 * * * *")[3]
    assert job["spec"]["schedule"] == "0 * * * *"
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    template = job["spec"]["jobTemplate"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert container["image"] == "launcher:1"
    assert container["command"] == ["python3", "-m", "kr_kfp.runtime", "reap", "ada"]
    assert template["spec"]["serviceAccountName"] == "kr-kfp-reaper"
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    assert template["metadata"]["annotations"] == {"sidecar.istio.io/inject": "false"}


def test_outside_of_a_pod_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The verb works with a pod's account only; elsewhere it ends with the exit code for wrong surroundings."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main(["reap", "ada"]) == ExitCode.SETUP
    assert "KUBERNETES_SERVICE_HOST is not" in capsys.readouterr().out
    assert main(["reap"]) == ExitCode.USAGE
