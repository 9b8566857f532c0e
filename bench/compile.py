"""A pipeline of 50 kr_kfp steps against the same pipeline of plain dsl.component steps: compile time and IR size.

Each run declares its 50 components anew and compiles the pipeline, as a user's script does. Aims: time ratio at most
1.15 plus the A/A spread; IR at most 1.2 times the plain one plus 2 KiB a step.
"""


import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from pairs import measure

import kr_kfp

STEPS = 50


def train(data: str, epochs: int = 3, rate: float = 1e-3) -> float:
    """Train a little."""
    total = 0.0
    for epoch in range(epochs):
        total += rate * epoch
    print(data, total)
    return total


def build(decorate: Callable[[Any], Any], place: Path) -> None:
    """Declare the components and compile the pipeline to ``place``."""
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
            if previous is not None:
                task.after(previous)
            previous = task

    compiler.Compiler().compile(fifty, str(place))


def main() -> None:
    """Measure and print."""
    warnings.simplefilter("ignore")
    plain = dsl.component(base_image="python:3.12")
    ours = kr_kfp.component(base_image="python:3.12", accelerator="v5litepod-16")
    with tempfile.TemporaryDirectory() as folder:
        a_file, b_file = Path(folder, "plain.yaml"), Path(folder, "kr.yaml")

        def timed(decorate: Callable[[Any], Any], place: Path) -> float:
            begun = time.perf_counter()
            build(decorate, place)
            return time.perf_counter() - begun

        pairs = measure(lambda: timed(plain, a_file), lambda: timed(ours, b_file))
        a_size, b_size = a_file.stat().st_size, b_file.stat().st_size
    allowed = 1.2 * a_size + 2048 * STEPS
    print(f"IR: plain {a_size:,} bytes, kr_kfp {b_size:,} bytes, allowed {allowed:,.0f}")
    print(pairs.line(size_ratio=f"{b_size / a_size:.3f}", size_of_allowed=f"{b_size / allowed:.3f}"))


if __name__ == "__main__":
    main()
