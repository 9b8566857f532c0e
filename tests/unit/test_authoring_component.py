"""What a component compiles to, alone and as a task: values of the IR."""

import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl, kubernetes
from kfp.dsl import base_component, python_component

import kr_kfp
from kr_kfp import Gpu, Secret
from kr_kfp.authoring.build import dsl_keywords
from kr_kfp.authoring.component import Component, component
from kr_kfp.authoring.tasks import KILL_ANNOTATION
from kr_kfp.errors import DeclarationError
from kr_kfp.runtime.bootstrap import KILL_COMMAND, split
from kr_kfp.spec.accelerators import resolve, selectors
from kr_kfp.spec.codec import load_step
from kr_kfp.spec.options import OPTIONS
from kr_kfp.spec.step import ConfigKey
from kr_kfp.wire import ARGUMENT_LIMIT, TASK_CONFIG_INPUT, unpack
from tests import declared
from tests.declared import compiled, executor, packed

TPU = resolve("v5litepod-4")
FIELDS = [
    "RESOURCES",
    "ENV",
    "KUBERNETES_AFFINITY",
    "KUBERNETES_TOLERATIONS",
    "KUBERNETES_NODE_SELECTOR",
    "KUBERNETES_VOLUMES",
]
ANNOTATION = {"annotations": {KILL_ANNOTATION: json.dumps(KILL_COMMAND)}}


def pipeline_of(train: Component, setting: Any = None) -> Any:
    """Make a pipeline of preparation and training; the setting is called with the training task."""

    @dsl.pipeline(name="retrain")
    def retrain() -> None:
        task = train(data=declared.prepare().output, epochs=3)
        if setting is not None:
            assert setting(task) is task

    return retrain


def settings(platform: dict[str, Any], name: str) -> dict[str, Any]:
    """Give the Kubernetes settings of one executor."""
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    found: dict[str, Any] = executors[f"exec-{name}"]
    return found


def test_component_is_a_kfp_component() -> None:
    """The decorated function is what dsl.component makes, and the plain function still works."""
    made = component(declared.train)
    assert isinstance(made, python_component.PythonComponent)
    assert isinstance(made, base_component.BaseComponent)
    assert made.python_func is declared.train
    assert made.name == "train"
    assert made.description == "Train a model."
    model = dsl.Model()
    assert made.python_func(data=dsl.Dataset(), epochs=2, model=model) == (0.5, 2)
    assert model.metadata == {"epochs": 2}


def test_bare_and_called_decorator() -> None:
    """Both forms of the decorator give the same component."""
    bare, called = component(declared.train), component()(declared.train)
    assert bare.step == called.step
    assert bare.component_spec.implementation == called.component_spec.implementation


def test_signature_spells_the_arguments_out() -> None:
    """help() shows every argument of both, with its default."""
    parameters = inspect.signature(component).parameters
    assert set(parameters) == {"func", *OPTIONS, *dsl_keywords()} - {"task_config_passthroughs"}
    assert parameters["capacity_timeout"].default == "1h"
    assert parameters["base_image"].default == "python:3.12"


