"""The public surface is what it says it is."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import kr_kfp

PUBLIC = [
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


def _modules() -> Iterator[str]:
    for found in pkgutil.walk_packages(kr_kfp.__path__, "kr_kfp."):
        if not found.name.endswith("__main__"):
            yield found.name


MODULES = sorted(_modules())


def test_public_names() -> None:
    """A name is added to or taken from the public surface on purpose, and noted in CHANGELOG.md."""
    assert kr_kfp.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported(name: str) -> None:
    """Lazy names resolve, and to what their module calls so."""
    value = getattr(kr_kfp, name)
    if name != "__version__":
        assert value is getattr(importlib.import_module(value.__module__), name)
        assert value.__doc__


def test_dir_lists_the_public_names() -> None:
    """Completion in a shell or notebook offers the public names before they are loaded."""
    assert dir(kr_kfp) == sorted(PUBLIC)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelt name fails as it does in any module."""
    name = "compnent"
    with pytest.raises(AttributeError) as caught:
        getattr(kr_kfp, name)
    assert str(caught.value) == "module 'kr_kfp' has no attribute 'compnent'"


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_and_offers(name: str) -> None:
    """Each module has a docstring, and an ``__all__`` that is true and free of doubles."""
    module = importlib.import_module(name)
    assert module.__doc__
    offered = getattr(module, "__all__", None)
    if module.__spec__ and module.__spec__.submodule_search_locations is not None and offered is None:
        return  # a package that offers its modules
    assert offered is not None, f"{name} has no __all__"
    assert len(set(offered)) == len(offered)
    assert [entry for entry in offered if not hasattr(module, entry)] == []


@pytest.mark.parametrize("name", MODULES)
def test_no_private_name_is_offered(name: str) -> None:
    """Names with an underscore are nobody else's."""
    offered = getattr(importlib.import_module(name), "__all__", [])
    assert [entry for entry in offered if entry.startswith("_") and not entry.startswith("__")] == []


def test_error_classes_form_one_tree() -> None:
    """Everything that kr_kfp raises on purpose is a KrKfpError and its name ends in Error."""
    errors = importlib.import_module("kr_kfp.errors")
    classes = [getattr(errors, name) for name in errors.__all__]
    exceptions = [found for found in classes if issubclass(found, BaseException)]
    assert all(issubclass(found, errors.KrKfpError) and found.__name__.endswith("Error") for found in exceptions)
    assert all(found.__name__ in (errors.__doc__ or "") for found in exceptions)
