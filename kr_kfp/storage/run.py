"""Start a transfer in a process of its own. Standard library only, so that the runner may import it.

The transfer needs obstore, whose threads and memory have no place in the runner or a training process. Its plan goes
through a file, its progress to standard error, its end comes back through another file; secrets travel in neither, but
in the environment variables that the plan names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from kr_kfp.errors import Problem, SetupError, StorageError, StorageStoppedError, WireError
from kr_kfp.storage.settings import StoreSettings, dump_stores, load_stores

__all__ = ["FAILED", "Item", "Moved", "Plan", "Result", "transfer"]

FAILED = 65
"""Exit code of a transfer that failed and said why in its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One artifact to move.

    Args:
        uri: Its URI: one object, or a prefix of several.
        path: The local file or folder.
        name: What progress and messages call it, such as the input's name.
    """

    uri: str
    path: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to move, and how its stores are reached.

    Args:
        stores: Settings by prefix; a URI that none holds goes by the surroundings' credentials.
        items: The artifacts; they move at the same time and share the limits on connections and memory.
    """

    stores: tuple[StoreSettings, ...] = ()
    items: tuple[Item, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give JSON-ready values."""
        return {"stores": dump_stores(self.stores), "items": [asdict(item) for item in self.items]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_json` gave.

        Raises:
            WireError: If it is something else.
        """
        try:
            items = tuple(Item(**item) for item in data["items"])
            stores = load_stores(data.get("stores", ()))
        except (KeyError, TypeError) as problem:
            msg = f"not a plan of a transfer: {problem}"
            raise WireError(msg) from problem
        return cls(stores=stores, items=items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One artifact that was moved.

    Args:
        name: The item's name.
        bytes: Their number over all files.
        files: Number of files.
        seconds: From the start of the transfer to this item's end.
    """

    name: str
    bytes: int
    files: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A transfer that ended well.

    Args:
        items: What was moved, in the plan's order.
    """

    items: tuple[Moved, ...] = ()


def transfer(
    verb: Literal["fetch", "put", "probe"],
    plan: Plan,
    *,
    work: str,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run ``python -m kr_kfp.storage <verb>`` to its end; from the main thread, SIGTERM is sent on to it meanwhile.

    Args:
        verb: ``fetch`` brings URIs to paths, ``put`` paths to URIs, ``probe`` only tells whether anything is there.
        plan: What to move.
        work: A folder for the plan and the result, which are removed at the end.
        python: The interpreter, 3.11 or newer, that can import obstore.
        env: Environment of the child; None for this process's own. The folder of this very package comes first on its
            PYTHONPATH.

    Returns:
        What was moved.

    Raises:
        StorageError: Listing every artifact that could not be moved. Of those, :class:`StorageStoppedError` if SIGTERM
            came first.
        SetupError: If the child could not be started or died without a result.
    """
    if not plan.items:
        return Result()
    Path(work).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{verb}-", dir=work) as folder:
        result = Path(folder) / "result.json"
        file = Path(folder) / "plan.json"
        content = {**plan.to_json(), "result": str(result), "parent": os.getpid()}
        file.write_text(json.dumps(content), encoding="utf-8")
        command = [python, "-m", "kr_kfp.storage", verb, str(file)]
        try:
            child = subprocess.Popen(command, env=_environment(env), stdin=subprocess.DEVNULL)
        except OSError as problem:
            msg = f"cannot start {python} to {verb} artifacts: {problem.strerror}"
            raise SetupError(msg) from problem
        with _forwarding(child) as stopped:
            try:
                code = child.wait()
            finally:
                # An exception in here, from a signal handler for instance, must leave nothing running.
                child.kill()
                child.wait()
        return _read(result, verb, code, stopped=bool(stopped))


def _environment(env: Mapping[str, str] | None) -> dict[str, str]:
    own = dict(os.environ if env is None else env)
    package = str(Path(__file__).resolve().parents[2])
    return {**own, "PYTHONPATH": os.pathsep.join(filter(None, (package, own.get("PYTHONPATH"))))}


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Send SIGTERM on to the child; the list that is given gets an entry if one came."""
    seen: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def forward(number: int, _frame: FrameType | None) -> None:
        seen.append(number)
        child.terminate()

    before = signal.signal(signal.SIGTERM, forward)
    try:
        yield seen
    finally:
        # None: set by something that is not Python, and not to be had back.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _read(file: Path, verb: str, code: int, *, stopped: bool) -> Result:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if stopped:
            raise StorageStoppedError([Problem(verb, "was stopped by SIGTERM before all was there.")]) from None
        hint = " Signal 9 is what a full memory looks like." if code == -signal.SIGKILL else ""
        msg = f"the process that should {verb} artifacts {how} and left no result; its output says why.{hint}"
        raise SetupError(msg) from None
    if data["ok"]:
        return Result(items=tuple(Moved(**item) for item in data["items"]))
    problems = [Problem(**problem) for problem in data["problems"]]
    raise StorageStoppedError(problems) if data.get("stopped") else StorageError(problems)
