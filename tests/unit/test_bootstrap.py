"""The shell script in front of KFP's command, read back and run by a real ``sh`` with a fake python3."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kr_kfp.errors import WireError
from kr_kfp.runtime.bootstrap import KILL_COMMAND, PID_FILE, STOP_FILE, Verb, parse_arguments, prefix, split
from kr_kfp.wire import CHUNK_LIMIT, PROTOCOL

VERBS: tuple[Verb, ...] = ("launch", "run", "provide")
OWN = ["sh", "-c", 'python3 -m pip install x && "$0" "$@"', "--", "--executor_input", "{{$}}"]
PIP = "-m pip install -q --disable-pip-version-check --root-user-action=ignore"

FAKE = """\
#!/bin/sh
# Logs its arguments, one call a line, and ends with the code that the test wants for this kind of call.
printf '%s\\n' "$*" >> "$FAKE_LOG"
case "$*" in
  *'from kr_kfp.wire import'*) exit "${HAS_KR_KFP:-1}" ;;
  -V) echo "Python ${VERSION:-3.12.1}" ;;
  '-m pip -V') exit "${NO_PIP:-0}" ;;
  '-m ensurepip') exit "${NO_ENSUREPIP:-0}" ;;
  '-m pip install '*kubernetes*) exit "${NO_CLIENT:-0}" ;;
  '-m pip install '*) exit "${NO_INSTALL:-0}" ;;
  '-m kr_kfp.runtime '*) exit "${RUNTIME:-0}" ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of the script left."""

    code: int
    calls: list[str]
    said: str
    message: str


@dataclass(frozen=True, slots=True)
class Box:
    """A folder whose only python3 is the fake one."""

    folder: Path

    def run(self, command: Sequence[str], **env: str) -> Ran:
        """Run a command made by prefix()."""
        log, message = self.folder / "log", self.folder / "termination"
        log.write_text("", encoding="utf-8")
        message.unlink(missing_ok=True)
        full = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "FAKE_LOG": str(log),
            "KR_KFP_TERMINATION_LOG": str(message),
            **env,
        }
        done = subprocess.run(list(command), env=full, check=False, capture_output=True, text=True)
        return Ran(
            done.returncode,
            [line for line in log.read_text(encoding="utf-8").splitlines() if not line.startswith("-c ")],
            done.stderr,
            message.read_text(encoding="utf-8") if message.exists() else "",
        )


@pytest.fixture(name="box")
def fake_box(tmp_path: Path) -> Box:
    """Put the fake python3 on a PATH of its own."""
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "python3"
    fake.write_text(FAKE, encoding="utf-8")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    return Box(tmp_path)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("length", [0, 1, CHUNK_LIMIT, 2 * CHUNK_LIMIT + 1])
def test_round_trip(verb: Verb, length: int) -> None:
    """What was put into the command is read back from it, whatever its size."""
    packed = "x" * length
    assert split([*prefix(verb, packed, requirement="kr-kfp==1"), *OWN]) == (verb, packed, OWN)


def test_form() -> None:
    """The command is: sh -c SCRIPT kr-kfp VERB N CHUNK... python3 --."""
    command = prefix("launch", "x" * CHUNK_LIMIT + "y", requirement=None)
    assert command[:2] == ["sh", "-c"]
    assert command[3:] == ["kr-kfp", "launch", "2", "x" * CHUNK_LIMIT, "y", "python3", "--"]
    assert max(len(part.encode()) for part in command) <= CHUNK_LIMIT


def test_parse_arguments_tells_what_python3_became() -> None:
    """kfp.local's path for python3 is read from the place that held the plain word."""
    arguments = ["run", "1", "chunk", "/venv/bin/python", "--", "a", "--", "b"]
    assert parse_arguments(arguments) == ("run", "chunk", "/venv/bin/python", ["a", "--", "b"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "list index out of range"),
        (["run"], "list index out of range"),
        (["run", "one"], "invalid literal for int() with base 10: 'one'"),
        (["run", "1", "chunk", "python3"], "list index out of range"),
        (["run", "0", "python3", "x"], "verb 'run', mark 'x'"),
        (["other", "0", "python3", "--"], "verb 'other', mark '--'"),
    ],
)
def test_parse_arguments_refuses(arguments: list[str], message: str) -> None:
    """Arguments of another form are an error that says the form."""
    with pytest.raises(WireError) as caught:
        parse_arguments(arguments)
    assert str(caught.value) == f"not of the form: verb n chunk... python3 -- command...: {message}"


