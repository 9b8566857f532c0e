"""Every function of kfp.kubernetes on a kr_kfp task: the same settings in the IR as on a plain KFP task."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl, kubernetes
from kfp.dsl.pipeline_task import PipelineTask

import kr_kfp
from kr_kfp.authoring.tasks import KILL_ANNOTATION
from kr_kfp.errors import DeclarationError
from kr_kfp.runtime.bootstrap import KILL_COMMAND
from tests.declared import compiled

Setting = Callable[[PipelineTask, Any, Any], object]

TERM = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
AFFINITY = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}

# Each is called with the task, and with a text and a dict that the pipeline takes as parameters.
SETTINGS: dict[str, Setting] = {
    "add_ephemeral_volume": lambda task, *_: kubernetes.add_ephemeral_volume(
        task, volume_name="scratch", mount_path="/scratch", access_modes=["ReadWriteOnce"], size="5Gi"
    ),
    "add_node_affinity": lambda task, *_: kubernetes.add_node_affinity(
        task, match_expressions=[{"key": "zone", "operator": "In", "values": ["a", "b"]}], weight=3
    ),
    "add_node_affinity_json": lambda task, *_: kubernetes.add_node_affinity_json(task, AFFINITY),
    "add_node_affinity_json of a parameter": lambda task, _, table: kubernetes.add_node_affinity_json(task, table),
    "add_node_selector": lambda task, *_: kubernetes.add_node_selector(task, "disk", "ssd"),
    "add_node_selector_json": lambda task, *_: kubernetes.add_node_selector_json(task, {"disk": "ssd"}),
    "add_node_selector_json of a parameter": lambda task, _, table: kubernetes.add_node_selector_json(task, table),
    "add_pod_annotation": lambda task, *_: kubernetes.add_pod_annotation(task, "team", "vision"),
    "add_pod_label": lambda task, *_: kubernetes.add_pod_label(task, "team", "vision"),
    "add_toleration": lambda task, *_: kubernetes.add_toleration(
        task, key="spot", operator="Equal", value="true", effect="NoExecute", toleration_seconds=30
    ),
    "add_toleration_json": lambda task, *_: kubernetes.add_toleration_json(task, [{"key": "spot"}]),
    "add_toleration_json of a parameter": lambda task, _, table: kubernetes.add_toleration_json(task, table),
    "empty_dir_mount": lambda task, *_: kubernetes.empty_dir_mount(task, "cache", "/cache", size_limit="1Gi"),
    "mount_pvc": lambda task, *_: kubernetes.mount_pvc(task, "claim", "/data", sub_path="part"),
    "mount_pvc of a parameter": lambda task, text, _: kubernetes.mount_pvc(task, text, "/data"),
    "set_image_pull_policy": lambda task, *_: kubernetes.set_image_pull_policy(task, "Always"),
    "set_image_pull_secrets": lambda task, *_: kubernetes.set_image_pull_secrets(task, ["registry"]),
    "set_image_pull_secrets of a parameter": lambda task, text, _: kubernetes.set_image_pull_secrets(task, [text]),
    "set_security_context": lambda task, *_: kubernetes.set_security_context(
        task, run_as_user=1000, run_as_group=2000, run_as_non_root=True
    ),
    "use_config_map_as_env": lambda task, *_: kubernetes.use_config_map_as_env(task, "places", {"region": "REGION"}),
    "use_config_map_as_env of a parameter": lambda task, text, _: kubernetes.use_config_map_as_env(
        task, text, {"region": "REGION"}, optional=True
    ),
    "use_config_map_as_volume": lambda task, *_: kubernetes.use_config_map_as_volume(task, "places", "/places"),
    "use_field_path_as_env": lambda task, *_: kubernetes.use_field_path_as_env(task, "NODE", "spec.nodeName"),
    "use_secret_as_env": lambda task, *_: kubernetes.use_secret_as_env(task, "keys", {"token": "TOKEN"}),
    "use_secret_as_env of a parameter": lambda task, text, _: kubernetes.use_secret_as_env(
        task, text, {"token": "TOKEN"}
    ),
    "use_secret_as_volume": lambda task, *_: kubernetes.use_secret_as_volume(task, "keys", "/keys"),
}

KILL = {KILL_ANNOTATION: json.dumps(KILL_COMMAND)}


def train() -> None:
    """Train."""


STEPS = {
    "plain": dsl.component(train, base_image="python:3.12"),
    "pod": kr_kfp.component(train, framework="none"),
    "lws": kr_kfp.component(train, hosts=2, framework="none"),
}


def config(kind: str, setting: Setting, folder: pytest.TempPathFactory) -> dict[str, Any]:
    """Give the executor's Kubernetes settings of a task that the setting was made on."""

    @dsl.pipeline(name="retrain")
    def retrain(text: str = "t", table: dict = {}) -> None:  # type: ignore[type-arg] # noqa: B006
        assert setting(STEPS[kind](), text, table) is not None

    _, platform = compiled(retrain, folder)
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    found: dict[str, Any] = executors["exec-train"]
    return found


@pytest.mark.parametrize("kind", ["pod", "lws"])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_in_the_ir_as_on_a_plain_task(
    name: str, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Nothing is lost or refused, fixed or from a parameter; a launcher's task has Argo's kill command beside it."""
    wanted = config("plain", SETTINGS[name], tmp_path_factory)
    if kind == "lws":
        given = wanted.get("podMetadata", {})
        wanted["podMetadata"] = {**given, "annotations": {**given.get("annotations", {}), **KILL}}
    assert config(kind, SETTINGS[name], tmp_path_factory) == wanted


def test_a_timeout_of_the_launcher_alone_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It would end the launcher and leave its hosts; a step of one pod may have it."""

    def setting(task: PipelineTask, *_: Any) -> object:
        return kubernetes.set_timeout(task, 60)

    assert config("pod", setting, tmp_path_factory) == {"activeDeadlineSeconds": "60"}
    with pytest.raises(DeclarationError) as caught:
        config("lws", setting, tmp_path_factory)
    assert str(caught.value) == (
        "task 'train': 1 problem\n  1. set_timeout: set_timeout(60) would kill only the launcher's pod, and leave the "
        "hosts of its group. Fix: use timeout=60 in the decorator, or .options(timeout=)."
    )


def test_every_function_is_tried() -> None:
    """What a later KFP adds has to be looked at: here, and in what a launcher does with it."""
    tried = {name.partition(" ")[0] for name in SETTINGS}
    # These are tasks of their own.
    assert set(kubernetes.__all__) - tried == {"CreatePVC", "DeletePVC", "set_timeout"}
