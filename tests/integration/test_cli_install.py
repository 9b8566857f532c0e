"""``kr-kfp install`` and ``uninstall`` against an API server for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kr_kfp.cli import main as entry
from kr_kfp.cli.main import cli
from kr_kfp.errors import ClusterError
from tests.admin_server import AdminServer, kubeconfig, release
from tests.crd import DATA

Json = dict[str, Any]
MANAGED = "app.kubernetes.io/managed-by"


@pytest.fixture(name="server")
def admin_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AdminServer]:
    """Serve an API server that the current kubeconfig names, with KFP's account."""
    server = AdminServer()
    try:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(server, tmp_path)))
        server.put("serviceaccounts", {"metadata": {"name": "pipeline-runner"}}, "kubeflow")
        for name in ("ada", "grace"):
            server.put("serviceaccounts", {"metadata": {"name": "default-editor"}}, name)
        yield server
    finally:
        server.close()


@pytest.fixture(name="file")
def release_file(tmp_path: Path) -> Path:
    """Give a release file of LeaderWorkerSet."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    schema = {key: value for key, value in data.items() if key not in ("group", "version", "kind")}
    path = tmp_path / "manifests.yaml"
    path.write_text(yaml.safe_dump_all(release(schema)), encoding="utf-8")
    return path


def invoke(*words: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(cli, [str(word) for word in words])


def lines(*words: str | Path, code: int = 0) -> list[str]:
    """Run a command, and give the lines that it prints."""
    done = invoke(*words)
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout.splitlines()


def refused(*words: str | Path) -> str:
    """Run a command that the cluster refuses, and give why."""
    done = invoke(*words)
    assert isinstance(done.exception, ClusterError), done.output
    return str(done.exception)


def writes(server: AdminServer) -> list[str]:
    """Give the requests that changed something."""
    kinds = ("POST", "PATCH", "DELETE")
    return [
        r.kind for r in server.requests if r.method in kinds and "dryRun" not in r.query and "reviews" not in r.path
    ]


def test_the_second_run_changes_nothing(server: AdminServer) -> None:
    """Objects are made once; after that they are unchanged, and not written again."""
    assert lines("install") == [
        "Role kubeflow/kr-kfp: created",
        "RoleBinding kubeflow/kr-kfp:pipeline-runner: created",
        "note: LeaderWorkerSet is there already",
    ]
    assert writes(server) == ["patch roles", "patch rolebindings"]
    server.requests.clear()
    assert lines("install") == [
        "Role kubeflow/kr-kfp: unchanged",
        "RoleBinding kubeflow/kr-kfp:pipeline-runner: unchanged",
        "note: LeaderWorkerSet is there already",
    ]
    assert writes(server) == []


def test_objects_are_applied_by_the_server(server: AdminServer) -> None:
    """Every write is a server-side apply under one field manager that takes fields over."""
    lines("install")
    (request,) = [r for r in server.of("patch roles") if "dryRun" not in r.query]
    assert request.path == "/apis/rbac.authorization.k8s.io/v1/namespaces/kubeflow/roles/kr-kfp"
    assert request.query == {"fieldManager": "kr-kfp", "force": "true"}
    assert request.headers["Content-Type"] == "application/apply-patch+yaml"
    assert server.object("roles", "kr-kfp", "kubeflow")["metadata"]["labels"] == {MANAGED: "kr-kfp"}


def test_a_dry_run_is_done_by_the_server(server: AdminServer) -> None:
    """The server checks every object, and nothing is made."""
    assert lines("install", "--dry-run")[:2] == [
        "Role kubeflow/kr-kfp: would be created",
        "RoleBinding kubeflow/kr-kfp:pipeline-runner: would be created",
    ]
    assert writes(server) == []
    assert server.names("roles") == []


def test_a_difference_is_shown_and_not_made(server: AdminServer) -> None:
    """Where somebody changed the role, --diff shows the way back in unified form; a run then goes it."""
    lines("install")
    server.object("roles", "kr-kfp", "kubeflow")["rules"] = []
    shown = lines("install", "--diff")
    assert shown[:6] == [
        "Role kubeflow/kr-kfp: would be changed",
        "--- Role kubeflow/kr-kfp now",
        "+++ Role kubeflow/kr-kfp then",
        "@@ -5,4 +5,61 @@",
        "   namespace: kubeflow",
        "   labels:",
    ]
    assert "-rules: []" in shown
    assert shown[-2:] == [
        "RoleBinding kubeflow/kr-kfp:pipeline-runner: unchanged",
        "note: LeaderWorkerSet is there already",
    ]
    assert server.object("roles", "kr-kfp", "kubeflow")["rules"] == []
    assert lines("install")[0] == "Role kubeflow/kr-kfp: changed"
    assert len(server.object("roles", "kr-kfp", "kubeflow")["rules"]) == 7


def test_json_has_every_change(server: AdminServer) -> None:
    """One document: changes, notes, and whether it was for show."""
    found = json.loads("\n".join(lines("install", "--diff", "--json")))
    assert [list(change) for change in found["changes"]] == [["kind", "namespace", "name", "what", "why", "diff"]] * 2
    assert found["changes"][1]["name"] == "kr-kfp:pipeline-runner"
    assert found["changes"][1]["what"] == "created"
    assert found["changes"][1]["diff"].startswith("--- RoleBinding kubeflow/kr-kfp:pipeline-runner now\n+++ ")
    assert (found["notes"], found["dry_run"]) == (["LeaderWorkerSet is there already"], True)


def test_profiles(server: AdminServer) -> None:
    """Each profile's account gets its rights; nodes take a cluster's role; a missing account is noted."""
    assert lines("install", "--profile", "ada", "--profile", "grace", "--nodes", "--service-account", "me") == [
        "Role ada/kr-kfp: created",
        "RoleBinding ada/kr-kfp:me: created",
        "Role grace/kr-kfp: created",
        "RoleBinding grace/kr-kfp:me: created",
        "ClusterRole kr-kfp-nodes: created",
        "ClusterRoleBinding kr-kfp-nodes:ada:me: created",
        "ClusterRoleBinding kr-kfp-nodes:grace:me: created",
        "note: LeaderWorkerSet is there already",
        "note: there is no service account me in namespace ada yet",
        "note: there is no service account me in namespace grace yet",
    ]


def test_wrong_use(server: AdminServer) -> None:
    """A namespace and a profile contradict each other; a cluster has to be one."""
    done = invoke("install", "--profile", "ada", "--namespace", "b")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (
        2,
        "Error: --profile names a namespace: leave --namespace out, or --profile",
    )
    assert str(invoke("install", "--cluster", "x").exception).startswith("cluster='x' is none of")
    assert str(invoke("install", "--cluster", "local").exception).startswith("the local cluster needs no rights")
    assert server.requests == []


def test_what_others_made_is_not_changed(server: AdminServer) -> None:
    """All objects in the way are listed at once, and nothing is made."""
    server.put("roles", {"metadata": {"name": "kr-kfp", "labels": {MANAGED: "helm"}}}, "kubeflow")
    server.put("rolebindings", {"metadata": {"name": "kr-kfp:pipeline-runner"}}, "kubeflow")
    assert refused("install", "--nodes") == (
        "nothing was changed, 2 problems\n"
        "  1. Role kubeflow/kr-kfp: exists and is managed by helm: kr-kfp does not change it. Delete or rename it\n"
        "  2. RoleBinding kubeflow/kr-kfp:pipeline-runner: exists and has no label app.kubernetes.io/managed-by=kr-kfp: "
        "kr-kfp does not change it. Delete or rename it"
    )
    assert writes(server) == []


def test_rights_that_the_administrator_lacks(server: AdminServer) -> None:
    """Everything that is refused is told at once, and the first is not made alone."""
    server.forbidden = {"patch clusterroles", "patch clusterrolebindings"}
    lacks = "may not patch"
    where = "in the cluster (a ClusterRole grants it). Ask who administers the cluster"
    assert refused("install", "--nodes") == (
        "nothing was changed, 2 problems\n"
        f"  1. ClusterRole kr-kfp-nodes: admin {lacks} clusterroles {where}\n"
        f"  2. ClusterRoleBinding kr-kfp-nodes:kubeflow:pipeline-runner: admin {lacks} clusterrolebindings {where}"
    )
    assert writes(server) == []


def test_a_namespace_that_does_not_exist(server: AdminServer) -> None:
    """That is an error that names it."""
    message = refused("install", "--namespace", "nope", "--dry-run")
    assert 'Role nope/kr-kfp: patch roles kr-kfp in namespace nope: namespaces "nope" not found' in message


def test_a_cluster_without_lws_needs_the_file(server: AdminServer) -> None:
    """The message names the file's address and the way without; nothing is made."""
    server.without_lws()
    assert str(invoke("install").exception) == (
        "this cluster serves leaderworkerset.x-k8s.io/v1 not at all. Give its release file, --lws manifests.yaml "
        "(https://github.com/kubernetes-sigs/lws/releases/download/v0.9.0/manifests.yaml), or --lws none"
    )
    assert writes(server) == []
    assert lines("install", "--lws", "none")[-1] == "RoleBinding kubeflow/kr-kfp:pipeline-runner: created"


