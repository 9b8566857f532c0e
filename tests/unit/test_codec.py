"""The StepSpec as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kr_kfp import wire
from kr_kfp.errors import WireError
from kr_kfp.spec.accelerators import resolve
from kr_kfp.spec.codec import dump_step, load_step, with_source
from kr_kfp.spec.step import ConfigKey, Pathways, Secret, StepSpec

FULL = StepSpec(
    name="train",
    backend="lws",
    reason="auto",
    shape=resolve("v5litepod-16"),
    hosts=8,
    slices=2,
    framework="jax",
    processes_per_host=1,
    env=(("A", "$$ python3 ü"), ("B", Secret("s", "k")), ("C", ConfigKey("c", "k"))),
    timeout=60.0,
    capacity_timeout=None,
    start_grace=30.0,
    finish_grace=1.5,
    terminate_grace=2.0,
    max_restarts=0,
    retry_on=("42", "oom"),
    spot=True,
    logs="all",
    cluster="local",
    image="python:3.12",
    launcher_image="launcher:1",
    checkpoint_root="gs://b/c",
    requirement="kr-kfp==1",
    index_urls=("https://index.example",),
    trusted_hosts=(),
    labels=(("team", "a"),),
    annotations=(("note", "b"),),
    pathways=Pathways(scratch="gs://b/t", version="jax-0.10.0", xla_flags=("--xla_a=b",), head_selector={"p": "cpu"}),
    shm=True,
    shm_size="16Gi",
    pod_security="restricted",
    service_account="trainer",
    api_token=True,
)


@pytest.mark.parametrize(
    "step", [StepSpec(name="s"), FULL, replace(FULL, trusted_hosts=None)], ids=["least", "full", "x"]
)
def test_step_comes_back(step: StepSpec) -> None:
    """A step is equal after the way through JSON and packing."""
    assert load_step(json.loads(json.dumps(dump_step(step)))) == step
    assert load_step(wire.unpack(wire.pack(dump_step(step)))) == step


def test_dump_leaves_out_what_is_empty() -> None:
    """Empty fields are not written, defaults are: a later default changes no compiled step."""
    assert dump_step(StepSpec(name="s")) == {
        "v": wire.PROTOCOL,
        "name": "s",
        "backend": "pod",
        "hosts": 1,
        "slices": 1,
        "framework": "auto",
        "processes_per_host": 1,
        "capacity_timeout": 3600.0,
        "finish_grace": 300.0,
        "terminate_grace": 60.0,
        "max_restarts": 3,
        "spot": False,
        "logs": "leader",
        "shm": False,
        "pod_security": "kfp",
        "api_token": False,
    }


def test_env_keeps_references() -> None:
    """A secret travels as a reference, never as a text."""
    assert dump_step(FULL)["env"] == [
        ["A", "$$ python3 ü"],
        ["B", {"secret": ["s", "k"]}],
        ["C", {"config": ["c", "k"]}],
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": 99}, "step of protocol 99, this is protocol 1: compile the component again with this kr_kfp"),
        ({"later": 1}, "not a step: unknown fields later"),
        ({"env": [["A", {"vault": ["a", "b"]}]]}, "not a step: env A: unknown kind 'vault'"),
        ({"env": [["A"]]}, "not a step: not enough values to unpack (expected 2, got 1)"),
    ],
)
def test_load_refuses(change: dict[str, object], message: str) -> None:
    """Another version or shape of the message is an error that says so."""
    with pytest.raises(WireError) as caught:
        load_step({**dump_step(FULL), **change})
    assert str(caught.value) == message


def test_source_is_put_back() -> None:
    """The source that a kubelet changed is replaced by the one that travelled packed."""
    command = ["sh", "-ec", 'printf "%s" "$0" > "$program_path/ephemeral_component.py" "$@"', "price = '$'\n", "--x"]
    data = dump_step(StepSpec(name="s"), source="price = '$$'\n")
    assert load_step(data) == StepSpec(name="s")
    assert with_source(command, data) == (*command[:3], "price = '$$'\n", "--x")
    assert with_source(command, dump_step(StepSpec(name="s"))) == tuple(command)
