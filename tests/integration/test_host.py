"""The runner and the executor as real processes: how user code ends is what the outcome says."""

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kfp import dsl

from kr_kfp.wire import OUTCOME_PREFIX, Outcome, unpack
from tests.hosts import Host, free_port, payload_of, start_host, until


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def train(mode: str, model: dsl.Output[dsl.Model]) -> str:
    import ctypes
    import os
    import subprocess
    import sys
    import time

    print("mode", mode, flush=True)
    if mode == "raise":
        raise ValueError("boom $$ $(HOME) 'ü'")
    if mode == "exit":
        os._exit(3)
    if mode == "exit0":
        os._exit(0)
    if mode == "sys.exit":
        sys.exit(0)
    if mode == "segfault":
        ctypes.string_at(0)
    if mode == "kill":
        os.kill(os.getpid(), 9)
    if mode == "wait":
        subprocess.Popen(["sleep", "600"])
        print("waiting", flush=True)
        time.sleep(600)
    if mode == "hang-at-exit":
        import threading

        threading.Thread(target=time.sleep, args=(600,)).start()
    if mode == "context":
        import kr_kfp

        print("context", kr_kfp.context(), flush=True)
    if mode == "preempted":
        import kr_kfp

        ctx = kr_kfp.context()
        print("waiting", flush=True)
        while not ctx.preempted():
            time.sleep(0.05)
        print("saved", flush=True)
    if mode != "no-file":
        open(model.path, "w").write("weights")
    model.metadata["mode"] = mode
    return "é" * (5000 if mode == "large" else 3)


@pytest.fixture(name="hosts")
def _hosts() -> Iterator[list[Host]]:
    started: list[Host] = []
    yield started
    for host in started:
        host.kill()


def end(mode: str, tmp_path: Path, hosts: list[Host], index: int = 0) -> tuple[int, Outcome, Host]:
    payload = payload_of(train, tmp_path / "out", {"mode": mode})
    hosts.append(start_host(payload, tmp_path / "host", index))
    return hosts[-1].wait(), hosts[-1].outcome(), hosts[-1]


def test_good_end_carries_the_outputs(tmp_path: Path, hosts: list[Host]) -> None:
    """The leader's return value, artifact and metadata are in its outcome."""
    code, outcome, _ = end("ok", tmp_path, hosts)
    assert (code, outcome.kind) == (0, "ok")
    assert outcome.outputs is not None
    output = outcome.outputs["executorOutput"]
    assert output["parameterValues"] == {"Output": "ééé"}
    artifact = output["artifacts"]["model"]["artifacts"][0]
    assert artifact == {"name": "model", "uri": str(tmp_path / "out" / "model"), "metadata": {"mode": "ok"}}
    assert (tmp_path / "out" / "model").read_text() == "weights"


@pytest.mark.parametrize(
    ("mode", "code", "kind", "number", "detail"),
    [
        ("exit", 3, "exit", 0, "the process ended with exit code 3 before the function returned"),
        ("exit0", 1, "exit", 0, "the process ended with exit code 0 before the function returned"),
        ("sys.exit", 1, "exit", 0, "sys.exit(0) ended the process before the function returned"),
        ("segfault", 139, "signal", 11, "the process ended with signal SIGSEGV before the function returned"),
        ("kill", 137, "signal", 9, "the process ended with signal SIGKILL before the function returned"),
    ],
)
def test_bad_ends(mode: str, code: int, kind: str, number: int, detail: str, tmp_path: Path, hosts: list[Host]) -> None:
    """Every way to end before the function returned is a failure that says which."""
    seen, outcome, _ = end(mode, tmp_path, hosts)
    assert (seen, outcome.code, outcome.kind, outcome.signal, outcome.detail) == (code, code, kind, number, detail)
    assert outcome.outputs is None


def test_exception_names_the_line_in_the_authors_file(tmp_path: Path, hosts: list[Host]) -> None:
    """Exception, text and line arrive, translated to the file the author wrote; KFP's frames are left out."""
    code, outcome, host = end("raise", tmp_path, hosts)
    assert (code, outcome.kind) == (1, "exception")
    error = outcome.error
    assert error is not None
    assert (error.type, error.message) == ("ValueError", "boom $$ $(HOME) 'ü'")
    assert (error.file, error.line, error.function) == ("/home/me/train.py", 109, "train")
    assert error.source == "raise ValueError(\"boom $$ $(HOME) 'ü'\")"
    assert error.traceback.splitlines()[1] == '  File "/home/me/train.py", line 109, in train'
    assert "executor_main" not in error.traceback
    assert error.traceback in host.text()


