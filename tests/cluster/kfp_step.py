"""A compiled step, read back from KFP's YAML, and the ExecutorInput that KFP's driver makes for it."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler

from tests.cluster.rest import Json

OUTPUT_FILE = "/tmp/kfp_outputs/output_metadata.json"
"""Where KFP's executor writes its results (OutputMetadataFilepath, backend/src/v2/component/launcher_v2.go)."""

LOGS = "executor-logs"
"""An output of every step that its component does not declare: what was printed (facts: "What a user sees")."""

EMPTY_TASK_CONFIG: Json = {
    "affinity": None,
    "env": [],
    "nodeSelector": {},
    "resources": {},
    "tolerations": [],
    "volumeMounts": [],
    "volumes": [],
}
"""What a TaskConfig input holds when nothing was set on the task: it is always there, in camelCase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What KFP's back end knows of a step."""

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...] = ()
    inputs: Json = field(default_factory=dict)
    """The component's inputDefinitions."""
    outputs: Json = field(default_factory=dict)
    """The component's outputDefinitions."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def compile(cls, component: Any, *, name: str = "") -> Step:
        """Compile a component or pipeline with KFP's compiler and read a task of it (`name`, or the only one)."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pipeline.yaml"
            compiler.Compiler().compile(component, str(file))
            return cls.load(file, name=name)

    @classmethod
    def load(cls, file: Path, *, name: str = "") -> Step:
        """Read one task of a compiled file, or the only one.

        Raises:
            ValueError: There is no such task, or it has settings that this rig does not bring to the pod.
        """
        spec, *platforms = yaml.safe_load_all(file.read_text(encoding="utf-8"))
        tasks = {name: task for dag in _dags(spec) for name, task in dag["tasks"].items()}
        leaves = {n: t for n, t in tasks.items() if "executorLabel" in spec["components"][t["componentRef"]["name"]]}
        chosen = name or (next(iter(leaves)) if len(leaves) == 1 else "")
        if chosen not in leaves:
            msg = f"{file}: task {name!r} is not one of {', '.join(leaves)}"
            raise ValueError(msg)
        component = spec["components"][leaves[chosen]["componentRef"]["name"]]
        label = component["executorLabel"]
        container = spec["deploymentSpec"]["executors"][label]["container"]
        platform = platforms[0]["platforms"]["kubernetes"]["deploymentSpec"]["executors"] if platforms else {}
        metadata = platform.get(label, {})
        # TaskConfig is the driver's work: tests state it (KfpPod.task_config) as they want it to arrive.
        unknown = sorted({*container} - {"image", "command", "args"} | {*metadata} - {"podMetadata"})
        if unknown:
            msg = f"{file}: {chosen} has settings that this rig does not apply: {', '.join(unknown)}"
            raise ValueError(msg)
        return cls(
            name=chosen,
            image=container["image"],
            command=tuple(container["command"]),
            args=tuple(container.get("args", ())),
            inputs=component.get("inputDefinitions", {}),
            outputs=component.get("outputDefinitions", {}),
            labels=metadata.get("podMetadata", {}).get("labels", {}),
            annotations=metadata.get("podMetadata", {}).get("annotations", {}),
        )

    def executor_input(
        self, *, root: str, arguments: Mapping[str, Any], artifacts: Mapping[str, Json], task_config: Json | None
    ) -> Json:
        """Make the ExecutorInput of one execution.

        Args:
            root: URI below which its outputs lie: <pipeline root>/<pipeline>/<run id>/<task>.
            arguments: Values of parameters; those with defaults may be left out.
            artifacts: Input artifacts by name: uri, type, metadata, name.
            task_config: What was set on the task; EMPTY_TASK_CONFIG if None.
        """
        definitions = self.inputs.get("parameters", {})
        values = {name: d["defaultValue"] for name, d in definitions.items() if "defaultValue" in d}
        configs = [name for name, d in definitions.items() if d["parameterType"] == "TASK_CONFIG"]
        values |= dict.fromkeys(configs, task_config or EMPTY_TASK_CONFIG) | dict(arguments)
        # One folder for each execution, the same for all retries of it.
        place = f"{root}/{uuid.uuid4()}"
        declared = {**self.outputs.get("artifacts", {}), LOGS: {"artifactType": {"schemaTitle": "system.Artifact"}}}
        return {
            "inputs": {
                "parameterValues": values,
                "artifacts": {name: {"artifacts": [artifact]} for name, artifact in artifacts.items()},
            },
            "outputs": {
                "outputFile": OUTPUT_FILE,
                "parameters": {
                    name: {"outputFile": f"/tmp/kfp/outputs/{name}"} for name in self.outputs.get("parameters", {})
                },
                "artifacts": {
                    name: {
                        "artifacts": [
                            {"name": name, "uri": f"{place}/{name}", "type": d["artifactType"], "metadata": {}}
                        ]
                    }
                    for name, d in declared.items()
                },
            },
        }

    def words(self) -> list[str]:
        """Give command and arguments as one list, placeholders not resolved."""
        return [*self.command, *self.args]


def as_text(executor_input: Json) -> str:
    """Write an ExecutorInput as KFP puts it in place of ``{{$}}``: without blanks, whole numbers without a point.

    All numbers of a pipeline are floats in the IR; Go writes them as short as it can (protojson).
    """
    return json.dumps(_as_go(executor_input), separators=(",", ":"))


def _as_go(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_go(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_go(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _dags(spec: Json) -> list[Json]:
    components = [spec["root"], *spec["components"].values()]
    return [component["dag"] for component in components if "dag" in component]
