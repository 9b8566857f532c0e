"""Whatever is killed, and whenever: no process of a local group is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from kr_kfp.cluster.local import list_groups
from kr_kfp.cluster.local_client import clear_others
from kr_kfp.cluster.local_processes import descendants, start_time, table
from tests.local_kit import DEADLINE, HOLD, Kit, kit_fixture, manifest, state, until, with_variable

__all__ = ["kit_fixture"]

REPOSITORY = Path(__file__).resolve().parents[2]

ESCAPES = {
    "child": "sleep 1001 &",
    "session": "setsid sleep 1001 &",
    "two-forks": "(setsid sh -c 'setsid sleep 1001 & exit 0' &);",
    "unmarked-child": "env -u KR_KFP_POD_UID sleep 1001 &",
    # A shell that outlives its sleep for a moment would say "Killed".
    "deaf": "(trap '' TERM HUP INT; sleep 1001; sleep 1001) 2> /dev/null &",
}


def sleepers(kit: Kit) -> list[int]:
    """List what the escapes above left running."""
    return [pid for pid in kit.processes() if "1001" in _command(pid)]


def _command(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    return []


def supervisor_of(kit: Kit, name: str = "train") -> tuple[int, int]:
    """Give the process ids of a group's guard and of its supervisor."""
    everything = table()
    mine = [pid for pid in everything if str(kit.root / name) in _command(pid)]
    (guard,) = [pid for pid in mine if everything[pid].parent not in mine]
    # A host looks like the supervisor that it was forked from, until it runs its own program.
    (supervisor,) = [pid for pid in mine if everything[pid].parent == guard]
    return guard, supervisor


@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_a_container_leaves_nothing_behind(kit: Kit, escape: str) -> None:
    """What a container started is gone before its end is told."""
    kit.sh(f'{HOLD}{escape} until [ -e "$KR_KFP_WORK/go" ]; do sleep 0.01; done; exit 3')
    (pod,) = kit.pods()
    until(lambda: sleepers(kit))
    recorder = kit.watch()
    (kit.work(pod) / "go").touch()
    recorder.wait(lambda e: e.kind == "pod" and "terminated" in state(e.value)["state"])
    assert sleepers(kit) == []


def test_the_neighbours_processes_stay(kit: Kit) -> None:
    """The end of one container kills nothing of another pod."""
    kit.sh(f"{HOLD}if [ $LWS_WORKER_INDEX = 0 ]; then {ESCAPES['session']} sleep 1001; fi; exit 3", hosts=2)
    recorder = kit.watch()
    until(lambda: len(sleepers(kit)) == 2)
    recorder.wait(lambda e: e.kind == "pod" and state(e.value)["restartCount"] == 1)
    assert len(sleepers(kit)) == 2


def test_what_sheds_every_mark_ends_with_the_group(kit: Kit) -> None:
    """A process without mark, session and parents is below the supervisor still."""
    group = kit.sh("env -i setsid sh -c 'sleep 1002 & exit 0'; exec sleep 1000")
    _, supervisor = supervisor_of(kit)

    def stray() -> list[int]:
        return [pid for pid in descendants(table(), [supervisor]) if "1002" in _command(pid)]

    found = until(lambda: stray() if len(stray()) == 1 and table()[stray()[0]].parent == supervisor else [])
    kit.delete(group)
    assert start_time(found[0]) == ""


def test_a_group_that_is_deleted_leaves_nothing(kit: Kit) -> None:
    """Hosts, strays, supervisor, guard and folder are gone when the deletion has been told."""
    group = kit.sh(f"{''.join(ESCAPES.values())} sleep 1001", hosts=2)
    until(lambda: len(sleepers(kit)) >= 12)
    recorder = kit.watch()
    kit.cluster.delete_group("train", uid=group["metadata"]["uid"])
    recorder.wait(lambda e: e.kind == "group-gone")
    assert sleepers(kit) == []
    until(lambda: not kit.processes())
    assert [path.name for path in kit.root.iterdir()] == [".ports"]


