"""Container images without a registry, made from the project's own Dockerfile.

buildah (from Debian) executes it, with its layers kept between runs, so that a change of kr_kfp alone costs seconds. A
Debian base made with mmdebstrap stands in for the public base image: `--build-arg BASE` is all that differs. Each
image's name in the cache is the digest of all that it is made of.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.build import Programs
from tests.cluster.places import REPOSITORY, SOURCE, cache_root, digest_of

PAUSE_IMAGE = "kr-kfp.test/pause:1"
"""The image of pods' sandboxes. Images are never pulled, so their host exists nowhere."""

PYTHON_IMAGE = "kr-kfp.test/python:3.11"
"""Debian with Python and nothing of kr_kfp's: the stand-in for a public python image."""

LAUNCHER_IMAGE = "kr-kfp.test/launcher:1"
"""The Dockerfile's target `launcher`."""

TRAIN_IMAGE = "kr-kfp.test/train:1"
"""The Dockerfile's target `train`."""

KFP_IMAGE = "kr-kfp.test/kfp:1"
"""The programs that stand in for Argo's and KFP's own (go/kfp)."""

PATHWAYS_IMAGES = "kr-kfp.test/pathways"
"""Where the stand-ins for Pathways' images are: ``server`` and ``proxy_server`` (tests/standins/pathways)."""

PATHWAYS_VERSION = "stand-in-jax_0.10.2"
"""Their tag; the JAX in it is that of the training image (images/train.lock)."""

_DEBIAN = "bookworm"
_PACKAGES = ("ca-certificates", "passwd", "python3", "python3-pip", "python3-venv")

_COPIED = ("images", "kr_kfp", "components", "pipelines", "pyproject.toml", "README.md", "LICENSE")
"""What the Dockerfile copies (.dockerignore lets nothing else in)."""

_LAYERS = 80
"""Kept layers beyond which all are dropped and made anew."""

_PAUSE_DOCKERFILE = """\
FROM scratch
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
"""

_KFP_DOCKERFILE = """\
FROM scratch
COPY kfp-shape /kfp-shape
ENTRYPOINT ["/kfp-shape"]
"""

_PYTHON_DOCKERFILE = """\
FROM scratch
ADD root.tar /
ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
CMD ["python3"]
"""


_PATHWAYS_DOCKERFILE = """\
FROM {base}
COPY server.py /server.py
ENTRYPOINT ["python3", "/server.py", "{name}"]
"""

_PATHWAYS_SERVER = REPOSITORY / "tests" / "standins" / "pathways" / "server.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that can be built."""

    name: str
    digest: str
    """Of everything that decides its content."""

    @property
    def archive(self) -> Path:
        """The image as a file, once it is built."""
        return cache_root() / f"image-{self.digest}.tar"


def all_images() -> tuple[Image, ...]:
    """Describe the images that every node has."""
    pause = Image(name=PAUSE_IMAGE, digest=digest_of("pause", SOURCE / "pause.c", _PAUSE_DOCKERFILE))
    shape = Image(name=KFP_IMAGE, digest=digest_of("kfp", SOURCE / "go" / "kfp" / "main.go", _KFP_DOCKERFILE))
    python = Image(
        name=PYTHON_IMAGE, digest=digest_of("python", "uncompressed", _DEBIAN, *_PACKAGES, _PYTHON_DOCKERFILE)
    )
    sources = digest_of(python.digest, REPOSITORY / "Dockerfile", REPOSITORY / ".dockerignore", *_sources())
    own = [Image(name=name, digest=digest_of(name, sources)) for name in (LAUNCHER_IMAGE, TRAIN_IMAGE)]
    servers = [
        Image(
            name=f"{PATHWAYS_IMAGES}/{name}:{PATHWAYS_VERSION}",
            digest=digest_of(name, python.digest, _PATHWAYS_SERVER, _PATHWAYS_DOCKERFILE),
        )
        for name in ("server", "proxy_server")
    ]
    return (pause, shape, python, *own, *servers)


def _sources() -> Iterator[str | Path]:
    """List names and files of what the Dockerfile copies."""
    for name in _COPIED:
        top = REPOSITORY / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                yield str(path.relative_to(REPOSITORY))
                yield path


def build(wanted: Iterable[Image], programs: Programs) -> None:
    """Build images whose archives are not in the cache.

    Raises:
        RuntimeError: A build failed; with its output.
    """
    for image in wanted:
        if not image.archive.exists():
            start = time.monotonic()
            match image.name:
                case name if name == PAUSE_IMAGE:
                    _build_of_one(image, programs.bin / "pause", _PAUSE_DOCKERFILE)
                case name if name == KFP_IMAGE:
                    _build_of_one(image, programs.bin / "kfp-shape", _KFP_DOCKERFILE)
                case name if name == PYTHON_IMAGE:
                    _build_python(image)
                case name:
                    base = next(other for other in all_images() if other.name == PYTHON_IMAGE)
                    build([base], programs)
                    last = name.rpartition("/")[2].partition(":")[0]
                    if name.startswith(PATHWAYS_IMAGES):
                        _build_server(image, base, last)
                    else:
                        _build_own(image, base, target=last)
            print(f"built image {image.name} in {time.monotonic() - start:.0f} s", flush=True)