def test_segfault_names_its_line(tmp_path: Path, hosts: list[Host]) -> None:
    """Faulthandler's stack becomes the place of a native crash."""
    _, outcome, _ = end("segfault", tmp_path, hosts)
    error = outcome.error
    assert error is not None
    assert (error.message, error.file, error.line) == (
        "Fatal Python error: Segmentation fault",
        "/home/me/train.py",
        117,
    )


def test_second_start_holds_and_prints_one_line(tmp_path: Path, hosts: list[Host]) -> None:
    """A restarted container prints the outcome, runs nothing, and leaves at once on SIGTERM."""
    _, outcome, first = end("large", tmp_path, hosts)
    assert outcome.outputs is None, "over 4 KiB: only a digest"
    first.log.unlink()
    payload = payload_of(train, tmp_path / "out", {"mode": "large"})
    second = start_host(payload, tmp_path / "host")
    hosts.append(second)
    line = second.await_text("\n")
    assert line.count("\n") == 1
    whole = Outcome.from_json(unpack(line.strip().removeprefix(OUTCOME_PREFIX)))
    assert whole.outputs is not None
    assert whole.outputs["executorOutput"]["parameterValues"] == {"Output": "é" * 5000}
    assert second.process.poll() is None
    second.process.send_signal(signal.SIGTERM)
    assert second.wait(20) == 0, "at once: it waits for nothing that could end"


def test_killed_runner_is_found_lost(tmp_path: Path, hosts: list[Host]) -> None:
    """When the runner itself was killed, its second start runs nothing and says so."""
    payload = payload_of(train, tmp_path / "out", {"mode": "wait"})
    first = start_host(payload, tmp_path / "host")
    hosts.append(first)
    first.await_text("waiting")
    first.kill()
    second = start_host(payload, tmp_path / "host")
    hosts.append(second)
    second.await_text(OUTCOME_PREFIX)
    assert second.marker().kind == "lost"
    assert second.text().count("waiting") == 1


def test_sigterm_from_outside(tmp_path: Path, hosts: list[Host]) -> None:
    """SIGTERM reaches user code; without a wish to save, the process ends and the outcome tells who asked."""
    payload = payload_of(train, tmp_path / "out", {"mode": "wait"})
    host = start_host(payload, tmp_path / "host")
    hosts.append(host)
    host.await_text("waiting")
    host.process.send_signal(signal.SIGTERM)
    assert host.wait() == 143
    assert host.outcome().kind == "terminated"
    assert host.outcome().detail == "SIGTERM came from outside while the function ran"


def test_preempted_lets_user_code_save(tmp_path: Path, hosts: list[Host]) -> None:
    """context().preempted() turns true; returning then is no success, since the work was cut short."""
    payload = payload_of(train, tmp_path / "out", {"mode": "preempted"})
    host = start_host(payload, tmp_path / "host")
    hosts.append(host)
    host.await_text("waiting")
    host.process.send_signal(signal.SIGTERM)
    host.wait()
    assert "saved" in host.text()
    assert host.outcome().kind == "terminated"


def test_process_that_does_not_end(tmp_path: Path, hosts: list[Host]) -> None:
    """A thread that keeps the process alive after the function returned is cut after two seconds, and that is fine."""
    begun = time.monotonic()
    code, outcome, _ = end("hang-at-exit", tmp_path, hosts)
    assert outcome.kind == "ok"
    assert code == 0
    assert 2.0 < time.monotonic() - begun < 300.0, "the thread itself would stay for 600 s"


def test_grandchildren_do_not_outlive_the_function(tmp_path: Path, hosts: list[Host]) -> None:
    """What user code started goes when its process ends."""
    payload = payload_of(train, tmp_path / "out", {"mode": "wait"})
    host = start_host(payload, tmp_path / "host", env={"KR_TEST_MARK": str(tmp_path)})
    hosts.append(host)
    host.await_text("waiting")
    host.process.send_signal(signal.SIGTERM)
    host.wait()
    mark = f"KR_TEST_MARK={tmp_path}".encode()
    left = [str(host.process.pid)]
    # The kernel takes a moment to take what was killed out of /proc.
    for _ in until(60, "the end of all processes"):
        left = [p.name for p in Path("/proc").iterdir() if p.name.isdigit() and mark in _environ(p)]
        if not left:
            break
    assert left == []


