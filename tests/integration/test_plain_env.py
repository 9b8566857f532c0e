"""PyTorch itself, two processes on each of two hosts, from the plain environment that its ``env://`` reads."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import kr_kfp.testing
from tests import own_network, torch_steps
from tests.local_kit import local_root_fixture
from tests.steps import left_over

__all__ = ["local_root_fixture"]


@pytest.fixture(name="in_own_network")
def _in_own_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what kr_kfp.testing.run starts run in a network of its own: PyTorch's store listens on all addresses."""
    enter = [sys.executable, own_network.__file__, sys.executable]
    tried = subprocess.run([*enter, "-c", ""], capture_output=True, text=True, check=False)
    assert tried.returncode == 0, tried.stderr
    python = tmp_path / "python"
    # KFP's command names Python for the launcher, and in it for each host, which is to stay in the launcher's network.
    inside = f'if [ "$KR_TEST_IN_OWN_NETWORK" ]; then exec {shlex.quote(sys.executable)} "$@"; fi'
    first = f'KR_TEST_IN_OWN_NETWORK=1 exec {shlex.join(enter)} "$@"'
    python.write_text(f"#!/bin/sh\n{inside}\n{first}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))


@pytest.mark.usefixtures("in_own_network")
def test_two_hosts_of_two_processes(
    torch_env: dict[str, str], tmp_path: Path, local_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All four pass data in every way, each from its own place, and train together what one trains on all data."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    marks = tmp_path / "marks"
    marks.mkdir()
    result = kr_kfp.testing.run(
        torch_steps.join.options(logs="all"), root=tmp_path / "task", env=torch_env, folder=str(marks)
    )
    output = result.output
    # get_rank, get_world_size; host, process, processes; then
    # RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK, NNODES, OMP_NUM_THREADS.
    assert [seen["place"] for seen in output["seen"]] == [
        [0, 4, 0, 0, 2, 0, 0, 4, 2, 0, 2, 1],
        [1, 4, 0, 1, 2, 1, 1, 4, 2, 0, 2, 1],
        [2, 4, 1, 0, 2, 2, 0, 4, 2, 1, 2, 1],
        [3, 4, 1, 1, 2, 3, 1, 4, 2, 1, 2, 1],
    ]
    assert [seen["total"] for seen in output["seen"]] == [1111] * 4
    assert [seen["word"] for seen in output["seen"]] == [[7, 0]] * 4
    assert [seen["there"] for seen in output["seen"]] == [["0", "1", "2", "3"]] * 4
    # Four steps of descent over all eight points, in fractions: they fit a double.
    weights = [34205465 / 2**24, 1827385 / 2**22]
    assert [seen["together"] for seen in output["seen"]] == [weights] * 4
    assert [seen["alone"] for seen in output["seen"]] == [weights] * 4
    assert output["keras"] == "torch"
    assert result.log.count("] kr_kfp: framework torch\n") == 4
    assert left_over(str(local_root)) == []


@pytest.mark.usefixtures("in_own_network")
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "ValueError: bad batch"),
        ("kill", "the process ended with signal SIGKILL before the function returned"),
    ],
)
def test_a_process_that_fails(how: str, said: str, torch_env: dict[str, str], tmp_path: Path, local_root: Path) -> None:
    """The verdict names host and process of the one that failed, not one of those that lost it; auto finds torch."""
    step = torch_steps.broken.options(logs="all")
    result = kr_kfp.testing.run(step, root=tmp_path / "task", env=torch_env, check=False, how=how)
    assert f"kr_kfp: broken failed in attempt 0: host 1 failed: process 1 of this host: {said}\n" in result.log
    assert result.exit_code == 1
    why = "by what can be imported; several processes on a host are PyTorch's"
    assert result.log.count(f"] kr_kfp: framework torch ({why})\n") == 4
    assert left_over(str(local_root)) == []


def test_torch_that_is_not_there(tmp_path: Path, local_root: Path) -> None:
    """A framework that was asked for and cannot be imported is one clear error."""
    # Hides one that is installed where the tests run.
    (tmp_path / "sitecustomize.py").write_text("import sys\n\nsys.modules['torch'] = None\n", encoding="utf-8")
    env = {"PYTHONPATH": str(tmp_path)}
    result = kr_kfp.testing.run(torch_steps.join, root=tmp_path / "task", env=env, check=False, folder="")
    assert result.exit_code == 1
    assert "framework='torch', but torch cannot be imported in this image. Add it to packages_to_install" in result.log
