"""``kr-kfp reap``: groups that nobody needs any more."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import click
from rich.console import Console

from kr_kfp.cli.connect import admin, cluster_option
from kr_kfp.cli.output import emit, json_option
from kr_kfp.cluster.kube_reap import reap as reap_groups
from kr_kfp.spec.reap import describe
from kr_kfp.spec.rights import NAMESPACE
from kr_kfp.wire import ExitCode

__all__ = ["reap"]

_STYLES = {"deleted": "yellow", "failed": "bold red"}


@click.command(short_help="Delete groups of hosts whose run has ended or is gone.")
@click.option("--namespace", "namespaces", multiple=True, help=f"Where runs are; {NAMESPACE} by default; repeatable.")
@click.option("--all-namespaces", is_flag=True, help="Everywhere.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@cluster_option
@json_option
def reap(namespaces: tuple[str, ...], all_namespaces: bool, dry_run: bool, cluster: str | None, as_json: bool) -> None:
    """Delete groups of hosts that were left over: their run has ended or is gone, or their launcher's Lease expired.

    A group whose launcher is at work is never touched, nor is anything that kr_kfp did not make. `kr-kfp install
    --reaper IMAGE` does this every ten minutes. Exits with 1 if something could not be looked at or deleted.
    """
    if all_namespaces and namespaces:
        msg = "--all-namespaces is every namespace: leave --namespace out, or --all-namespaces"
        raise click.UsageError(msg)
    where = ("",) if all_namespaces else namespaces or (NAMESPACE,)
    found = reap_groups(admin(cluster), where, dry_run=dry_run)
    counts = Counter(finding.what for finding in found)

    def show(out: Console) -> None:
        for finding in found:
            out.print(describe(finding, would=dry_run), style=_STYLES.get(finding.what))
        would = "would be " if dry_run else ""
        failed = f", {counts['failed']} failed" if counts["failed"] else ""
        out.print(f"{counts['deleted']} {would}deleted, {counts['kept']} kept{failed}")

    emit({"groups": [asdict(finding) for finding in found], "dry_run": dry_run}, as_json, show)
    if counts["failed"]:
        raise SystemExit(ExitCode.FAILED)
