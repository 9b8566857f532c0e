"""The command line: how targets and arguments are read, what is printed, with which exit code."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import pytest
from click.testing import CliRunner, Result
from kfp import dsl

from kr_kfp.cli import main as entry
from kr_kfp.cli.main import cli
from kr_kfp.cli.run import _ESCAPES, _Progress
from kr_kfp.cli.target import TargetError, arguments_of, find
from kr_kfp.errors import DeclarationError, Problem, StepFailedError

STEP = """
import kr_kfp

@kr_kfp.component(framework="none", hosts={hosts})
def {name}(a: int, b: float = 1.0, text: str = "") -> float:
    return a + b
"""


@pytest.fixture(name="folder")
def current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, and forget what is imported from it."""
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = dict(sys.modules)
    # Modules of the test only: other ones must not be loaded twice.
    monkeypatch.setattr(
        "kr_kfp.cli.target.sys", SimpleNamespace(path=sys.path, modules=_Modules(known), stderr=sys.stderr)
    )
    return tmp_path


class _Modules(dict[str, Any]):
    """Takes new modules without telling Python."""


def write(folder: Path, name: str, text: str) -> str:
    """Write a user's file."""
    (folder / name).write_text(text, encoding="utf-8")
    return name


def invoke(*words: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(cli, words)


def as_json(*words: str) -> Any:
    """Run a command that succeeds, and read what it prints."""
    done = invoke(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def problem_of(text: str) -> str:
    """Give what is said about a target that cannot be used."""
    with pytest.raises(TargetError) as raised:
        find(text)
    return raised.value.message


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def every_type(
    whole: int,
    real: float,
    flag: bool,
    text: str,
    items: list[int],
    table: dict[str, int],
    data: dsl.Input[dsl.Dataset],
) -> None:
    """Take one input of each type."""


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def simple_types(
    whole: int = 1,
    real: float = 1.0,
    flag: bool = True,
    text: str = "",
    items: Optional[list[int]] = None,
    table: Optional[dict[str, int]] = None,
) -> None:
    """Take one input of each simple type, none of which has to be given."""


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("whole=-3", -3),
        ("real=3", 3.0),
        ("real=1e-3", 0.001),
        ("flag=True", True),
        ("flag=false", False),
        ("text=", ""),
        ("text=a=b $(X) $$ ü", "a=b $(X) $$ ü"),
        ("text=3", "3"),
        ('items=[1, "a"]', [1, "a"]),
        ('table={"a": {"b": 1}}', {"a": {"b": 1}}),
    ],
)
def test_argument(pair: str, value: object) -> None:
    """A value is read as its input's type."""
    (found,) = arguments_of(simple_types, (pair,)).values()
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("pair", "problem"),
    [
        ("whole=1.5", "whole: '1.5' is no Integer (got float)"),
        ("whole=true", "whole: 'true' is no Integer (got bool)"),
        ("real=x", "real: 'x' is no Float (write a number)"),
        ("real=NaN", "real: 'NaN' is no Float (got float)"),
        ("flag=1", "flag: '1' is no Boolean (got int)"),
        ("flag=yes", "flag: 'yes' is no Boolean (true or false)"),
        ("items={}", "items: '{}' is no List (got dict)"),
        ("table=a", "table: 'a' is no Dict (write JSON)"),
        ("whole", "'whole': write NAME=VALUE"),
        ("x=1", "x: there is no such input; there are: flag, items, real, table, text, whole"),
    ],
)
def test_wrong_argument(pair: str, problem: str) -> None:
    """A value that is not of the type is refused with what was read."""
    with pytest.raises(TargetError) as raised:
        arguments_of(simple_types, (pair,))
    assert raised.value.message == f"arguments of simple-types:\n  {problem}"


def test_all_problems_of_arguments() -> None:
    """All problems are listed at once, and what is wrong is not called missing too."""
    with pytest.raises(TargetError) as raised:
        arguments_of(every_type, ("whole=x", "real=1", "real=2", "data=/d", "z"))
    assert raised.value.message.splitlines() == [
        "arguments of every-type:",
        "  whole: 'x' is no Integer (write a number)",
        "  real: given twice",
        "  data: an artifact (system.Dataset@0.0.1) cannot be given here; kr_kfp.testing.run takes it",
        "  'z': write NAME=VALUE",
        "  missing: flag (Boolean), text (String), items (List), table (Dict)",
    ]


