"""Names that a component uses and that will not exist in the pod."""

from __future__ import annotations

import textwrap

import pytest

from kr_kfp.authoring.free_names import FreeName, find_free_names, module_names


def found(body: str) -> list[tuple[str, tuple[int, ...]]]:
    """Give the free names of a function with this body; its first line is line 2."""
    source = "def train(x: int) -> None:\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    return [(item.name, item.lines) for item in find_free_names(source, module_names())]


@pytest.mark.parametrize(
    "body",
    [
        "print(len(str(x)), __name__, __file__, __doc__, NotImplemented)",
        "import os, numpy as np\nfrom json import dumps as d\nprint(os, np, d)",
        "import os.path\nprint(os)",
        "def helper(a, *b, c=x, **d):\n    return a, b, c, d, helper\nhelper(1)",
        "add = lambda a, b=2: a + b + x\nadd(1)",
        "print([a + b for a in range(x) for b in range(a) if b])",
        "print({a: b for a, b in zip('a', 'b')}, {c for c in 'c'}, list(d for d in 'd'))",
        "if (size := x) > 3:\n    print(size)\nprint([y := 1, y])",
        "try:\n    pass\nexcept (ValueError, KeyError) as error:\n    print(error)",
        "try:\n    pass\nexcept* ValueError as group:\n    print(group)",
        "with open('f') as a, open('g') as (b, c):\n    print(a, b, c)",
        "for i, (j, *k) in []:\n    pass\nelse:\n    print(i, j, k)",
        "match x:\n    case {'a': a, **rest}:\n        print(a, rest)\n    case [b, *others]:\n        print(b, others)",
        "match x:\n    case int(real=r) | float(real=r):\n        print(r)",
        "global total\ntotal = 1\ndef more():\n    return total\nmore()",
        "global helper\ndef helper():\n    pass\nhelper()",
        "value = 1\ndel value\nvalue = 2\nprint(value)",
        "class Net:\n    width = 3\n    depth = width + 1\n    def call(self):\n        return __class__, super()\nNet()",
        "class Base: pass\nclass Net(Base): pass\n@staticmethod\ndef decorated(): pass\nprint(Net, decorated)",
        "count = 0\ndef add():\n    nonlocal count\n    count += 1\nadd()",
        "async def go():\n    async with x as y:\n        return [i async for i in y]\ngo()",
        "local: Undefined = 3\nprint(local)",
        "try:\n    display\nexcept NameError:\n    display = print",
        "try:\n    print(unicode)\nexcept NameError:\n    pass",
        "print(f'{x!r:>{x}}', Model, NamedTuple, PipelineTaskFinalStatus)",
        "import matplotlib.pyplot as plt\nplt.plot()",
    ],
)
def test_no_false_alarm(body: str) -> None:
    """What Python or KFP's shipped module provides is not reported."""
    assert found(body) == []


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("print(BATCH)\nprint(BATCH + BATCH)", [("BATCH", (2, 3))]),
        ("def inner():\n    return helper(1)\ninner()", [("helper", (3,))]),
        ("print([helper(i) for i in range(x)])", [("helper", (2,))]),
        ("run = lambda: (\n    CONSTANT\n)\nrun()", [("CONSTANT", (3,))]),
        (
            "class Net(Base):\n    size = SIZE\n    def call(self):\n        return size",
            [("Base", (2,)), ("SIZE", (3,)), ("size", (5,))],
        ),
        ("def helper(a=DEFAULT): pass\nhelper()", [("DEFAULT", (2,))]),
        ("np.zeros(x)", [("np", (2,))]),
        ("print(f'{x} {NAME}')", [("NAME", (2,))]),
        ("try:\n    missing()\nexcept ValueError:\n    pass", [("missing", (3,))]),
        ("@component\ndef inner(): pass\ninner()", [("component", (2,))]),
        ("print(pipeline, ParallelFor)", [("ParallelFor", (2,)), ("pipeline", (2,))]),
        ("match x:\n    case Point(a): pass", [("Point", (3,))]),
        ("del MISSING", []),
        ("global counter\ncounter += 1", []),
        ("raise MyError from None", [("MyError", (2,))]),
    ],
)
def test_names_and_lines(body: str, names: list[tuple[str, tuple[int, ...]]]) -> None:
    """A missing name comes with every line that uses it, in whatever scope."""
    assert found(body) == names


def test_definition_time() -> None:
    """Defaults and annotations are evaluated when the function is defined, in order."""
    source = "def helper(a=later): ...\nlater = 1\ndef train(a: Foo, b: int = DEFAULT, *, c=len('x')) -> Bar: ...\n"
    assert find_free_names(source) == (
        FreeName("later", (1,), at_definition=True),
        FreeName("Bar", (3,), at_definition=True),
        FreeName("DEFAULT", (3,), at_definition=True),
        FreeName("Foo", (3,), at_definition=True),
    )


def test_text_that_is_no_python() -> None:
    """A nonlocal of a function that stood inside another one is Python's own error."""
    with pytest.raises(SyntaxError, match="nonlocal"):
        find_free_names("def train():\n    nonlocal count\n    count = 1\n")


def test_module_names() -> None:
    """KFP's run-time names are offered, those of compile time are not."""
    names = module_names()
    assert {"Input", "Output", "Model", "Metrics", "Dataset", "InputPath", "TaskConfig"} <= names
    assert {"NamedTuple", "Optional", "Union"} <= names
    assert not {"component", "pipeline", "ParallelFor", "PipelineTask"} & names
