"""``kr-kfp doctor``: whether a cluster can run steps, line by line."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace

import click
from rich.console import Console
from rich.text import Text

from kr_kfp.cli.connect import admin, cluster_option
from kr_kfp.cli.output import emit, json_option
from kr_kfp.spec.rights import NAMESPACE, RUNNER, Account
from kr_kfp.spec.step import StepSpec
from kr_kfp.wire import ExitCode

__all__ = ["doctor"]

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red"}


@click.command(short_help="Say whether a cluster can run steps, or those of a pipeline.")
@click.argument("pipeline", required=False)
@click.option("--namespace", default=NAMESPACE, show_default=True, help="Where runs are.")
@click.option("--service-account", default=RUNNER, show_default=True, help="The account of their pods.")
@cluster_option
@json_option
def doctor(pipeline: str | None, namespace: str, service_account: str, cluster: str | None, as_json: bool) -> None:
    """Say whether a cluster can run steps; with PIPELINE (FILE.py[:NAME], FILE.yaml), those of this pipeline.

    Each line is pass, warn or fail, with the fix. Nothing is changed. Exits with 1 if a line is fail.
    """
    from kr_kfp.authoring.doctor import diagnose

    account = Account(namespace=namespace, name=service_account)
    findings = diagnose(admin(cluster), account, _steps(pipeline))
    states = Counter(finding.state for finding in findings)

    def show(out: Console) -> None:
        for finding in findings:
            fix = f"\n      Fix: {finding.fix}" if finding.fix else ""
            out.print(
                Text.assemble((finding.state, _STYLES[finding.state]), f"  {finding.check}: {finding.message}{fix}")
            )
        out.print(f"{states['pass']} pass, {states['warn']} warn, {states['fail']} fail")

    emit([asdict(finding) for finding in findings], as_json, show)
    if states["fail"]:
        raise SystemExit(ExitCode.FAILED)


def _steps(pipeline: str | None) -> tuple[StepSpec, ...]:
    if pipeline is None:
        return ()
    from kr_kfp.authoring.plan import plan
    from kr_kfp.cli.target import find

    # By the names of the executors: a step with other options is another one.
    return tuple(replace(found.step, name=found.name) for found in plan(find(pipeline)) if found.step is not None)
