"""The ``reap`` verb: left-over groups are deleted by this pod's account. The CronJob of ``kr-kfp install`` runs it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kr_kfp.cluster.kube import log_in
from kr_kfp.cluster.kube_http import Api
from kr_kfp.cluster.kube_reap import reap
from kr_kfp.errors import KrKfpError
from kr_kfp.runtime.say import say
from kr_kfp.spec.reap import describe
from kr_kfp.wire import ExitCode

__all__ = ["main"]


def main(namespaces: Sequence[str]) -> int:
    """Delete the left-over groups of these namespaces.

    Returns:
        0; 1 if something could not be looked at or deleted; 64 if this is no pod with an account.
    """
    try:
        api = Api(log_in(None, os.environ), warn=lambda text: say(f"warning: {text}"))
    except KrKfpError as problem:
        say(str(problem))
        return ExitCode.SETUP
    found = reap(api, namespaces, dry_run=False)
    for finding in found:
        say(describe(finding))
    say(f"{sum(finding.what == 'deleted' for finding in found)} of {len(found)} groups deleted")
    return ExitCode.FAILED if any(finding.what == "failed" for finding in found) else ExitCode.OK