def _environ(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def test_worker_writes_no_outputs(tmp_path: Path, hosts: list[Host]) -> None:
    """A worker's file in an output's path is an error that names it; its uri stays KFP's."""
    code, outcome, _ = end("ok", tmp_path, hosts, index=1)
    assert (code, outcome.kind) == (1, "worker-files")
    assert outcome.detail.startswith(
        "a worker wrote into the path of an output, where only host 0's files count: model."
    )
    assert not (tmp_path / "out" / "model").exists()


def test_worker_without_files_ends_well(tmp_path: Path, hosts: list[Host]) -> None:
    """A worker that leaves outputs alone ends well, without outputs of its own."""
    code, outcome, _ = end("no-file", tmp_path, hosts, index=1)
    assert (code, outcome.kind, outcome.outputs) == (0, "ok", None)


def test_output_that_got_nothing_is_named(tmp_path: Path, hosts: list[Host]) -> None:
    """Metadata counts as something; nothing at all is a warning that names the output."""
    _, outcome, _ = end("no-file", tmp_path, hosts)
    assert outcome.warnings == ()
    payload = payload_of(nothing, tmp_path / "out", {})
    hosts.append(start_host(payload, tmp_path / "other"))
    hosts[-1].wait()
    assert hosts[-1].outcome().warnings == (
        "output 'model' got neither a file nor metadata; a consumer will find nothing",
    )


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def nothing(model: dsl.Output[dsl.Model]) -> str:
    return "x"


def test_context_of_a_host(tmp_path: Path, hosts: list[Host]) -> None:
    """User code sees its place."""
    payload = payload_of(train, tmp_path / "out", {"mode": "context"}, hosts=4)
    hosts.append(start_host(payload, tmp_path / "host", 0, env={"KR_KFP_ATTEMPT": "2", "KR_KFP_RUN": "r"}))
    hosts[-1].wait()
    assert "Context(run='r', task='train', attempt=2, host=0, hosts=4, process=0" in hosts[-1].text()


def test_attempt_writes_beside(tmp_path: Path, hosts: list[Host]) -> None:
    """Attempt 2 writes its artifact to <uri>-r2 and says so."""
    payload = payload_of(train, tmp_path / "out", {"mode": "ok"})
    hosts.append(start_host(payload, tmp_path / "host", 0, env={"KR_KFP_ATTEMPT": "2"}))
    hosts[-1].wait()
    outputs = hosts[-1].outcome().outputs
    assert outputs is not None
    artifact = outputs["executorOutput"]["artifacts"]["model"]["artifacts"][0]
    assert artifact["uri"] == str(tmp_path / "out" / "model-r2")
    assert (tmp_path / "out" / "model-r2").read_text() == "weights"
    assert not (tmp_path / "out" / "model").exists()


LATE_NAME = """
import os, socket
real = socket.getaddrinfo
def getaddrinfo(host, *rest, **named):
    if host == "leader.test" and not os.path.exists(os.environ["LEADER_IS_THERE"]):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return real("127.0.0.1" if host == "leader.test" else host, *rest, **named)
socket.getaddrinfo = getaddrinfo
"""


def start_module(folder: Path, text: str) -> str:
    """Write a module that Python loads at start; gives the PYTHONPATH that finds it."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return f"{folder}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")


def test_leader_that_never_resolves(tmp_path: Path, hosts: list[Host]) -> None:
    """A worker waits for the leader's name with progress lines up to its limit, then names host, name and limit."""
    env = {
        "LWS_LEADER_ADDRESS": "leader.test",
        "LEADER_IS_THERE": str(tmp_path / "never"),
        "PYTHONPATH": start_module(tmp_path / "site", LATE_NAME),
    }
    payload = payload_of(train, tmp_path / "out", {"mode": "ok"}, hosts=2, resolve_limit=4.5)
    hosts.append(start_host(payload, tmp_path / "host", 1, env=env))
    assert hosts[-1].wait() == 64
    outcome = hosts[-1].outcome()
    assert outcome.kind == "setup"
    assert outcome.detail.startswith("host 1 could not resolve the leader leader.test for 4 s (")
    assert re.search(r"host 1 waits for the name leader\.test \([0-4] of 4 s\)", hosts[-1].text())
    assert "mode" not in hosts[-1].text()


def test_leader_that_resolves_later(tmp_path: Path, hosts: list[Host]) -> None:
    """A worker whose leader's name appears while it waits goes on and ends well."""
    there = tmp_path / "there"
    env = {
        "LWS_LEADER_ADDRESS": "leader.test",
        "LEADER_IS_THERE": str(there),
        "PYTHONPATH": start_module(tmp_path / "site", LATE_NAME),
    }
    payload = payload_of(train, tmp_path / "out", {"mode": "no-file"}, hosts=2, resolve_limit=300)
    host = start_host(payload, tmp_path / "host", 1, env=env)
    hosts.append(host)
    text = host.await_text("host 1 waits for the name leader.test (")
    assert "mode" not in text
    there.touch()
    assert host.wait() == 0
    assert host.outcome().kind == "ok"
    assert "mode no-file" in host.text()


@dsl.component(base_image="python:3.12", install_kfp_package=False)
def collective(mode: str, pause: float = 1.0) -> str:
    import os
    import time

    import jax
    import jax.numpy as jnp
    from jax.experimental import multihost_utils

    if mode == "import":
        import asks_for_devices  # type: ignore[import-not-found] # the test writes it

        print("module saw", asks_for_devices.COUNT, asks_for_devices.late(), flush=True)
    jax.distributed.initialize()
    me = jax.process_index()
    print("devices", jax.device_count(), flush=True)
    assert multihost_utils.process_allgather(jnp.array([me])).ravel().tolist() == [0, 1]
    if mode == "raise" and me == 1:
        time.sleep(pause)
        raise KeyError("missing")
    if mode == "kill" and me == 1:
        time.sleep(pause)
        os.kill(os.getpid(), 9)
    if mode in ("raise", "kill"):
        multihost_utils.process_allgather(jnp.array([me]))
    if mode == "late" and me == 0:
        time.sleep(pause)
    return "done"


def start_pair(
    mode: str, tmp_path: Path, hosts: list[Host], pause: float = 1.0, *, path: str = "", **options: object
) -> tuple[Host, Host]:
    payload = payload_of(
        collective, tmp_path / "out", {"mode": mode, "pause": pause}, hosts=2, framework="auto", **options
    )
    env = {
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    if path:
        env["PYTHONPATH"] = path
    pair = tuple(start_host(payload, tmp_path / f"host-{i}", i, env=env) for i in range(2))
    hosts.extend(pair)
    return pair[0], pair[1]


def test_two_hosts_are_one_jax_program(tmp_path: Path, hosts: list[Host]) -> None:
    """JAX is joined before user code, its own second call is harmless, and both hosts end well."""
    pair = start_pair("ok", tmp_path, hosts)
    assert [host.wait() for host in pair] == [0, 0]
    assert "devices 4" in pair[0].text()
    assert "jax.distributed.initialize was done before the function; this call does nothing" in pair[0].text()


def test_module_that_asks_for_devices_when_imported(tmp_path: Path, hosts: list[Host]) -> None:
    """JAX is joined before the function imports anything: such a module sees the devices of all hosts."""
    path = start_module(tmp_path / "site", "")
    (tmp_path / "site" / "asks_for_devices.py").write_text(
        "import functools, jax, jax.numpy as jnp\n"
        "COUNT = len(jax.devices())\n"
        "@functools.partial(jax.jit, static_argnums=0)\n"
        "def late(n=int(jnp.zeros(3).size)):\n"
        "    return n + jax.process_count()\n"
    )
    pair = start_pair("import", tmp_path, hosts, path=path)
    assert [host.wait() for host in pair] == [0, 0]
    assert "module saw 4 5" in pair[0].text()
    assert "module saw 4 5" in pair[1].text()


def test_module_that_touches_jax_before_the_step(tmp_path: Path, hosts: list[Host]) -> None:
    """Hosts never train alone: a module that Python loads at start and that asks for devices is named."""
    path = start_module(tmp_path / "site", "import jax\njax.devices()\n")
    pair = start_pair("ok", tmp_path, hosts, path=path)
    assert [host.wait() for host in pair] == [64, 64]
    assert pair[1].outcome().kind == "setup"
    assert pair[1].outcome().detail == (
        "JAX had asked for its devices before the step began, by sitecustomize "
        f"({tmp_path / 'site' / 'sitecustomize.py'}): this host would train alone. "
        "Remove that call, or do it inside the function"
    )


@pytest.mark.parametrize(("mode", "kind"), [("raise", "exception"), ("kill", "signal")])
def test_host_that_fails_while_another_is_in_a_collective(
    mode: str, kind: str, tmp_path: Path, hosts: list[Host]
) -> None:
    """The failing host ends soon, not at JAX's 300 s barrier."""
    pair = start_pair(mode, tmp_path, hosts)
    for host in pair:
        host.await_text("devices 4")
    begun = time.monotonic()
    pair[1].wait()
    assert time.monotonic() - begun < 90
    assert pair[1].outcome().kind == kind


def test_late_leader_within_finish_grace(tmp_path: Path, hosts: list[Host]) -> None:
    """A leader that ends later than the workers, within finish_grace, is fine."""
    pair = start_pair("late", tmp_path, hosts, pause=4.0, finish_grace=120.0)
    assert [host.wait() for host in pair] == [0, 0]


def test_late_leader_beyond_finish_grace(tmp_path: Path, hosts: list[Host]) -> None:
    """Beyond finish_grace the waiting worker says that it returned and waited."""
    pair = start_pair("late", tmp_path, hosts, pause=200.0, finish_grace=3.0)
    pair[1].wait()
    outcome = pair[1].outcome()
    assert outcome.kind == "late"
    # JAX counts whole seconds, and its process takes some to end; the leader would come after 200.
    found = re.fullmatch(
        r"the function returned, then (\d+) s passed while other hosts had not finished", outcome.detail
    )
    assert found is not None
    assert 3 <= int(found[1]) < 200
