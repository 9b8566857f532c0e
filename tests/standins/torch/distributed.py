"""``init_process_group`` and ``all_reduce`` of :mod:`torch.distributed`, from the same four variables, without PyTorch.

The real ``env://`` rendezvous reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torch/distributed/rendezvous.py,
``_env_rendezvous_handler``): process 0 listens at that address, the others connect. So does this one.
"""

from __future__ import annotations

import json
import os
import socket
import time

__all__ = ["all_reduce", "destroy_process_group", "get_rank", "get_world_size", "init_process_group"]

_PATIENCE = 60.0
_sockets: list[socket.socket] = []


def get_rank() -> int:
    """Give this process's number in the group."""
    return int(os.environ["RANK"])


def get_world_size() -> int:
    """Give the number of processes of the group."""
    return int(os.environ["WORLD_SIZE"])


def init_process_group(backend: str) -> None:
    """Join the group: process 0 waits for all others, each of them connects to it."""
    assert backend == "gloo"
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if get_rank() == 0:
        with socket.create_server(address) as server:
            server.settimeout(_PATIENCE)
            _sockets.extend(server.accept()[0] for _ in range(get_world_size() - 1))
        return
    deadline = time.monotonic() + _PATIENCE
    while not _sockets:
        try:
            _sockets.append(socket.create_connection(address, timeout=_PATIENCE))
        except OSError:
            assert time.monotonic() < deadline, f"process 0 is not at {address}"
            time.sleep(0.05)


def all_reduce(value: int) -> int:
    """Add up a number over all processes."""
    if get_rank():
        with _sockets[0].makefile("rw") as stream:
            stream.write(f"{value}\n")
            stream.flush()
            return int(json.loads(stream.readline()))
    streams = [each.makefile("rw") for each in _sockets]
    total = value + sum(int(stream.readline()) for stream in streams)
    for stream in streams:
        stream.write(f"{total}\n")
        stream.close()
    return total


def destroy_process_group() -> None:
    """Leave the group."""
    for each in _sockets:
        each.close()
