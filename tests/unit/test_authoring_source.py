"""The function's text: annotations, names, sizes, and what arrives unchanged. This module postpones annotations."""

from __future__ import annotations

import collections
import functools
import sys
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

import pytest
from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output, component_factory

import kr_kfp
from kr_kfp import context as place
from kr_kfp.authoring import source
from kr_kfp.authoring.component import component
from kr_kfp.errors import DeclarationError
from kr_kfp.wire import ARGUMENT_LIMIT
from tests import declared
from tests.artifacts import Checkpoint
from tests.declared import packed

BATCH = 32


class Result(NamedTuple):
    """A result that is declared beside the function."""

    loss: float


def helper(number: int) -> int:
    """Stand beside the function."""
    return number + BATCH


def shipped(made: Any) -> str:
    """Give the source that a component ships."""
    command = made.component_spec.implementation.container.command
    return str(command[source.find_source(command)])


def refusal(func: Callable[..., Any], **options: Any) -> list[str]:
    """Give all problems of a declaration."""
    with pytest.raises(DeclarationError) as caught:
        component(func, **options)
    return [str(problem) for problem in caught.value.problems]


def line_of(func: Callable[..., Any], text: str) -> int:
    """Give the line in this file of a text in a function."""
    first = func.__code__.co_firstlineno
    for number, line in enumerate(Path(__file__).read_text(encoding="utf-8").splitlines()[first - 1 :], first):
        if text in line:
            return number
    raise AssertionError(text)


def test_postponed_annotations_give_the_same_interface() -> None:
    """With the import it is the interface that plain KFP makes without it (kubeflow/pipelines#11023)."""

    def train(
        steps: int,
        model: Output[Model],
        metrics: Output[Metrics],
        data: Input[Dataset],
        lr: float = 1e-3,
        resume: Optional[str] = None,
    ) -> NamedTuple("Result", [("loss", float), ("steps", int)]):  # type: ignore[valid-type]
        """Train."""

    plain = dsl.component(declared.postponed_twin, base_image="python:3.12").component_spec
    made = component(train).component_spec
    assert (made.inputs, made.outputs) == (plain.inputs, plain.outputs)
    assert {name: item.type for name, item in made.inputs.items()} == {
        "steps": "Integer",
        "data": "system.Dataset@0.0.1",
        "lr": "Float",
        "resume": "String",
    }
    assert made.inputs["resume"].optional
    assert made.inputs["lr"].default == 1e-3
    assert train.__annotations__["steps"] == "int"


def test_postponed_annotations_of_custom_artifacts() -> None:
    """A custom artifact class is imported in the shipped source, as KFP does it."""

    def train(checkpoint: Output[Checkpoint]) -> None: ...

    made = component(train)
    assert made.component_spec.outputs["checkpoint"].type == "system.Checkpoint@0.0.1"
    assert "\nfrom tests.artifacts import Checkpoint\n" in shipped(made)


def test_postponed_annotation_of_a_local_import() -> None:
    """A name that only the surrounding function knows is found while that function runs."""
    from tests.artifacts import Table

    def train(table: Output[Table], note: Text = "") -> None: ...  # type: ignore[name-defined] # noqa: F821

    made = component(train)
    assert made.component_spec.outputs["table"].type == "system.Table@0.0.1"
    assert Table.__name__ in shipped(made)
    # Text is a name of typing, which KFP's module offers in the pod.
    assert made.component_spec.inputs["note"].type == "String"


def test_postponed_annotation_that_cannot_be_read() -> None:
    """One problem names the import as the cause and every annotation that fails; names in the body are told too."""

    def train(rows: Input[Missing], count: Also) -> None:  # type: ignore[name-defined] # noqa: F821
        print(BATCH)

    [first, second] = refusal(train)
    assert first == (
        f"annotations: 'from __future__ import annotations' in {__file__} makes texts of annotations, and these "
        "cannot be read back: rows: Input[Missing] (name 'Missing' is not defined); count: Also (name 'Also' is not defined). "
        "Fix: import what they name at the top of that file, or remove that import."
    )
    assert second.startswith("BATCH: used at ")


def test_quoted_annotation() -> None:
    """KFP reads annotations in the pod, where quotes would still be quotes."""
    assert refusal(declared.quoted) == [
        (
            "annotation of data: 'dsl.Input[dsl.Dataset]' is in quotes, and KFP reads annotations as objects in the "
            "pod. Fix: write dsl.Input[dsl.Dataset] without quotes."
        )
    ]


def test_module_constant_and_helper() -> None:
    """A constant and a helper beside the function are named with every line."""

    def train(count: int) -> int:
        size = BATCH
        return helper(size) + BATCH

    where = "tests/unit/test_authoring_source.py"
    assert refusal(train) == [
        (
            f"BATCH: used at {where}:{line_of(train, 'size = BATCH')}, {where}:{line_of(train, 'return helper')}, but it "
            "is a int beside it; KFP ships only the function's own text. "
            "Fix: define it inside the function, or make it a parameter."
        ),
        (
            f"helper: used at {where}:{line_of(train, 'return helper')}, but it is a function beside it; KFP ships "
            "only the function's own text. Fix: add additional_funcs=[helper], or define it inside the function."
        ),
    ]


