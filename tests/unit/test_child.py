"""Which of a host's processes tells how the host fared."""

from __future__ import annotations

import pytest

from kr_kfp.runtime.child import Process, _first

PEER = {"type": "RuntimeError", "message": "[./gloo/transport/tcp/pair.cc:598] Connection closed by peer [127.0.0.1]:1"}
OWN = {"type": "ValueError", "message": "bad batch"}


def well() -> Process:
    """A process that ended as it should."""
    return Process(rank=0, command=(), env={}, code=0, ended=1.0, events=[{"event": "done", "time": 1.0}])


def raised(error: dict[str, str], at: float) -> Process:
    """A process that told of an exception, and ended some time later."""
    return Process(
        rank=0, command=(), env={}, code=1, ended=9.0, events=[{"event": "exception", "time": at, "error": error}]
    )


def killed(at: float, *, cut: bool = False) -> Process:
    """A process that was killed, by us if ``cut``."""
    return Process(rank=0, command=(), env={}, code=-9, ended=at, cut=cut)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        pytest.param((well(), well()), 0, id="all ended well"),
        pytest.param((well(), killed(5.0)), 1, id="one failed"),
        pytest.param((raised(OWN, 5.0), raised(OWN, 4.0)), 1, id="the first"),
        pytest.param((raised(PEER, 5.0), killed(5.01)), 1, id="killed, and seen after its peer's word"),
        pytest.param((raised(PEER, 5.0), raised(OWN, 5.01)), 1, id="the same of an exception"),
        pytest.param((killed(9.9, cut=True), raised(PEER, 5.0)), 1, id="lost one on another host; the rest was killed"),
        pytest.param((killed(9.9, cut=True), raised(OWN, 5.0)), 1, id="killed for the other's failure"),
        pytest.param((raised(PEER, 5.0), raised(PEER, 4.0)), 1, id="all lost one on another host"),
    ],
)
def test_the_process_that_tells(processes: tuple[Process, ...], expected: int) -> None:
    """The first to fail by its own doing; where there is none, the first to fail."""
    assert _first(processes) is processes[expected]
