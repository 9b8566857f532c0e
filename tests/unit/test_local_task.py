"""Variables set on a task where kfp.local runs it."""

from __future__ import annotations

from kr_kfp.spec.local_task import note, task_env
from kr_kfp.spec.step import Secret

ENV = (("LEVEL", "a $ b"), ("TOKEN", Secret(name="s", key="k")), ("MODE", "fast"))


def test_a_note_holds_the_authors_own_values() -> None:
    """Only the step's variables are noted; a step without any needs no note."""
    assert note("train", ENV, {"LEVEL": "x", "HOME": "y"}) == {"KR_KFP_AMBIENT_train": '{"LEVEL": "x"}'}
    assert note("train", (), {"LEVEL": "x"}) == {}


def test_what_differs_was_set_on_the_task() -> None:
    """The author's own value and KFP's escaped copy of the component's are none of the task's."""
    base = note("train", ENV, {"MODE": "own"})
    assert task_env("train", ENV, {**base, "LEVEL": "a $$ b", "MODE": "own"}) == {}
    assert task_env("train", ENV, {**base, "LEVEL": "info", "MODE": "slow", "TOKEN": "t"}) == {
        "LEVEL": "info",
        "MODE": "slow",
        "TOKEN": "t",
    }


def test_without_a_note_the_component_wins() -> None:
    """A compiled file that somebody else runs tells nothing of the author's environment."""
    assert task_env("train", ENV, {"LEVEL": "info"}) == {}
    assert task_env("other", ENV, {**note("train", ENV, {}), "LEVEL": "info"}) == {}