def test_targets(folder: Path) -> None:
    """A file's pipeline comes before its components, its own components before imported ones; a name chooses."""
    write(folder, "first.py", STEP.format(name="one", hosts=1))
    second = write(folder, "second.py", "from first import one\n" + STEP.format(name="two", hosts=1))
    assert find("first.py").name == "one"
    assert find("second.py").name == "two"
    assert find("second.py:one").name == "one"
    assert find("second:two").name == "two"
    piped = (folder / second).read_text() + "from kfp import dsl\n@dsl.pipeline(name='p')\ndef pipe():\n    one(a=1)\n"
    assert find(write(folder, "third.py", piped)).name == "p"
    write(folder, "json.py", STEP.format(name="mine", hosts=1))
    assert find("json.py").name == "mine"


@pytest.mark.parametrize(
    ("text", "target", "problem"),
    [
        (None, "none.py", "there is no file none.py"),
        (None, "none.yaml", "there is no file none.yaml"),
        (None, "no.module", "there is no file and no module no.module"),
        (None, "..", "'..' is neither FILE.py, FILE.yaml nor package.module"),
        ("x = 1", "file.py", "file.py has no pipeline and no component"),
        (STEP.format(name="one", hosts=1), "file.py:x", "file.py has no pipeline or component 'x'; it has: one"),
        (
            STEP.format(name="one", hosts=1) + STEP.format(name="two", hosts=1),
            "file.py",
            "file.py has several: one, two; name one: file.py:one",
        ),
        ("a: 1", "file.yaml", "file.yaml is no pipeline or component of KFP: KeyError: 'pipelineInfo'"),
    ],
)
def test_wrong_target(text: str | None, target: str, problem: str, folder: Path) -> None:
    """What cannot be found is said in one line."""
    if text is not None:
        write(folder, target.partition(":")[0], text)
    assert problem_of(target) == problem


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("def f(:\n", ["def f(:", "SyntaxError: invalid syntax"]),
        (
            "def f():\n    return 1 / 0\nf()\n",
            [", line 3, in <module>", ", line 2, in f", "ZeroDivisionError: division by zero"],
        ),
        ("import absent\n", [", line 1, in <module>", "ModuleNotFoundError: No module named 'absent'"]),
        ("raise SystemExit(3)\n", [", line 1, in <module>", "SystemExit: 3"]),
        (
            STEP.format(name="one", hosts=-1),
            [", line 4, in <module>", "DeclarationError: component 'one': 1 problem", "  1. hosts: -1 is less than 1."],
        ),
    ],
)
def test_file_that_raises(text: str, lines: list[str], folder: Path) -> None:
    """A file that raises shows the user's own frames and the exception, and exits with 2."""
    target = write(folder, "file.py", text)
    found = problem_of(target)
    assert found.startswith("file.py cannot be loaded:\n")
    assert [line for line in lines if line not in found] == []
    assert "/kr_kfp/" not in found
    assert "importlib" not in found
    for command in ("run", "compile", "render"):
        done = invoke(command, target)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: file.py cannot be loaded:\n")


def test_prints_of_the_file(folder: Path) -> None:
    """What a user's file prints when it is imported is not part of a command's output."""
    write(folder, "file.py", "print('hello')\n" + STEP.format(name="one", hosts=1))
    assert as_json("render", "file.py")[0]["name"] == "one"


def test_compile(folder: Path) -> None:
    """The compiled file lies in the current folder under the component's name, or where --output says."""
    write(folder, "file.py", STEP.format(name="one_two", hosts=2))
    found = as_json("compile", "file.py")
    assert found == {"name": "one-two", "file": "one-two.yaml", "bytes": (folder / "one-two.yaml").stat().st_size}
    done = invoke("compile", "file.py", "-o", "new/x.yaml")
    assert done.output == f"one-two: new/x.yaml ({found['bytes']:,} bytes)\n"
    assert (folder / "new" / "x.yaml").read_bytes() == (folder / "one-two.yaml").read_bytes()


