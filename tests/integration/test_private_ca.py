"""A store whose certificate comes from a CA of one's own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kr_kfp.errors import StorageError
from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.settings import StoreSettings
from tests.servers.one_object import run_one_object
from tests.servers.tls import server_tls


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Give a store's address and the file of its CA."""
    context, ca = server_tls(tmp_path_factory.mktemp("tls"))
    with run_one_object(context) as server:
        yield server.host, ca


@pytest.mark.parametrize("variable", ["", "AWS_CA_BUNDLE", "SSL_CERT_FILE"])
def test_a_private_ca_is_trusted(
    store: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A CA is trusted that the settings name, or the variables by which KFP names its own."""
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    endpoint, ca = store
    if variable:
        monkeypatch.setenv(variable, str(ca))
    settings = StoreSettings(scheme="s3", endpoint=endpoint, anonymous=True, ca_file="" if variable else str(ca))
    assert fetch("s3://b/k", str(tmp_path / "file"), stores=[settings]).bytes == 3
    assert (tmp_path / "file").read_bytes() == b"abc"


def test_an_unknown_ca_is_said(store: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it there is one clear error at once, and no second try."""
    for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    settings = StoreSettings(scheme="s3", endpoint=store[0], anonymous=True)
    begun = time.monotonic()
    with pytest.raises(StorageError) as caught:
        fetch("s3://b/k", str(tmp_path / "file"), stores=[settings], limits=Limits(patience=200))
    assert time.monotonic() - begun < 100
    assert str(caught.value) == (
        "s3://b/k: the store's TLS certificate is not trusted, or it speaks no TLS. "
        "Fix: name the CA's file, or set disableSSL in KFP's kfp-launcher ConfigMap."
    )
