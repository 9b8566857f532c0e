"""Builds the cluster's programs from Go modules: no release download, no registry.

Every module is pinned by a `go.mod` under `go/` and checked against its `go.sum`; the result lies in the cache under
the digest of those files and of the commands, so that a change of either builds that module anew, and only then. A
build goes to a folder of its own that gets its name when it is complete: what has the name is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.places import SOURCE, cache_root, digest_of

KUBERNETES = "v1.36.3"
"""The version that the API server and the kubelets report; the module's version in go/kube/go.mod is the same."""

_VERSION = "k8s.io/component-base/version"
_KUBERNETES_FLAGS = f"-X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=36"


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One Go build: packages of the module in `go/<folder>` become programs."""

    folder: str
    programs: dict[str, str]
    """Name of the program, and the package that it is built from."""
    link: str = ""
    """Linker flags beside those that drop debugging tables."""
    cgo: bool = False
    tags: str = ""

    def command(self, package: str, output: Path) -> list[str]:
        """Give the command that builds one program."""
        flags = [f"-tags={self.tags}"] if self.tags else []
        return ["go", "build", "-trimpath", *flags, f"-ldflags=-s -w {self.link}".rstrip(), f"-o={output}", package]


MODULES = (
    Module(
        folder="kube",
        link=_KUBERNETES_FLAGS,
        programs={
            name: f"k8s.io/kubernetes/cmd/{name}"
            for name in (
                "kube-apiserver",
                "kube-controller-manager",
                "kube-scheduler",
                "kubelet",
                "kube-proxy",
                "kubectl",
            )
        },
    ),
    Module(folder="etcd", programs={"etcd": "go.etcd.io/etcd/server/v3"}),
    Module(folder="lws", programs={"lws-manager": "sigs.k8s.io/lws/cmd"}),
    Module(
        folder="containerd",
        programs={
            name: f"github.com/containerd/containerd/v2/cmd/{name}"
            for name in ("containerd", "containerd-shim-runc-v2", "ctr")
        },
    ),
    Module(folder="runc", cgo=True, tags="seccomp", programs={"runc": "github.com/opencontainers/runc"}),
    Module(folder="kfp", programs={"kfp-shape": "."}),
    Module(folder="coredns", programs={"coredns": "github.com/coredns/coredns"}),
)

_PAUSE = ["gcc", "-static", "-Os"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What a build leaves: a folder of programs, and LeaderWorkerSet's own manifests."""

    bin: Path
    lws_manifests: Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock: whoever else builds or starts the same thing waits, then finds it done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def programs() -> Programs:
    """Give the cluster's programs: built, if they are not in the cache (about 7 minutes on 2 processors).

    Each module is kept by its own digest, so that a change of one builds that one; all of them are links in one folder.

    Raises:
        RuntimeError: A build failed, or a program in the cache is not what was built.
    """
    root = cache_root()
    with locked(root / "build.lock"):
        parts = [_module(root, module) for module in MODULES]
        parts.append(_kept(root / f"built-pause-{digest_of(*_PAUSE, SOURCE / 'pause.c')}", _build_pause))
        final = root / f"programs-{digest_of(*(part.name for part in parts))}"
        if not final.is_dir():
            with _unfinished(final) as folder:
                for part in parts:
                    shutil.copytree(part, folder, copy_function=os.link, dirs_exist_ok=True)
                kustomize = [str(folder / "bin" / "kubectl"), "kustomize", "lws-config/default"]
                (folder / "lws.yaml").write_text(_run(kustomize, cwd=folder, env={}), encoding="utf-8")
        for part in parts:
            _check(part, final)
    return Programs(bin=final / "bin", lws_manifests=final / "lws.yaml")


def _module(root: Path, module: Module) -> Path:
    """Give the folder of one module's programs, built if need be."""
    pins = sorted(path for path in (SOURCE / "go" / module.folder).iterdir() if path.is_file())
    commands = [" ".join(module.command(package, Path(name))) for name, package in module.programs.items()]
    digest = digest_of(*commands, str(module.cgo), *pins)
    return _kept(root / f"built-{module.folder}-{digest}", lambda folder: _build(module, folder))


def _kept(final: Path, build: Callable[[Path], None]) -> Path:
    """Build into a folder that gets its name, and checksums of its programs, when it is complete."""
    if not final.is_dir():
        with _unfinished(final) as folder:
            (folder / "bin").mkdir()
            build(folder)
            sums = {path.name: _sha256(path) for path in sorted((folder / "bin").iterdir())}
            (folder / f"{final.name}.json").write_text(json.dumps(sums, indent=1), encoding="utf-8")
    return final


@contextmanager
def _unfinished(final: Path) -> Iterator[Path]:
    """Give a new folder that becomes `final` if all goes well, and is removed otherwise."""
    with tempfile.TemporaryDirectory(dir=final.parent, prefix="building-") as scratch:
        folder = Path(scratch) / "new"
        folder.mkdir()
        yield folder
        folder.rename(final)


def _build(module: Module, folder: Path) -> None:
    source = SOURCE / "go" / module.folder
    # -mod=readonly: a missing or different checksum in go.sum is an error, never an update.
    flags = {"GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local", "CGO_ENABLED": str(int(module.cgo))}
    for name, package in module.programs.items():
        start = time.monotonic()
        _run(module.command(package, folder / "bin" / name), cwd=source, env=flags)
        print(f"built {name} in {time.monotonic() - start:.0f} s", flush=True)
    if module.folder == "lws":
        where = _run(["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws"], cwd=source, env=flags).strip()
        # Modules lie read-only in Go's cache; copies of them have to be removable.
        shutil.copytree(Path(where) / "config", folder / "lws-config", copy_function=shutil.copyfile)
        for path in (folder / "lws-config", *(folder / "lws-config").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)


def _build_pause(folder: Path) -> None:
    _run([*_PAUSE, "-o", str(folder / "bin" / "pause"), str(SOURCE / "pause.c")], cwd=folder, env={})


def _check(part: Path, final: Path) -> None:
    """Compare programs with the checksums taken when they were built (0.5 s for all of the 500 MB)."""
    expected: dict[str, str] = json.loads((part / f"{part.name}.json").read_text(encoding="utf-8"))
    wrong = sorted(name for name, sum_ in expected.items() if _sha256(final / "bin" / name) != sum_)
    if wrong:
        msg = f"{final}: {', '.join(wrong)} changed after the build. Remove {part} and that folder to build anew."
        raise RuntimeError(msg)


def _sha256(path: Path) -> str:
    if not path.is_file():
        return "missing"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run(command: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(command)} in {cwd}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        raise RuntimeError(msg)
    return done.stdout


if __name__ == "__main__":
    print(programs().bin)