def test_lws_from_the_file(server: AdminServer, file: Path) -> None:
    """The file's objects are made in its order, before the rights; a dry run says what it could not try."""
    server.without_lws()
    unknown = "would be created (not tried: what it needs would be made before it)"
    assert lines("install", "--lws", file, "--dry-run")[:5] == [
        "Namespace lws-system: would be created",
        "CustomResourceDefinition leaderworkersets.leaderworkerset.x-k8s.io: would be created",
        f"Secret lws-system/lws-cert: {unknown}",
        f"Deployment lws-system/lws-manager: {unknown}",
        "ValidatingWebhookConfiguration lws-hooks: would be created",
    ]
    assert writes(server) == []
    made = lines("install", "--lws", file)
    assert [line.rpartition(": ")[2] for line in made[:7]] == ["created"] * 7
    assert made[7].startswith(f"note: LeaderWorkerSet from {file}, SHA-256 ")
    assert server.object("deployments", "lws-manager", "lws-system")["metadata"]["labels"] == {MANAGED: "kr-kfp"}
    assert [line.rpartition(": ")[2] for line in lines("install", "--lws", file)[:7]] == ["unchanged"] * 7


def test_a_namespace_that_was_there_before_stays_as_it_is(server: AdminServer, file: Path) -> None:
    """A namespace made for LeaderWorkerSet by somebody else is used and not labelled, and not removed."""
    server.without_lws()
    server.put("namespaces", {"metadata": {"name": "lws-system"}}, "")
    assert lines("install", "--lws", file)[0] == "Namespace lws-system: kept (was there before)"
    assert MANAGED not in server.object("namespaces", "lws-system")["metadata"].get("labels", {})
    assert not any("Namespace" in line for line in lines("uninstall"))
    assert server.names("namespaces") == ["lws-system"]