def _build_of_one(image: Image, program: Path, dockerfile: str) -> None:
    with tempfile.TemporaryDirectory() as context, _buildah() as buildah:
        shutil.copy(program, context)
        buildah.build(image, Path(context), dockerfile=dockerfile)


def _build_python(image: Image) -> None:
    with tempfile.TemporaryDirectory(dir=cache_root(), prefix="debian-") as context, _buildah() as buildah:
        packages = f"--include={','.join(_PACKAGES)}"
        # Documentation and translations take a third of the space and no part in any test.
        lean = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
        _run(["mmdebstrap", "--quiet", "--variant=minbase", packages, *lean, _DEBIAN, f"{context}/root.tar"])
        buildah.build(image, Path(context), dockerfile=_PYTHON_DOCKERFILE)


def _build_server(image: Image, base: Image, name: str) -> None:
    with tempfile.TemporaryDirectory() as context, _buildah() as buildah:
        shutil.copy(_PATHWAYS_SERVER, context)
        buildah.ensure(base)
        dockerfile = _PATHWAYS_DOCKERFILE.format(base=base.name, name=name)
        buildah.build(image, Path(context), dockerfile=dockerfile)


def _build_own(image: Image, base: Image, *, target: str) -> None:
    with _buildah() as buildah:
        buildah.ensure(base)
        options = [f"--target={target}", f"--build-arg=BASE={base.name}"]
        buildah.build(image, REPOSITORY, options=[*options, *buildah.trust()])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buildah:
    """buildah with a storage of its own in the cache."""

    storage: Path
    scratch: Path

    def run(self, *arguments: str) -> str:
        """Run a command of buildah; the mounts that it leaves when it fails end with it."""
        where = [f"--root={self.storage}", f"--runroot={self.scratch / 'run'}", "--storage-driver=overlay"]
        return _run(["unshare", "--mount", "buildah", *where, *arguments])

    def build(self, image: Image, context: Path, *, dockerfile: str = "", options: list[str] | None = None) -> None:
        """Execute a Dockerfile, the context's own or the given text, and keep the image in the cache."""
        file = context / "Dockerfile"
        if dockerfile:
            file = self.scratch / "Dockerfile"
            file.write_text(dockerfile, encoding="utf-8")
        # Without a container engine's privileges: a chroot, which needs nothing but root.
        how = ["--isolation=chroot", "--layers", "--quiet", f"--file={file}", f"--tag={image.name}", *(options or [])]
        self.run("build", *how, str(context))
        partial = image.archive.with_suffix(".partial")
        partial.unlink(missing_ok=True)
        # The one form that buildah does not compress, which would take half of the time.
        self.run("push", "--quiet", image.name, f"docker-archive:{partial}:{image.name}")
        partial.rename(image.archive)

    def ensure(self, image: Image) -> None:
        """Load an image from the cache, unless this very one is loaded."""
        mark = self.storage / "loaded"
        known = mark.read_text(encoding="utf-8").split() if mark.exists() else []
        if image.digest not in known:
            self.run("pull", "--quiet", f"docker-archive:{image.archive}")
            mark.write_text("\n".join([*known, image.digest]), encoding="utf-8")

    def trust(self) -> list[str]:
        """Give options with which pip in a build reaches the index as it does on this machine.

        The base image trusts public authorities only and knows no settings of this machine; nothing of it stays in the
        image, as would a line in the Dockerfile.
        """
        settings = self.scratch / "pip.conf"
        lines = ["[global]", "cert = /etc/ssl/certs/ca-certificates.crt"]
        for name in ("index-url", "extra-index-url"):
            value = os.environ.get(f"PIP_{name.upper().replace('-', '_')}")
            lines += [f"{name} = {value}"] if value else []
        settings.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [f"--volume={settings}:/etc/pip.conf:ro", "--volume=/etc/ssl/certs:/etc/ssl/certs:ro"]


@contextmanager
def _buildah() -> Iterator[_Buildah]:
    """Give buildah; afterwards drop its layers if there are too many."""
    storage = cache_root() / "layers"
    with tempfile.TemporaryDirectory(dir=cache_root(), prefix="buildah-") as scratch:
        buildah = _Buildah(storage=storage, scratch=Path(scratch))
        yield buildah
        if len(buildah.run("images", "--all", "--noheading").splitlines()) > _LAYERS:
            shutil.rmtree(storage)


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        raise RuntimeError(msg)
    return done.stdout