def test_compile_elsewhere(folder: Path) -> None:
    """Where nothing can be written, and what KFP would not write, is wrong use."""
    write(folder, "file.py", STEP.format(name="one", hosts=2))
    done = invoke("compile", "file.py", "-o", "file.py/x.yaml")
    assert (done.exit_code, done.stderr) == (2, "Error: cannot write file.py/x.yaml: File exists\n")
    done = invoke("compile", "file.py", "-o", "x.json")
    assert (done.exit_code, done.stderr) == (2, "Error: --output x.json: KFP writes only files that end in .yaml\n")


def test_render(folder: Path) -> None:
    """Words and selectors come before the manifest, which can be left out; one step can be chosen."""
    write(folder, "file.py", STEP.format(name="one", hosts=2))
    done = invoke("render", "file.py", "--no-manifest")
    assert done.output.splitlines() == [
        "step one",
        "  backend lws: auto: CPU, 2 hosts in all",
        "  no accelerator, 2 hosts",
        "  the task's pod launches one LeaderWorkerSet of 2 pods; the function runs on every host, "
        "JAX counts 2 devices; host 0's outputs count",
        "  hosts may lie on any nodes that fit: no exclusive topology",
        "  pods run as the launcher's service account, without a token for the API server",
        "  at most 3 restarts of the whole group after a lost host",
        "",
    ]
    assert (
        "  ---\n  apiVersion: leaderworkerset.x-k8s.io/v1\n  kind: LeaderWorkerSet\n"
        in invoke("render", "file.py").output
    )
    (step,) = as_json("render", "file.py", "--step", "one")
    assert list(step) == ["name", "step", "words", "selectors", "manifest", "payload_bytes"]
    (short,) = as_json("render", "file.py", "--no-manifest")
    assert short == {key: value for key, value in step.items() if key != "manifest"}
    assert (step["step"]["backend"], step["step"]["hosts"]) == ("lws", 2)
    done = invoke("render", "file.py", "--step", "two")
    assert (done.exit_code, done.stderr) == (2, "Error: file.py has no step 'two'; it has: one\n")


def test_accelerators_search() -> None:
    """Elsewhere than on a terminal a list is tab-separated, with a header."""
    assert invoke("accelerators", "search", "ct5lp-hightpu-8t").output == (
        "name\tfamily\ttopology\thosts\tchips\tchips/host\tmachine\tlabel\n"
        "v5e:2x4@ct5lp-hightpu-8t\tv5e\t2x4\t1\t8\t8\tct5lp-hightpu-8t\ttpu-v5-lite-podslice\n"
    )
    done = invoke("accelerators", "search", "zork")
    assert (done.exit_code, done.stderr) == (2, "Error: no shape holds 'zork'; see: kr-kfp accelerators list\n")


def test_accelerators_list() -> None:
    """Everything is listed, as text and as JSON."""
    lines = invoke("accelerators", "list").output.splitlines()
    found = as_json("accelerators", "list")
    assert [line.partition("\t")[0] for line in lines[1:]] == [shape["name"] for shape in found]
    assert {len(line.split("\t")) for line in lines} == {8}
    assert next(shape for shape in found if shape["name"] == "v5litepod-16") == {
        "name": "v5litepod-16",
        "kind": "tpu",
        "family": "v5e",
        "topology": "4x4",
        "chips": 16,
        "hosts": 4,
        "chips_per_host": 4,
        "devices_per_host": 4,
        "resource": "google.com/tpu",
        "label": "tpu-v5-lite-podslice",
        "machine": "ct5lp-hightpu-4t",
        "select_machine": False,
        "pathways_type": "tpuv5e",
        "vertex_machine": "ct5lp-hightpu-4t tpuTopology=4x4",
        "arch": "",
    }


