"""Kubeflow Pipelines steps that train on one pod or on many TPU and GPU hosts.

Public names load when first used (PEP 562), so that ``import kr_kfp`` in a training pod stays cheap and free of kfp.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from kr_kfp._context import Context, context
    from kr_kfp.authoring.component import Component, component
    from kr_kfp.authoring.load import load_component
    from kr_kfp.errors import DeclarationError, KrKfpError, Problem
    from kr_kfp.spec.step import ConfigKey, Gpu, Pathways, Secret, Tpu

__all__ = [
    "Component",
    "ConfigKey",
    "Context",
    "DeclarationError",
    "Gpu",
    "KrKfpError",
    "Pathways",
    "Problem",
    "Secret",
    "Tpu",
    "__version__",
    "component",
    "context",
    "load_component",
]

# The module of context() has an underscore: a submodule of the same name would hide the function once imported.
_HOME = {
    "Component": "kr_kfp.authoring.component",
    "ConfigKey": "kr_kfp.spec.step",
    "Context": "kr_kfp._context",
    "DeclarationError": "kr_kfp.errors",
    "Gpu": "kr_kfp.spec.step",
    "Pathways": "kr_kfp.spec.step",
    "KrKfpError": "kr_kfp.errors",
    "Problem": "kr_kfp.errors",
    "Secret": "kr_kfp.spec.step",
    "Tpu": "kr_kfp.spec.step",
    "context": "kr_kfp._context",
    "component": "kr_kfp.authoring.component",
    "load_component": "kr_kfp.authoring.load",
}


if not TYPE_CHECKING:  # a type checker would believe every name

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(_HOME[name]), name)
        msg = f"module 'kr_kfp' has no attribute {name!r}"
        raise AttributeError(msg)


def __dir__() -> list[str]:
    return sorted(__all__)
