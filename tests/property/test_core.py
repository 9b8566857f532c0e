"""Rules of the pure core over generated values: names, wire, logs, attempts, durations, the decision table."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kr_kfp.executor_input import attempt_uri
from kr_kfp.names import group_name, is_dns1035, label_value
from kr_kfp.runtime.logs import MAX_LINE, LineSplitter
from kr_kfp.spec.durations import format_duration, parse_duration
from kr_kfp.spec.observe import HostState, Phase
from kr_kfp.spec.outcome import Decision, decide
from kr_kfp.wire import (
    MESSAGE_LIMIT,
    ErrorInfo,
    Outcome,
    chunks,
    outcome_from_log,
    outcome_line,
    outcome_message,
    pack,
    parse_message,
    unpack,
)

# Without deadlines: the machine may be busy.
quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5),
    max_leaves=20,
)
KINDS = ("ok", "exception", "exit", "signal", "terminated", "setup", "late", "worker-files", "lost")
LONG = st.builds(lambda part, times: part * times, st.text(min_size=1, max_size=12), st.integers(0, 1500))
ERRORS = st.builds(
    ErrorInfo,
    type=LONG,
    message=LONG,
    file=TEXT,
    line=st.integers(0, 10**6),
    function=TEXT,
    source=LONG,
    traceback=LONG,
)
OUTCOMES = st.builds(
    Outcome,
    kind=st.sampled_from(KINDS),
    host=st.integers(0, 9999),
    attempt=st.integers(0, 99),
    code=st.integers(0, 255),
    signal=st.integers(0, 64),
    started=st.floats(0, 4e9),
    ended=st.floats(0, 4e9),
    oom=st.booleans(),
    error=st.none() | ERRORS,
    detail=LONG,
    outputs=st.none() | st.dictionaries(TEXT, JSON, max_size=3),
    warnings=st.lists(TEXT, max_size=3).map(tuple),
)


@quick
@given(TEXT, TEXT)
def test_group_name(task: str, identity: str) -> None:
    """Whatever a task is called, the name is a DNS-1035 label of at most 39 characters, the same every time."""
    name = group_name(task, identity)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,37}[a-z0-9])?", name)
    assert is_dns1035(name)
    assert name == group_name(task, identity)


@quick
@given(TEXT, TEXT, TEXT)
def test_group_names_differ(task: str, one: str, other: str) -> None:
    """Two identities of one task never share a name."""
    assume(one != other)
    assert group_name(task, one) != group_name(task, other)


@quick
@given(st.text(max_size=200) | st.from_regex(r"\A[A-Za-z0-9._-]{50,90}\Z"))
def test_label_value(text: str) -> None:
    """Any text becomes a valid label value; a valid one stays as it is."""
    valid = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
    value = label_value(text)
    assert re.fullmatch(valid, value)
    assert label_value(value) == value
    if re.fullmatch(valid, text):
        assert value == text


@quick
@given(JSON, st.integers(1, 200))
def test_pack(value: object, limit: int) -> None:
    """What is packed and cut comes back equal, as plain ASCII without python3."""
    text = pack(value)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", text)
    assert "python3" not in text
    parts = chunks(text, limit)
    assert max(len(part) for part in parts) <= limit
    assert unpack("".join(parts)) == value


@quick
@given(OUTCOMES)
def test_outcome_message(outcome: Outcome) -> None:
    """The message always fits, and always tells how, where and when; the whole is found in the log by its digest."""
    message = outcome_message(outcome)
    assert len(message.encode()) <= MESSAGE_LIMIT
    read = parse_message(message)
    assert read is not None
    short, digest = read
    assert (short.kind, short.host, short.attempt, short.code, short.signal, short.started, short.ended, short.oom) == (
        outcome.kind,
        outcome.host,
        outcome.attempt,
        outcome.code,
        outcome.signal,
        outcome.started,
        outcome.ended,
        outcome.oom,
    )
    if digest:
        log = f"noise\n{outcome_line(outcome)}\nmore\n"
        assert outcome_from_log(log, digest) == outcome
    else:
        assert short == outcome


def split(parts: Sequence[bytes]) -> list[str]:
    splitter = LineSplitter()
    return [line for part in parts for line in splitter.feed(part)] + list(splitter.close())


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    places = [0, *sorted(place % (len(data) + 1) for place in at), len(data)]
    return [data[a:b] for a, b in pairwise(places)]


DATA = st.lists(
    st.binary(max_size=30) | st.sampled_from([b"\n", b"\r\n", b"\0", "✓".encode(), "▏ü".encode(), b"\xff\xe2\x82"]),
    max_size=20,
).map(b"".join)
CUTS = st.lists(st.integers(0, 10**6), max_size=12)


@quick
@given(DATA, CUTS)
def test_lines_do_not_depend_on_chunks(data: bytes, at: list[int]) -> None:
    """However a stream is cut, its lines are the same (but for updates of progress bars, which end in CR)."""
    data = data.replace(b"\r", b"")
    assert split(cut(data, at)) == split([data])


@quick
@given(DATA, CUTS)
def test_windows_line_ends(data: bytes, at: list[int]) -> None:
    """CR and LF are one line end, between two chunks too."""
    data = data.replace(b"\r", b"")
    assert split(cut(data.replace(b"\n", b"\r\n"), at)) == split([data])


@quick
@given(DATA, CUTS)
def test_no_text_is_lost(data: bytes, at: list[int]) -> None:
    """Without carriage returns the lines are the text, with what is not UTF-8 or NUL replaced."""
    data = data.replace(b"\r", b"")
    text = data.decode("utf-8", "replace").replace("\0", "\ufffd")
    assert split(cut(data, at)) == text.removesuffix("\n").split("\n") * bool(text)


@settings(quick, max_examples=15)
@given(
    st.lists(
        st.builds(
            lambda unit, times: unit * times,
            st.sampled_from([b"x", b"\r", b"y\r", "ü".encode()]),
            st.integers(0, 150_000),
        ),
        max_size=4,
    ),
    st.binary(max_size=20),
    CUTS,
)
def test_lines_are_bounded(runs: list[bytes], tail: bytes, at: list[int]) -> None:
    """No line is longer than MAX_LINE and none holds a line end, whatever comes; nor is more than that held back."""
    splitter = LineSplitter()
    for part in cut(b"".join([*runs, tail]), at):
        for line in splitter.feed(part):
            assert len(line) <= MAX_LINE
            assert "\n" not in line
            assert "\r" not in line
        assert len(splitter._rest) <= MAX_LINE
    assert all(len(line) <= MAX_LINE for line in splitter.close())


URIS = st.builds(
    lambda scheme, path, query: f"{scheme}{path}{query}",
    st.sampled_from(["gs://b/", "s3://b/", "minio://b/", "/root/", ""]),
    st.from_regex(r"\A[a-z0-9-]{1,8}(/[a-z0-9-]{1,8}){0,3}\Z"),
    st.sampled_from(["", "?region=x", "?a=b&c=d/e"]),
)


@quick
@given(URIS, st.lists(st.integers(0, 50), min_size=2, max_size=6, unique=True))
def test_attempts_write_to_different_places(uri: str, attempts: list[int]) -> None:
    """No two attempts share a URI, none lies inside another's folder, and the query stays at the end."""
    places = [attempt_uri(uri, attempt) for attempt in attempts]
    paths = [place.partition("?")[0] for place in places]
    assert len(set(paths)) == len(attempts)
    assert not [1 for one in paths for other in paths if one.startswith(f"{other}/")]
    assert {place.partition("?")[2] for place in places} == {uri.partition("?")[2]}
    assert attempt_uri(uri, 0) == uri