def test_explain() -> None:
    """Only conventions that know the name have a line; names, notes and sources follow what is taken."""
    lines = invoke("accelerators", "explain", "v5p-16").output.splitlines()
    assert lines[:12] == [
        "Google's name (Cloud TPU, xpk, axlearn, maxtext): v5p 2x2x2: 8 chips on 2 hosts, 4 chips a host "
        "(16 TensorCores, 2 TensorCores a chip)",
        "kinetic's name (counts chips): v5p 2x2x4: 16 chips on 4 hosts, 4 chips a host (16 chips)",
        "kr_kfp takes: v5p 2x2x2: 8 chips on 2 hosts, 4 chips a host",
        "  machine ct5p-hightpu-4t, 4 JAX devices a host",
        "  node selector cloud.google.com/gke-tpu-accelerator=tpu-v5p-slice",
        "  node selector cloud.google.com/gke-tpu-topology=2x2x2",
        "  toleration google.com/tpu:NoSchedule",
        "  Pathways tpuv5:2x2x2",
        "  Vertex AI not there",
        "  names: v5p-16, v5p:2x2x2, v5p-2x2x2, tpu-v5p-slice:2x2x2, tpu-v5p-slice-2x2x2",
        "  note: kinetic counts chips and calls it v5p-8",
        "  source: GKE node auto-provisioning, GoogleCloudPlatform/cluster-autoscaler @7d25050: label, machine, chips "
        "per host",
    ]
    assert {line[:10] for line in lines[11:]} == {"  source: "}


def test_explain_arm_hosts() -> None:
    """Hosts that are no x86 machines show their architecture as selector and toleration; GPUs have no Pathways."""
    lines = invoke("accelerators", "explain", "gb200x4").output.splitlines()
    assert lines[2:8] == [
        "  machine a4x-highgpu-4g, 4 JAX devices a host",
        "  node selector cloud.google.com/gke-accelerator=nvidia-gb200",
        "  node selector kubernetes.io/arch=arm64",
        "  toleration nvidia.com/gpu:NoSchedule",
        "  toleration kubernetes.io/arch=arm64:NoSchedule",
        "  Vertex AI a4x-highgpu-4g/NVIDIA_GB200 count=4",
    ]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("h100", ["GPU: 1 h100 GPU a host", "kr_kfp takes: 1 h100 GPU a host"]),
        ("t4x2", ["GPU: 2 t4 GPUs a host", "kr_kfp takes: 2 t4 GPUs a host"]),
        (
            "v6e:2x4",
            [
                "topology: v6e 2x4: 8 chips on 2 hosts, 4 chips a host "
                "(on ct6e-standard-4t; v6e:2x4@machine chooses another: ct6e-standard-8t)",
                "kr_kfp takes: v6e 2x4: 8 chips on 2 hosts, 4 chips a host",
            ],
        ),
        (
            "v5litepod-1x1",
            [
                "topology: v5e 1x1: 1 chip on 1 host (family and topology, free of doubt)",
                "kr_kfp takes: v5e 1x1: 1 chip on 1 host",
            ],
        ),
    ],
)
def test_explain_others(name: str, lines: list[str]) -> None:
    """GPUs, topologies and single chips are worded as they are."""
    assert invoke("accelerators", "explain", name).output.splitlines()[: len(lines)] == lines


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        (
            "v4-4",
            [
                "kinetic's name (counts chips): v4 2x2x1: 4 chips on 1 host (4 chips)",
                "kr_kfp takes no such name: 'v4-4' is not an accelerator. Google has no such name; kinetic, which counts "
                "chips, means 'v4-8'. Write that.",
            ],
        ),
        (
            "zork",
            [
                "kr_kfp takes no such name: 'zork' is not a known accelerator. List all with: kr-kfp accelerators list.",
            ],
        ),
    ],
)
def test_explain_unknown(name: str, lines: list[str]) -> None:
    """A name that kr_kfp does not take exits with 2 and says what to write."""
    done = invoke("accelerators", "explain", name)
    assert (done.exit_code, done.output.splitlines()) == (2, lines)