def test_the_clusters_own_lws_stays(server: AdminServer, file: Path) -> None:
    """Where LeaderWorkerSet is, and not by kr-kfp, the file is not used."""
    server.put("customresourcedefinitions", {"metadata": {"name": "leaderworkersets.leaderworkerset.x-k8s.io"}}, "")
    assert lines("install", "--lws", file) == [
        "Role kubeflow/kr-kfp: created",
        "RoleBinding kubeflow/kr-kfp:pipeline-runner: created",
        f"note: the cluster has a LeaderWorkerSet of its own, which stays; {file} is not used",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [", "is not YAML"),
        ("kind: Job", "3 problems"),
        (None, "cannot be read: [Errno 2] No such file or directory"),
    ],
)
def test_a_file_that_is_not_the_release(server: AdminServer, file: Path, text: str | None, expected: str) -> None:
    """It is refused before anything is asked of the cluster's objects."""
    if text is None:
        file.unlink()
    else:
        file.write_text(text, encoding="utf-8")
    done = invoke("install", "--lws", file)
    assert expected in done.output + str(done.exception)
    assert writes(server) == []


def test_plain_http_is_not_trusted(server: AdminServer) -> None:
    """An address has to be https, since no checksum is known; anything else is a path."""
    done = invoke("install", "--lws", "http://mirror/manifests.yaml")
    assert done.exit_code == 2
    assert "Give a file, an https:// address, or none" in done.stderr