@quick
@given(st.integers(0, 400 * 86_400_000))
def test_durations_round_trip(milliseconds: int) -> None:
    """What is written in the fewest units is read back to the millisecond."""
    text = format_duration(milliseconds / 1000)
    assert re.fullmatch(r"0s|(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?", text)
    assert math.isclose(parse_duration(text), milliseconds / 1000, abs_tol=1e-6)
    assert format_duration(parse_duration(text)) == text


@quick
@given(st.floats(0, 1e9))
def test_numbers_are_seconds(seconds: float) -> None:
    """A number is itself."""
    assert parse_duration(seconds) == seconds


@st.composite
def hosts(draw: st.DrawFn) -> list[HostState]:
    """Draw a group whose hosts are in any state that observe() gives."""
    states = []
    for index in range(draw(st.integers(1, 5))):
        phase = draw(st.sampled_from(Phase))
        state = HostState(index=index, phase=phase, reason="why" if phase in (Phase.WAITING, Phase.LOST) else "")
        if phase is Phase.ENDED:
            message = draw(st.sampled_from(["boom", "connection reset by peer", ""]))
            error = ErrorInfo(type=draw(st.sampled_from(["ValueError", "KeyError"])), message=message)
            kind = draw(st.sampled_from([kind for kind in KINDS if kind not in ("lost", "terminated")]))
            outcome = Outcome(
                kind=kind,
                host=index,
                code=0 if kind == "ok" else draw(st.integers(1, 255)),
                signal=draw(st.sampled_from([0, 6, 9])) if kind == "signal" else 0,
                ended=draw(st.floats(0, 2000)),
                oom=kind != "ok" and draw(st.booleans()),
                error=error if kind == "exception" else None,
            )
            state = replace(state, outcome=outcome)
        states.append(state)
    return states


@settings(quick, max_examples=300)
@given(
    hosts(),
    st.floats(0, 3000),
    st.floats(0, 600),
    st.lists(st.sampled_from(["oom", "1", "ValueError"]), max_size=3),
    st.none() | st.floats(0, 3000),
    st.none() | st.floats(0, 3000),
)
def test_decide(
    states: list[HostState],
    now: float,
    grace: float,
    retry_on: list[str],
    ok_seen: float | None,
    bad_seen: float | None,
) -> None:
    """Success means that every host ended well and only that; whatever ends an attempt otherwise has a reason."""
    verdict = decide(
        states, now=now, finish_grace=grace, retry_on=retry_on, first_ok_seen=ok_seen, first_bad_seen=bad_seen
    )
    well = [s for s in states if s.phase is Phase.ENDED and s.outcome and s.outcome.ok]
    assert (verdict.decision is Decision.SUCCESS) is (len(well) == len(states))
    if verdict.decision in (Decision.RESTART, Decision.FAILURE):
        assert verdict.reason
        assert verdict.host in states
        assert verdict.check_at is None
    if verdict.decision is Decision.WAIT:
        assert verdict.reason == ""
        assert verdict.check_at is None or verdict.check_at > now or grace == 0
    if all(s.phase in (Phase.WAITING, Phase.RUNNING) for s in states):
        assert verdict.decision is Decision.WAIT
    if verdict.user_fault:
        assert verdict.decision is Decision.RESTART
        assert retry_on


@quick
@given(hosts(), st.floats(0, 3000))
def test_every_attempt_ends(states: list[HostState], now: float) -> None:
    """Where nothing runs or waits any more there is a decision; long after the first end there is one too."""
    assume(any(s.phase in (Phase.ENDED, Phase.LOST) for s in states))
    verdict = decide(states, now=now + 1e6, finish_grace=300.0, first_ok_seen=now, first_bad_seen=now)
    assert verdict.decision is not Decision.WAIT
