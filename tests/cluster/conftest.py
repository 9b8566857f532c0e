"""The cluster for a whole session, and a namespace of its own for every test."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Generator, Iterator

import pytest

from tests.cluster import requirements
from tests.cluster.cluster import Cluster, using
from tests.cluster.evidence import keep
from tests.cluster.kfp_run import KfpRun, install_workflows
from tests.cluster.launch import Launching
from tests.cluster.pools import Pools
from tests.cluster.rest import Rest
from tests.cluster.space import Space
from tests.cluster.spare import Spare
from tests.servers.s3 import S3Server, run_s3

FAILED = pytest.StashKey[bool]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the cluster before the first test that needs it: a test's time limit is not for building it."""
    if session.config.option.collectonly or "PYTEST_XDIST_WORKER" in os.environ:
        return  # side by side, only the process that gets these tests starts it
    needed = any("cluster" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and not _unavailable():
        session.config.stash[_CLUSTER] = _start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note on the test whether one of its phases failed, for fixtures that clean up after it."""
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


_CLUSTER = pytest.StashKey[tuple[Cluster, bool]]()


def _unavailable() -> str:
    requirements.install()
    return requirements.reason()


def _start() -> tuple[Cluster, bool]:
    """Find the cluster that runs (`make cluster-up`), which then stays, or start one for this session.

    One that runs with images of older sources is started anew, and stays too.
    """
    stays = Cluster.exists()
    return (Cluster.running() or Cluster.start(), stays)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Give the cluster; skip, or fail where it is required, with the reason why there is none."""
    why = requirements.reason()
    if why and requirements.required():
        pytest.fail(f"{why} ({requirements.REQUIRE}=1)")
    if why:
        pytest.skip(why)
    found, stays = request.config.stash.get(_CLUSTER, None) or _start()
    with using(found.places):
        yield found
    if not stays:
        found.stop()


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Rest:
    """Give a connection with all rights."""
    return Rest(kubeconfig=cluster.places.kubeconfig)


@pytest.fixture
def space(cluster: Cluster, admin: Rest, request: pytest.FixtureRequest) -> Iterator[Space]:
    """Give a new namespace; afterwards keep what is in it if the test failed, and remove it in any case."""
    short = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    made = Space.create(cluster, admin, f"{short}-{secrets.token_hex(3)}")
    try:
        yield made
    finally:
        if request.node.stash.get(FAILED, False):
            keep(admin, made.name, request.node.name, cluster.places)
        made.remove()


@pytest.fixture
def spare(cluster: Cluster) -> Iterator[Spare]:
    """Give a way to add nodes that are the test's own; they are gone afterwards."""
    added = Spare(cluster=cluster)
    try:
        yield added
    finally:
        added.remove()


@pytest.fixture(scope="session")
def workflows(admin: Rest) -> None:
    """Define Argo's Workflows in the cluster."""
    install_workflows(admin)


@pytest.fixture(scope="session")
def s3(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run an S3 server that pods reach."""
    with run_s3(tmp_path_factory.mktemp("s3"), host=cluster.places.machine) as server:
        yield server


@pytest.fixture
def launching(space: Space, workflows: None, s3: S3Server) -> Launching:
    """Give a run whose account has the rights of a launcher."""
    return Launching.create(space, s3)


@pytest.fixture
def kfp_run(space: Space, workflows: None) -> KfpRun:
    """Give a new KFP run in the test's namespace."""
    return KfpRun.create(space)


@pytest.fixture
def pools(admin: Rest) -> Iterator[Pools]:
    """Give a way to put nodes into other node pools; they are what they were afterwards."""
    changed = Pools(rest=admin)
    try:
        yield changed
    finally:
        changed.restore()
