"""The process behind a local group: LeaderWorkerSet controller and kubelet in one, and a guard over it.

``python -m kr_kfp.cluster.supervisor FOLDER LOCK READY`` takes an order (JSON: ``manifest``, ``env``,
``orphan_seconds``) on its standard input. It becomes three processes: the first ends at once, so that nobody has to
wait for the others; the second is the guard; the third is the supervisor, which serves the group's socket. If the
supervisor ends in any other way than by having taken its group away, the guard kills everything below it. Both are
child subreapers, so that what escapes from a container comes to them. The guard's death is a request to delete the
group.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from kr_kfp.cluster import local_processes as processes
from kr_kfp.cluster.local_places import Place, remove

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Become the guard and the supervisor of one group.

    Args:
        arguments: The group's folder, the file descriptor that holds its lock, and the one to say ready on.

    Returns:
        The exit code, once in each of the three processes.
    """
    folder, _, ready = arguments
    place, ready_fd = Place(Path(folder)), int(ready)
    if os.fork():
        return 0
    # A launcher under nohup or in a notebook hands on ignored signals, and hosts would inherit them.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    processes.become_subreaper()
    follow = processes.die_with_parent(signal.SIGTERM)
    supervisor = os.fork()
    if supervisor:
        os.close(0)
        os.close(ready_fd)
        return _guard(supervisor, place)
    follow()
    processes.become_subreaper()
    return _supervise(place, ready_fd)


def _guard(supervisor: int, place: Place) -> int:
    """Wait for the supervisor's end, and kill what it left if it could not itself.

    The folder stays, with the logs, until a group of this name is made again.
    """
    pid, status = os.wait()
    while pid != supervisor:
        pid, status = os.wait()
    if status == 0:
        return 0
    processes.kill_descendants(os.getpid())
    if not processes.table():
        # No /proc: the process groups that were noted have to do.
        for noted in place.pods.glob("*/pid"):
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(noted.read_text(encoding="ascii")), signal.SIGKILL)
    return 1


def _supervise(place: Place, ready_fd: int) -> int:
    """Read the order and serve the group to its end."""
    try:
        order = json.loads(sys.stdin.buffer.read())
    except ValueError:
        remove(place)  # The creator died while it wrote.
        return 0
    import asyncio

    from kr_kfp.cluster.local_server import serve

    try:
        asyncio.run(serve(place, order, ready_fd))
    except Exception:  # noqa: BLE001 - the last word of this process; the guard does the rest
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
