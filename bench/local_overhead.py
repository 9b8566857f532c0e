"""Digits on four hosts under the launcher against the same four processes started by a plain shell script.

Compared is the time of one training step, which the training itself measures (median over its steps, after the first
epoch), on the same data with the same processes and devices. Aim: at most 1.02 plus the A/A spread. The whole time is
printed too: the launcher adds its own start, KFP's pip step and the wait for the verdict.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pairs import measure

import kr_kfp.testing
from kr_kfp_components.data.digits import digits
from kr_kfp_components.training.keras_classifier import keras_classifier

EPOCHS = 6
HERE = Path(__file__).parent


def free_port() -> int:
    """Give a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def step_seconds(log: str) -> float:
    """Read the time of a step from what host 0 printed at its end."""
    for line in log.splitlines():
        text = line[line.find("{") :]
        if '"step_milliseconds"' in line and text.startswith("{"):
            fact = json.loads(text)
            if fact["host"] == 0:
                return float(fact["step_milliseconds"]) / 1000
    msg = f"no step time in:\n{log[-2000:]}"
    raise ValueError(msg)


class Bench:
    """Both ways to run the same training, each in a fresh folder."""

    def __init__(self, data: str) -> None:
        self.data = data
        self.wall: dict[str, list[float]] = {"script": [], "launcher": []}

    def script(self) -> float:
        """Run the four processes by the shell script."""
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            subprocess.run(
                [
                    str(HERE / "four_processes.sh"),
                    str(free_port()),
                    folder,
                    sys.executable,
                    str(HERE / "plain_host.py"),
                    self.data,
                    folder,
                    str(EPOCHS),
                ],
                check=True,
            )
            self.wall["script"].append(time.perf_counter() - begun)
            return step_seconds(Path(folder, "host-0.log").read_text(encoding="utf-8"))

    def launcher(self) -> float:
        """Run the step as a KFP task would."""
        with tempfile.TemporaryDirectory() as folder:
            begun = time.perf_counter()
            result = kr_kfp.testing.run(keras_classifier, root=folder, train=self.data, epochs=EPOCHS)
            self.wall["launcher"].append(time.perf_counter() - begun)
            return step_seconds(result.log)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(kr_kfp.testing.run(digits, root=folder).outputs["train"].uri)
        pairs = measure(bench.script, bench.launcher)
    walls = {name: sorted(seconds)[len(seconds) // 2] for name, seconds in bench.wall.items()}
    print(pairs.line(script_s=f"{walls['script']:.2f}", launcher_s=f"{walls['launcher']:.2f}"))


if __name__ == "__main__":
    main()