def test_helper_as_additional_function() -> None:
    """additional_funcs are carried, and checked like the function itself."""

    def train(count: int) -> int:
        return helper(count)

    [problem] = refusal(train, additional_funcs=[helper])
    assert problem.startswith(
        f"BATCH: used at tests/unit/test_authoring_source.py:{line_of(helper, 'number + BATCH')}, "
    )

    def own(number: int) -> int:
        return number + 1

    def good(count: int) -> int:
        return own(count)

    assert "def own(" in shipped(component(good, additional_funcs=[own]))


def test_closure_module_class_and_unknown_name() -> None:
    """What a name stands for decides what to do about it."""
    width = 3

    def train(count: int) -> None:
        print(width, collections.Counter(), Result(1.0), Path(), undefined)  # type: ignore[name-defined] # noqa: F821

    fixes = {text.partition(":")[0]: text.rpartition("Fix: ")[2] for text in refusal(train)}
    assert fixes == {
        "Path": "write 'from pathlib import Path' inside the function.",
        "Result": "define it inside the function, or import it there from an installed package.",
        "collections": "write 'import collections' inside the function.",
        "undefined": "define or import it inside the function.",
        "width": "make it a parameter of the function.",
    }


def test_names_at_definition() -> None:
    """Defaults and annotations are evaluated in the pod too."""

    def train(count: int = BATCH) -> typing.NamedTuple("R", [("a", int)]):  # type: ignore[valid-type]
        ...

    def other() -> Result: ...  # type: ignore[empty-body]

    fixes = [text.rpartition("Fix: ")[2] for text in refusal(train)]
    assert fixes == [
        "write what it stands for in its place.",
        "leave 'typing.' out: all names of typing are there in the pod.",
    ]
    assert [text.rpartition("Fix: ")[2] for text in refusal(other)] == [
        "write NamedTuple('Result', [('loss', ...)]) in its place."
    ]


def test_kr_kfp_itself_is_carried() -> None:
    """kr_kfp and its public names may stand at the top of the author's file, under any name."""
    import kr_kfp as kk

    def train(count: int) -> None:
        print(kr_kfp.context(), place().host, kk.__version__)

    assert (
        "\nfrom typing import *\nfrom kr_kfp import context as place\nimport kr_kfp\nimport kr_kfp as kk\n"
        in shipped(component(train))
    )


def test_source_without_kr_kfp_is_kfps_own() -> None:
    """KFP's command stands behind the prefix, not a byte of it changed."""
    plain = dsl.component(declared.train, base_image="python:3.12", packages_to_install=["keras"])
    made = component(declared.train, packages_to_install=["keras"])
    command = made.component_spec.implementation.container.command
    assert command[command.index("--") + 1 :] == plain.component_spec.implementation.container.command
    assert made.component_spec.implementation.container.args == plain.component_spec.implementation.container.args


def wrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function, as a user's own decorator would."""

    @functools.wraps(func)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return inner


@wrapped
def decorated(count: int) -> None:
    """Have another decorator."""


async def waits(count: int) -> None:
    """Wait."""


def without_source() -> Callable[..., Any]:
    """Make a function that has no file."""
    space: dict[str, Any] = {}
    exec("def train(count: int) -> None: ...", space)
    made: Callable[..., Any] = space["train"]
    return made


def text_at_the_left() -> Callable[..., Any]:
    """Make a function whose source cannot be dedented."""

    def train(count: int) -> None:
        print("""
at the left""")

    return train


@pytest.mark.parametrize(
    ("func", "problem"),
    [
        (
            len,
            (
                "function: it is a builtin_function_or_method, not a Python function. "
                "Fix: write a function with def, and decorate that."
            ),
        ),
        (
            lambda x: x,
            "function: '<lambda>' is a lambda, and KFP ships functions written with def. Fix: write it with def.",
        ),
        (
            decorated,
            (
                "function: 'decorated' is wrapped by another decorator, and KFP ships the function's text without "
                "decorators. Fix: call the wrapper's code inside the function."
            ),
        ),
        (
            waits,
            (
                "function: 'waits' is a coroutine or a generator, whose body KFP never runs. "
                "Fix: write an ordinary function, with asyncio.run(...) inside if need be."
            ),
        ),
        (
            without_source(),
            (
                "function: 'train' has no source that could be read (it is from <string>). "
                "Fix: define it in a file or a notebook cell."
            ),
        ),
        (
            text_at_the_left(),
            (
                "function: 'train' cannot be taken out of its surroundings: a line of it, such as a line of a text, "
                "begins further left than its def. Fix: define it at the top of a module, or indent that line."
            ),
        ),
    ],
)
def test_functions_that_kfp_cannot_ship(func: Callable[..., Any], problem: str) -> None:
    """What would fail in the pod, or run something else, is refused."""
    assert refusal(func) == [problem]


