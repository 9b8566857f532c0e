"""``kr-kfp reap``, and the reaper of ``kr-kfp install``, against an API server for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kr_kfp.cli.main import cli
from kr_kfp.names import HOLDER_ANNOTATION, IDENTITY_ANNOTATION, MANAGED_BY_LABEL
from tests.admin_server import AdminServer, kubeconfig
from tests.kube_server import Fault

Json = dict[str, Any]
OWNER = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}


@pytest.fixture(name="server")
def admin_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminServer]:
    """Serve an API server that the current kubeconfig names."""
    server = AdminServer()
    try:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(server, tmp_path)))
        yield server
    finally:
        server.close()


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def put_group(
    server: AdminServer, name: str, *, run: str = "", holder: str = "", space: str = "ml", **metadata: Any
) -> None:
    """Make a group: of a run with the Workflow ``wf-<run>``, or of a Lease."""
    annotations = {IDENTITY_ANNOTATION: f"{run}/node", HOLDER_ANNOTATION: holder or f"pod-of-{run}"}
    labels = {MANAGED_BY_LABEL: "kr-kfp"}
    made = {"name": name, "labels": labels, "annotations": annotations, "creationTimestamp": ago(600), **metadata}
    server.put("leaderworkersets", {"metadata": made}, space)


def owned(run: str) -> list[Json]:
    return [{**OWNER, "name": f"wf-{run}", "uid": f"uid-of-{run}"}]


def put_workflow(server: AdminServer, run: str, phase: str, space: str = "ml") -> None:
    metadata = {"name": f"wf-{run}", "uid": f"uid-of-{run}", "labels": {"pipeline/runid": run}}
    server.put("workflows", {"metadata": metadata, "status": {"phase": phase}}, space)


def put_lease(server: AdminServer, name: str, renewed: float) -> None:
    server.put("leases", {"metadata": {"name": name}, "spec": {"renewTime": ago(renewed), "leaseDurationSeconds": 180}})


def reap(*words: str, code: int = 0) -> list[str]:
    """Run the command, and give the lines that it prints."""
    done = CliRunner().invoke(cli, ["reap", *words])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout.splitlines()


def test_what_is_left_over_goes(server: AdminServer) -> None:
    """Groups of ended and deleted runs and of expired Leases go; those of living runs and Leases stay."""
    for run, phase in (("r1", "Running"), ("r2", "Failed")):
        put_workflow(server, run, phase)
    put_lease(server, "kr-kfp-old", 181)
    put_lease(server, "kr-kfp-new", 100)
    put_group(server, "a-running", run="r1", ownerReferences=owned("r1"))
    put_group(server, "b-ended", run="r2", ownerReferences=owned("r2"))
    put_group(server, "c-deleted", run="r3", ownerReferences=owned("r3"))
    put_group(server, "d-without-owner", run="r3")
    put_group(server, "e-expired", holder="lease:kr-kfp-old")
    put_group(server, "f-renewed", holder="lease:kr-kfp-new")
    put_group(server, "g-without-lease", holder="lease:kr-kfp-none")
    expected = [
        "ml/a-running: kept (its run goes on (Workflow wf-r1))",
        "ml/b-ended: deleted (its run has ended (Workflow wf-r2: Failed))",
        "ml/c-deleted: deleted (its run r3 is gone (Workflow wf-r3))",
        "ml/d-without-owner: deleted (its run r3 is gone)",
        "ml/e-expired: deleted (its launcher's Lease kr-kfp-old has expired)",
        "ml/f-renewed: kept (its launcher's Lease kr-kfp-new has not expired)",
        "ml/g-without-lease: deleted (its launcher's Lease kr-kfp-none has expired)",
        "5 deleted, 2 kept",
    ]
    would = [line.replace(": deleted", ": would be deleted").replace("5 del", "5 would be del") for line in expected]
    assert reap("--namespace", "ml", "--dry-run") == would
    assert len(server.names("leaderworkersets")) == 7
    assert reap("--namespace", "ml") == expected
    assert server.names("leaderworkersets") == ["ml/a-running", "ml/f-renewed"]
    options = server.of("delete leaderworkersets")[0].body
    assert options["propagationPolicy"] == "Foreground"
    assert sorted(options["preconditions"]) == ["resourceVersion", "uid"]


def test_a_launcher_at_work_keeps_its_group(server: AdminServer) -> None:
    """Whatever the run's state: while the holder's pod runs the group is its own."""
    put_workflow(server, "r1", "Failed")
    put_group(server, "train", run="r1", ownerReferences=owned("r1"))
    pod = {"name": "launcher", "uid": "pod-of-r1", "labels": {"pipeline/runid": "r1"}}
    server.put("pods", {"metadata": pod, "status": {"phase": "Running"}})
    assert reap("--namespace", "ml")[0] == "ml/train: kept (its launcher is at work)"
    server.put("pods", {"metadata": pod, "status": {"phase": "Failed"}})
    assert reap("--namespace", "ml")[0] == "ml/train: deleted (its run has ended (Workflow wf-r1: Failed))"


def test_another_workflow_of_the_same_name_is_not_the_owner(server: AdminServer) -> None:
    """The owner is known by its UID."""
    put_workflow(server, "r1", "Running")
    reference = {**OWNER, "name": "wf-r1", "uid": "another"}
    put_group(server, "train", run="r1", ownerReferences=[reference])
    assert reap("--namespace", "ml")[0] == "ml/train: deleted (its run r1 is gone (Workflow wf-r1))"


def test_a_lease_may_be_about_to_come(server: AdminServer) -> None:
    """A launcher writes its Lease just after it took a group over: one changed lately is left alone."""
    entries = [{"manager": "python", "operation": "Update", "time": ago(100)}]
    put_group(server, "train", holder="lease:kr-kfp-none", managedFields=entries)
    assert reap("--namespace", "ml")[0] == "ml/train: kept (its launcher's Lease kr-kfp-none has not expired)"


def test_other_peoples_groups_are_not_looked_at(server: AdminServer) -> None:
    """Without our label or our annotations a LeaderWorkerSet is no group of a launcher."""
    server.put("leaderworkersets", {"metadata": {"name": "theirs", "labels": {MANAGED_BY_LABEL: "kr-kfp"}}})
    put_group(server, "other", run="r1", labels={})
    assert reap("--namespace", "ml") == ["0 deleted, 0 kept"]


def test_a_group_that_changes_meanwhile_is_looked_at_again(server: AdminServer) -> None:
    """The deletion holds for the group as it was looked at; a new holder is seen at the second look."""
    put_group(server, "train", run="r1", ownerReferences=owned("r1"))
    conflict = Fault(status=409, reason="Conflict", message="the ResourceVersion in the precondition does not match")
    server.fail("delete leaderworkersets", conflict)
    assert reap("--namespace", "ml")[0] == "ml/train: deleted (its run r1 is gone (Workflow wf-r1))"
    put_group(server, "train", run="r1", ownerReferences=owned("r1"))
    server.fail("delete leaderworkersets", conflict, conflict, conflict)
    assert reap("--namespace", "ml")[0] == "ml/train: kept (is being changed by somebody)"


def test_everywhere_and_in_the_namespace_of_kfp(server: AdminServer) -> None:
    """--all-namespaces lists all groups at once; by default it is kubeflow alone, and names may be repeated."""
    for space in ("kubeflow", "ada", "grace"):
        put_group(server, "train", run="r1", space=space)
    assert reap("--dry-run")[0] == "kubeflow/train: would be deleted (its run r1 is gone)"
    assert len(reap("--dry-run", "--namespace", "ada", "--namespace", "grace")) == 3
    assert reap("--all-namespaces")[-1] == "3 deleted, 0 kept"
    done = CliRunner().invoke(cli, ["reap", "--all-namespaces", "--namespace", "ada"])
    assert done.exit_code == 2
    assert "leave --namespace out" in done.stderr


def test_what_fails_is_told_and_the_rest_goes_on(server: AdminServer) -> None:
    """Each refusal is a line with its reason; the exit code is 1, in JSON too."""
    put_group(server, "a", run="r1", ownerReferences=owned("r1"))
    put_group(server, "b", run="r2", ownerReferences=owned("r2"))
    server.fail("delete leaderworkersets", Fault(status=403, reason="Forbidden", message="no"))
    first, second, last = reap("--namespace", "ml", code=1)
    assert first.startswith("ml/a: failed (")
    assert second == "ml/b: deleted (its run r2 is gone (Workflow wf-r2))"
    assert last == "1 deleted, 0 kept, 1 failed"
    server.forbidden.add("list leaderworkersets")
    found = json.loads("\n".join(reap("--namespace", "ml", "--json", code=1)))
    assert [(g["namespace"], g["name"], g["what"]) for g in found["groups"]] == [("ml", "", "failed")]
    assert found["dry_run"] is False


def install(*words: str, code: int = 0) -> list[tuple[str, str]]:
    done = CliRunner().invoke(cli, [*words, "--json"])
    assert done.exit_code == code, (done.output, done.exception)
    return [(change["kind"], change["what"]) for change in json.loads(done.stdout)["changes"]]


def test_install_gives_a_reaper_and_uninstall_takes_it(server: AdminServer) -> None:
    """The reaper is part of what install makes: dry run, unchanged the second time, removed with the rest."""
    words = ("install", "--reaper", "launcher:1")
    expected = ["Role", "RoleBinding", "ServiceAccount", "Role", "RoleBinding", "CronJob"]
    assert install(*words, "--dry-run") == [(kind, "created") for kind in expected]
    assert server.names("cronjobs") == []
    assert install(*words) == [(kind, "created") for kind in expected]
    assert install(*words) == [(kind, "unchanged") for kind in expected]
    hourly = ("--reaper-schedule", "0 * * * *")
    assert [what for kind, what in install(*words, *hourly) if kind == "CronJob"] == ["changed"]
    assert server.object("cronjobs", "kr-kfp-reaper", "kubeflow")["spec"]["schedule"] == "0 * * * *"
    assert sorted(install("uninstall", "--namespace", "kubeflow")) == sorted((kind, "deleted") for kind in expected)
    done = CliRunner().invoke(cli, ["install", *hourly])
    assert done.exit_code == 2
