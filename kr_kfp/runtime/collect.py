"""What a host collects after user code ended: outputs, stray files, native crashes, kills for memory."""

from __future__ import annotations

import contextlib
import json
import os
import re

from kr_kfp.executor_input import host_input, output_uris
from kr_kfp.runtime.places import USER_FILE, author_place
from kr_kfp.wire import ErrorInfo, Json, Payload

__all__ = ["crash", "oom_kills", "outputs", "stray_files"]

_FRAME = re.compile(r'File "([^"]*' + re.escape(USER_FILE) + r')", line (\d+) in (\w+)')


def crash(faults: str, function: str, source: str) -> ErrorInfo | None:
    """Read what faulthandler wrote when native code crashed; None if it wrote nothing.

    Args:
        faults: Path of the file that faulthandler wrote to.
        function: Name of the user's function.
        source: ``file:line`` of its ``def`` on the author's machine; empty if not known.
    """
    text = ""
    with contextlib.suppress(OSError), open(faults, encoding="utf-8", errors="replace") as file:
        text = file.read()
    if not text.strip():
        return None
    head = text.strip().splitlines()[0]
    found = _FRAME.search(text)
    if not found:
        return ErrorInfo(type="Crash", message=head, traceback=text)
    file_name, line, code = author_place(found[1], int(found[2]), function, source)
    return ErrorInfo(
        type="Crash", message=head, file=file_name, line=line, function=found[3], source=code, traceback=text
    )


def stray_files(payload: Payload, work: str, index: int, count: int) -> list[str]:
    """List files that processes other than the leader wrote into the path of an output."""
    found: list[str] = []
    for rank in range(count):
        if index == 0 and rank == 0:
            continue
        for name in output_uris(payload.executor_input):
            found.extend(_files(os.path.join(work, f"process-{rank}", "outputs", name), name))
    return sorted(set(found))


def _files(path: str, shown: str) -> list[str]:
    if os.path.isfile(path):
        return [shown]
    return [
        os.path.join(shown, os.path.relpath(os.path.join(top, file), path))
        for top, _, files in os.walk(path)
        for file in files
    ]


def outputs(payload: Payload, work: str, attempt: int) -> Json:
    """Collect what KFP's executor wrote on the leader."""
    mine = host_input(payload.executor_input, folder=os.path.join(work, "process-0"), attempt=attempt)
    found: Json = {"executorOutput": {}, "parameters": {}}
    with contextlib.suppress(FileNotFoundError), open(mine["outputs"]["outputFile"], encoding="utf-8") as file:
        found["executorOutput"] = json.load(file)
    for name, parameter in (mine["outputs"].get("parameters") or {}).items():
        with contextlib.suppress(FileNotFoundError), open(parameter["outputFile"], encoding="utf-8") as file:
            found["parameters"][name] = file.read()
    return found


def oom_kills() -> int:
    """Count the kernel's kills for memory in this container's cgroup (v2 memory.events, v1 memory.oom_control)."""
    for path in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
