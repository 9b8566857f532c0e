"""Builds the cluster's programs from Go modules: no release download, no registry.

Every module is pinned by a `go.mod` under `go/` and checked against its `go.sum`; the result lies in the cache under
the digest of those files and of the commands, so that a change of either builds anew, and only then. A build goes to a
folder of its own that gets its name when it is complete: what has the name is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
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
    Module(folder="coredns", programs={"coredns": "github.com/coredns/coredns"}),
)

_PAUSE = ["gcc", "-static", "-Os"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """What a build leaves: a folder of programs, and LeaderWorkerSet's own manifests."""

    bin: Path
    lws_manifests: Path


def digest() -> str:
    """Digest everything that decides what is built."""
    pins = [path for module in MODULES for path in sorted((SOURCE / "go" / module.folder).iterdir())]
    commands = [" ".join(m.command(p, Path(n))) + str(m.cgo) for m in MODULES for n, p in m.programs.items()]
    return digest_of(*commands, *_PAUSE, SOURCE / "pause.c", *pins)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock: whoever else builds or starts the same thing waits, then finds it done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def programs() -> Programs:
    """Give the cluster's programs: built, if they are not in the cache (about 7 minutes on 2 processors).

    Raises:
        RuntimeError: A build failed, or a program in the cache is not what was built.
    """
    root = cache_root()
    final = root / f"programs-{digest()}"
    with locked(root / "build.lock"):
        if not final.is_dir():
            with tempfile.TemporaryDirectory(dir=root, prefix="building-") as scratch:
                _build(Path(scratch))
                Path(scratch).rename(final)
                Path(scratch).mkdir()  # for TemporaryDirectory to remove
        _check(final)
    return Programs(bin=final / "bin", lws_manifests=final / "lws.yaml")


def _build(folder: Path) -> None:
    (folder / "bin").mkdir()
    for module in MODULES:
        source = SOURCE / "go" / module.folder
        # -mod=readonly: a missing or different checksum in go.sum is an error, never an update.
        env = {"CGO_ENABLED": str(int(module.cgo)), "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
        for name, package in module.programs.items():
            start = time.monotonic()
            _run(module.command(package, folder / "bin" / name), cwd=source, env=env)
            print(f"built {name} in {time.monotonic() - start:.0f} s", flush=True)
        if module.folder == "lws":
            where = _run(["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/lws"], cwd=source, env=env).strip()
            manifests = _run(
                [str(folder / "bin" / "kubectl"), "kustomize", f"{where}/config/default"], cwd=folder, env={}
            )
            (folder / "lws.yaml").write_text(manifests, encoding="utf-8")
    _run([*_PAUSE, "-o", str(folder / "bin" / "pause"), str(SOURCE / "pause.c")], cwd=folder, env={})
    sums = {path.name: _sha256(path) for path in sorted((folder / "bin").iterdir())}
    (folder / "sha256.json").write_text(json.dumps(sums, indent=1), encoding="utf-8")


def _check(folder: Path) -> None:
    """Compare the programs with the checksums taken when they were built (0.5 s for 500 MB)."""
    expected: dict[str, str] = json.loads((folder / "sha256.json").read_text(encoding="utf-8"))
    wrong = sorted(name for name, sum_ in expected.items() if _sha256(folder / "bin" / name) != sum_)
    if wrong:
        msg = f"{folder}: {', '.join(wrong)} changed after the build. Remove the folder to build anew."
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
