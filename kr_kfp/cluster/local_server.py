"""The supervisor's socket: one JSON line in, one out; a watch gets lines until the group is gone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from typing import Any

from kr_kfp.cluster import local_processes as processes
from kr_kfp.cluster.local_group import Group, Refusal
from kr_kfp.cluster.local_places import Place, remove

__all__ = ["serve"]

Json = dict[str, Any]

_FAREWELL = 5.0
"""Seconds that watchers have to take the last events."""

_REQUEST_LIMIT = 1 << 26
"""Bytes of one request; a patch holds a whole pod template."""


async def serve(place: Place, order: Json, ready_fd: int) -> None:
    """Make a group, serve it, and return when it and all its processes are gone.

    Args:
        place: The group's folder.
        order: ``manifest``, the launcher's ``env``, ``orphan_seconds``.
        ready_fd: Where the group's manifest is written as soon as the socket answers; closed then.
    """
    loop = asyncio.get_running_loop()
    group = Group(order["manifest"], place=place, launcher_env=order["env"])
    desk = _Desk(group, orphan_seconds=order["orphan_seconds"])
    server = await asyncio.start_unix_server(desk.answer, path=place.socket, limit=_REQUEST_LIMIT, backlog=1024)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, group.delete)
    group.start()
    try:
        with os.fdopen(ready_fd, "wb") as ready:
            ready.write(json.dumps(group.manifest).encode() + b"\n")
    except BrokenPipeError:
        group.delete()  # The creator died; nobody knows of this group.
    await group.empty
    # What shed its group, its mark and its parents had no pod any more; it ends here.
    while strays := processes.descendants(processes.table(), [os.getpid()]):
        processes.kill(strays)
        await asyncio.sleep(0.005)
    server.close()
    remove(place)
    group.tell_gone()
    await desk.close(_FAREWELL)


class _Desk:
    """Answers requests, and deletes the group when nobody has asked for long.

    Args:
        group: The group.
        orphan_seconds: Seconds without any connection after which the group is deleted.
    """

    def __init__(self, group: Group, *, orphan_seconds: float) -> None:
        self._group, self._orphan_seconds = group, orphan_seconds
        self._clients = 0
        self._orphaned: asyncio.TimerHandle | None = None
        self._open: set[asyncio.Task[Any]] = set()
        self._wait_for_client()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        task = asyncio.current_task()
        if task is not None:
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        try:
            # The other side may hang up at any moment, in the middle of its line too.
            with contextlib.suppress(ConnectionError):
                line = await reader.readline()
                if line.endswith(b"\n"):
                    await self._handle(json.loads(line), reader, writer)
        finally:
            writer.close()

    async def close(self, seconds: float) -> None:
        """Wait until all connections have been served, at most for some seconds."""
        others = self._open - {asyncio.current_task()}
        if others:
            await asyncio.wait(others, timeout=seconds)

    async def _handle(self, request: Json, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if request["verb"] == "peek":  # A look by a person, who is not the group's launcher.
            await _send(writer, {"value": self._group.manifest})
            return
        self._clients += 1
        if self._orphaned is not None:
            self._orphaned.cancel()
        try:
            if request["verb"] == "watch":
                await self._watch(reader, writer)
            else:
                await _send(writer, self._perform(request))
        finally:
            self._clients -= 1
            if self._clients == 0:
                self._wait_for_client()

    def _perform(self, request: Json) -> Json:
        verb, group = request["verb"], self._group
        value: Any = None
        try:
            if verb == "read":
                value = group.manifest
            elif verb == "pods":
                value = group.pods()
            elif verb == "patch":
                value = group.patch(request["patch"], request["version"])
            elif verb == "delete-pod":
                group.delete_pod(request["name"], request["uid"], grace=request["grace"])
            elif verb == "delete" and request["uid"] == group.manifest["metadata"]["uid"]:
                group.delete()
        except Refusal as refusal:
            return {"error": {"status": refusal.status, "reason": refusal.reason, "message": str(refusal)}}
        return {"value": value}

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send what happens until the group is gone or the other side is."""
        queue = self._group.watch()
        hung_up = asyncio.ensure_future(_wait_for_end(reader))
        hung_up.add_done_callback(lambda _: queue.put_nowait(None))
        try:
            while (line := await queue.get()) is not None:
                writer.write(line)
                await writer.drain()
        finally:
            self._group.unwatch(queue)
            hung_up.cancel()

    def _wait_for_client(self) -> None:
        loop = asyncio.get_running_loop()
        self._orphaned = loop.call_later(self._orphan_seconds, self._group.delete)


async def _send(writer: asyncio.StreamWriter, answer: Json) -> None:
    writer.write(json.dumps(answer, separators=(",", ":")).encode() + b"\n")
    await writer.drain()


async def _wait_for_end(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        await reader.read(1)
