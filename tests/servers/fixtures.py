"""The servers as fixtures, one of each for a whole test session (tests/conftest.py names this module)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import build
from tests.servers.gcs import GcsServer, run_gcs
from tests.servers.s3 import S3Server, run_s3

__all__ = ["gcs_server", "pytest_collection_finish", "s3_server"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the servers before the first test where one needs them: a test's time limit is not for that."""
    needed = {"gcs_server", "s3_server"}
    chosen = (item for item in session.items if isinstance(item, pytest.Function))
    if not session.config.option.collectonly and any(needed & set(item.fixturenames) for item in chosen):
        try:
            build.build()
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
