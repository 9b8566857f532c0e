"""What user processes of a host see beyond the container's environment."""

from __future__ import annotations

import pytest

from kr_kfp.runtime.prepare import _process_env


@pytest.mark.parametrize(
    ("count", "given", "expected"), [(1, None, None), (2, None, "1"), (2, "8", "8")], ids=["one", "several", "given"]
)
def test_threads_of_several_processes(
    count: int, given: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several processes on a host take one OpenMP thread each, unless the user says otherwise."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert _process_env({"hosts": 2}, 1, 0, count).get("OMP_NUM_THREADS") == expected


def test_places_of_several_processes() -> None:
    """RANK counts through all hosts, LOCAL_RANK through one: what torch.distributed reads (rendezvous.py)."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "NNODES")
    found = [_process_env({"hosts": 2}, host, rank, 3) for host in range(2) for rank in range(3)]
    assert [tuple(env[name] for name in names) for env in found] == [
        ("0", "0", "6", "3", "0", "2"),
        ("1", "1", "6", "3", "0", "2"),
        ("2", "2", "6", "3", "0", "2"),
        ("3", "0", "6", "3", "1", "2"),
        ("4", "1", "6", "3", "1", "2"),
        ("5", "2", "6", "3", "1", "2"),
    ]
