"""One or more runners as real processes, without a cluster: for tests of the runner alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kr_kfp.wire import (
    EXECUTOR_INPUT_MARK,
    OUTCOME_FILE,
    Outcome,
    Payload,
    chunks,
    outcome_from_log,
    pack,
    parse_message,
)

__all__ = ["Host", "free_port", "payload_of", "read_marker", "start_host", "until"]


def free_port() -> int:
    """Give a TCP port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(seconds: float, what: str) -> Iterator[None]:
    """Yield again and again until ``seconds`` have passed; then fail, naming what never came."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.02)
    msg = f"{what}: not within {seconds} s"
    raise AssertionError(msg)


def read_marker(work: Path) -> Outcome:
    """Give the outcome that a host keeps in its marker."""
    outcome = outcome_from_log((work / OUTCOME_FILE).read_text(encoding="utf-8"), "")
    assert outcome is not None
    return outcome


def payload_of(component: Any, folder: Path, arguments: Mapping[str, Any], **options: object) -> Payload:
    """Give the payload of a plain KFP component with these arguments, its outputs below ``folder``."""
    container = component.component_spec.implementation.container
    outputs = component.component_spec.outputs or {}
    artifacts = {name: spec for name, spec in outputs.items() if "@" in str(spec.type)}
    executor_input = {
        "inputs": {"parameterValues": dict(arguments)},
        "outputs": {
            "outputFile": str(folder / "executor_output.json"),
            "parameters": {n: {"outputFile": str(folder / n)} for n in outputs if n not in artifacts},
            "artifacts": {
                name: {
                    "artifacts": [
                        {
                            "name": name,
                            "uri": str(folder / name),
                            "type": {"schemaTitle": str(spec.type).partition("@")[0]},
                            "metadata": {},
                        }
                    ]
                }
                for name, spec in artifacts.items()
            },
        },
    }
    name = container.args[-1]
    command = [part.replace("python3", sys.executable) for part in container.command]
    return Payload(
        command=(*command, "--executor_input", EXECUTOR_INPUT_MARK, "--function_to_execute", name),
        executor_input=executor_input,
        options={"name": name, "hosts": 1, "framework": "none", "source": "/home/me/train.py:100", **options},
    )


@dataclass(slots=True)
class Host:
    """A started runner."""

    process: subprocess.Popen[bytes]
    work: Path
    log: Path
    termination: Path
    env: dict[str, str] = field(default_factory=dict)

    def wait(self, seconds: float = 240.0) -> int:
        """Wait for its end and give its exit code."""
        return self.process.wait(timeout=seconds)

    def text(self) -> str:
        """Give its log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def await_text(self, wanted: str, seconds: float = 120.0) -> str:
        """Wait until the log holds a text, and give the log."""
        for _ in until(seconds, f"{wanted!r} in the log"):
            if wanted in self.text():
                break
        return self.text()

    def outcome(self) -> Outcome:
        """Give the outcome in its termination message."""
        read = parse_message(self.termination.read_text(encoding="utf-8"))
        assert read is not None
        return read[0]

    def marker(self) -> Outcome:
        """Give the outcome in its marker."""
        return read_marker(self.work)

    def kill(self) -> None:
        """End it and its processes, if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start_host(
    payload: Payload, folder: Path, index: int = 0, *, env: Mapping[str, str] | None = None, extra: Sequence[str] = ()
) -> Host:
    """Start the runner of one host as the container would; the same folder again is its second start."""
    folder.mkdir(parents=True, exist_ok=True)
    full = {
        **os.environ,
        "KR_KFP_WORK": str(folder / "work"),
        "KR_KFP_TERMINATION_LOG": str(folder / "termination"),
        "KR_KFP_TASK": "train",
        "KR_KFP_FUNCTION": str(payload.options["name"]),
        "LWS_WORKER_INDEX": str(index),
        "LWS_LEADER_ADDRESS": "127.0.0.1",
        **(env or {}),
    }
    log = folder / "log"
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "kr_kfp.runtime", "host", *chunks(pack(payload.to_json())), *extra],
            env=full,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Host(process, folder / "work", log, folder / "termination", full)
