"""Steps in every place that KFP has for a step."""

from kfp import dsl, kubernetes

from tests.golden.cases.shapes import train
from tests.golden.cases.sources import plain, texts

slice_of_four = train.options(accelerator="v5litepod-16")
one_host = train.options(accelerator="v5litepod-4", env={"LEVEL": "debug"})


@dsl.pipeline(name="inner")
def inner(rows: dsl.Input[dsl.Dataset]) -> dsl.Model:
    """Train in two shapes, one after the other."""
    first = slice_of_four(data=rows, epochs=1).set_retry(2).set_caching_options(False)
    return one_host(data=rows, epochs=2).after(first).outputs["model"]


@dsl.pipeline(name="everywhere", description="Every place that a step can stand in.")
def everywhere(rates: list[float] = [0.1, 0.2], big: bool = True) -> None:  # noqa: B006 - KFP reads the default
    """Use steps in a loop, a condition, an exit handler and a nested pipeline."""
    rows = plain().output
    last = texts.options(backend="lws")()
    with dsl.ExitHandler(last):
        with dsl.ParallelFor(rates, parallelism=1) as rate:
            slice_of_four(data=rows, epochs=1, rate=rate)
        with dsl.If(big == True):  # noqa: E712 - KFP's condition
            chosen = slice_of_four(data=rows, epochs=3).set_memory_limit("8Gi").set_env_variable("LEVEL", "info")
            kubernetes.mount_pvc(chosen, "datasets", "/mnt/datasets")
        inner(rows=rows)


CASES = {"pipeline-everywhere": everywhere}
