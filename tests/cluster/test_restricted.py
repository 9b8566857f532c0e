"""Groups in a namespace that enforces Kubernetes' restricted profile: with pod_security, and without."""

from __future__ import annotations

from typing import Any

import kr_kfp
from tests.cluster.launch import Launching, nothing_is_left, shape
from tests.cluster.pathways import driving
from tests.cluster.pools import Pools
from tests.cluster.test_dry_run import ENFORCE


@kr_kfp.component(hosts=2, framework="none")
def who() -> list:  # type: ignore[type-arg]
    """Tell as whom it runs, and that it can write where programs expect it."""
    import os
    from pathlib import Path

    for folder in ("/tmp", "/.cache", "/dev/shm"):
        Path(folder, "mark").write_text("written")
    return [os.getuid(), os.getgid()]


def test_restricted_namespace(launching: Launching, pools: Pools) -> None:
    """Hosts and Pathways' servers run where pod_security asks for the profile; else the step ends soon with the fix."""
    pools.slices("pool-a")
    strict: dict[str, Any] = {"pod_security": "restricted"}
    steps = {
        "hosts": launching.pod(shape(who, **strict)),
        "pathways": driving(launching, [], slices=1, **strict),
        "default": launching.pod(shape(who)),
    }
    # Two tasks of one step, which the run tells apart by their places.
    steps["default"].path = ("sub-dag(0)",)
    for step in steps.values():
        step.start()
    # From now on: the launchers' own pods are in, as KFP's are where an administrator lets them.
    space = launching.run.space
    space.rest.patch("namespaces", None, space.name, {"metadata": {"labels": {ENFORCE: "restricted"}}})
    ended = {name: step.wait(seconds=250) for name, step in steps.items()}
    assert {name: end.code for name, end in ended.items()} == {"hosts": 0, "pathways": 0, "default": 1}, [
        step.log() for step in steps.values()
    ]
    assert steps["hosts"].outputs()["parameterValues"]["Output"] == [1000, 1000]
    assert steps["pathways"].outputs()["parameterValues"]["Output"]["devices"] == 8
    said = ended["default"].message
    assert (
        "-0 cannot be created: it violates the namespace's Pod Security level restricted:latest (FailedCreate" in said
    )
    assert "runAsNonRoot != true" in said
    assert "Write pod_security='restricted' for the step." in said
    nothing_is_left(launching)
