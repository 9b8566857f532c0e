"""``make demo``: the main job on this machine, then where its results lie and what a cluster would be asked to make."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from kr_kfp.authoring.plan import plan
from kr_kfp.cli.run import LocalRun, run_local
from kr_kfp_pipelines.training.digits_retrain import digits_retrain

__all__ = ["main", "summary"]

_TARGET = "kr_kfp_pipelines.training.digits_retrain"
_ROOT = Path(".demo")


def main() -> int:
    """Run digits_retrain with its defaults through kfp.local and the local cluster.

    Returns:
        0 if the pipeline succeeded.
    """
    begun = time.monotonic()
    done = run_local(_TARGET, {}, root=_ROOT)
    if done.exit_code:
        print(f"demo: the pipeline failed (exit code {done.exit_code}); its log is above", file=sys.stderr)
        return 1
    print("\n".join(summary(done, time.monotonic() - begun)))
    return 0


def summary(done: LocalRun, seconds: float) -> list[str]:
    """Give the closing lines of the demo.

    Args:
        done: How the run ended.
        seconds: Wall time of everything.
    """
    model = done.outputs["model"]
    metadata: dict[str, Any] = model["metadata"]
    lines = ["", "Results of the run"]
    lines += [f"  {name:8} {done.outputs[name]['uri']}" for name in ("model", "history", "report")]
    curves = json.loads(Path(done.outputs["history"]["uri"]).read_text(encoding="utf-8"))
    lines.append(f"  loss     {' '.join(f'{value:.3f}' for value in curves['loss'])}")
    lines += ["", "What would be created on a cluster (kr-kfp render " + _TARGET + ")"]
    for step in plan(digits_retrain):
        lines += [f"  {step.name}: {words}" for words in step.words]
        lines += [f"  {step.name}: node selector {key}={value}" for key, value in step.selectors.items()]
    accuracy = float(done.outputs["accuracy"])
    lines.append("")
    lines.append(
        f"demo: accuracy={accuracy:.4f} hosts={int(metadata['hosts'])} devices={int(metadata['devices'])} "
        f"seconds={seconds:.1f}"
    )
    return lines


if __name__ == "__main__":
    sys.exit(main())
