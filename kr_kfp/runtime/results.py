"""The leader's outputs -> the files where KFP looks for them."""

from __future__ import annotations

import json
import os

from kr_kfp.executor_input import attempt_uri, is_local, output_uris
from kr_kfp.wire import Json

__all__ = ["empty_outputs", "write_results"]


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


def empty_outputs(executor_input: Json, outputs: Json, attempt: int) -> list[str]:
    """Name the output artifacts that got neither a local file nor metadata nor another URI.

    KFP alone stays green then, and the consumer finds no file. Objects in a store are not looked at here.
    """
    written = (outputs.get("executorOutput") or {}).get("artifacts") or {}
    empty = []
    for name, uri in output_uris(executor_input).items():
        expected = attempt_uri(uri, attempt)
        artifact: Json = next(iter((written.get(name) or {}).get("artifacts") or ()), {})
        untouched = not artifact.get("metadata") and artifact.get("uri", expected) == expected
        if untouched and is_local(uri) and not os.path.exists(expected.removeprefix("file://")):
            empty.append(name)
    return empty


def _write(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.tmp-{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
