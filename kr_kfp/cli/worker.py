"""Runs one pipeline or component with kfp.local in a process of its own, for ``kr-kfp run``.

Called as ``python -m kr_kfp.cli.worker REQUEST RESULT``: both are JSON files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kfp import dsl, local

from kr_kfp.cli.target import find

__all__ = ["main"]


def main(request: str, result: str) -> int:
    """Run what the request names and write its outputs."""
    asked = json.loads(Path(request).read_text(encoding="utf-8"))
    target = find(asked["target"])
    local.init(
        runner=local.SubprocessRunner(use_venv=asked["use_venv"]),
        pipeline_root=asked["root"],
        raise_on_error=True,
    )
    try:
        task = target(**asked["arguments"])
    except RuntimeError as problem:
        # KFP's own word for a task that failed; the task's log above says why.
        print(problem, file=sys.stderr)
        return 1
    outputs = {name: _plain(value) for name, value in task.outputs.items()}
    Path(result).write_text(json.dumps(outputs), encoding="utf-8")
    return 0


def _plain(value: Any) -> Any:
    if isinstance(value, dsl.Artifact):
        return {"type": value.schema_title, "uri": value.uri, "metadata": value.metadata}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