def test_the_supervisor_is_killed(kit: Kit) -> None:
    """Its guard kills all hosts; watchers are told that all is gone; the next create finds the name free."""
    kit.sh(f"{''.join(ESCAPES.values())} exec sleep 1001", hosts=2)
    before = kit.pods(2)
    until(lambda: len(sleepers(kit)) >= 12)
    recorder = kit.watch()
    follow = kit.cluster.follow_log(before[0])
    _, supervisor = supervisor_of(kit)
    os.kill(supervisor, signal.SIGKILL)
    recorder.wait(lambda e: e.kind == "group-gone")
    assert sleepers(kit) == []
    until(lambda: not kit.processes(), "the end of the guard itself")
    assert [e.kind for e in recorder.events[-3:]] == ["pod-gone", "pod-gone", "group-gone"]
    assert list(follow) == []
    assert kit.cluster.read_group("train") is None
    assert list_groups() == []
    assert kit.folder(before[0]).exists()
    kit.sh("sleep 1000", hosts=2)
    kit.pods(2)
    assert not kit.folder(before[0]).exists()


@pytest.mark.parametrize("name", ["train", "another"])
def test_supervisor_and_guard_are_killed(kit: Kit, name: str) -> None:
    """The hosts die with the supervisor; what they left is killed by the next create, whatever its name."""
    kit.sh(f"{ESCAPES['two-forks']} exec sleep 1001")
    until(lambda: len(sleepers(kit)) == 2)
    (pod,) = kit.pods()
    guard, supervisor = supervisor_of(kit)
    os.kill(guard, signal.SIGSTOP)
    os.kill(supervisor, signal.SIGKILL)
    os.kill(guard, signal.SIGKILL)
    until(lambda: len(sleepers(kit)) == 1 and not start_time(guard))
    made = kit.sh("sleep 1000", name=name)
    assert sleepers(kit) == []
    assert (kit.folder(pod) / "log.0").exists() == (name == "another")
    kit.delete(made)


def test_a_fault_of_the_supervisor_ends_its_group(kit: Kit) -> None:
    """A supervisor that cannot go on ends, says why in its log, and takes everything along."""
    kit.sh(f"{ESCAPES['two-forks']} exec sleep 1001", hosts=2)
    until(lambda: len(sleepers(kit)) == 4)
    _, worker = kit.pods(2)
    recorder = kit.watch()
    pods = kit.root / "train" / "pods"
    pods.rename(kit.root / "train" / "moved")
    pods.touch()
    kit.cluster.delete_pod("train-0-1", uid=worker["metadata"]["uid"])
    recorder.wait(lambda e: e.kind == "group-gone")
    assert sleepers(kit) == []
    log = (kit.root / "train" / "supervisor.log").read_text(encoding="utf-8")
    assert "Traceback (most recent call last):" in log.splitlines()
    assert "NotADirectoryError" in log


def test_one_of_many_creators_wins(kit: Kit) -> None:
    """Of creators of one name at the same time exactly one makes the group; the others are told that it exists."""
    script = """
        from kr_kfp.errors import ConflictError
        print("ready", flush=True)
        sys.stdin.readline()
        try:
            cluster.create_group(manifest(["sleep", "1000"]))
        except ConflictError as refused:
            print(refused.reason)
        else:
            print("made")
    """
    with contextlib.ExitStack() as stack:
        creators = [stack.enter_context(launcher(script)) for _ in range(6)]
        assert [said(creator) for creator in creators] == ["ready"] * 6
        for creator in creators:
            assert creator.stdin is not None
            creator.stdin.write("go\n")
            creator.stdin.flush()
        answers = [said(creator) for creator in creators]
    assert sorted(answers) == ["AlreadyExists"] * 5 + ["made"]
    assert len(list_groups()) == 1


def test_what_was_left_long_ago_is_cleared(kit: Kit) -> None:
    """A create also removes the folders of other groups whose supervisors were killed more than a day ago."""
    for name in ("old", "young"):
        (kit.root / name / "pods").mkdir(parents=True)
        (kit.root / name / "lock").touch()
    os.utime(kit.root / "old" / "lock", (0, 0))
    group = kit.sh("sleep 1000", name="living")
    os.utime(kit.root / "living" / "lock", (0, 0))
    clear_others(kit.root)
    assert sorted(path.name for path in kit.root.iterdir()) == [".ports", "living", "young"]
    found = kit.cluster.read_group("living")
    assert found is not None
    assert found["metadata"]["uid"] == group["metadata"]["uid"]