def test_interface_that_kfp_refuses() -> None:
    """KFP's own complaint about a signature is one of the problems."""

    def train(count) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001
        print(BATCH)

    first, second = refusal(train, hosts=0)[1:]
    assert first == "function: KFP cannot make a component of it: Missing type annotation for argument: count"
    assert second.startswith("BATCH: ")


@pytest.mark.parametrize("size", [100_000, 140_000, 1_000_000])
def test_size_of_the_source(size: int, tmp_path: Path) -> None:
    """A source of 100 KB fits, one of 140 KB or 1 MB is refused with its size and the limit."""
    file = tmp_path / "large.py"
    file.write_text(f"def train(count: int) -> None:\n    text = '{'x' * size}'\n", encoding="utf-8")
    space: dict[str, Any] = {}
    exec(compile(file.read_text(encoding="utf-8"), str(file), "exec", dont_inherit=True), space)
    if size == 100_000:
        assert len(shipped(component(space["train"]))) > size
        return
    [problem] = refusal(space["train"])
    measured = size + len("\nimport kfp\nfrom kfp import dsl\nfrom kfp.dsl import *\nfrom typing import *\n")
    measured += len("\ndef train(count: int) -> None:\n    text = ''\n\n")
    assert problem == (
        f"function: the source that KFP ships is {measured:,} bytes; Linux takes {ARGUMENT_LIMIT:,} for one argument. "
        "Fix: read large data from an input artifact or a URI, and put long code into a package that the image has "
        "(packages_to_install=)."
    )


def test_text_that_a_kubelet_would_change_travels_packed() -> None:
    """Only a source with $$ or $(NAME) travels twice; the packed one is what was written."""

    def dollars(count: int) -> str:
        return "$$ $(HOME) python3 'q' ü"

    def plain(count: int) -> str:
        return "$ ${HOME} $(date +%s) python3 'q' ü"

    made = component(dollars)
    data = packed(made.component_spec.implementation.container.command)[1]
    assert data["source"] == shipped(made)
    assert "$$ $(HOME) python3 'q' ü" in data["source"]
    assert "source" not in packed(component(plain).component_spec.implementation.container.command)[1]


def test_text_that_both_would_change() -> None:
    """Text for KFP's placeholders and text for the kubelet cannot stand in one source."""

    def train(count: int) -> str:
        return "$$ {{$.pipeline_job_uuid}}"

    [problem] = refusal(train)
    assert problem.startswith(
        "function: the source holds both '$$' or '$(NAME)', which Kubernetes changes, and '{{$', "
    )


def test_artifact_class_that_no_pod_can_import() -> None:
    """A class of a notebook or of a local scope cannot be imported where the step runs."""

    class Local(dsl.Artifact):
        schema_title = "system.Local"
        schema_version = "0.0.1"

    def train(out: Output[Local]) -> None: ...

    home = "tests.unit.test_authoring_source.test_artifact_class_that_no_pod_can_import.<locals>"
    assert refusal(train) == [
        (
            f"Local: the artifact class is defined in {home}, which cannot be imported in the pod. "
            "Fix: put it into a module of a package that the image has."
        )
    ]


def test_contract_with_kfps_shipped_module() -> None:
    """KFP's module begins with the imports behind which kr_kfp's own go."""
    command, _ = component_factory._get_command_and_args_for_lightweight_component(declared.train)
    assert command[3].startswith("\nimport kfp\nfrom kfp import dsl\nfrom kfp.dsl import *\nfrom typing import *\n")
    assert source.find_source(command) == 3


def test_union_with_none() -> None:
    """A parameter of type ``X | None`` is optional, as Optional[X] is; plain KFP refuses it."""

    def train(a: int, note: str | None = None, table: dict[str, int] | None = None) -> None: ...

    made = component(train).component_spec.inputs
    assert {name: (item.type, item.optional) for name, item in made.items()} == {
        "a": ("Integer", False),
        "note": ("String", True),
        "table": ("Dict[String, Integer]", True),
    }

    def first(note: None | str = None) -> None: ...  # noqa: RUF036 - this order is the point

    assert refusal(first)[0].startswith("function: KFP cannot make a component of it: ")


def test_private_home_of_a_public_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class is imported from where people import it, not from the private module that it names (3.13: pathlib._local)."""
    made = type("Table", (), {"__module__": "tables._local"})
    public = types.ModuleType("tables")
    public.Table = made  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tables", public)
    assert source._public_home("tables._local", "Table", made) == "tables"
    assert source._public_home("tables._local", "Other", made) == "tables._local"
    assert source._public_home("tables.deep._local", "Table", made) == "tables.deep._local"