@pytest.mark.parametrize("command", [[], OWN, ["python3", "-m", "x"], ["sh", "-c", "x", "kr-kfp", "run"]])
def test_split_refuses(command: list[str]) -> None:
    """A command of another component is told apart."""
    with pytest.raises(WireError, match="the command does not begin with kr_kfp's prefix"):
        split(command)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("requirement", [None, "kr-kfp==1.0", "kr-kfp @ file:///it's here/x.whl"])
def test_sh_accepts_the_script(verb: Verb, requirement: str | None) -> None:
    """The script is a valid one for sh, with and without an installation."""
    script = prefix(verb, "x", requirement=requirement, index_urls=["https://a b/simple"])[2]
    done = subprocess.run(["sh", "-n", "-c", script], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("requirement", [None, "kr-kfp==1.0"])
def test_nothing_is_installed_where_kr_kfp_is(verb: Verb, requirement: str | None, box: Box) -> None:
    """With kr_kfp of this protocol in the image the verb runs at once, with all arguments and the verb's exit code."""
    ran = box.run([*prefix(verb, "chunk", requirement=requirement), "a b", "c"], HAS_KR_KFP="0", RUNTIME="7")
    assert ran == Ran(7, [f"-m kr_kfp.runtime {verb} 1 chunk python3 -- a b c"], "", "")


def test_protocol_is_asked_for(box: Box) -> None:
    """A kr_kfp of another protocol does not count as there."""
    box.run(prefix("run", "chunk", requirement=None))
    asked = (box.folder / "log").read_text(encoding="utf-8").splitlines()[0]
    assert asked == f"-c from kr_kfp.wire import PROTOCOL as p; raise SystemExit(p != {PROTOCOL})"


@pytest.mark.parametrize("verb", VERBS)
def test_installs_where_it_is_absent(verb: Verb, box: Box) -> None:
    """Without kr_kfp pip installs it alone; only what is handed on to a training container takes obstore along."""
    ran = box.run(prefix(verb, "chunk", requirement="kr-kfp==1.0"))
    assert ran.code == 0
    assert ran.calls == [
        "-m pip -V",
        f"{PIP} --no-deps kr-kfp==1.0",
        *([f"{PIP} obstore>=0.12,<0.13"] if verb == "provide" else []),
        f"-m kr_kfp.runtime {verb} 1 chunk python3 --",
    ]
    assert ran.message == ""


@pytest.mark.parametrize(("verb", "clients"), [("launch", 1), ("run", 0), ("provide", 0)])
def test_client_is_for_the_launcher_in_a_pod(verb: Verb, clients: int, box: Box) -> None:
    """Only a launcher in a KFP pod talks to Kubernetes and needs its client."""
    ran = box.run(prefix(verb, "chunk", requirement="kr-kfp==1.0"), KFP_POD_NAME="p")
    assert ran.calls.count(f"{PIP} kubernetes>=30,<40") == clients
    assert len(ran.calls) == 3 + clients + (verb == "provide")


@pytest.mark.parametrize(
    ("urls", "hosts", "options"),
    [
        ([], None, ""),
        (["https://a/simple"], None, " --index-url https://a/simple --trusted-host https://a/simple"),
        (
            ["https://a/simple", "https://b/simple"],
            ["b"],
            " --index-url https://a/simple --extra-index-url https://b/simple --trusted-host b",
        ),
        (["https://a/simple"], [], " --index-url https://a/simple"),
    ],
)
def test_index_urls(urls: list[str], hosts: list[str] | None, options: str, box: Box) -> None:
    """Indexes and trusted hosts are those of the component's own packages; None trusts the indexes, as KFP does."""
    ran = box.run(prefix("run", "chunk", requirement="kr-kfp==1.0", index_urls=urls, trusted_hosts=hosts))
    assert ran.calls[1] == f"{PIP}{options} --no-deps kr-kfp==1.0"


def test_package_override(box: Box) -> None:
    """KR_KFP_PACKAGE is installed in place of the requirement, blanks in its path and all."""
    ran = box.run(prefix("run", "chunk", requirement="kr-kfp==1.0"), KR_KFP_PACKAGE="/my wheels/x.whl")
    assert ran.calls[1] == f"{PIP} --no-deps /my wheels/x.whl"


def test_requirement_is_quoted(box: Box) -> None:
    """A requirement is one argument, whatever a shell would make of it."""
    ran = box.run(prefix("run", "chunk", requirement="kr-kfp @ file:///it's/$HOME/`x`.whl"))
    assert ran.calls[1] == f"{PIP} --no-deps kr-kfp @ file:///it's/$HOME/`x`.whl"


def test_pip_by_ensurepip(box: Box) -> None:
    """An image without pip gets the one that Python carries."""
    ran = box.run(prefix("run", "chunk", requirement="kr-kfp==1.0"), NO_PIP="1")
    assert ran.calls[:3] == ["-m pip -V", "-m ensurepip", f"{PIP} --no-deps kr-kfp==1.0"]
    assert ran.code == 0


INSTALL_FAILED = (
    "kr_kfp: pip could not install kr-kfp==1.0 on Python 3.12.1. Python 3.11 or newer is needed. "
    "Install kr-kfp in the image."
)


@pytest.mark.parametrize(
    ("requirement", "env", "message"),
    [
        (
            "kr-kfp==1.0",
            {"VERSION": "3.9.2", "NO_INSTALL": "1"},
            INSTALL_FAILED.replace("3.12.1", "3.9.2"),
        ),
        (
            None,
            {},
            "kr_kfp: kr_kfp of protocol 1 is not in the image and install_kr_kfp_package=False on Python 3.12.1. "
            "Python 3.11 or newer is needed. Install kr-kfp in the image.",
        ),
        ("kr-kfp==1.0", {"NO_PIP": "1", "NO_ENSUREPIP": "1", "NO_INSTALL": "1"}, INSTALL_FAILED),
        ("kr-kfp==1.0", {"NO_INSTALL": "1"}, INSTALL_FAILED),
        ("kr-kfp==1.0", {"NO_CLIENT": "1", "KFP_POD_NAME": "p"}, INSTALL_FAILED),
    ],
    ids=["old-python", "not-allowed", "no-pip", "pip-failed", "client-failed"],
)
def test_failure(requirement: str | None, env: dict[str, str], message: str, box: Box) -> None:
    """Surroundings that are wrong end with 64 and one sentence, in the log and in the termination message."""
    ran = box.run(prefix("launch", "chunk", requirement=requirement), **env)
    assert ran.code == 64
    assert ran.message == message
    assert ran.said.splitlines()[-1] == message
    assert not any(call.startswith("-m kr_kfp.runtime") for call in ran.calls)


def test_no_python_at_all(box: Box) -> None:
    """An image without python3 is told so, not "not found" by the shell alone."""
    (box.folder / "bin" / "python3").unlink()
    done = subprocess.run(
        ["/bin/sh", *prefix("run", "chunk", requirement="kr-kfp==1.0")[1:]],
        env={"PATH": str(box.folder / "bin")},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 64
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kr_kfp: pip could not install kr-kfp==1.0 on ")
    assert "python3: not found" in last
    assert last.endswith(". Python 3.11 or newer is needed. Install kr-kfp in the image.")


def kill(number: int, folder: Path) -> int:
    """Run the kill command as Argo does: with the signal's number for ``%d``."""
    assert [part.count("%d") for part in KILL_COMMAND] == [0, 0, 1]
    command = [part.replace("%d", str(number)) for part in KILL_COMMAND]
    return subprocess.run(command, env={**os.environ, "KR_KFP_RUN_DIR": str(folder)}, check=False).returncode


@pytest.fixture(name="dummy")
def dummy_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that says "told" and ends with 3 on SIGUSR1, its id in the pid file."""
    code = (
        "import signal, sys\n"
        "def told(*_):\n"
        "    print('told', flush=True)\n"
        "    sys.exit(3)\n"
        "signal.signal(signal.SIGUSR1, told)\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (tmp_path / PID_FILE).write_text(f"{process.pid}\n", encoding="ascii")
        yield process
        process.kill()


def test_terminate_becomes_sigusr1(dummy: subprocess.Popen[str], tmp_path: Path) -> None:
    """Argo's 15 reaches the launcher as SIGUSR1; no stop file is left."""
    assert kill(15, tmp_path) == 0
    assert dummy.wait(timeout=30) == 3
    assert dummy.stdout is not None
    assert dummy.stdout.read() == "told\n"
    assert not (tmp_path / STOP_FILE).exists()


def test_kill_stays_kill(dummy: subprocess.Popen[str], tmp_path: Path) -> None:
    """Argo's 9 is a SIGKILL for the launcher."""
    assert kill(9, tmp_path) == 0
    assert dummy.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.parametrize("number", [15, 9])
@pytest.mark.parametrize("content", [None, ""], ids=["absent", "empty"])
def test_stop_file_before_the_pid_is_known(number: int, content: str | None, tmp_path: Path) -> None:
    """A launcher that has not written its id yet finds a stop file."""
    if content is not None:
        (tmp_path / PID_FILE).write_text(content, encoding="ascii")
    assert kill(number, tmp_path) == 0
    assert (tmp_path / STOP_FILE).read_text(encoding="ascii") == ""