@pytest.mark.parametrize("who", [0, 1], ids=["guard", "supervisor"])
def test_a_signal_asks_for_deletion(kit: Kit, who: int) -> None:
    """SIGTERM to the guard or the supervisor deletes the group in good order."""
    kit.sh(f"trap 'echo bye > {kit.root}/bye; exit 0' TERM; touch $KR_KFP_WORK/up; while :; do sleep 0.01; done")
    (pod,) = kit.pods()
    until((kit.work(pod) / "up").exists)
    os.kill(supervisor_of(kit)[who], signal.SIGTERM)
    assert kit.cluster.wait_gone("train", DEADLINE)
    assert (kit.root / "bye").read_text(encoding="utf-8") == "bye\n"


@contextlib.contextmanager
def launcher(script: str) -> Iterator[subprocess.Popen[str]]:
    """Run a script in another process that has the cluster, and a function that makes the test's group."""
    prelude = """
        import sys, threading
        from kr_kfp.cluster.local import LocalCluster
        from tests.local_kit import Recorder, manifest
        cluster = LocalCluster()
    """
    code = textwrap.dedent(prelude) + textwrap.dedent(script)
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    """Read a line that the other process printed."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


CREATE_AND_WATCH = """
    group = cluster.create_group(manifest(["sleep", "1000"], name="train", hosts=2))
    recorder = Recorder()
    watch = cluster.watch("train", recorder)
    recorder.wait(lambda e: e.kind == "synced")
    print(group["metadata"]["uid"], flush=True)
    sys.stdin.read()
"""


def test_another_process_adopts_a_group(kit: Kit) -> None:
    """The group outlives its launcher; the next one reads, holds, watches and deletes it, its pods untouched."""
    with launcher(CREATE_AND_WATCH) as first:
        uid = said(first)
        holder = f"local-{first.pid}-{start_time(first.pid)}"
        before = kit.pods(2)
        assert kit.cluster.is_holder_alive(holder)
        first.kill()
        until(lambda: not kit.cluster.is_holder_alive(holder))
    group = kit.cluster.read_group("train")
    assert group is not None
    assert group["metadata"]["uid"] == uid
    patch = {"metadata": {"annotations": {"held": kit.cluster.holder()}}}
    kit.cluster.patch_group("train", patch=patch, resource_version=group["metadata"]["resourceVersion"])
    assert kit.pods(2) == before
    recorder = kit.watch()
    kit.cluster.delete_group("train", uid=uid)
    recorder.wait(lambda e: e.kind == "group-gone")


def test_an_orphan_ends_by_itself(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose launcher was killed is deleted when nobody has asked for it for the orphan time."""
    monkeypatch.setenv("KR_KFP_LOCAL_ORPHAN_SECONDS", "1")
    with launcher(CREATE_AND_WATCH) as first:
        said(first)
        kit.pods(2)
        first.kill()
    # Looking at it, as kr-kfp's list does, does not keep it alive.
    until(lambda: not list_groups())
    until(lambda: not kit.processes())


def test_a_watched_group_is_no_orphan(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a watch is open, the orphan time does not run."""
    # It does run between the group's creation and the watch.
    monkeypatch.setenv("KR_KFP_LOCAL_ORPHAN_SECONDS", "2")
    kit.sh("sleep 5; echo later; sleep 1000")
    kit.watch()
    (pod,) = kit.pods()
    until(lambda: kit.cluster.read_log(pod) == b"later\n")
    assert len(kit.pods()) == 1


def test_creators_killed_at_any_moment_leave_nothing(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty launchers are killed between their start and the end of create: all ends within the orphan time."""
    monkeypatch.setenv("KR_KFP_LOCAL_ORPHAN_SECONDS", "1")
    script = """
        print("ready", flush=True)
        cluster.create_group(manifest(["sh", "-c", "setsid sleep 1001 & sleep 1001"], name="NAME", hosts=2))
        print("made", flush=True)
        sys.stdin.read()
    """
    with launcher(script.replace("NAME", "first")) as process:
        assert said(process) == "ready"
        begun = time.monotonic()
        assert said(process) == "made"
        whole = time.monotonic() - begun
    for number in range(20):
        with launcher(script.replace("NAME", f"g{number}")) as process:
            said(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(number / 18 * whole)
            process.kill()
    until(lambda: not kit.processes(), "the end of all groups")
    assert list_groups() == []
    # A creator that was killed before it started a supervisor leaves a folder, which bars nobody.
    for folder in [path for path in kit.root.iterdir() if path.name != ".ports"]:
        kit.delete(kit.cluster.create_group(manifest(["true"], name=folder.name)))


EAT = "python3 -c \"a = b'x' * 200_000_000; import time; time.sleep(1000)\""


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        pytest.param(f"{EAT}; exit 9", 9, "OOMKilled", id="told-by-the-first-process"),
        pytest.param(f"{EAT}; exit 0", 0, "Completed", id="forgiven-by-it"),
        pytest.param(f"exec {EAT}", 137, "OOMKilled", id="the-first-process-itself"),
    ],
)
def test_a_memory_limit(kit: Kit, script: str, code: int, reason: str) -> None:
    """Above the limit the largest process is killed, the container's first one last."""
    kit.sh(f"{HOLD}{script}", resources={"limits": {"memory": "100Mi"}})
    recorder = kit.watch()
    event = recorder.wait(lambda e: e.kind == "pod" and state(e.value)["lastState"])
    facts = state(event.value)["lastState"]["terminated"]
    assert (facts["exitCode"], facts["reason"]) == (code, reason)


