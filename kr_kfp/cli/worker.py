"""Runs one pipeline or component with kfp.local in a process of its own, for ``kr-kfp run``.

Called as ``python -m kr_kfp.cli.worker REQUEST RESULT``: both are JSON files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
from kfp import dsl, local

from kr_kfp.cli.target import find
from kr_kfp.wire import ExitCode

__all__ = ["main"]


def main(request: str, result: str) -> int:
    """Run what the request names and write its outputs.

    Returns:
        0, 1 if a task failed, 2 if the target cannot be run like this, 75 if it was interrupted.
    """
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    try:
        target = find(asked["target"])
        local.init(
            runner=local.SubprocessRunner(use_venv=asked["use_venv"]),
            pipeline_root=asked["root"],
            raise_on_error=True,
        )
        task = target(**asked["arguments"])
    except click.ClickException as problem:
        problem.show(sys.stdout)
        return ExitCode.USAGE
    except (NotImplementedError, TypeError, ValueError) as problem:
        # What KFP refuses to run on one machine, and arguments that it does not take; nothing has run.
        print(f"Error: {problem}")
        return ExitCode.USAGE
    except RuntimeError as problem:
        # KFP's own word for a task that failed; the task's log above says why.
        print(problem)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.STOPPED
    outputs = {name: _plain(value) for name, value in task.outputs.items()}
    Path(result).write_text(json.dumps(outputs), encoding="utf-8")
    return ExitCode.OK


def _plain(value: Any) -> Any:
    if isinstance(value, dsl.Artifact):
        return {"type": value.schema_title, "uri": value.uri, "metadata": value.metadata}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
