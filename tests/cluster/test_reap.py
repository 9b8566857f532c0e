"""``kr-kfp reap`` and its CronJob on a real cluster: what is left over goes, what somebody works on stays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from kr_kfp.cli.main import cli
from kr_kfp.names import HOLDER_ANNOTATION, IDENTITY_ANNOTATION, MANAGED_BY_LABEL
from tests.cluster.groups import HOLD, container, group
from tests.cluster.images import LAUNCHER_IMAGE
from tests.cluster.kfp_run import KfpRun
from tests.cluster.launch import install
from tests.cluster.processes import wait_for
from tests.cluster.space import Space


def put_group(space: Space, name: str, *, run: str = "", holder: str = "gone", owners: Sequence[KfpRun] = ()) -> None:
    """Make a group of one host as a launcher does."""
    made = group(name, container(HOLD), size=1)
    made["metadata"] = {
        "name": name,
        "labels": {MANAGED_BY_LABEL: "kr-kfp"},
        "annotations": {IDENTITY_ANNOTATION: f"{run}/node", HOLDER_ANNOTATION: holder},
        "ownerReferences": [
            {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": owner.workflow, "uid": owner.uid}
            for owner in owners
        ],
    }
    space.create_object("leaderworkersets", made)


def put_lease(space: Space, name: str, *, renewed: float) -> None:
    """Make a Lease that was renewed so many seconds ago."""
    moment = (datetime.now(UTC) - timedelta(seconds=renewed)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": "test", "leaseDurationSeconds": 180, "renewTime": moment}
    space.create_object("leases", {"metadata": {"name": name}, "spec": spec})


def put_launcher(space: Space, run: KfpRun) -> str:
    """Start a pod that stands for a launcher at work, and give its UID."""
    metadata = {"name": "launcher", "labels": {"pipeline/runid": run.id}}
    main = container(HOLD) | {"volumeMounts": []}
    made = space.create_object("pods", {"metadata": metadata, "spec": {"containers": [main]}})
    uid: str = made["metadata"]["uid"]
    return uid


@pytest.fixture(name="expected")
def groups_of_all_kinds(space: Space, workflows: None) -> dict[str, str]:
    """Make a group of each kind, and give what is to become of it."""
    running, finished, deleted, busy = (KfpRun.create(space, pipeline=p) for p in ("goes", "ends", "went", "busy"))
    launcher = put_launcher(space, busy)
    finished.finish()
    busy.finish()
    deleted.delete()
    put_lease(space, "old", renewed=200)
    put_lease(space, "new", renewed=0)
    put_group(space, "of-running", run=running.id, owners=[running])
    put_group(space, "of-finished", run=finished.id, owners=[finished])
    put_group(space, "of-deleted", run=deleted.id)
    put_group(space, "of-launcher", run=busy.id, holder=launcher, owners=[busy])
    put_group(space, "of-old-lease", holder="lease:old")
    put_group(space, "of-new-lease", holder="lease:new")
    space.create_object("leaderworkersets", group("of-somebody", container(HOLD), size=1))
    wait_for("the end of the deleted Workflow", lambda: space.read("workflows", deleted.workflow) is None)
    return {
        "of-deleted": "deleted",
        "of-finished": "deleted",
        "of-launcher": "kept",
        "of-new-lease": "kept",
        "of-old-lease": "deleted",
        "of-running": "kept",
    }


def names(space: Space) -> list[str]:
    return sorted(item["metadata"]["name"] for item in space.items("leaderworkersets"))


def kept(expected: dict[str, str]) -> list[str]:
    return sorted([*(name for name, what in expected.items() if what == "kept"), "of-somebody"])


def reap(space: Space, *words: str) -> dict[str, str]:
    """Run the command, and give what became of each group."""
    arguments = ["reap", "--namespace", space.name, *words, "--json"]
    done = CliRunner(env={"KUBECONFIG": str(space.cluster.places.kubeconfig)}).invoke(cli, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    found: Any = json.loads(done.stdout)
    return {entry["name"]: entry["what"] for entry in found["groups"]}


def test_left_over_groups_go(space: Space, expected: dict[str, str]) -> None:
    """A dry run says what would go; then exactly that goes, and a second run finds nothing more to do."""
    everything = names(space)
    assert reap(space, "--dry-run") == expected
    assert names(space) == everything
    assert reap(space) == expected
    wait_for("the end of what was deleted", lambda: names(space) == kept(expected))
    assert set(reap(space).values()) == {"kept"}


def test_the_cron_job_has_the_rights_that_it_needs(space: Space, expected: dict[str, str]) -> None:
    """What install makes runs in the launcher's image with its own small role, and does the same."""
    first = install(space, "--reaper", LAUNCHER_IMAGE)["changes"]
    assert [(c["kind"], c["what"]) for c in first][-4:] == [
        (kind, "created") for kind in ("ServiceAccount", "Role", "RoleBinding", "CronJob")
    ]
    again = install(space, "--reaper", LAUNCHER_IMAGE)["changes"]
    assert {c["what"] for c in again} == {"unchanged"}
    space.kubectl("create", "job", "now", "--from=cronjob/kr-kfp-reaper")
    space.kubectl("wait", "job/now", "--for=condition=complete", "--timeout=120s")
    log = space.kubectl("logs", "job/now")
    assert "3 of 6 groups deleted" in log, log
    wait_for("the end of what was deleted", lambda: names(space) == kept(expected))
