"""kr_kfp.testing.run as the README shows it: a step on real processes in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from kfp import dsl

import kr_kfp
import kr_kfp.testing
from kr_kfp.errors import StepFailedError
from tests.local_kit import Kit, kit_fixture, until

__all__ = ["kit_fixture"]


@kr_kfp.component(framework="none", install_kfp_package=False)
def train(data: dsl.Input[dsl.Dataset], epochs: int, model: dsl.Output[dsl.Model], fail: bool = False) -> float:
    """Read the data on every host, count epochs in a checkpoint."""
    from pathlib import Path

    import kr_kfp

    me = kr_kfp.context()
    print("host", me.host, "reads", Path(data.path).read_text())
    if fail and me.host == me.hosts - 1:
        raise ValueError("no more data")
    if me.is_leader:
        done = Path(me.checkpoint_dir, "epochs")
        before = int(done.read_text()) if done.exists() else 0
        done.parent.mkdir(parents=True, exist_ok=True)
        done.write_text(str(before + epochs))
        Path(model.path).write_text(done.read_text())
        model.metadata["hosts"] = me.hosts
    return me.hosts + epochs / 10


@pytest.fixture(name="data")
def data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an input, and let the step's processes find kr_kfp."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("KR_KFP_TERMINATION_LOG", str(tmp_path / "termination-log"))
    path = tmp_path / "data.txt"
    path.write_text("rows", encoding="utf-8")
    return path


def test_outputs(data: Path, kit: Kit) -> None:
    """The value, the artifact with its metadata and the log are there; a path does for an input artifact."""
    done = kr_kfp.testing.run(train, hosts=2, data=data, epochs=3)
    assert done.exit_code == 0
    assert done.output == 2.3
    model = done.outputs["model"]
    assert isinstance(model, dsl.Model)
    assert model.metadata == {"hosts": 2}
    assert Path(model.path).read_text(encoding="utf-8") == "3"
    assert Path(model.path).is_relative_to(done.root)
    assert "[train host 0] host 0 reads rows" in done.log
    until(lambda: not kit.processes(), "the end of all processes")


def test_own_shape(data: Path) -> None:
    """Without ``hosts`` the step keeps its shape: here one pod without a launcher."""
    done = kr_kfp.testing.run(train, data=data, epochs=1)
    assert done.output == 1.1
    assert "LeaderWorkerSet" not in done.log
    assert "host 0 reads rows" in done.log


def test_failure_raises(data: Path, kit: Kit) -> None:
    """A failing host is an exception whose text names host, exception and line."""
    with pytest.raises(StepFailedError) as raised:
        kr_kfp.testing.run(train, hosts=2, data=data, epochs=1, fail=True)
    assert "train failed in attempt 0: host 1 failed: ValueError: no more data" in str(raised.value)
    assert 'in train(): raise ValueError("no more data")' in str(raised.value)
    until(lambda: not kit.processes(), "the end of all processes")


def test_failure_is_given(data: Path, kit: Kit) -> None:
    """With ``check=False`` the failure is a value."""
    done = kr_kfp.testing.run(train, hosts=2, check=False, data=data, epochs=1, fail=True)
    assert done.exit_code == 1
    assert done.outputs == {}
    assert "host 1 failed: ValueError: no more data" in done.log


def test_same_root_resumes(data: Path, tmp_path: Path, kit: Kit) -> None:
    """The same root again is a retry of the task: it finds the checkpoints."""
    for total in ("2", "4"):
        done = kr_kfp.testing.run(train, hosts=2, root=tmp_path / "root", data=data, epochs=2)
        assert Path(done.outputs["model"].path).read_text(encoding="utf-8") == total
