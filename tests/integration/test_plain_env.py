"""Several processes on each host, from the plain environment that ``torch.distributed.init_process_group`` reads.

PyTorch itself is not there: on Linux its wheel on PyPI comes with gigabytes of CUDA, and the one for CPUs is on another
index. A module of its name (tests/standins) does the same rendezvous from the same variables, over real sockets.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import kr_kfp.testing
from tests.local_kit import local_root_fixture
from tests.steps import left_over, plain_env

__all__ = ["local_root_fixture"]

STANDINS = Path(__file__).parents[1] / "standins"


def with_torch() -> dict[str, str]:
    """Give an environment in which ``import torch`` finds the stand-in."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(STANDINS), os.environ.get("PYTHONPATH", ""))))}


@pytest.mark.parametrize("framework", ["torch", "auto"])
def test_two_hosts_of_two_processes(framework: str, tmp_path: Path, local_root: Path) -> None:
    """All four processes join, each with ranks, sizes and place of its own; auto takes torch for several processes."""
    step = plain_env.options(framework=framework, logs="all")  # type: ignore[arg-type]
    result = kr_kfp.testing.run(step, root=tmp_path / "task", env=with_torch())
    assert result.output == {
        # RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, NNODES, host, process, processes: one digit of each
        "seen": ["0123", "0101", "4444", "2222", "0011", "2222", "0011", "0101", "2222"],
        "total": 6,
        "keras": "torch",
    }
    why = " (by what can be imported; several processes on a host are PyTorch's)" if framework == "auto" else ""
    assert result.log.count(f"kr_kfp: framework torch{why}\n") == 4
    assert left_over(str(local_root)) == []


def test_torch_that_is_not_there(tmp_path: Path, local_root: Path) -> None:
    """A framework that was asked for and cannot be imported is one clear error."""
    result = kr_kfp.testing.run(plain_env, root=tmp_path / "task", check=False)
    assert result.exit_code == 1
    assert "framework='torch', but torch cannot be imported in this image. Add it to packages_to_install" in result.log
