"""The first moments of a host's container, before anything of kr_kfp is there to handle signals."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kr_kfp.spec.leaderworkerset import build
from kr_kfp.spec.pod import LIBRARY
from tests.unit.test_leaderworkerset import CPU, LAUNCH, container

_SLOW = """
import signal
print("importing", flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    "first", [False, pytest.param(True, marks=pytest.mark.skipif(os.getuid() != 0, reason="root"))]
)
def test_sigterm_ends_a_host_that_is_still_starting(first: bool, tmp_path: Path) -> None:
    """SIGTERM while kr_kfp is imported ends the container at once, also as its process 1, where it is else dropped."""
    package = tmp_path / "kr_kfp" / "runtime"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_SLOW, encoding="utf-8")
    _, option, text, verb = container(build(CPU, LAUNCH))["command"]
    assert LIBRARY in text
    command = [sys.executable, option, text.replace(LIBRARY, str(tmp_path)), verb]
    if first:
        unshare = shutil.which("unshare")
        assert unshare
        command = [unshare, "--pid", "--fork", "--kill-child", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "importing\n"
            pid = process.pid
            if first:
                pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii"))
            os.kill(pid, signal.SIGTERM)
            assert process.wait(timeout=60) == 143
        finally:
            process.kill()