def test_explain_as_json() -> None:
    """The same as JSON, readings by name."""
    found = as_json("accelerators", "explain", "v5p-16")
    assert list(found) == [
        "name",
        "taken",
        "problem",
        "readings",
        "selectors",
        "tolerations",
        "names",
        "sources",
        "notes",
    ]
    assert (found["name"], found["taken"]["topology"], found["problem"]) == ("v5p-16", "2x2x2", None)
    assert [(r["convention"], r["shape"]["topology"], r["why"]) for r in found["readings"]] == [
        ("Google's name (Cloud TPU, xpk, axlearn, maxtext)", "2x2x2", "16 TensorCores, 2 TensorCores a chip"),
        ("kinetic's name (counts chips)", "2x2x4", "16 chips"),
    ]
    assert found["selectors"]["cloud.google.com/gke-tpu-topology"] == "2x2x2"
    assert found["notes"] == ["kinetic counts chips and calls it v5p-8"]
    done = invoke("accelerators", "explain", "zork", "--json")
    assert (done.exit_code, json.loads(done.stdout)["taken"]) == (2, None)


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (None, 0, ""),
        (SystemExit(1), 1, ""),
        (StepFailedError("it failed"), 1, "Error: it failed\n"),
        (
            DeclarationError("step", [Problem("hosts", "no.", "yes.")]),
            2,
            "Error: step: 1 problem\n  1. hosts: no. Fix: yes.\n",
        ),
        (TargetError("no such thing"), 2, "Error: no such thing\n"),
        (KeyboardInterrupt(), 75, ""),
    ],
)
def test_exit_code(
    raised: BaseException | None,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The documented exit codes: 0 well, 1 failed, 2 wrong use or declaration, 75 stopped."""

    def command(*, standalone_mode: bool) -> int:
        assert not standalone_mode
        if raised is not None:
            raise raised
        return 0

    monkeypatch.setattr(entry, "cli", command)
    with pytest.raises(SystemExit) as left:
        entry.main()
    assert left.value.code == code
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("words", [["runn"], ["run"], ["run", "--zork", "a.py"], ["accelerators", "explain"]])
def test_wrong_use(words: list[str]) -> None:
    """Wrong words exit with 2 and show how to get help."""
    done = invoke(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith("Usage: ")
    assert "--help" in done.stderr


def test_help() -> None:
    """Help of the whole says the exit codes, and each command in a whole sentence."""
    lines = invoke("--help").output
    assert "75 stopped by a signal" in " ".join(lines.split())
    assert "..." not in lines.partition("Commands:")[2]


def test_root_that_cannot_be(folder: Path) -> None:
    """A root that cannot be made is wrong use."""
    write(folder, "file.py", STEP.format(name="one", hosts=1))
    done = invoke("run", "file.py", "a=1", "--root", "file.py/x")
    assert (done.exit_code, done.stderr) == (2, "Error: --root file.py/x: Not a directory\n")
    assert os.listdir(folder) == ["file.py"]  # noqa: PTH208


def test_progress() -> None:
    """The tasks' states follow from kfp.local's lines; what a signal stops is not called failed."""
    signals: list[int] = []
    progress = _Progress(signals)
    for second, line in enumerate(
        [
            "06:03 - INFO - Executing task 'a'",
            "06:03 - INFO - Task 'a' finished with status SUCCESS",
            "06:03 - INFO - Executing task 'b'",
            "Task 'b' finished with status FAILURE",
            "Executing task 'c'",
        ]
    ):
        progress.see(line, float(second))
    signals.append(2)
    progress.end(9.0)
    assert progress.tasks == {"a": ("done", 0.0, 1.0), "b": ("failed", 2.0, 3.0), "c": ("stopped", 4.0, 9.0)}


@pytest.mark.parametrize(
    "text", ["\x1b[1;31mred\x1b[0m", "\x1b]0;title\x07red", "\x1b[2K\x1b[1Gred", "\x1b]8;;http://x\x1b\\red"]
)
def test_escapes(text: str) -> None:
    """Everything that a terminal would obey is taken out of log lines."""
    assert _ESCAPES.sub("", text) == "red"
