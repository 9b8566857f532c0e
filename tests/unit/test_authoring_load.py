"""Compiled components read back."""

from pathlib import Path
from typing import Any

import pytest
from kfp import components, dsl, kubernetes
from kfp.compiler import Compiler

from kr_kfp.authoring.component import component
from kr_kfp.authoring.load import LoadedComponent, load_component
from kr_kfp.errors import DeclarationError
from kr_kfp.wire import TASK_CONFIG_INPUT
from tests import declared
from tests.declared import compiled, executor, packed

SHAPES: dict[str, dict[str, Any]] = {
    "lws": {"accelerator": "v5litepod-16", "timeout": "1h", "labels": {"team": "a"}},
    "lws-without-passthrough": {"hosts": 2, "passthrough": False, "launcher_resources": {"cpu": "1"}},
    "pod": {},
    "pod-with-tpu": {"accelerator": "v5litepod-4", "env": {"A": "$$"}, "spot": True},
}


def pipeline_of(train: Any) -> Any:
    """Make a pipeline with settings on the training task."""

    @dsl.pipeline(name="retrain")
    def retrain() -> None:
        task = train(data=declared.prepare().output, epochs=3)
        task.set_env_variable("B", "c").set_retry(1)
        kubernetes.add_pod_label(task, "l", "v")

    return retrain


@pytest.mark.parametrize("shape", SHAPES)
def test_loaded_component_is_like_the_decorated(shape: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Alone and in a pipeline a loaded component compiles to what the decorated one compiles to."""
    made = component(declared.train, **SHAPES[shape])
    file = tmp_path_factory.mktemp("yaml") / "train.yaml"
    Compiler().compile(made, str(file))
    loaded = load_component(file)
    assert isinstance(loaded, LoadedComponent)
    assert (loaded.step, loaded.name, loaded.description) == (made.step, "train", "Train a model.")
    assert dict(loaded.launcher_resources) == dict(made.launcher_resources)
    assert compiled(loaded, tmp_path_factory) == compiled(made, tmp_path_factory)
    assert compiled(pipeline_of(loaded), tmp_path_factory) == compiled(pipeline_of(made), tmp_path_factory)


def test_loaded_from_text(tmp_path: Path) -> None:
    """A text is taken too, and a path as text."""
    made = component(declared.train, hosts=2)
    file = tmp_path / "train.yaml"
    Compiler().compile(made, str(file))
    assert load_component(file.read_text(encoding="utf-8")).step == made.step
    assert load_component(str(file)).step == made.step


def test_loaded_launcher_refuses_what_the_decorated_refuses(tmp_path: Path) -> None:
    """set_timeout and kr_kfp's own input are refused on a loaded launcher too."""
    file = tmp_path / "train.yaml"
    Compiler().compile(component(declared.no_inputs, hosts=2), str(file))
    loaded = load_component(file)

    def outer_with(call: Any) -> None:
        @dsl.pipeline
        def outer() -> None:
            call()

    with pytest.raises(DeclarationError, match="would kill only the launcher's pod"):
        outer_with(lambda: kubernetes.set_timeout(loaded(), 60))
    with pytest.raises(DeclarationError, match="kr_kfp's own input"):
        outer_with(lambda: loaded(**{TASK_CONFIG_INPUT: {}}))


def test_plain_kfp_loads_every_shape(tmp_path_factory: pytest.TempPathFactory) -> None:
    """KFP's own loading keeps the shape in the command, and a pod's resources in its one-step graph."""
    for shape, options in SHAPES.items():
        made = component(declared.train, **options)
        file = tmp_path_factory.mktemp("yaml") / f"{shape}.yaml"
        Compiler().compile(made, str(file))
        loaded = components.load_component_from_file(str(file))

        ir, _ = compiled(declared.plainly(loaded), tmp_path_factory)
        name = "train-step" if shape == "pod-with-tpu" else "train"
        assert packed(executor(ir, name)["command"])[1]["name"] == "train"
        assert ("resources" in executor(ir, name)) == (shape == "pod-with-tpu")


def refusal(source: Any) -> str:
    """Give the refusal of a source."""
    with pytest.raises(DeclarationError) as caught:
        load_component(source)
    return str(caught.value.problems[0])


def test_refused(tmp_path: Path) -> None:
    """Something that is no single component of kr_kfp is refused, saying what it is."""
    file = tmp_path / "x.yaml"
    Compiler().compile(dsl.component(declared.train, base_image="python:3.12"), str(file))
    assert refusal(file) == (
        "source: the command does not begin with kr_kfp's prefix: the component was not made by kr_kfp. "
        "Fix: load it with kfp.components.load_component_from_file, or compile it again with this kr_kfp."
    )
    Compiler().compile(pipeline_of(component(declared.train)), str(file))
    assert refusal(file) == (
        "source: it is a pipeline of 2 steps (prepare, train), not one component. "
        "Fix: load it with kfp.components.load_component_from_file: what kr_kfp set on its tasks is in it."
    )
    Compiler().compile(declared.container, str(file))
    assert "was not made by kr_kfp" in refusal(file)
    assert refusal("a: b\n") == "source: it holds no compiled component. Fix: give a file that KFP's compiler wrote."
    assert refusal("{a\n").startswith("source: it is no YAML: ")
    with pytest.raises(FileNotFoundError):
        load_component(tmp_path / "missing.yaml")
