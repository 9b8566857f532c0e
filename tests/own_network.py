"""``python own_network.py PROGRAM ARGUMENT...``: run a program in a network of its own, in which there is a loopback.

What listens on all addresses, as PyTorch's store does whatever it is told, is then heard by the program's own children
and nobody else. Root needs no more than that; others get a namespace of users too, in which they are themselves.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

__all__ = ["enter"]

_NEW_USER, _NEW_NET = 0x10000000, 0x40000000  # linux/sched.h
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1  # linux/sockios.h, linux/if.h


def enter() -> None:
    """Leave the network of the machine for an empty one and raise its loopback.

    Raises:
        OSError: If this kernel, or the container around, does not let this user.
    """
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NET if user == 0 else _NEW_NET | _NEW_USER):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if user:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = struct.unpack("16sh", fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh", b"lo", 0)))
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh", name, flags | _UP))


if __name__ == "__main__":
    enter()
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell is wanted
