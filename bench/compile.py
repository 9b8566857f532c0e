"""A pipeline of 50 kr_kfp steps against the same pipeline of plain dsl.component steps: compile time and IR size.

Each run declares its 50 components anew and compiles the pipeline, as a user's script does. Aims: time ratio at most
1.15 plus the A/A spread; IR at most 1.2 times the plain one plus 2 KiB a step.

Most of the time goes into KFP's YAML writer, character by character. So a second measurement takes as reference plain
KFP with the very same IR (command, TaskConfig input, passthroughs, annotation put in by hand): ``own_ratio`` is what
kr_kfp's code adds to what its IR costs.
"""

import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kfp import compiler, dsl, kubernetes
from pairs import measure

import kr_kfp
from kr_kfp.wire import TASK_CONFIG_INPUT

STEPS = 50


def train(data: str, epochs: int = 3, rate: float = 1e-3) -> float:
    """Train a little."""
    total = 0.0
    for epoch in range(epochs):
        total += rate * epoch
    print(data, total)
    return total


def build(decorate: Callable[[Any], Any], place: Path, annotations: Mapping[str, str] | None = None) -> None:
    """Declare the components and compile the pipeline to ``place``; annotations are set on each task."""
    steps = []
    for number in range(STEPS):
        step = decorate(train)
        step.component_spec.name = f"train-{number}"
        steps.append(step)

    @dsl.pipeline(name="fifty")
    def fifty(data: str = "x") -> None:
        previous = None
        for step in steps:
            task = step(data=data)
            for key, value in (annotations or {}).items():
                kubernetes.add_pod_annotation(task, key, value)
            if previous is not None:
                task.after(previous)
            previous = task

    compiler.Compiler().compile(fifty, str(place))


def by_hand(func: Callable[..., Any], reference: kr_kfp.Component[..., Any]) -> Any:
    """Declare with plain KFP what ``reference`` compiles to."""
    step = dsl.component(func, base_image="python:3.12")
    spec, wanted = step.component_spec, reference.component_spec
    spec.implementation.container.command = list(wanted.implementation.container.command)
    spec.inputs[TASK_CONFIG_INPUT] = wanted.inputs[TASK_CONFIG_INPUT]
    spec.task_config_passthroughs = wanted.task_config_passthroughs
    return step


def annotations_of(reference: kr_kfp.Component[..., Any]) -> dict[str, str]:
    """Give the annotations that kr_kfp sets on a task of ``reference``."""
    found: dict[str, str] = {}

    @dsl.pipeline(name="one")
    def one() -> None:
        task = reference(data="x")
        metadata = task.platform_config["kubernetes"]["podMetadata"]
        found.update(metadata["annotations"])

    return found


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    plain = dsl.component(base_image="python:3.12")
    ours = kr_kfp.component(base_image="python:3.12", accelerator="v5litepod-16")
    reference = ours(train)
    extra = annotations_of(reference)
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder, f"{name}.yaml") for name in ("plain", "kr_kfp", "by-hand")}

        def timed(name: str, decorate: Callable[[Any], Any], annotations: Mapping[str, str] | None = None) -> float:
            begun = time.perf_counter()
            build(decorate, files[name], annotations)
            return time.perf_counter() - begun

        pairs = measure(lambda: timed("plain", plain), lambda: timed("kr_kfp", ours))
        print("against plain KFP with the same IR")
        own = measure(
            lambda: timed("by-hand", lambda func: by_hand(func, reference), extra), lambda: timed("kr_kfp", ours)
        )
        sizes = {name: place.stat().st_size for name, place in files.items()}
    allowed = 1.2 * sizes["plain"] + 2048 * STEPS
    print(f"IR in bytes: {sizes}, allowed {allowed:.0f}")
    print(
        pairs.line(
            own_ratio=f"{own.ratio:.3f}",
            size_ratio=f"{sizes['kr_kfp'] / sizes['plain']:.3f}",
            size_of_allowed=f"{sizes['kr_kfp'] / allowed:.3f}",
        )
    )


if __name__ == "__main__":
    main()
