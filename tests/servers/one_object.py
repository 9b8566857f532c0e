"""A store with one object, for what real servers here do not know: certificates of one's own, session tokens."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["OneObject", "run_one_object"]


class OneObject(http.server.ThreadingHTTPServer):
    """A server that gives every name as an object of the three bytes ``abc``.

    Attributes:
        requests: The headers of the requests that came, by their names in lower case.
    """

    daemon_threads = True  # a client keeps its connection

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, str]] = []
        if tls:
            self.socket = tls.wrap_socket(self.socket, server_side=True)

    @property
    def host(self) -> str:
        """Address and port."""
        return f"127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: OneObject

    def do_HEAD(self) -> None:
        self._answer(b"", length=3)

    def do_GET(self) -> None:
        listing = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></ListBucketResult>'
        self._answer(listing if "list-type" in self.path else b"abc")

    def _answer(self, body: bytes, length: int | None = None) -> None:
        self.server.requests.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 07:00:00 GMT")
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def run_one_object(tls: ssl.SSLContext | None = None) -> Iterator[OneObject]:
    """Run such a server as long as the context is open.

    Args:
        tls: What it listens with; None for plain HTTP.
    """
    server = OneObject(tls)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