def test_command(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The command is the prefix with the packed step, then KFP's own; the arguments are KFP's."""
    made = component(declared.train, hosts=2, finish_grace="1m")
    ir, _ = compiled(made, tmp_path_factory)
    container = executor(ir, "train")
    verb, text, inner = split(container["command"])
    assert verb == "launch"
    assert load_step(unpack(text)) == made.step
    assert made.step.finish_grace == 60.0
    assert [part[:10] for part in inner] == ["sh", "-c", "\nif ! [ -x", "sh", "-ec", "program_pa", "\nimport kf"]
    assert container["args"] == ["--executor_input", "{{$}}", "--function_to_execute", "train"]
    assert container["image"] == "python:3.12"
    assert max(len(part) for part in container["command"]) < ARGUMENT_LIMIT


@pytest.mark.filterwarnings("error")
def test_image() -> None:
    """Without an image there is a default and no warning; target_image stands for a built one."""
    assert component(declared.train).step.image == "python:3.12"
    assert component(declared.train, base_image="ml:1").step.image == "ml:1"
    grouped = component(declared.train, hosts=2, base_image="ml:1", launcher_image="small:1")
    assert (grouped.step.image, grouped.component_spec.implementation.container.image) == ("ml:1", "small:1")
    built = component(declared.train, base_image="ml:1", target_image="built:1", hosts=2)
    container = built.component_spec.implementation.container
    assert (built.step.image, container.image) == ("built:1", "built:1")
    assert split(container.command)[2] == ["python3", "-m", "kfp.dsl.executor_main"]


def test_interface_of_lws_has_one_input_more(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The component alone, not the function or the pipeline, gets KFP's TaskConfig; everything else is equal."""
    plain, _ = compiled(dsl.component(declared.train, base_image="python:3.12"), tmp_path_factory)
    ir, platform = compiled(component(declared.train, accelerator="v5litepod-16"), tmp_path_factory)
    mine, theirs = ir["components"]["comp-train"], plain["components"]["comp-train"]
    extra = mine["inputDefinitions"]["parameters"].pop(TASK_CONFIG_INPUT)
    assert extra == {"isOptional": True, "parameterType": "TASK_CONFIG"}
    assert mine.pop("taskConfigPassthroughs") == [{"field": field} for field in FIELDS]
    assert mine == theirs
    assert ir["root"] == plain["root"]
    assert platform["platforms"]["kubernetes"] == {
        "deploymentSpec": {"executors": {"exec-train": {"podMetadata": ANNOTATION}}}
    }


def test_plain_pod_compiles_as_kfp_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A step on CPU in one pod differs from plain KFP's in its command only."""
    plain, _ = compiled(dsl.component(declared.train, base_image="python:3.12"), tmp_path_factory)
    ir, platform = compiled(component(declared.train), tmp_path_factory)
    verb, data = packed(executor(ir, "train")["command"])
    assert (verb, data["reason"], platform) == ("run", "auto: CPU, 1 host in all", {})
    container = executor(ir, "train")
    container["command"] = split(container["command"])[2]
    assert ir == plain


def test_lone_pod_with_accelerator_is_a_graph_of_one_step(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A pod step that needs resources is exported with them; interface and descriptions are those of the component."""
    plain, _ = compiled(dsl.component(declared.train, base_image="python:3.12"), tmp_path_factory)
    made = component(declared.train, accelerator="v5litepod-4", env={"A": "$x", "B": Secret("s", "k")})
    ir, platform = compiled(made, tmp_path_factory)
    assert ir["pipelineInfo"] == {"name": "train", "description": "Train a model."}
    assert ir["components"]["comp-train-step"] == {
        **plain["components"]["comp-train"],
        "executorLabel": "exec-train-step",
    }
    assert ir["root"]["inputDefinitions"] == plain["root"]["inputDefinitions"]
    assert ir["root"]["outputDefinitions"] == plain["root"]["outputDefinitions"]
    assert list(ir["root"]["dag"]["tasks"]) == ["train-step"]
    container = executor(ir, "train-step")
    assert container["resources"]["accelerator"]["resourceType"] == "google.com/tpu"
    assert container["resources"]["accelerator"]["resourceCount"] == "4"
    assert container["env"] == [{"name": "A", "value": "$$x"}]
    assert settings(platform, "train-step")["nodeSelector"] == {"labels": selectors(TPU)}


def test_lone_compile_inside_a_pipeline() -> None:
    """Reading a component's IR while a pipeline is being compiled leaves that pipeline alone."""
    made = component(declared.train, accelerator="v5litepod-4")

    @dsl.pipeline
    def outer() -> None:
        assert made.pipeline_spec.pipeline_info.name == "train"
        declared.nothing()

    assert list(outer.pipeline_spec.root.dag.tasks) == ["nothing"]


def test_pod_task(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a pipeline everything the pod needs is set on its task."""
    made = component(
        declared.train,
        accelerator="v5litepod-4",
        spot=True,
        env={"A": "a", "B": Secret("secret", "key"), "C": ConfigKey("config", "key")},
        labels={"team": "a"},
        annotations={"note": "b"},
    )
    ir, platform = compiled(pipeline_of(made), tmp_path_factory)
    container = executor(ir, "train")
    assert container["resources"]["accelerator"] == {
        "count": "4",
        "resourceCount": "4",
        "resourceType": "google.com/tpu",
        "type": "google.com/tpu",
    }
    assert container["env"] == [{"name": "A", "value": "a"}]
    found = settings(platform, "train")
    assert found["nodeSelector"] == {"labels": {**selectors(TPU), "cloud.google.com/gke-spot": "true"}}
    assert found["tolerations"] == [
        {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    ]
    assert found["secretAsEnv"][0]["keyToEnv"] == [{"secretKey": "key", "envVar": "B"}]
    assert found["secretAsEnv"][0]["secretName"] == "secret"
    assert found["configMapAsEnv"][0]["keyToEnv"] == [{"configMapKey": "key", "envVar": "C"}]
    assert found["podMetadata"] == {"labels": {"team": "a"}, "annotations": {"note": "b"}}


def test_lws_task_takes_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Settings of all six kinds are taken on a launcher's task, which carries Argo's kill command."""
    made = component(declared.train, accelerator="v5litepod-16", labels={"team": "a"})

    def setting(task: Any) -> Any:
        task.set_cpu_limit("4").set_memory_limit("8Gi").set_env_variable("A", "b").set_retry(2).set_caching_options(
            False
        )
        kubernetes.add_node_selector(task, "pool", "a")
        kubernetes.add_toleration(task, key="k", operator="Exists")
        kubernetes.mount_pvc(task, "claim", "/mnt")
        kubernetes.add_node_affinity(task, match_expressions=[{"key": "z", "operator": "Exists"}])
        kubernetes.add_pod_label(task, "l", "v")
        return kubernetes.set_image_pull_policy(task, "Always")

    ir, platform = compiled(pipeline_of(made, setting), tmp_path_factory)
    found = settings(platform, "train")
    assert found["podMetadata"] == {**ANNOTATION, "labels": {"l": "v"}}
    assert found["nodeSelector"] == {"labels": {"pool": "a"}}
    assert found["imagePullPolicy"] == "Always"
    assert "accelerator" not in executor(ir, "train")["resources"]
    task = ir["root"]["dag"]["tasks"]["train"]
    assert task["retryPolicy"]["maxRetryCount"] == 2
    assert task["cachingOptions"] == {}
    assert TASK_CONFIG_INPUT not in task["inputs"]["parameters"]


def test_set_timeout_is_refused_on_a_launcher() -> None:
    """A deadline of the launcher's pod would leave the hosts training, so it is refused where it is set."""
    made = component(declared.train, accelerator="v5litepod-16")
    with pytest.raises(DeclarationError) as caught:
        pipeline_of(made, lambda task: kubernetes.set_timeout(task, 3600))
    assert str(caught.value) == (
        "task 'train': 1 problem\n"
        "  1. set_timeout: set_timeout(3600) would kill only the launcher's pod, and leave the hosts of its group. "
        "Fix: use timeout=3600 in the decorator, or .options(timeout=)."
    )


def test_set_timeout_on_a_pod(tmp_path_factory: pytest.TempPathFactory) -> None:
    """On one pod KFP's own setter is right."""
    made = component(declared.train)
    _, platform = compiled(pipeline_of(made, lambda task: kubernetes.set_timeout(task, 60)), tmp_path_factory)
    assert settings(platform, "train") == {"activeDeadlineSeconds": "60"}


def test_passthrough_off(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Without passthrough the component has no further input, and resources are the launcher's."""
    made = component(declared.train, hosts=2, passthrough=False, launcher_resources={"cpu": "500m", "memory": "512Mi"})
    assert TASK_CONFIG_INPUT not in made.component_spec.inputs
    ir, _ = compiled(pipeline_of(made), tmp_path_factory)
    assert "taskConfigPassthroughs" not in ir["components"]["comp-train"]
    resources = executor(ir, "train")["resources"]
    assert (resources["resourceCpuRequest"], resources["resourceCpuLimit"]) == ("500m", "500m")
    assert (resources["resourceMemoryRequest"], resources["resourceMemoryLimit"]) == ("512Mi", "512Mi")


def test_ignore_upstream_failure_works_with_the_input() -> None:
    """KFP looks every input of such a task up, also the one that only kr_kfp's component has."""
    made = component(declared.no_inputs, hosts=2)

    @dsl.pipeline
    def outer() -> None:
        made().after(declared.prepare()).ignore_upstream_failure()

    policy = outer.pipeline_spec.root.dag.tasks["no-inputs"].trigger_policy
    assert policy.strategy == policy.ALL_UPSTREAM_TASKS_COMPLETED


def test_options_leave_the_original_alone() -> None:
    """Another shape is another component; keywords of dsl.component can be changed too."""
    base = component(declared.train, accelerator="v5litepod-16", packages_to_install=["keras"], finish_grace="1m")
    before = (base.step, list(base.component_spec.implementation.container.command))
    small = base.options(accelerator="v5litepod-1", base_image="ml:2", packages_to_install=["jax"])
    assert (base.step, base.component_spec.implementation.container.command) == before
    assert (small.step.backend, small.step.hosts, small.step.image, small.step.finish_grace) == (
        "pod",
        1,
        "ml:2",
        300.0,
    )
    assert TASK_CONFIG_INPUT not in small.component_spec.inputs
    assert "'jax'" in small.component_spec.implementation.container.command[-5]
    again = small.options(accelerator="v5litepod-16")
    assert (again.step.finish_grace, again.step.image, again.step.hosts) == (60.0, "ml:2", 4)


def test_options_report_all_problems() -> None:
    """options() judges what is given to it as the decorator does, all at once."""
    with pytest.raises(DeclarationError) as caught:
        component(declared.train, accelerator="v5litepod-16").options(
            hosts=3,
            timeout="soon",
            env={"A": 1},  # type: ignore[dict-item]
            retries=2,  # type: ignore[call-arg]
            backend="pathways",
        )
    assert caught.value.subject == "options of component 'train'"
    assert [problem.path for problem in caught.value.problems] == [
        "hosts",
        "timeout",
        "env['A']",
        "retries",
        "pathways",
    ]


def test_decorator_reports_arguments_and_source_together() -> None:
    """A wrong argument, an unknown name in the body and a wrong keyword of dsl.component are one error."""

    def train(count: int) -> None:
        print(nowhere)  # type: ignore[name-defined] # noqa: F821

    with pytest.raises(DeclarationError) as caught:
        component(  # type: ignore[call-overload]
            train,
            accelerator="v5-16",
            finish_grace="soon",
            packages_to_install="keras",
            task_config_passthroughs=[],
        )
    assert caught.value.subject == "component 'train'"
    assert [problem.path for problem in caught.value.problems] == [
        "accelerator",
        "finish_grace",
        "packages_to_install",
        "task_config_passthroughs",
        "nowhere",
    ]


def test_pipeline_input_as_shape() -> None:
    """A shape from a pipeline input is refused at compile, and the message lists what is constant."""
    made = component(declared.train)
    with pytest.raises(DeclarationError) as caught:
        declared.shaped_by_inputs(made.options)
    assert [problem.path for problem in caught.value.problems] == ["hosts", "env['RUN']", "labels['exp']"]


def test_nested_argument_is_kfps_business() -> None:
    """Pipeline inputs inside a dict or list that is an argument of the function are resolved by KFP."""
    made = component(declared.configured, hosts=2)
    outer = declared.configured_pipeline(made)
    values = outer.pipeline_spec.root.dag.tasks["configured"].inputs.parameters["cfg"].runtime_value.constant
    fields = values.struct_value.fields
    placeholder = "{{$.inputs.parameters['pipelinechannel--g']}}"
    assert fields["whole"].string_value == placeholder
    assert fields["part"].string_value == f"hello {placeholder}"
    assert fields["l"].list_value.values[0].string_value == f"x{placeholder}"


def test_lifting_keeps_what_kfp_made() -> None:
    """A lightweight component keeps image, packages and command, and gets a shape."""
    plain = dsl.component(declared.train, base_image="ml:1", packages_to_install=["keras"])
    before = list(plain.component_spec.implementation.container.command)
    lifted = component(accelerator="v5litepod-16")(plain)
    assert isinstance(lifted, Component)
    assert (lifted.step.image, lifted.step.hosts, lifted.python_func) == ("ml:1", 4, declared.train)
    assert split(lifted.component_spec.implementation.container.command)[2] == before
    assert plain.component_spec.implementation.container.command == before
    assert lifted.options(accelerator=None, base_image="ml:2").step.image == "ml:2"


def test_lifting_a_kr_kfp_component_is_options() -> None:
    """A component of kr_kfp is given another shape."""
    base = component(declared.train, packages_to_install=["keras"], hosts=2)
    assert component(hosts=3)(base).step == base.options(hosts=3).step


def test_lifting_refuses() -> None:
    """Keywords that the lifted component has decided, its own TaskConfig, and what is no Python function."""
    plain = dsl.component(declared.train, base_image="ml:1")
    with pytest.raises(DeclarationError) as caught:
        component(plain, packages_to_install=["keras"])
    assert str(caught.value.problems[0]) == (
        "packages_to_install: the lifted component has decided it already. "
        "Fix: give packages_to_install= to dsl.component there."
    )
    configured = dsl.component(
        declared.task_config, base_image="ml:1", task_config_passthroughs=[dsl.TaskConfigField.ENV]
    )
    with pytest.raises(DeclarationError) as caught:
        component(configured, hosts=2)
    assert [problem.path for problem in caught.value.problems] == ["config"]

    with pytest.raises(DeclarationError, match="a ContainerComponent has no Python function"):
        component(declared.container)


def test_lifting_checks_the_shipped_source() -> None:
    """Names that plain KFP would miss in the pod only are found when the component is lifted."""
    with pytest.raises(DeclarationError) as caught:
        component(declared.leaky, hosts=2)
    assert [problem.path for problem in caught.value.problems] == ["nowhere"]


def test_output_component_file(tmp_path: Path) -> None:
    """KFP's deprecated keyword writes kr_kfp's component, not the bare one."""
    file = tmp_path / "train.yaml"
    with pytest.warns(DeprecationWarning, match="output_component_file is deprecated"):
        made = component(declared.train, output_component_file=str(file), hosts=2)
    assert kr_kfp.load_component(file).step == made.step


def test_call_tells_local_runs_where_things_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """kfp.local hands the environment on: where kr_kfp is (unless the user said so) and where the function stands."""
    monkeypatch.setenv("KR_KFP_SOURCE_train", "")
    monkeypatch.setenv("KR_KFP_PACKAGE", "mine.whl")
    pipeline_of(component(declared.train))
    assert os.environ["KR_KFP_PACKAGE"] == "mine.whl"
    line = inspect.getsourcelines(declared.train)[1]
    assert os.environ["KR_KFP_SOURCE_" + declared.train.__name__] == f"{declared.__file__}:{line}"


@pytest.mark.parametrize(("length", "name"), [(120, "t" * 120)])
def test_long_names(length: int, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A function name of 120 characters compiles; the group's own name is cut elsewhere (names.group_name)."""
    made = component(declared.named(name), hosts=2)
    ir, _ = compiled(made, tmp_path_factory)
    assert made.step.name == name
    assert f"exec-{name}" in ir["deploymentSpec"]["executors"]


def test_type_check_of_compiler(tmp_path: Path) -> None:
    """Types of arguments are checked as KFP checks them."""
    made = component(declared.train, hosts=2)
    with pytest.raises(Exception, match="Incompatible argument"):

        @dsl.pipeline
        def outer() -> None:
            made(data=declared.prepare().output, epochs="three")

    compiler.Compiler().compile(pipeline_of(made), str(tmp_path / "a.yaml"))


def test_gpu_task(tmp_path_factory: pytest.TempPathFactory) -> None:
    """GPUs of one host are requested by their resource name."""
    made = component(declared.train, accelerator=Gpu("h100", per_host=8))
    ir, platform = compiled(pipeline_of(made), tmp_path_factory)
    accelerator = executor(ir, "train")["resources"]["accelerator"]
    assert (accelerator["resourceType"], accelerator["resourceCount"]) == ("nvidia.com/gpu", "8")
    assert settings(platform, "train")["nodeSelector"]["labels"] == selectors(resolve(Gpu("h100", per_host=8)))
