"""What the local cluster makes of a container's command, environment and limits is what the kubelet makes of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kr_kfp.cluster.local_env import ConfigError, Start, container_start, expand, quantity

Json = dict[str, Any]

FOLDER = Path("/root/pods/train-0.abc")
FIXED = {
    "KR_KFP_LOCAL": "1",
    "KR_KFP_PIP_LOCK": "/root/pip.lock",
    "KR_KFP_POD_UID": "u-1",
    "KR_KFP_ARTIFACTS": "/root/pods/train-0.abc/artifacts",
    "KR_KFP_TERMINATION_LOG": "/root/pods/train-0.abc/termination-log",
    "KR_KFP_WORK": "/root/pods/train-0.abc/work",
    "PWD": "/root/pods/train-0.abc/cwd",
}


def cannot_read(name: str, what: str) -> str:
    """Say that key ``k`` of object ``n`` is out of reach."""
    return (
        f"{name} comes from key 'k' of {what} 'n', which the local cluster cannot read. "
        f"Set {name} in the environment that the pipeline is run in"
    )


def start(container: Json, launcher_env: dict[str, str] | None = None, **spec: Any) -> Start:
    """Start a container of pod ``train-0``."""
    pod = {
        "metadata": {
            "name": "train-0",
            "namespace": "local",
            "uid": "u-1",
            "labels": {"app.x/y": "label"},
            "annotations": {"note": "annotation"},
        },
        "spec": {**spec, "containers": [{"name": "proxy"}, {"name": "main", "command": ["c"], **container}]},
    }
    return container_start(pod, FOLDER, launcher_env=launcher_env or {}, pip_lock=Path("/root/pip.lock"))


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y22z"),
        ("$(NO)", "$(NO)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$$", "$"),
        ("$", "$"),
        ("a$", "a$"),
        ("$A ${A}", "$A ${A}"),
        ("$(A", "$(A"),
        ("$(A $(B)", "$(A $(B)"),
        ("$()", "$()"),
        ("$(EMPTY)", ""),
        ("$(SELF)", "$(A)"),
        ("$(pwd -P)", "$(pwd -P)"),
        ("$(A)$(A)", "11"),
        ("kill -9 $$", "kill -9 $"),
        ("\u00e4$(A)\n$(B)", "\u00e41\n22"),
    ],
)
def test_expansion(text: str, expanded: str) -> None:
    """References are replaced once, unknown ones stay, two dollars are one."""
    assert expand(text, {"A": "1", "B": "22", "EMPTY": "", "SELF": "$(A)"}) == expanded


def test_only_earlier_variables_expand() -> None:
    """A value sees the variables before it, a command sees all; the launcher's own are never seen."""
    container = {
        "command": ["run", "$(LATER)", "$(HOME)", "$$(LATER)"],
        "args": ["$(KR_KFP_WORK)/x", "$(KR_KFP_LOCAL)"],
        "env": [
            {"name": "EARLY", "value": "$(LATER)"},
            {"name": "KR_KFP_WORK", "value": "/kr-kfp/work"},
            {"name": "LATER", "value": "$(KR_KFP_WORK)/$(EARLY)"},
            {"name": "NONE"},
        ],
    }
    made = start(container, {"HOME": "/home/me", "EARLY": "launcher", "PWD": "/launcher"})
    work = FIXED["KR_KFP_WORK"]
    assert made.command == ("run", f"{work}/$(LATER)", "$(HOME)", "$(LATER)", f"{work}/x", "$(KR_KFP_LOCAL)")
    assert made.env == {
        **FIXED,
        "HOME": "/home/me",
        "EARLY": "$(LATER)",
        "LATER": f"{work}/$(LATER)",
        "NONE": "",
        "JAX_PLATFORMS": "cpu",
    }
    assert (made.memory_limit, made.grace) == (None, 30.0)


def test_limit_grace_and_python() -> None:
    """The limit and the grace come from the pod; only the python3 that is the program is this Python."""
    container = {"command": ["python3", "python3"], "resources": {"limits": {"memory": "1Gi"}}}
    made = start(container, terminationGracePeriodSeconds=5)
    assert (made.command, made.memory_limit, made.grace) == ((sys.executable, "python3"), 2.0**30, 5.0)


@pytest.mark.parametrize("rest", [(), ("python3",), ("program", "python3")])
def test_python_behind_a_shell(rest: tuple[str, ...]) -> None:
    """The python3 that a shell starts as its $0 is this Python; another word is not."""
    made = start({"command": ["sh", "-c", "python3", *rest]})
    expected = (sys.executable,) if rest == ("python3",) else rest
    assert made.command == ("sh", "-c", "python3", *expected)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "train-0"),
        ("metadata.namespace", "local"),
        ("metadata.uid", "u-1"),
        ("metadata.labels['app.x/y']", "label"),
        ("metadata.labels['no']", ""),
        ("metadata.annotations['note']", "annotation"),
        ("spec.nodeName", ""),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.0.0.1"),
        ("status.hostIP", "127.0.0.1"),
    ],
)
def test_fields_of_the_pod(path: str, value: str) -> None:
    """A fieldRef is resolved, and later values may refer to it."""
    env = [{"name": "F", "valueFrom": {"fieldRef": {"fieldPath": path}}}, {"name": "G", "value": "<$(F)>"}]
    made = start({"env": env}).env
    assert (made["F"], made["G"]) == (value, f"<{value}>")


