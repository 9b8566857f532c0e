"""The leader's outputs -> the files where KFP looks for them."""

from __future__ import annotations

import json
import os

from kr_kfp.wire import Json

__all__ = ["write_results"]


def write_results(executor_input: Json, outputs: Json) -> None:
    """Write KFP's ExecutorOutput and the files of output parameters.

    KFP's output file is written last and at once: when it is there, all is.

    Args:
        executor_input: KFP's ExecutorInput of the launcher's own task.
        outputs: The outcome's ``executorOutput`` and ``parameters``.
    """
    places = executor_input.get("outputs") or {}
    for name, parameter in (places.get("parameters") or {}).items():
        text = (outputs.get("parameters") or {}).get(name)
        if text is not None:
            _write(parameter["outputFile"], text)
    if places.get("outputFile"):
        _write(places["outputFile"], json.dumps(outputs.get("executorOutput") or {}))


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp-{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
