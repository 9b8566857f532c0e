"""``kr-kfp install`` and ``kr-kfp uninstall``: rights of launchers, and LeaderWorkerSet."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

import click
import yaml
from rich.console import Console

from kr_kfp.cli.connect import admin, cluster_option
from kr_kfp.cli.output import emit, json_option
from kr_kfp.cli.release import read_release
from kr_kfp.cluster.kube_access import check_served
from kr_kfp.cluster.kube_admin import has_account, has_lws
from kr_kfp.cluster.kube_admin import install as install_objects
from kr_kfp.cluster.kube_admin import uninstall as uninstall_objects
from kr_kfp.cluster.kube_http import Api
from kr_kfp.errors import SetupError
from kr_kfp.spec.changes import Change
from kr_kfp.spec.reaper import SCHEDULE
from kr_kfp.spec.reaper import reaper as build_reaper
from kr_kfp.spec.release import RELEASE, labelled
from kr_kfp.spec.rights import EDITOR, NAMESPACE, RUNNER, Account, rights
from kr_kfp.wire import ExitCode

__all__ = ["install", "uninstall"]

_STYLES = {"created": "green", "changed": "yellow", "deleted": "yellow", "kept": "bold"}


@click.command(short_help="Give KFP's account its rights on a cluster, and install LeaderWorkerSet.")
@click.option("--namespace", help=f"Where runs are in single-user KFP; {NAMESPACE} by default.")
@click.option("--service-account", help=f"KFP's account there; {RUNNER} by default, {EDITOR} with --profile.")
@click.option("--profile", "profiles", multiple=True, help="Namespace of a profile of multi-user Kubeflow; repeatable.")
@click.option("--nodes", is_flag=True, help="Also the right to read nodes, by which a lost node is known sooner.")
@click.option("--leases", is_flag=True, help="Also the rights for launchers outside of KFP pods.")
@click.option("--reaper", metavar="IMAGE", help="Also a CronJob that deletes left-over groups; launcher's image.")
@click.option("--reaper-schedule", metavar="CRON", help=f"When it runs; {SCHEDULE!r} by default.")
@click.option("--lws", metavar="FILE|URL|none", help="LeaderWorkerSet's release file, used if the cluster has none.")
@click.option("--dry-run", is_flag=True, help="Let the server check everything, and change nothing.")
@click.option("--diff", is_flag=True, help="Show what would change, and change nothing.")
@cluster_option
@json_option
def install(  # noqa: PLR0917 - click hands options over by name
    namespace: str | None,
    service_account: str | None,
    profiles: tuple[str, ...],
    nodes: bool,
    leases: bool,
    reaper: str | None,
    reaper_schedule: str | None,
    lws: str | None,
    dry_run: bool,
    diff: bool,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Give KFP's account the rights of a launcher, and see that there is LeaderWorkerSet.

    A second run changes nothing. What somebody else made is never changed.
    """
    accounts = _accounts(namespace, service_account, profiles)
    if reaper_schedule and not reaper:
        msg = "--reaper-schedule says when the reaper runs: give --reaper IMAGE too"
        raise click.UsageError(msg)
    api = admin(cluster)
    release, notes = _release(api, lws)
    notes += [
        f"there is no service account {a.name} in namespace {a.namespace} yet"
        for a in accounts
        if not has_account(api, a.namespace, a.name)
    ]
    manifests = [*release, *rights(accounts, leases=leases, nodes=nodes)]
    if reaper:
        manifests += build_reaper([a.namespace for a in accounts], image=reaper, schedule=reaper_schedule or SCHEDULE)
    changes = install_objects(api, manifests, dry_run=dry_run or diff)
    _emit(changes, notes, as_json, diff=diff, would=dry_run or diff)


def _accounts(namespace: str | None, name: str | None, profiles: Sequence[str]) -> tuple[Account, ...]:
    if profiles and namespace:
        msg = "--profile names a namespace: leave --namespace out, or --profile"
        raise click.UsageError(msg)
    if profiles:
        return tuple(Account(namespace=profile, name=name or EDITOR) for profile in profiles)
    return (Account(namespace=namespace or NAMESPACE, name=name or RUNNER),)


def _release(api: Api, lws: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Decide whose LeaderWorkerSet it is; give what is to be installed, and what is to be said.

    Raises:
        SetupError: If there is none, and none was given.
    """
    if lws == "none":
        return [], []
    if lws is not None:
        # Read even if it is not needed: a wrong file is an error in any case.
        objects, digest = read_release(lws)
        if not has_lws(api):
            return [labelled(o) for o in objects], [f"LeaderWorkerSet from {lws}, SHA-256 {digest}"]
        check_served(api)
        return [], [f"the cluster has a LeaderWorkerSet of its own, which stays; {lws} is not used"]
    try:
        check_served(api)
    except SetupError as problem:
        said = str(problem).partition(". Install")[0]
        msg = f"{said}. Give its release file, --lws manifests.yaml ({RELEASE}), or --lws none"
        raise SetupError(msg) from problem
    return [], ["LeaderWorkerSet is there already"]


@click.command(short_help="Remove what `kr-kfp install` made, and nothing else.")
@click.option("--namespace", "namespaces", multiple=True, help="Only rights of accounts in this namespace; repeatable.")
@click.option("--profile", "profiles", multiple=True, help="The same for a profile.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@cluster_option
@json_option
def uninstall(
    namespaces: tuple[str, ...], profiles: tuple[str, ...], dry_run: bool, cluster: str | None, as_json: bool
) -> None:
    """Remove what `kr-kfp install` made, and nothing else.

    Without --namespace and --profile: everything, in all namespaces. LeaderWorkerSet stays while there are groups; the
    exit code is then 1.
    """
    changes = uninstall_objects(admin(cluster), (*namespaces, *profiles), dry_run=dry_run)
    _emit(changes, [] if changes else ["there is nothing that kr-kfp installed"], as_json, would=dry_run)
    if any(change.what == "kept" for change in changes):
        raise SystemExit(ExitCode.FAILED)


def _emit(changes: Sequence[Change], notes: Sequence[str], as_json: bool, *, would: bool, diff: bool = False) -> None:
    value = {
        "changes": [
            {
                "kind": change.kind,
                "namespace": change.namespace,
                "name": change.name,
                "what": change.what,
                "why": change.why,
                **({"diff": _diff(change)} if diff else {}),
            }
            for change in changes
        ],
        "notes": list(notes),
        "dry_run": would,
    }

    def show(out: Console) -> None:
        for change in changes:
            word = (
                f"would be {change.what}" if would and change.what in ("created", "changed", "deleted") else change.what
            )
            why = f" ({change.why})" if change.why else ""
            out.print(f"{change.title}: {word}{why}", style=_STYLES.get(change.what))
            if diff and change.what != "unchanged":
                out.print(_diff(change))
        for note in notes:
            out.print(f"note: {note}")

    emit(value, as_json, show)


def _diff(change: Change) -> str:
    """Compare two states as YAML."""
    before, after = (
        yaml.safe_dump(state, sort_keys=False, width=100).splitlines() if state else []
        for state in (change.before, change.after)
    )
    return "\n".join(difflib.unified_diff(before, after, f"{change.title} now", f"{change.title} then", lineterm=""))