def test_secrets_and_config_keys() -> None:
    """The launcher's variable of that name stands in; an optional one may be missing."""
    env = [
        {"name": "S", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}},
        {"name": "C", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}},
        {"name": "O", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k", "optional": True}}},
    ]
    made = start({"env": env, "envFrom": [{"secretRef": {"name": "n", "optional": True}}]}, {"S": "s", "C": "c"})
    assert {name: made.env.get(name) for name in "SCO"} == {"S": "s", "C": "c", "O": None}


@pytest.mark.parametrize(
    ("container", "message"),
    [
        (
            {"env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "n", "key": "k"}}}]},
            cannot_read("S", "secret"),
        ),
        (
            {"env": [{"name": "C", "valueFrom": {"configMapKeyRef": {"name": "n", "key": "k"}}}]},
            cannot_read("C", "config map"),
        ),
        (
            {"env": [{"name": "F", "valueFrom": {"fieldRef": {"fieldPath": "status.startTime"}}}]},
            "F: the local cluster does not know fieldRef 'status.startTime'",
        ),
        (
            {"env": [{"name": "R", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}]},
            "R: the local cluster does not know valueFrom.resourceFieldRef",
        ),
        (
            {"envFrom": [{"configMapRef": {"name": "n"}}]},
            "envFrom names configMapRef 'n', which the local cluster cannot read",
        ),
        (
            {"command": [], "args": ["x"]},
            "container main has no command, and there is no image here whose entry point could be run",
        ),
        ({"resources": {"limits": {"memory": "much"}}}, "'much' is no quantity"),
    ],
)
def test_what_cannot_be_made(container: Json, message: str) -> None:
    """What is missing is named, with what to do where something can be done."""
    with pytest.raises(ConfigError) as wrong:
        start(container)
    assert str(wrong.value) == message


@pytest.mark.parametrize(
    ("launcher", "container", "platforms", "flags"),
    [
        ({}, {}, "cpu", None),
        ({}, {"KR_KFP_DEVICES": "0"}, "cpu", None),
        ({}, {"KR_KFP_DEVICES": "4"}, "cpu", "--xla_force_host_platform_device_count=4"),
        (
            {"XLA_FLAGS": "--a"},
            {"KR_KFP_DEVICES": "4"},
            "cpu",
            "--a --xla_force_host_platform_device_count=4",
        ),
        (
            {"XLA_FLAGS": "--a"},
            {"KR_KFP_DEVICES": "4", "XLA_FLAGS": "--b --xla_force_host_platform_device_count=2"},
            "cpu",
            "--b --xla_force_host_platform_device_count=2",
        ),
        ({"JAX_PLATFORMS": "cuda"}, {}, "cuda", None),
        ({"JAX_PLATFORMS": "cuda"}, {"JAX_PLATFORMS": "tpu"}, "tpu", None),
        ({"JAX_PLATFORMS": "cuda"}, {"JAX_PLATFORMS": "proxy"}, "cpu", None),
        ({}, {"JAX_PLATFORMS": "proxy,cpu"}, "cpu", None),
    ],
)
def test_devices(launcher: dict[str, str], container: dict[str, str], platforms: str, flags: str | None) -> None:
    """XLA CPU devices stand in for chips, and for what is behind a Pathways proxy, unless the user chose otherwise."""
    env = [{"name": name, "value": value} for name, value in container.items()]
    made = start({"env": env}, launcher).env
    assert (made["JAX_PLATFORMS"], made.get("XLA_FLAGS")) == (platforms, flags)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0),
        ("1024", 1024.0),
        ("512Mi", 512 * 2.0**20),
        ("1.5G", 1.5e9),
        ("2e9", 2e9),
        ("2E3", 2000.0),
        ("1E", 1e18),
        ("1Ei", 2.0**60),
        ("100k", 1e5),
        ("1Ki", 1024.0),
        ("500m", 0.5),
        (".5Gi", 2.0**29),
        ("3Ti", 3 * 2.0**40),
    ],
)
def test_quantities(text: str, value: float) -> None:
    """Kubernetes' suffixes, binary, decimal and with an exponent."""
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "x", "1 G", "-1", "1GB", "1e", "Mi"])
def test_no_quantities(text: str) -> None:
    """Anything else is refused by name."""
    with pytest.raises(ConfigError) as wrong:
        quantity(text)
    assert str(wrong.value) == f"{text!r} is no quantity"
