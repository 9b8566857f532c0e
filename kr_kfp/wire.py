"""What travels between author, launcher and host: JSON in base64, environment names, exit codes, sizes.

Pure and standard library only, since both the author's machine and every training pod import it. Texts travel as
base64 of compressed JSON because kfp.local rewrites every ``python3`` it sees in a command and because the kubelet
expands ``$(VAR)`` and ``$$`` in the command of each pod that a text passes through.

The protocol has a version. Launcher and host come from the same package (the launcher's image, see
:mod:`kr_kfp.runtime.bootstrap`), so another version is an error and never guessed at.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kr_kfp.errors import WireError

__all__ = [
    "ARGUMENT_LIMIT",
    "CHUNK_LIMIT",
    "EXECUTOR_INPUT_MARK",
    "LEAVING",
    "MESSAGE_LIMIT",
    "OUTCOME_FILE",
    "OUTCOME_PREFIX",
    "PROTOCOL",
    "SCRATCH_INPUT",
    "TASK_CONFIG_INPUT",
    "ErrorInfo",
    "ExitCode",
    "Json",
    "Outcome",
    "Payload",
    "chunks",
    "outcome_from_log",
    "outcome_line",
    "outcome_message",
    "pack",
    "parse_message",
    "unpack",
]

Json = dict[str, Any]

PROTOCOL = 1
"""Version of everything in this module."""

ARGUMENT_LIMIT = 131_071
"""Bytes that Linux takes for one argument (MAX_ARG_STRLEN is 131,072 with the closing zero)."""

CHUNK_LIMIT = 100_000
"""Bytes of one chunk of a packed text; below ARGUMENT_LIMIT with room for what a shell adds."""

MESSAGE_LIMIT = 4096
"""Bytes of a container's termination message (kubernetes/kubernetes: MaxContainerTerminationMessageLength)."""

OUTCOME_PREFIX = "kr-kfp-outcome: "
"""Begins the only line that a holding host prints; the rest is the packed outcome."""

OUTCOME_FILE = "outcome"
"""File in KR_KFP_WORK that holds that line once the host has run; where it is, the host holds."""

LEAVING = "after the function had returned, while it left the group of hosts"
"""In the detail of an outcome: the process ended in its framework's shutdown, which a peer's end can break."""

EXECUTOR_INPUT_MARK = "{{kr-kfp.executor-input}}"
"""Stands in a payload's command where each host puts its own ExecutorInput."""

TASK_CONFIG_INPUT = "kr_kfp_task_config"
"""Input of the component's spec through which KFP's TaskConfig arrives; never an argument of the function."""

SCRATCH_INPUT = "kr_kfp_pathways_scratch"
"""Input of the component's spec through which a Pathways scratch location that is known only at run time arrives."""


UPLOADING = "kr_kfp: the function returned; its outputs go to their URIs"
"""What the leader's runner prints before it uploads: from then on other hosts' finish_grace is no limit for it."""


