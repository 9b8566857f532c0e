"""Which processes of a local host are over its memory limit."""

from __future__ import annotations

import pytest

from kr_kfp.cluster import local_processes


@pytest.mark.parametrize(
    ("passes", "found"),
    [
        pytest.param([], {}, id="resident-below"),
        pytest.param([{1: 40, 2: 60}], {}, id="at-the-limit"),
        pytest.param([{1: 60, 2: 60}, {1: 30, 2: 30}], {}, id="counted-twice-after-a-fork"),
        pytest.param([{1: 60, 2: 60}, {1: 61, 2: 60}], {1: 61, 2: 60}, id="above"),
        pytest.param([{1: 60, 2: 60}, {1: 61, 2: 0}], {}, id="one-ends-by-itself"),
    ],
)
def test_above(passes: list[dict[int, int]], found: dict[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two looks must agree; the costly ones are taken only where the cheap one is above."""
    left = [sizes[pid] for sizes in passes for pid in (1, 2)]
    monkeypatch.setattr(local_processes, "_resident", lambda pid: 60 if passes else 50)
    monkeypatch.setattr(local_processes, "_memory", lambda pid: left.pop(0))
    assert local_processes.above(100, [1, 2]) == found
    assert left == []
