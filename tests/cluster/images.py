"""Container images without a registry: made here, laid out once in a containerd folder, shared by all nodes.

buildah (from Debian) executes Dockerfiles; a Debian base made with mmdebstrap stands in for the public base image.
Each image's name in the cache is the digest of all that it is made of, and so is that of the folder with all of them.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.build import Programs, locked
from tests.cluster.build import digest as programs_digest
from tests.cluster.namespaces import Namespaces
from tests.cluster.node import PAUSE_IMAGE
from tests.cluster.places import SOURCE, cache_root, digest_of
from tests.cluster.processes import wait_for

PYTHON_IMAGE = "kr-kfp.test/python:3.11"
"""Debian with Python and nothing of kr_kfp's: the stand-in for a public python image."""

_DEBIAN = "bookworm"
_PACKAGES = ("ca-certificates", "python3", "python3-pip", "python3-venv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that can be built: a Dockerfile with its context, or a root file system."""

    name: str
    digest: str
    """Of everything that decides its content."""

    @property
    def archive(self) -> Path:
        """The image as a file, once it is built."""
        return cache_root() / f"image-{self.digest}.tar"


def python_image() -> Image:
    """Describe the base image."""
    return Image(name=PYTHON_IMAGE, digest=digest_of("python", _DEBIAN, *_PACKAGES, _PYTHON_DOCKERFILE))


def pause_image() -> Image:
    """Describe the image of pods' sandboxes."""
    return Image(name=PAUSE_IMAGE, digest=digest_of("pause", SOURCE / "pause.c", _PAUSE_DOCKERFILE))


_PAUSE_DOCKERFILE = """\
FROM scratch
COPY pause /pause
USER 65535:65535
ENTRYPOINT ["/pause"]
"""

_PYTHON_DOCKERFILE = """\
FROM scratch
ADD root.tar /
ENV PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
CMD ["python3"]
"""


def store(programs: Programs) -> Path:
    """Give a containerd root folder that holds all images: built, if it is not in the cache.

    Raises:
        RuntimeError: A build failed; with its output.
    """
    images = (pause_image(), python_image())
    final = cache_root() / f"store-{digest_of(programs_digest(), *(image.digest for image in images))}"
    with locked(cache_root() / "images.lock"):
        if not final.is_dir():
            _build_pause(pause_image(), programs)
            _build_python(python_image())
            with tempfile.TemporaryDirectory(dir=cache_root(), prefix="storing-") as scratch:
                _import(images, programs, Path(scratch))
                (Path(scratch) / "root").rename(final)
    return final


def _build_pause(image: Image, programs: Programs) -> None:
    with tempfile.TemporaryDirectory() as context:
        shutil.copy(programs.bin / "pause", context)
        build(image, _PAUSE_DOCKERFILE, Path(context))


def _build_python(image: Image) -> None:
    if image.archive.exists():
        return
    with tempfile.TemporaryDirectory() as context:
        packages = f"--include={','.join(_PACKAGES)}"
        # Documentation and package lists take a third of the space and no part in any test.
        lean = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
        _run(["mmdebstrap", "--quiet", "--variant=minbase", packages, *lean, _DEBIAN, f"{context}/root.tar"])
        build(image, _PYTHON_DOCKERFILE, Path(context))


def build(image: Image, dockerfile: str, context: Path) -> None:
    """Execute a Dockerfile and keep the image in the cache, unless it is there."""
    if image.archive.exists():
        return
    start = time.monotonic()
    partial = image.archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_root(), prefix="buildah-") as scratch:
        file = Path(scratch) / "Dockerfile"
        file.write_text(dockerfile, encoding="utf-8")
        where = [f"--root={scratch}/root", f"--runroot={scratch}/run", "--storage-driver=overlay"]
        options = ["--isolation=chroot", "--quiet", f"--file={file}", f"--tag={image.name}"]
        _run(["buildah", *where, "build", *options, str(context)])
        _run(["buildah", *where, "push", "--quiet", image.name, f"oci-archive:{partial}:{image.name}"])
        _run(["buildah", *where, "rmi", "--all"])
    partial.rename(image.archive)
    print(f"built image {image.name} in {time.monotonic() - start:.0f} s", flush=True)


def _import(images: tuple[Image, ...], programs: Programs, folder: Path) -> None:
    """Unpack images with a containerd that lives just for that."""
    cgroup = f"kr-kfp-images-{folder.name}"
    cgroups.create(cgroup)
    config = folder / "containerd.toml"
    config.write_text(
        f'version = 3\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
        'disabled_plugins = ["io.containerd.nri.v1.nri"]\n'
        f'[grpc]\naddress = "{folder}/socket"\n'
        f'[plugins."io.containerd.internal.v1.opt"]\npath = "{folder}/opt"\n',
        encoding="utf-8",
    )
    corner = Namespaces.create(pause=programs.bin / "pause", logs=folder, cgroup=cgroup)
    try:
        corner.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        daemon = corner.start("containerd", [programs.bin / "containerd", "--config", config])
        wait_for("containerd for images", (folder / "socket").exists, seconds=30)
        for image in images:
            ctr = [str(programs.bin / "ctr"), f"--address={folder}/socket", "--namespace=k8s.io", "images", "import"]
            corner.run(*ctr, "--local", image.archive)
        daemon.end()
    finally:
        corner.end()
        cgroups.clear(cgroup)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}"
        raise RuntimeError(msg)