class ExitCode:
    """Exit codes of kr_kfp's own commands; anything else is the user process's own."""

    OK = 0
    FAILED = 1
    USAGE = 2
    SETUP = 64
    STORAGE = 65
    STOPPED = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """A Python exception of user code, or what stands for one.

    Args:
        type: The class's name, such as ``ValueError``.
        message: ``str()`` of it, cut to 2,000 characters.
        file: File of the innermost frame in user code; empty if there is none.
        line: Line number there; 0 if there is none.
        function: Function name there.
        source: The source line itself.
        traceback: The formatted traceback, its middle cut out if it is longer than 200 lines.
    """

    type: str
    message: str
    file: str = ""
    line: int = 0
    function: str = ""
    source: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How user code ended on one host, as its runner saw it.

    Args:
        kind: ``ok``; ``exception``; ``exit`` (non-zero without an exception); ``signal``; ``terminated`` (SIGTERM
            from outside); ``setup`` (the step's surroundings); ``late`` (returned, then waited for others until
            finish_grace had passed); ``worker-files`` (a worker wrote into an output's path); ``lost`` (the runner
            itself was killed: found at its second start).
        host: 0-based index in the group.
        attempt: 0-based number of the attempt.
        code: Exit code of the container.
        signal: Number of the signal that ended the child; 0 if none.
        started: Unix seconds when the child started.
        ended: Unix seconds of the raise, the return or the death, by the host's clock.
        oom: Whether the kernel killed for memory while the child ran.
        error: The exception, if there was one.
        detail: One sentence more where the kind alone does not say it.
        outputs: On the leader: ``executorOutput`` (KFP's ExecutorOutput) and ``parameters`` (file texts by name).
        warnings: Sentences for the user.
    """

    kind: str
    host: int
    attempt: int = 0
    code: int = 0
    signal: int = 0
    started: float = 0.0
    ended: float = 0.0
    oom: bool = False
    error: ErrorInfo | None = None
    detail: str = ""
    outputs: Json | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether user code ended well on this host."""
        return self.kind == "ok"

    def to_json(self) -> Json:
        """Give the outcome as JSON-ready values with the protocol version."""
        return {"v": PROTOCOL, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Read an outcome.

        Raises:
            WireError: If it is of another protocol version or not an outcome.
        """
        values = dict(data)
        version = values.pop("v", None)
        if version != PROTOCOL:
            msg = f"outcome of protocol {version!r}, this is protocol {PROTOCOL}: launcher and host differ"
            raise WireError(msg)
        try:
            error = values.pop("error", None)
            warnings = tuple(values.pop("warnings", ()))
            return cls(error=ErrorInfo(**error) if error else None, warnings=warnings, **values)
        except TypeError as problem:
            msg = f"not an outcome: {problem}"
            raise WireError(msg) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What the launcher hands to every host.

    Args:
        command: KFP's own command with its arguments; EXECUTOR_INPUT_MARK stands for the ExecutorInput.
        executor_input: KFP's ExecutorInput, without kr_kfp's own input.
        options: What the runner needs of the step: ``name``, ``hosts``, ``framework``, ``processes_per_host``,
            ``finish_grace``, ``checkpoint_dir``.
    """

    command: tuple[str, ...]
    executor_input: Json
    options: Json = field(default_factory=dict)

    def to_json(self) -> Json:
        """Give the payload as JSON-ready values with the protocol version."""
        return {"v": PROTOCOL, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Payload:
        """Read a payload.

        Raises:
            WireError: If it is of another protocol version or not a payload.
        """
        if data.get("v") != PROTOCOL:
            msg = f"payload of protocol {data.get('v')!r}, this is protocol {PROTOCOL}: launcher and host differ"
            raise WireError(msg)
        try:
            return cls(
                command=tuple(data["command"]), executor_input=data["executor_input"], options=data.get("options", {})
            )
        except (KeyError, TypeError) as problem:
            msg = f"not a payload: {problem!r}"
            raise WireError(msg) from problem


def pack(value: Any) -> str:
    """Pack JSON-ready values into base64 of compressed JSON, the same text for the same value.

    The text never holds ``python3``, which kfp.local would rewrite: another compression level is taken then.
    """
    data = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
    text = ""
    for level in (9, 8, 7, 6, 5, 4, 3, 2, 1, 0):
        text = base64.b64encode(zlib.compress(data, level)).decode("ascii")
        if "python3" not in text:
            break
    return text


def unpack(text: str) -> Any:
    """Undo :func:`pack`.

    Raises:
        WireError: If the text is not a packed value.
    """
    try:
        return json.loads(zlib.decompress(base64.b64decode(text, validate=True)))
    except (binascii.Error, zlib.error, ValueError) as problem:
        msg = f"not a packed value ({len(text)} characters, begins {text[:20]!r}): {problem}"
        raise WireError(msg) from problem


def chunks(text: str, limit: int = CHUNK_LIMIT) -> tuple[str, ...]:
    """Cut a packed text into arguments of at most ``limit`` bytes; joining them gives the text again."""
    return tuple(text[i : i + limit] for i in range(0, len(text), limit))


def outcome_line(outcome: Outcome) -> str:
    """Give the one line that a holding host prints."""
    return OUTCOME_PREFIX + pack(outcome.to_json())


def outcome_from_log(log: str, digest: str) -> Outcome | None:
    """Find the outcome with this digest (any, if empty) in a holding container's log; None if it is not (yet) there."""
    for line in reversed(log.splitlines()):
        text = line.partition(OUTCOME_PREFIX)[2].strip()
        if text and not digest:
            return Outcome.from_json(unpack(text))
        if text and hashlib.sha256(text.encode()).hexdigest() == digest:
            return Outcome.from_json(unpack(text))
    return None


def outcome_message(outcome: Outcome) -> str:
    """Give the termination message: the outcome itself, or what fits of it with the digest of the whole.

    Returns:
        JSON of at most MESSAGE_LIMIT bytes. With ``digest`` in it, the outputs and the traceback have to be read from
        the held container's log (:func:`outcome_from_log`).
    """
    whole = outcome.to_json()
    text = json.dumps(whole, separators=(",", ":"))
    if len(text.encode()) <= MESSAGE_LIMIT:
        return text
    whole["digest"] = hashlib.sha256(pack(outcome.to_json()).encode()).hexdigest()
    whole["outputs"] = None
    whole["warnings"] = []
    for room in (1500, 600, 200, 0):
        if whole["error"]:
            whole["error"] = {k: _cut(v, room) if isinstance(v, str) else v for k, v in whole["error"].items()}
        whole["detail"] = _cut(whole["detail"], room)
        text = json.dumps(whole, separators=(",", ":"))
        if len(text.encode()) <= MESSAGE_LIMIT:
            break
    return text


def parse_message(text: str) -> tuple[Outcome, str] | None:
    """Read a termination message.

    Returns:
        The outcome and the digest of the whole one (empty if this is the whole); None if the message is not ours.
    """
    try:
        data = json.loads(text)
    except ValueError:
        return None
    if not isinstance(data, dict) or "v" not in data or "kind" not in data:
        return None
    digest = data.pop("digest", "")
    return Outcome.from_json(data), digest


def command_size(command: Sequence[str]) -> int:
    """Give the bytes of the longest argument."""
    return max((len(part.encode("utf-8", "surrogateescape")) for part in command), default=0)


def _cut(text: str, room: int) -> str:
    """Keep the head and the tail of a text within ``room`` characters."""
    if len(text) <= room:
        return text
    if room < 20:
        return text[:room]
    half = (room - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"
