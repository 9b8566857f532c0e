"""What all tests share: markers by folder, a clean environment, and no process left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest_plugins = ("tests.servers.fixtures",)

TIERS = ("unit", "property", "golden", "contract", "integration", "cluster")
"""The folders of tests, in the order in which they run: what fails fast comes first."""

# Real processes of several hosts at a time: side by side (pytest -n 2 --dist loadgroup) they would disturb each other.
_SERIAL = ("integration", "cluster")

_FOREIGN = ("CLUSTER_SPEC", "JAX_", "KERAS_", "KFP_", "KR_KFP_", "KUBERNETES_", "LWS_", "MASTER_", "TPU_", "XLA_FLAGS")
_KEPT = ("KR_KFP_REGENERATE",)

# JAX reads this once, when it is imported, which some modules of tests do while they are collected. Without it an
# installed libtpu is asked for chips, and waits for ever where there are none.
os.environ["JAX_PLATFORMS"] = "cpu"

# A shell has its background jobs ignore SIGINT (nohup: SIGHUP), and what tests start would inherit that. The second is
# left: tests that send it see to it themselves, so that nohup keeps its meaning for pytest.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test by its folder, and put the tiers in order."""
    tests = Path(__file__).parent
    for item in items:
        tier = item.path.relative_to(tests).parts[0]
        if tier not in TIERS:
            msg = f"{item.path}: tests live in one of {', '.join(TIERS)}"
            raise pytest.UsageError(msg)
        item.add_marker(tier)
        if tier in _SERIAL:
            item.add_marker(pytest.mark.xdist_group("serial"))
        if tier == "cluster":  # twice that of others: where a processor is slow every pod takes its time
            item.add_marker(pytest.mark.timeout(600))
        if tier == "integration":  # a training of four processes may take two minutes beside the cluster's tests
            item.add_marker(pytest.mark.timeout(900))
    items.sort(key=lambda item: TIERS.index(item.path.relative_to(tests).parts[0]))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Hide the variables of a step or a cluster that the tests themselves may run in."""
    if "cluster" in request.keywords:
        return
    for name in list(os.environ):
        if name.startswith(_FOREIGN) and name not in _KEPT:
            monkeypatch.delenv(name)
