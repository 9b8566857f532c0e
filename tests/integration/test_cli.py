"""The command line as people use it: real processes, files of their own, on a terminal and not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Process, children
from tests.local_kit import Kit, kit_fixture, until

__all__ = ["kit_fixture"]

ROOT = Path(__file__).parents[2]

STEPS = """
from kfp import dsl
import kr_kfp

print("imported by", __name__)


@kr_kfp.component(framework="none", install_kfp_package=False)
def types(text: str, whole: int, real: float, flag: bool, items: list, table: dict, left: str = "out") -> dict:
    return {"all": [text, whole, real, flag, items, table, left]}


@kr_kfp.component(hosts=2, framework="none", install_kfp_package=False)
def both(model: dsl.Output[dsl.Model], mode: str = "ok", start: dict = {}) -> str:
    import time

    me = kr_kfp.context()
    if mode == "raise" and me.host == 1:
        raise ValueError("host one is unhappy")
    if mode == "wait":
        print("waiting for the end", "\\x1b[31mred\\x1b[0m", flush=True)
        while not me.preempted():
            time.sleep(0.02)
    if me.is_leader:
        open(model.path, "w").write("weights")
        model.metadata["hosts"] = me.hosts
    return f"{me.hosts} hosts"


@dsl.pipeline(name="Types Then Both")
def pipe(text: str = "a") -> str:
    first = types(text=text, whole=1, real=0.5, flag=True, items=[1], table={})
    return both(start=first.output).outputs["Output"]
"""


@pytest.fixture(name="folder")
def steps_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with the user's file, which is where commands run."""
    (tmp_path / "steps.py").write_text(STEPS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kr_kfp(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "kr_kfp", *words], capture_output=True, text=True, check=False, timeout=300
    )


