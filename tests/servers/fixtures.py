"""The servers, and PyTorch, as fixtures, one of each for a whole test session (tests/conftest.py names this module)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster import requirements
from tests.servers import build, pytorch
from tests.servers.gcs import GcsServer, run_gcs
from tests.servers.s3 import S3Server, run_s3

__all__ = ["gcs_server", "pytest_collection_finish", "s3_server", "torch_env"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what is needed before the first test where one needs it: a test's time limit is not for that."""
    if session.config.option.collectonly:
        return
    chosen = (item for item in session.items if isinstance(item, pytest.Function))
    needed = {name for item in chosen for name in item.fixturenames}
    try:
        if needed & {"gcs_server", "s3_server"}:
            build.build()
        if "torch_env" in needed and not pytorch.reason():
            pytorch.environment()
    except build.BuildError as problem:
        # The fixtures try again and fail with it, each test that needs them.
        print(f"\n{problem}")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run an S3 server."""
    with run_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """Run a Google Cloud Storage server."""
    with run_gcs(tmp_path_factory.mktemp("gcs")) as server:
        yield server


@pytest.fixture(scope="session")
def torch_env() -> dict[str, str]:
    """Give the environment in which PyTorch is found; skip, or fail where all tiers must run, with the reason."""
    why = pytorch.reason()
    if why and requirements.required():
        pytest.fail(f"{why} ({requirements.REQUIRE}=1)")
    if why:
        pytest.skip(why)
    return pytorch.environment()