def test_uninstall_removes_what_install_made(server: AdminServer, file: Path) -> None:
    """Everything with label and manager goes, in an order that leaves nothing dangling; a second run finds nothing."""
    server.without_lws()
    lines("install", "--lws", file, "--nodes", "--leases")
    server.put("roles", {"metadata": {"name": "theirs", "labels": {MANAGED: "kr-kfp"}}}, "kubeflow")
    server.put("roles", {"metadata": {"name": "mine", "labels": {MANAGED: "me"}}}, "ada")
    expected = [
        "ValidatingWebhookConfiguration lws-hooks",
        "ClusterRoleBinding kr-kfp-nodes:kubeflow:pipeline-runner",
        "Deployment lws-system/lws-manager",
        "RoleBinding kubeflow/kr-kfp-leases:pipeline-runner",
        "RoleBinding kubeflow/kr-kfp:pipeline-runner",
        "Secret lws-system/lws-cert",
        "Role kubeflow/kr-kfp",
        "Role kubeflow/kr-kfp-leases",
        "ClusterRole kr-kfp-nodes",
        "CustomResourceDefinition leaderworkersets.leaderworkerset.x-k8s.io",
        "Namespace lws-system",
    ]
    server.requests.clear()
    assert lines("uninstall", "--dry-run") == [f"{name}: would be deleted" for name in expected]
    assert writes(server) == []
    assert lines("uninstall") == [f"{name}: deleted" for name in expected]
    assert server.names("roles") == ["kubeflow/theirs", "ada/mine"]
    assert server.of("delete roles")[0].body["preconditions"]["uid"].startswith("uid-")
    assert lines("uninstall") == ["note: there is nothing that kr-kfp installed"]


def test_uninstall_keeps_what_is_in_use(server: AdminServer, file: Path) -> None:
    """While there are groups LeaderWorkerSet stays and the exit code says so; rights go all the same."""
    server.without_lws()
    lines("install", "--lws", file)
    for name in "abcd":
        server.put("leaderworkersets", {"metadata": {"name": name}}, "ada")
    why = "kept (in use: LeaderWorkerSet ada/a, LeaderWorkerSet ada/b, LeaderWorkerSet ada/c, 1 more)"
    assert lines("uninstall", code=1) == [
        f"ValidatingWebhookConfiguration lws-hooks: {why}",
        f"Deployment lws-system/lws-manager: {why}",
        "RoleBinding kubeflow/kr-kfp:pipeline-runner: deleted",
        f"Secret lws-system/lws-cert: {why}",
        "Role kubeflow/kr-kfp: deleted",
        f"CustomResourceDefinition leaderworkersets.leaderworkerset.x-k8s.io: {why}",
        f"Namespace lws-system: {why}",
    ]


def test_uninstall_keeps_a_namespace_with_other_things(server: AdminServer, file: Path) -> None:
    """What somebody put into the namespace keeps it; what Kubernetes puts there, or what is owned, does not."""
    server.without_lws()
    lines("install", "--lws", file)
    server.put("configmaps", {"metadata": {"name": "kube-root-ca.crt"}}, "lws-system")
    server.put("serviceaccounts", {"metadata": {"name": "default"}}, "lws-system")
    server.put("secrets", {"metadata": {"name": "owned", "ownerReferences": [{"uid": "x"}]}}, "lws-system")
    server.put("configmaps", {"metadata": {"name": "notes"}}, "lws-system")
    assert lines("uninstall", code=1)[-1] == (
        "Namespace lws-system: kept (there is something else in it: ConfigMap lws-system/notes)"
    )


def test_uninstall_of_one_namespace(server: AdminServer) -> None:
    """Only that namespace's rights go, its right to read nodes too; the cluster's role goes with the last binding."""
    lines("install", "--profile", "ada", "--profile", "grace", "--nodes")
    assert lines("uninstall", "--profile", "ada") == [
        "ClusterRoleBinding kr-kfp-nodes:ada:default-editor: deleted",
        "RoleBinding ada/kr-kfp:default-editor: deleted",
        "Role ada/kr-kfp: deleted",
    ]
    assert lines("uninstall", "--namespace", "grace", "--json", "--dry-run")[0] == "{"
    server.forbidden = {"list clusterrolebindings"}
    done = invoke("uninstall", "--namespace", "grace")
    assert done.stdout.splitlines() == [
        "RoleBinding grace/kr-kfp:default-editor: deleted",
        "Role grace/kr-kfp: deleted",
    ]
    assert done.stderr.strip().endswith("Rights to read nodes, if there are any, stay")
    server.forbidden = set()
    assert lines("uninstall", "--namespace", "grace") == [
        "ClusterRoleBinding kr-kfp-nodes:grace:default-editor: deleted",
        "ClusterRole kr-kfp-nodes: deleted",
    ]


def test_a_refusal_of_the_cluster_has_exit_code_1(
    server: AdminServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrong use is 2, a cluster that refuses is 1."""
    server.forbidden = {"list roles"}
    monkeypatch.setattr("sys.argv", ["kr-kfp", "uninstall"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 1
    assert capsys.readouterr().err.startswith("Error: admin may not list roles in the cluster")
