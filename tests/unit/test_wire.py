"""What travels: sizes, versions, and nothing lost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest

from kr_kfp import wire
from kr_kfp.errors import WireError
from kr_kfp.wire import ErrorInfo, Outcome, Payload

OUTCOME = Outcome(
    kind="exception",
    host=2,
    attempt=1,
    code=1,
    started=10.5,
    ended=12.25,
    error=ErrorInfo(type="ValueError", message="böse $$ $(X) python3", file="a.py", line=3, traceback="t"),
    warnings=("w",),
)


def test_pack_is_reversible_and_safe() -> None:
    """Any JSON value comes back, and the text has nothing that kfp.local or the kubelet would change."""
    value = {"command": ["python3 $$ $(HOME) 'quotes\" ü \u2028"], "n": 1.5, "none": None}
    text = wire.pack(value)
    assert wire.unpack(text) == value
    assert "$" not in text
    assert "python3" not in text


def test_unpack_refuses_other_text() -> None:
    """What was not packed is named with its beginning."""
    with pytest.raises(WireError, match=r"not a packed value \(5 characters, begins 'hello'\)"):
        wire.unpack("hello")


def test_chunks_stay_below_the_limit() -> None:
    """A long text is cut into arguments that Linux takes, and joining gives it back."""
    text = "x" * 250_001
    parts = wire.chunks(text)
    assert [len(p) for p in parts] == [100_000, 100_000, 50_001]
    assert "".join(parts) == text


def test_outcome_round_trip() -> None:
    """An outcome comes back equal."""
    assert Outcome.from_json(json.loads(json.dumps(OUTCOME.to_json()))) == OUTCOME


def test_small_outcome_fits_the_message() -> None:
    """A small outcome is the termination message itself."""
    assert wire.parse_message(wire.outcome_message(OUTCOME)) == (OUTCOME, "")


@pytest.mark.parametrize("size", [3000, 5000, 1_000_000])
@pytest.mark.parametrize("where", ["outputs", "traceback", "message", "detail"])
def test_large_outcome_leaves_a_digest(size: int, where: str) -> None:
    """An outcome over 4,096 bytes leaves a message within the limit and the digest of the whole, found in the log."""
    text = "ä" * size
    outcome = {
        "outputs": replace(OUTCOME, outputs={"parameters": {"x": text}}),
        "traceback": replace(OUTCOME, error=ErrorInfo(type="E", message="m", traceback=text)),
        "message": replace(OUTCOME, error=ErrorInfo(type="E", message=text)),
        "detail": replace(OUTCOME, detail=text),
    }[where]
    message = wire.outcome_message(outcome)
    assert len(message.encode()) <= wire.MESSAGE_LIMIT
    read = wire.parse_message(message)
    assert read is not None
    part, digest = read
    assert (part.kind, part.host, part.ended) == ("exception", 2, 12.25)
    assert digest == hashlib.sha256(wire.pack(outcome.to_json()).encode()).hexdigest()
    log = f"noise\n{wire.outcome_line(OUTCOME)}\n{wire.outcome_line(outcome)}\n"
    assert wire.outcome_from_log(log, digest) == outcome


def test_log_without_the_outcome() -> None:
    """Another outcome's line in the log is not taken."""
    assert wire.outcome_from_log(wire.outcome_line(OUTCOME), "0" * 64) is None


@pytest.mark.parametrize("text", ["", "Killed", "[1]", "{}", '{"v": 1}', '{"kind": "ok"}'])
def test_foreign_messages_are_not_ours(text: str) -> None:
    """A termination message that some other program wrote is no outcome."""
    assert wire.parse_message(text) is None


def test_other_protocol_is_refused() -> None:
    """Another protocol version is an error that says so."""
    with pytest.raises(WireError, match="outcome of protocol 2, this is protocol 1"):
        Outcome.from_json({**OUTCOME.to_json(), "v": 2})
    with pytest.raises(WireError, match="payload of protocol None"):
        Payload.from_json({"command": []})


def test_payload_round_trip() -> None:
    """A payload comes back equal."""
    payload = Payload(command=("sh", "-c"), executor_input={"inputs": {}}, options={"hosts": 2})
    assert Payload.from_json(wire.unpack(wire.pack(payload.to_json()))) == payload


def test_unread_outcome_has_no_digest() -> None:
    """Without a digest the last outcome of the log is taken."""
    log = f"{wire.outcome_line(replace(OUTCOME, host=1))}\n{wire.outcome_line(OUTCOME)}\n"
    assert wire.outcome_from_log(log, "") == OUTCOME
