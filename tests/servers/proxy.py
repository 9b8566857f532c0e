"""A proxy that breaks what passes, by a plan that is the same for the same seed.

It stands before an HTTP server whose clients sign the Host header: that stays as it came. Which request is broken, how
and at which byte follows from the seed and the request's number alone.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["KINDS", "Fault", "Plan", "Proxy", "Request", "answer", "run_proxy", "seeded"]

Kind = Literal[
    "answer",
    "held",
    "cut_request",
    "cut_response",
    "reset",
    "lost_answer",
    "too_many",
    "unavailable",
    "slow",
    "short",
    "long",
]
KINDS: tuple[Kind, ...] = (
    "cut_request",  # the connection ends while the request's body is on its way
    "cut_response",  # it ends in the middle of the answer's body
    "reset",  # the same by a TCP reset
    "lost_answer",  # the server did what it was asked, but nobody hears of it
    "too_many",  # 429 with Retry-After, in seconds
    "unavailable",  # 503 without it
    "slow",  # the answer's body trickles
    "short",  # Content-Length and body are shorter than what was asked for: an answer that looks whole
    "long",  # Content-Length promises more than there is
)
"""What a seeded plan may do to a request."""

_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that came.

    Args:
        number: How many came before it.
        method: HTTP method.
        target: Path and query as they came.
        at: When it came, by the monotonic clock.
    """

    number: int
    method: str
    target: str
    at: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What to do to one request.

    Args:
        kind: One of ``KINDS``; ``answer``: answer instead of the server; ``held``: take the request, and let the server
            have it later, whatever has become of who sent it.
        share: At which share of the body, 0 to 1.
        status: Status line after the version, for ``answer``.
        body: Body for ``answer``.
        headers: Header lines for ``answer``.
        until: When a ``held`` request goes on to the server.
    """

    kind: Kind
    share: float = 0.5
    status: str = ""
    body: bytes = b""
    headers: tuple[str, ...] = ()
    until: threading.Event = field(default_factory=threading.Event, compare=False)


Plan = Callable[[Request], Fault | None]


def seeded(seed: int, *, count: int, every: float, kinds: Sequence[Kind] = KINDS) -> Plan:
    """Make a plan of random faults.

    Args:
        seed: Equal seeds break equal requests equally.
        count: Number of faults after which all goes well.
        every: A request is broken with the probability 1 / ``every``.
        kinds: The kinds to choose from.
    """
    left = count

    def plan(request: Request) -> Fault | None:
        nonlocal left
        chance = random.Random(f"{seed}:{request.number}")
        if left <= 0 or chance.random() >= 1 / every:
            return None
        left -= 1
        return Fault(kind=chance.choice(kinds), share=chance.random())

    return plan


def answer(status: str, body: bytes, *headers: str, method: str = "") -> Plan:
    """Make a plan that answers every request itself, or those of one method."""
    fault = Fault(kind="answer", status=status, body=body, headers=headers)
    return lambda request: fault if method in {"", request.method} else None


@dataclass(slots=True, kw_only=True)
class Proxy:
    """A running proxy.

    Args:
        endpoint: Its URL.
        faults: Number of faults done so far by kind.
        requests: Number of requests that came so far.
        done: The requests that were broken, with their faults.
        passed: Status lines that the server gave to ``held`` requests.
    """

    endpoint: str
    faults: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    done: list[tuple[Request, Fault]] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)


@contextmanager
def run_proxy(target: str, plan: Plan, *, tls: ssl.SSLContext | None = None) -> Iterator[Proxy]:
    """Run a proxy in a thread of its own as long as the context is open.

    Args:
        target: URL of the server behind it, without a path.
        plan: Says for each request what to do to it.
        tls: What its own side listens with; None for plain HTTP.
    """
    parts = urllib.parse.urlsplit(target)
    assert parts.hostname, target
    assert parts.port, target
    started: threading.Event = threading.Event()
    state: list[tuple[Proxy, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve(host: str, port: int) -> None:
        relay = _Relay(host, port, plan)
        server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
        relay.proxy.endpoint = f"{'https' if tls else 'http'}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ending = asyncio.Event()
        state.append((relay.proxy, asyncio.get_running_loop(), ending))
        started.set()
        await ending.wait()
        server.close()
        for task in list(relay.tasks):
            task.cancel()
        await asyncio.gather(*relay.tasks, return_exceptions=True)
        await server.wait_closed()

    thread = threading.Thread(target=lambda: asyncio.run(serve(parts.hostname or "", parts.port or 0)), daemon=True)
    thread.start()
    assert started.wait(60), "the proxy did not start"
    proxy, loop, ending = state[0]
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(60)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """First line and header lines of a request or an answer.

    Args:
        line: The first line.
        lines: The header lines as they came.
    """

    line: str
    lines: tuple[str, ...]

    def get(self, name: str) -> str | None:
        """Give the value of a header."""
        for line in self.lines:
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip()
        return None

    def bytes(self, **changed: str) -> bytes:
        """Give it as it goes over the wire, with some headers changed (underscores stand for hyphens)."""
        names = {name.replace("_", "-").lower(): value for name, value in changed.items()}
        kept = [line for line in self.lines if line.partition(":")[0].strip().lower() not in names]
        added = [f"{name}: {value}" for name, value in names.items()]
        return "\r\n".join([self.line, *kept, *added, "", ""]).encode("latin-1")


class _GoneError(Exception):
    """This connection is over, on purpose or not."""


class _Relay:
    """Serves all connections of one proxy."""

    def __init__(self, host: str, port: int, plan: Plan) -> None:
        self.host, self.port, self.plan = host, port, plan
        self.proxy = Proxy(endpoint="")
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client: request after request."""
        task = asyncio.current_task()
        assert task, "runs as a task"
        self.tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (_GoneError, OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # also a cancelled one ends in good order: the proxy is being closed
        finally:
            self.tasks.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Pass on one request and its answer; say whether the connection can take another."""
        head = await _read_head(reader)
        method, target, _ = head.line.split(" ", 2)
        request = Request(number=self.proxy.requests, method=method, target=target)
        self.proxy.requests += 1
        fault = self.plan(request)
        length = int(head.get("content-length") or 0)
        if fault and fault.kind == "cut_request" and not length:
            fault = Fault(kind="cut_response", share=fault.share)
        if fault:
            self.proxy.faults[fault.kind] += 1
            self.proxy.done.append((request, fault))
        if fault and fault.kind in {"answer", "too_many", "unavailable"}:
            await _pass(reader, None, length)
            return await _refuse(writer, fault)
        if fault and fault.kind == "held":
            body = await reader.readexactly(length)
            while not fault.until.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.02)
            # Read as from the client, who may be gone.
            reader = asyncio.StreamReader()
            reader.feed_data(body)
        upstream = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
        try:
            # One request a connection: what happens to it has no consequence for others.
            upstream[1].write(head.bytes(connection="close"))
            if fault and fault.kind == "cut_request":
                await _pass(reader, upstream[1], int(length * fault.share))
                raise _GoneError
            await _pass(reader, upstream[1], length)
            if fault and fault.kind == "held":
                self.proxy.passed.append((await _read_head(upstream[0])).line)
                raise _GoneError
            return await _answer(upstream[0], writer, fault, has_body=method != "HEAD")
        finally:
            upstream[1].close()
            with suppress(OSError):
                await upstream[1].wait_closed()


async def _read_head(reader: asyncio.StreamReader) -> _Head:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text[:-4].split("\r\n")
    return _Head(line=first, lines=tuple(lines))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, length: int) -> None:
    """Pass on so many bytes, or drop them."""
    while length > 0:
        piece = await reader.read(min(length, _PIECE))
        if not piece:
            raise _GoneError
        length -= len(piece)
        if writer:
            writer.write(piece)
            await writer.drain()


async def _refuse(writer: asyncio.StreamWriter, fault: Fault) -> bool:
    """Answer instead of the server."""
    status, body, headers = fault.status, fault.body, list(fault.headers)
    if fault.kind == "too_many":
        status, headers = "429 Too Many Requests", ["Retry-After: 1"] if fault.share > 0.5 else ["Retry-After: 0"]
        body = b"<Error><Code>TooManyRequests</Code><Message>Slow down.</Message></Error>"
    elif fault.kind == "unavailable":
        status = "503 Service Unavailable"
        body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/xml", *headers, "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    await writer.drain()
    return True


async def _answer(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault | None, *, has_body: bool
) -> bool:
    """Pass on the server's answer, broken as the fault says; say whether the connection can take another request."""
    head = await _read_head(reader)
    if fault and fault.kind == "lost_answer":
        while await reader.read(_PIECE):
            pass
        raise _GoneError
    given = head.get("content-length")
    length = int(given or 0) if has_body else 0
    if fault and fault.kind != "slow" and (length or fault.kind in {"cut_response", "reset"}):
        return await _break(reader, writer, fault, head, length)
    if given is None and has_body:  # chunked, or without a length: its end is the connection's
        writer.write(head.bytes(connection="close"))
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
        return False
    writer.write(head.bytes(connection="keep-alive"))
    for left in range(20 if fault else 0, 0, -1):  # slow: twenty pieces in a second
        await _pass(reader, writer, length // left)
        length -= length // left
        await asyncio.sleep(0.05)
    await _pass(reader, writer, length)
    await writer.drain()
    return True


async def _break(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fault: Fault, head: _Head, length: int
) -> bool:
    """Pass on an answer in part, or with a wrong length."""
    at = min(int(length * fault.share), max(length - 1, 0))
    if fault.kind == "short":
        writer.write(head.bytes(content_length=str(at), connection="keep-alive"))
        await _pass(reader, writer, at)
        await writer.drain()
        return True
    if fault.kind == "long":
        writer.write(head.bytes(content_length=str(length + 1 + at)))
        await _pass(reader, writer, length)
    elif length:
        writer.write(head.bytes())
        await _pass(reader, writer, at)
    await writer.drain()
    if fault.kind == "reset":
        _reset(writer)
    raise _GoneError


def _reset(writer: asyncio.StreamWriter) -> None:
    """End a connection by RST instead of FIN."""
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