def test_only_the_largest_process_is_killed_for_memory(kit: Kit) -> None:
    """Others of the pod, and the pod, go on."""
    kit.sh(f"{ESCAPES['session']} {EAT}; sleep 1001", resources={"limits": {"memory": "100Mi"}})
    until(lambda: len(sleepers(kit)) == 2)
    (pod,) = kit.pods()
    assert state(pod)["restartCount"] == 0


def test_shared_memory_counts_once(kit: Kit) -> None:
    """Three processes that share 60 MB are below a limit of 100 MiB."""
    code = (
        "import mmap, os, time; m = mmap.mmap(-1, 60_000_000); [m.write(bytes(10**6)) for _ in range(60)]; "
        "n = [os.fork() for _ in 'ab']; m[::4096]; time.sleep(1); os._exit(0) if 0 in n else [os.wait() for _ in n]"
    )
    kit.create(["python3", "-c", code], resources={"limits": {"memory": "100Mi"}})
    recorder = kit.watch()
    event = recorder.wait(lambda e: e.kind == "pod" and "terminated" in state(e.value)["state"])
    assert state(event.value)["state"]["terminated"]["reason"] == "Completed"


def test_an_empty_venv_is_enough(kit: Kit, tmp_path: Path) -> None:
    """Client, supervisor and host need nothing but the standard library and kr_kfp."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python3"
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    (packages / "kr_kfp").symlink_to(REPOSITORY / "kr_kfp")
    script = f"""
        import sys, time
        from kr_kfp.cluster.local import LocalCluster
        cluster = LocalCluster()
        group = cluster.create_group({manifest(["python3", "-c", "import sys; print(sys.executable)"], name="bare")!r})
        while not (pods := cluster.list_pods("bare")) or not cluster.read_log(pods[0]):
            time.sleep(0.01)
        print(b"".join(cluster.follow_log(pods[0])).decode(), end="")
        cluster.delete_group("bare", uid=group["metadata"]["uid"])
        print(cluster.wait_gone("bare", 30))
        print(sorted(name for name in sys.modules if name.split(".")[0] in ("kfp", "kubernetes", "asyncio", "click")))
    """
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-c", textwrap.dedent(script)], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.stdout.splitlines(), done.stderr) == ([str(python), "True", "[]"], "")


def test_a_group_within_a_group(kit: Kit) -> None:
    """A host that makes a group of its own takes it along when it ends."""
    code = (
        "import os, time\nfrom kr_kfp.cluster.local import LocalCluster\nfrom tests.local_kit import manifest\n"
        f"os.environ['KR_KFP_LOCAL_ROOT'] = {str(kit.root / 'inner')!r}\n"
        "LocalCluster().create_group(manifest(['sleep', '1001']))\ntime.sleep(1000)"
    )
    group = kit.create(["python3", "-c", code], env=[{"name": "PYTHONPATH", "value": str(REPOSITORY)}])
    inner = f"KR_KFP_LOCAL_ROOT={kit.root / 'inner'}"
    until(lambda: [pid for pid in with_variable(inner) if "1001" in _command(pid)])
    kit.delete(group)
    assert with_variable(inner) == []
