"""Where the local cluster keeps its groups, and who holds which.

```
<root>/                     $KR_KFP_LOCAL_ROOT, or kr-kfp-<user id> in the temporary folder; mode 0700
  <group>/
    lock                    held with flock from before the supervisor starts until after all its processes are gone
    socket                  requests and watches, JSON lines
    supervisor.log
    pip.lock
    pods/<pod>.<uid8>/      uid, pid, work/, cwd/, log.<start>, log.<start>.end, termination-log
  .ports/<port>             link to the name of the group that a port is promised to
```

The lock, not the folder, says whether a group lives: the kernel releases it when the last process that holds it is
gone, however it went.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kr_kfp.errors import ClusterError, SetupError
from kr_kfp.names import is_dns1035

__all__ = [
    "LOG",
    "LOG_END",
    "ROOT_ENV",
    "Place",
    "claim_port",
    "clear",
    "group_place",
    "hold",
    "is_held",
    "open_root",
    "remove",
    "remove_tree",
]

ROOT_ENV = "KR_KFP_LOCAL_ROOT"

LOG = "log."
"""Begins the name of a container's log; the 0-based number of its start follows."""

LOG_END = ".end"
"""Ends the name of the empty file that says that a log is complete."""

_SOCKET_LIMIT = 100
"""Bytes of a socket's path; macOS takes 103, Linux 107 (sys/un.h)."""

_NAME_LIMIT = 63
_CLAIM_SECONDS = 60.0
"""A port stays promised for this long to a group that is not there yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of one group.

    Args:
        folder: Its path.
    """

    folder: Path

    @property
    def name(self) -> str:
        """Name of the group."""
        return self.folder.name

    @property
    def lock(self) -> Path:
        """File that the living hold with flock."""
        return self.folder / "lock"

    @property
    def socket(self) -> Path:
        """Unix socket of the supervisor."""
        return self.folder / "socket"

    @property
    def log(self) -> Path:
        """What the supervisor itself prints."""
        return self.folder / "supervisor.log"

    @property
    def pip_lock(self) -> Path:
        """File that makes pip run once for all hosts of the group."""
        return self.folder / "pip.lock"

    @property
    def pods(self) -> Path:
        """Folder of the pods' folders."""
        return self.folder / "pods"

    def pod(self, name: str, uid: str) -> Path:
        """Folder of one pod; another pod of the same name has another one."""
        return self.pods / f"{name}.{uid[:8]}"


def open_root() -> Path:
    """Give the folder of all groups, made if it was not there.

    Raises:
        SetupError: If it belongs to somebody else, who could then read and change what runs there.
    """
    given = os.environ.get(ROOT_ENV)
    root = Path(given).absolute() if given else _default_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        msg = f"{root} is not a folder of this user, so groups cannot be kept there. Set {ROOT_ENV} to one that is"
        raise SetupError(msg)
    if found.st_mode & 0o077:
        root.chmod(0o700)
    return root


def _default_root() -> Path:
    """Use the temporary folder, unless its path leaves no room for a socket's (macOS)."""
    own = f"kr-kfp-{os.getuid()}"
    root = Path(tempfile.gettempdir(), own)
    longest = root / ("n" * 39) / "socket"
    return root if len(os.fsencode(longest)) <= _SOCKET_LIMIT else Path("/tmp", own)  # noqa: S108 - owner is checked


def group_place(name: str) -> Place:
    """Give the place of a group, which need not exist.

    Raises:
        ClusterError: If the name is none, or its socket's path would be too long.
        SetupError: If the root cannot be used.
    """
    if not is_dns1035(name, _NAME_LIMIT):
        msg = f"{name!r} is no name of a group: it must be a DNS-1035 label"
        raise ClusterError(msg, status=422, reason="Invalid")
    place = Place(open_root() / name)
    size = len(os.fsencode(place.socket))
    if size > _SOCKET_LIMIT:
        msg = f"{place.socket} has {size} bytes, a socket's path at most {_SOCKET_LIMIT}. Set {ROOT_ENV} to less"
        raise SetupError(msg)
    return place


def hold(place: Place) -> int | None:
    """Take the group's lock, making its folder if need be.

    Returns:
        The file descriptor that holds it; None if somebody else does.
    """
    while True:
        place.folder.mkdir(mode=0o700, exist_ok=True)
        try:
            fd = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # The folder was removed between the two.
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), place.lock.stat()):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:
            pass  # What was locked has been removed meanwhile.
        os.close(fd)


def is_held(place: Place) -> bool:
    """Tell whether a supervisor, what guards it, or a creator of this group lives."""
    try:
        fd = os.open(place.lock, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def clear(place: Place) -> None:
    """Empty the folder of a group whose lock one holds."""
    entries: list[Path] = []
    with contextlib.suppress(FileNotFoundError):
        entries.extend(place.folder.iterdir())
    for entry in entries:
        if entry == place.lock:
            continue
        if entry.is_dir() and not entry.is_symlink():
            remove_tree(entry)
        else:
            entry.unlink(missing_ok=True)


def remove(place: Place) -> None:
    """Remove the folder of a group whose lock one holds, and its promised ports; the lock's file goes last."""
    clear(place)
    for claim in _claims(place.folder.parent):
        if _owner(claim) == place.name:
            claim.unlink(missing_ok=True)
    place.lock.unlink(missing_ok=True)
    # A creator may have made a new lock in the folder by now; it is that creator's then.
    with contextlib.suppress(OSError):
        place.folder.rmdir()


def remove_tree(folder: Path) -> None:
    """Remove a folder, also if user code took its own rights to do so away."""
    shutil.rmtree(folder, ignore_errors=True)
    if not folder.exists():
        return
    folder.chmod(0o700)
    for top, names, _ in os.walk(folder):
        for inner in (Path(top, name) for name in names):
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def claim_port(root: Path, port: int, name: str) -> bool:
    """Promise a port to a group; False if another one has it.

    Ports are bound only seconds later, when the hosts run, so a bind test alone would give the same one twice.
    """
    claim = _claim_folder(root) / str(port)
    for _ in range(2):
        with contextlib.suppress(FileExistsError):
            claim.symlink_to(name)
            return True
        owner = _owner(claim)
        if owner == name:
            return True
        if owner and ((root / owner).exists() or _age(claim) < _CLAIM_SECONDS):
            return False
        claim.unlink(missing_ok=True)
    return False


def _claim_folder(root: Path) -> Path:
    folder = root / ".ports"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _claims(root: Path) -> list[Path]:
    return list(_claim_folder(root).iterdir())


def _owner(claim: Path) -> str:
    try:
        return str(claim.readlink())
    except OSError:
        return ""


def _age(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0
