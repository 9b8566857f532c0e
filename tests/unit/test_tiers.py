"""The program that runs all tiers: what fails is told at the end, and a signal ends everything."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys
from pathlib import Path
from tests import tiers

def code(text):
    return sys.executable, "-c", text

sys.exit(tiers.run([{tiers}], code({beside!r}), Path({log!r})))
"""


def start(tiers: list[str], beside: str, folder: Path) -> subprocess.Popen[str]:
    """Run programs as tiers."""
    commands = ", ".join(f"code({textwrap.dedent(tier)!r})" for tier in tiers)
    text = PROGRAM.format(tiers=commands, beside=textwrap.dedent(beside), log=str(folder / "build" / "log"))
    return subprocess.Popen([sys.executable, "-c", text], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_all_tiers_run_whatever_fails(tmp_path: Path) -> None:
    """The first failure's code is given, after all have run and what ran beside them is shown."""
    with start(
        ["print(1)", "raise SystemExit(3)", "print(2)"], "print('beside'); raise SystemExit(4)", tmp_path
    ) as run:
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 3
    assert [line for line in out.splitlines() if line in {"1", "2", "beside"}] == ["1", "2", "beside"]


def test_a_failure_beside_is_one(tmp_path: Path) -> None:
    """What ran beside the others counts as they do."""
    with start(["pass"], "raise SystemExit(4)", tmp_path) as run:
        run.communicate(timeout=60)
    assert run.returncode == 4


def test_a_signal_ends_all(tmp_path: Path) -> None:
    """SIGTERM reaches what runs as Ctrl-C does; it may end in good order, and no further tier begins."""
    waits = f"""
        import time
        from pathlib import Path
        try:
            print("up", flush=True)
            Path({str(tmp_path)!r}, "up").touch()
            time.sleep(60)
        except KeyboardInterrupt:
            print("ended", flush=True)
    """
    first = f"""
        import time
        from pathlib import Path
        try:
            while not Path({str(tmp_path)!r}, "up").exists():
                time.sleep(0.01)
            print("up", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("ended", flush=True)
    """
    with start([first, "print('further')"], waits, tmp_path) as run:
        assert run.stdout
        assert run.stdout.readline() == "up\n"
        run.send_signal(signal.SIGTERM)
        out, _ = run.communicate(timeout=60)
    assert run.returncode == 130
    assert [line for line in out.splitlines() if line in {"up", "ended", "further"}] == ["ended", "up", "ended"]
