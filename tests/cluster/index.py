"""A package index for pods, of wheels that are made anew from what is installed here: no download, no build."""

from __future__ import annotations

import importlib.metadata
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A running index.

    Args:
        host: Its address.
        url: What is given to pip as --index-url.
    """

    host: str
    url: str
    _paths: list[str] = field(default_factory=list)

    def asked(self) -> list[str]:
        """Give the paths that were asked for."""
        return list(self._paths)


@contextmanager
def serve_index(host: str, *packages: str) -> Iterator[Index]:
    """Serve pure Python packages as their installed versions, by the simple repository API (PEP 503).

    Args:
        host: The address to listen on.
        *packages: Names of distributions.
    """
    files = {}
    for package in packages:
        name, data = wheel(package)
        files[f"/simple/{package}/"] = f'<a href="/files/{name}">{name}</a>'.encode()
        files[f"/files/{name}"] = data
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            data = files.get(self.path)
            self.send_response(200 if data is not None else 404)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Index(host=host, url=f"http://{host}:{server.server_port}/simple", _paths=paths)
        finally:
            server.shutdown()
            thread.join()


def wheel(package: str) -> tuple[str, bytes]:
    """Put an installed pure Python package back into a wheel, and give its file name and content.

    Raises:
        PackageNotFoundError: It is not installed.
    """
    found = importlib.metadata.distribution(package)
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in found.files or ():
            # Scripts lie outside; what pip and Python wrote on installation is not the package's.
            if (
                ".." not in path.parts
                and "__pycache__" not in path.parts
                and path.name not in ("INSTALLER", "REQUESTED")
            ):
                archive.writestr(str(path), path.read_binary())
    return f"{found.name}-{found.version}-py3-none-any.whl", data.getvalue()
