"""What is imported when, and which folders are installed (the static half of the layers is .importlinter)."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Prints the top-level modules that came from site-packages, without those that were there before: an interpreter may
# load some at its start (coverage, editable installs).
_PROBE = """
import sys
before = set(sys.modules)
{statement}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
import json, sysconfig
stdlib = sysconfig.get_paths()["stdlib"]
def is_foreign(name):
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return name not in sys.stdlib_module_names and not name.startswith("__editable__") and file != ""
print(json.dumps(sorted(name for name in new if is_foreign(name))))
"""


def _foreign_modules(statement: str) -> list[str]:
    """Run a statement in a fresh interpreter; give the top-level modules outside of the standard library it loads."""
    probe = _PROBE.format(statement=statement)
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "statement",
    [
        "import kr_kfp",
        "import kr_kfp; kr_kfp.context()",
        "import kr_kfp; kr_kfp.Tpu('v5e', '4x4'); kr_kfp.Secret('a', 'b')",
        "import kr_kfp.wire, kr_kfp.names, kr_kfp.executor_input",
        "import kr_kfp.spec.leaderworkerset, kr_kfp.spec.outcome, kr_kfp.spec.check, kr_kfp.spec.diagnose",
        "import kr_kfp.runtime.host",
        "import kr_kfp.runtime.single",
        "import kr_kfp.runtime.launcher",
        "import kr_kfp.runtime.__main__",
        "import kr_kfp.cluster.local",
        "import kr_kfp.storage.run, kr_kfp.storage.settings, kr_kfp.storage.uris, kr_kfp.storage.sources",
        "import kr_kfp.checkpoints, kr_kfp.storage.fetch, kr_kfp.storage.put",
    ],
)
def test_a_pod_needs_the_standard_library_only(statement: str) -> None:
    """Whatever a training pod or a local run imports loads nothing from site-packages but kr_kfp."""
    assert _foreign_modules(statement) == ["kr_kfp"]


def test_the_probe_sees_foreign_modules() -> None:
    """The probe does not pass by being blind."""
    assert "kfp" in _foreign_modules("import kr_kfp, kfp.dsl")


def test_importing_has_no_side_effects() -> None:
    """``import kr_kfp`` prints nothing, starts no thread, installs no signal handler and changes no environment."""
    statement = """
import os, signal, sys, threading
before = dict(os.environ), [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
import kr_kfp, kr_kfp._context, kr_kfp.runtime.host
after = dict(os.environ), [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
assert before == after
assert threading.active_count() == 1
"""
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_package_is_installed() -> None:
    """pyproject.toml names every folder that is a package, under the name it is installed by, and no other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    names = {"kr_kfp": "kr_kfp"} | {folder: name for name, folder in settings["package-dir"].items()}
    found = []
    for folder, name in names.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.append(".".join((name, *parts)))
    assert settings["packages"] == sorted(found)


def test_every_module_is_in_a_package() -> None:
    """No Python file of the product lies in a folder without ``__init__.py``, which would not be installed."""
    files = [file for top in ("kr_kfp", "components", "pipelines") for file in (ROOT / top).rglob("*.py")]
    assert [str(file) for file in files if not (file.parent / "__init__.py").exists()] == []


def test_links_for_mypy_point_home() -> None:
    """The links in typings/ give components/ and pipelines/ their installed names."""
    links = {link.name: link.resolve() for link in (ROOT / "typings").iterdir()}
    assert links == {"kr_kfp_components": ROOT / "components", "kr_kfp_pipelines": ROOT / "pipelines"}


def test_no_folder_hides_a_package() -> None:
    """No folder of the repository has the name of a package that others import: from here it would be found first.

    A folder named docker made kfp.local fail, which imports the package of that name if there is one.
    """
    names = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name.isidentifier()}
    assert names & {"docker", "kfp", "kubernetes", "jax", "keras", "numpy", "torch", "yaml"} == set()