def as_json(*words: str) -> Any:
    """Run a command that succeeds, and read what it prints."""
    done = kr_kfp(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def start(words: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a command."""
    given = options.pop("preexec_fn", None)

    def prepare() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup, which children inherit
        if given is not None:
            given()

    return subprocess.Popen([sys.executable, "-m", "kr_kfp", *words], preexec_fn=prepare, **options)  # noqa: PLW1509


def hosts_of(kit: Kit) -> list[int]:
    """List the processes of hosts; the supervisor of a deleted group needs some more milliseconds to leave."""
    commands = {pid: _command_line(pid) for pid in kit.processes()}
    # One that has none any more has ended meanwhile.
    return [pid for pid, line in commands.items() if line and b"kr_kfp.cluster.supervisor" not in line]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_arguments_of_every_type(folder: Path) -> None:
    """A one-pod step gets each type as Python's own; whole numbers do for a float; texts stay as they are."""
    given = ("text=1=\u2028 $$ $(HOME)", "whole=-3", "real=2", "flag=True", 'items=[1, "x"]', 'table={"a": {"b": "ü"}}')
    found = as_json("run", "steps.py:types", *given, "--root", "out")
    assert found.pop("seconds") > 0
    assert found == {
        "exit_code": 0,
        "root": str(folder / "out"),
        "outputs": {"Output": {"all": ["1=\u2028 $$ $(HOME)", -3, 2.0, True, [1, "x"], {"a": {"b": "ü"}}, "out"]}},
    }


def test_step_on_two_hosts(folder: Path, kit: Kit) -> None:
    """Outputs are parameters by value and artifacts by place; the user's own prints do not disturb the document."""
    found = as_json("run", "steps.py:both")
    model = found["outputs"]["model"]
    assert found["outputs"]["Output"] == "2 hosts"
    assert (model["type"], model["metadata"]) == ("system.Model", {"hosts": 2})
    assert Path(model["uri"]).read_text(encoding="utf-8") == "weights"
    assert Path(model["uri"]).is_relative_to(folder / "local_outputs")
    until(lambda: not kit.processes(), "the end of all processes")


def test_failing_host(folder: Path, kit: Kit) -> None:
    """A failed run exits with 1; host, exception and line are in the log, which --json sends to standard error."""
    done = kr_kfp("run", "steps.py:both", "mode=raise", "--json")
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["exit_code"], found["outputs"]) == (1, {})
    line = next(n for n, text in enumerate(STEPS.splitlines(), 1) if "unhappy" in text)
    assert "kr_kfp: both failed in attempt 0: host 1 failed: ValueError: host one is unhappy" in done.stderr
    assert f"steps.py:{line} in both()" in done.stderr
    until(lambda: not kit.processes(), "the end of all processes")


def test_compiled_file(folder: Path, kit: Kit) -> None:
    """A compiled pipeline renders as its source does, and runs too; plain output holds no escape codes."""
    compiled = as_json("compile", "steps.py")
    assert compiled == {
        "name": "types-then-both",
        "file": "types-then-both.yaml",
        "bytes": (folder / "types-then-both.yaml").stat().st_size,
    }
    from_source = as_json("render", "steps.py:pipe")
    assert [step["name"] for step in from_source] == ["types", "both"]
    assert as_json("render", "types-then-both.yaml") == from_source
    texts = [kr_kfp("render", place).stdout for place in ("steps.py", "types-then-both.yaml")]
    assert texts[0] == texts[1]
    done = kr_kfp("run", "types-then-both.yaml", "text=b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith('output\tvalue\nOutput\t"2 hosts"\n')
    assert "\x1b" not in done.stdout + done.stderr + texts[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal(folder: Path, kit: Kit, number: signal.Signals) -> None:
    """A signal to kr-kfp alone ends everything: exit 75, after the hosts are gone."""
    with start(["run", "steps.py:both", "mode=wait"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        seen = []
        for line in process.stdout:
            seen.append(line.decode())
            if "waiting for the end" in seen[-1]:
                process.send_signal(number)
        code = process.wait(240)
    name = "SIGINT" if number == signal.SIGINT else "SIGTERM"
    assert code == 75
    assert hosts_of(kit) == []
    assert f"both was cancelled by {name}; its group of hosts was deleted" in "".join(seen)
    assert seen[-1].startswith("steps.py:both was stopped after ")
    assert "\x1b" not in "".join(seen)
    until(lambda: not kit.processes(), "the end of all processes")


def test_kill(folder: Path, kit: Kit) -> None:
    """Where kr-kfp itself is killed the step is cancelled, and neither worker nor hosts stay."""
    with start(["run", "steps.py:both", "mode=wait"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        assert any(b"waiting for the end" in line for line in process.stdout)
        (worker,) = map(Process.find, children(process.pid))
        process.kill()
        assert process.wait(240) == -signal.SIGKILL
    assert worker
    until(lambda: not worker.alive(), "the end of the worker")
    assert hosts_of(kit) == []
    until(lambda: not kit.processes(), "the end of all processes")


def test_ctrl_c_on_a_terminal(folder: Path, kit: Kit) -> None:
    """Ctrl-C on a terminal, with the tasks' state drawn below the log: the same."""
    master, terminal = os.openpty()
    process = start(["run", "steps.py:both", "mode=wait"], preexec_fn=lambda: os.login_tty(terminal))
    os.close(terminal)
    seen = b""
    pressed = False
    # Linux ends the reading of a terminal that everybody has closed with an error.
    while chunk := _read(master):
        seen += chunk
        if b"waiting for the end" in seen and not pressed:
            pressed = True
            os.write(master, b"\x03")
    os.close(master)
    assert process.wait(240) == 75
    assert hosts_of(kit) == []
    text = seen.decode()
    assert "\x1b[33mrunning\x1b[0m  both" in text
    assert "\x1b[31mstopped\x1b[0m  both" in text
    assert "\x1b[31mred" not in text
    assert "both was cancelled by SIGINT; its group of hosts was deleted" in text
    until(lambda: not kit.processes(), "the end of all processes")


def _read(file: int) -> bytes:
    try:
        return os.read(file, 65536)
    except OSError:
        return b""
