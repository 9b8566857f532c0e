"""Which kr_kfp a step installs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import kr_kfp
from kr_kfp.authoring import package
from kr_kfp.authoring.component import component
from kr_kfp.authoring.package import Package, from_direct_url
from kr_kfp.authoring.wheel import pack_wheel
from tests import declared

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (None, Package(requirement="kr-kfp==1.2")),
        (
            {
                "url": "https://git.example/kr-kfp",
                "vcs_info": {"vcs": "git", "commit_id": COMMIT, "requested_revision": "x"},
            },
            Package(requirement=f"kr-kfp @ git+https://git.example/kr-kfp@{COMMIT}"),
        ),
        (
            {"url": "https://git.example/m", "vcs_info": {"vcs": "git", "commit_id": COMMIT}, "subdirectory": "py"},
            Package(requirement=f"kr-kfp @ git+https://git.example/m@{COMMIT}#subdirectory=py"),
        ),
        (
            {"url": "file:///src/kr%20kfp", "dir_info": {"editable": True}},
            Package(requirement="kr-kfp==1.2", local="/src/kr kfp"),
        ),
        (
            {"url": "file:///dist/kr_kfp-1.2-py3-none-any.whl", "archive_info": {}},
            Package(requirement="kr-kfp==1.2", local="/dist/kr_kfp-1.2-py3-none-any.whl"),
        ),
        (
            {"url": "https://files.example/kr_kfp-1.2-py3-none-any.whl", "archive_info": {}},
            Package(requirement="kr-kfp @ https://files.example/kr_kfp-1.2-py3-none-any.whl"),
        ),
    ],
    ids=["index", "git", "git-subdirectory", "editable", "wheel", "wheel-by-address"],
)
def test_origin(direct_url: dict[str, object] | None, expected: Package) -> None:
    """The origin that pip recorded (PEP 610) decides, and no path of this machine is a requirement."""
    assert from_direct_url("1.2", direct_url) == expected


class FakeDistribution:
    """An installed distribution."""

    version = "9.9"

    def __init__(self, direct_url: dict[str, object] | None) -> None:
        self.direct_url = direct_url

    def read_text(self, name: str) -> str | None:
        """Give the recorded origin."""
        assert name == "direct_url.json"
        return None if self.direct_url is None else json.dumps(self.direct_url)


def test_checkout_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not installed at all: the checkout serves local runs, the release of its version everything else."""

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    found = package.author_package.__wrapped__()
    root = Path(kr_kfp.__file__).resolve().parent.parent
    assert found == Package(requirement=f"kr-kfp=={kr_kfp.__version__}", local=str(root))


def test_installed_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release from an index is pinned."""
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: FakeDistribution(None))
    assert package.author_package.__wrapped__() == Package(requirement="kr-kfp==9.9")


def test_local_wheel_is_offered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wheel that is still there is named in the environment, unless the user named one."""
    wheel = tmp_path / "kr_kfp.whl"
    wheel.touch()
    monkeypatch.setattr(package, "author_package", lambda: Package(requirement="x", local=str(wheel)))
    monkeypatch.setenv("KR_KFP_PACKAGE", "mine")
    package.offer_local_package()
    assert os.environ["KR_KFP_PACKAGE"] == "mine"
    monkeypatch.delenv("KR_KFP_PACKAGE")
    package.offer_local_package()
    assert os.environ["KR_KFP_PACKAGE"] == str(wheel)
    monkeypatch.delenv("KR_KFP_PACKAGE")
    for gone in (str(tmp_path / "gone"), ""):
        monkeypatch.setattr(package, "author_package", lambda gone=gone: Package(requirement="x", local=gone))
        package.offer_local_package()
        assert "KR_KFP_PACKAGE" not in os.environ


def test_local_folder_is_offered_as_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A checkout is packed once, as it is now, without a build inside it."""
    monkeypatch.setattr(package, "author_package", lambda: Package(requirement="x", local=str(tmp_path)))
    monkeypatch.setenv("KR_KFP_PACKAGE", "")
    monkeypatch.delenv("KR_KFP_PACKAGE")
    package.offer_local_package()
    wheel = Path(os.environ["KR_KFP_PACKAGE"])
    assert wheel.name == f"kr_kfp-{kr_kfp.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("kr_kfp/__init__.py") == Path(kr_kfp.__file__).read_bytes()
        assert archive.testzip() is None
    assert list(tmp_path.iterdir()) == []


def test_wheel_is_what_pip_takes(tmp_path: Path) -> None:
    """Pip installs the wheel without an index, and the same files give the same bytes."""
    root = Path(kr_kfp.__file__).resolve().parent
    wheel = pack_wheel(root, "kr-kfp", "1.2", tmp_path)
    first = wheel.read_bytes()
    assert pack_wheel(root, "kr-kfp", "1.2", tmp_path).read_bytes() == first
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
    subprocess.run([*command, "--disable-pip-version-check", "--target", str(target), str(wheel)], check=True)
    assert (target / "kr_kfp" / "wire.py").read_bytes() == (root / "wire.py").read_bytes()
    [found] = importlib.metadata.distributions(name="kr-kfp", path=[str(target)])
    assert found.version == "1.2"


def script(**options: Any) -> str:
    """Give the bootstrap script of a component."""
    return str(component(declared.train, **options).component_spec.implementation.container.command[2])


def test_requirement_in_the_command() -> None:
    """The release by default, kr_kfp_package_path instead of it, nothing with install_kr_kfp_package=False."""
    root = str(Path(kr_kfp.__file__).resolve().parent.parent)
    assert f"k=${{KR_KFP_PACKAGE:-{package.author_package().requirement}}}\n" in script()
    assert root not in script()
    assert "k=${KR_KFP_PACKAGE:-/wheels/kr_kfp.whl}\n" in script(kr_kfp_package_path="/wheels/kr_kfp.whl")
    assert "pip install" not in script(install_kr_kfp_package=False)
    assert component(declared.train, install_kr_kfp_package=False).step.requirement is None


def test_indexes_of_the_component() -> None:
    """Pip's settings of the component count for kr_kfp too."""
    text = script(pip_index_urls=["https://a.example", "https://b.example"], pip_trusted_hosts=["a.example"])
    assert "--index-url https://a.example --extra-index-url https://b.example --trusted-host a.example" in text
