"""A store whose certificate comes from a CA of one's own."""

from __future__ import annotations

import datetime as dt
import http.server
import ipaddress
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kr_kfp.errors import StorageError
from kr_kfp.storage.fetch import fetch
from kr_kfp.storage.limits import Limits
from kr_kfp.storage.settings import StoreSettings

_PEM = serialization.Encoding.PEM


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
    )
    if name != issuer:
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


class _Object(http.server.BaseHTTPRequestHandler):
    """Answers as a bucket with one object of three bytes."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(b"", length=3)

    def do_GET(self) -> None:
        listing = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></ListBucketResult>'
        self._answer(listing if "list-type" in self.path else b"abc")

    def _answer(self, body: bytes, length: int | None = None) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 07:00:00 GMT")
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Give a store's address and the file of its CA."""
    folder = tmp_path_factory.mktemp("tls")
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = folder / "ca.pem"
    ca.write_bytes(_certificate("ca", ca_key, "ca", ca_key).public_bytes(_PEM))
    chain = folder / "server.pem"
    private = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    chain.write_bytes(private + _certificate("store", key, "ca", ca_key).public_bytes(_PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Object)
    server.daemon_threads = True  # a client keeps its connection
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_port}", ca
    server.shutdown()
    thread.join()
    server.server_close()


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
