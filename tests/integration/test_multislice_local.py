"""Two slices of two hosts on this machine: the environment of a multislice group, and JAX over both."""

from __future__ import annotations

from pathlib import Path

import kr_kfp.testing
from tests.local_kit import local_root_fixture
from tests.steps import left_over, over_slices

__all__ = ["local_root_fixture"]


def test_two_slices_are_one_program(tmp_path: Path, local_root: Path) -> None:
    """Process ids follow the slices, each host knows its slice and its place in it, and a sum goes over all devices."""
    seen = kr_kfp.testing.run(over_slices, root=tmp_path / "task").output
    assert seen == {
        "devices": 16,
        "total": sum(range(16)),
        "of_slices": [sum(range(8)), sum(range(8, 16))],
        "slices": 2,
        # host, JAX process, context().slice, MEGASCALE_SLICE_ID, TPU_WORKER_ID, RANK
        "places": [
            [0, 0, 0, 0, 0, 0],
            [1, 1, 0, 0, 1, 1],
            [2, 2, 1, 1, 0, 2],
            [3, 3, 1, 1, 1, 3],
        ],
        "addresses": 1,
        "megascale": ["MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID"],
    }
    assert left_over(str(local_root)) == []
