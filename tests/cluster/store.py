"""All images, unpacked once into a containerd folder, which every node then has by links: no import at a node's start."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import cgroups, images
from tests.cluster.build import Programs, locked
from tests.cluster.images import PAUSE_IMAGE, PYTHON_IMAGE, Image
from tests.cluster.namespaces import Namespaces
from tests.cluster.places import cache_root, digest_of
from tests.cluster.processes import wait_for

_KEPT = 4
"""Stores that stay in the cache; older ones are removed."""

_CONTENT = "images.json"
"""In a store: the digest of each image by its name."""

_NOT_HERE = ("nri.v1.nri", "cri.v1.images", "cri.v1.runtime", "grpc.v1.cri")
"""Plugins that would hold on to images that a later one replaces."""


def place(programs: Programs) -> Path:
    """Say where the folder with all images lies, or will."""
    return cache_root() / f"store-{digest_of(str(programs.bin), *(image.digest for image in images.all_images()))}"


def store(programs: Programs) -> Path:
    """Give a containerd root folder that holds all images: built, if it is not in the cache.

    Raises:
        RuntimeError: A build failed; with its output.
    """
    root = cache_root()
    with locked(root / "images.lock"):
        wanted, final = images.all_images(), place(programs)
        if not final.is_dir():
            like = _newest("store-*")
            had: dict[str, str] = json.loads((like / _CONTENT).read_text(encoding="utf-8")) if like else {}
            missing = [image for image in wanted if had.get(image.name) != image.digest]
            images.build(missing, programs)
            with tempfile.TemporaryDirectory(dir=root, prefix="storing-") as scratch:
                _fill(Path(scratch), missing, programs, like)
                content = {image.name: image.digest for image in wanted}
                (Path(scratch) / "root" / _CONTENT).write_text(json.dumps(content, indent=1), encoding="utf-8")
                (Path(scratch) / "root").rename(final)
            _forget_archives()
        final.touch()
        _prune()
    return final


def link_tree(source: Path, target: Path) -> None:
    """Copy a containerd root folder by links; databases, which are written in place, become files of their own."""
    subprocess.run(["cp", "--archive", "--link", source, target], check=True)
    for database in target.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        subprocess.run(["cp", "--archive", database, copy], check=True)
        copy.rename(database)


def _fill(folder: Path, wanted: Sequence[Image], programs: Programs, like: Path | None) -> None:
    """Unpack images with a containerd that lives just for that, beside those of an earlier store if there is one."""
    if like:
        link_tree(like, folder / "root")
        (folder / "root" / _CONTENT).unlink()
    config = folder / "containerd.toml"
    disabled = ", ".join(f'"io.containerd.{name}"' for name in _NOT_HERE)
    config.write_text(
        f'version = 3\nroot = "{folder}/root"\nstate = "{folder}/state"\ndisabled_plugins = [{disabled}]\n'
        f'[grpc]\naddress = "{folder}/socket"\n'
        f'[plugins."io.containerd.internal.v1.opt"]\npath = "{folder}/opt"\n',
        encoding="utf-8",
    )
    cgroup = f"kr-kfp-images-{folder.name}"
    cgroups.create(cgroup)
    corner = Namespaces.create(pause=programs.bin / "pause", logs=folder, cgroup=cgroup)
    try:
        corner.run("mount", "-t", "tmpfs", "tmpfs", "/run")
        daemon = corner.start("containerd", [programs.bin / "containerd", "--config", config])
        wait_for("containerd for images", (folder / "socket").exists, seconds=120)
        ctr = [str(programs.bin / "ctr"), f"--address={folder}/socket", "--namespace=k8s.io", "images"]
        for image in wanted:
            # Layers are needed unpacked only.
            corner.run(*ctr, "import", "--local", "--discard-unpacked-layers", str(image.archive))
        # What no image has any more goes when a name is removed in one step with what it stood for.
        corner.run(*ctr, "tag", PAUSE_IMAGE, "unused")
        corner.run(*ctr, "rm", "--sync", "unused")
        daemon.end()
    finally:
        corner.end()
        cgroups.clear(cgroup)


def _newest(pattern: str) -> Path | None:
    """Give the newest store that is whole."""
    found = (path for path in cache_root().glob(pattern) if (path / _CONTENT).exists())
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _forget_archives() -> None:
    """Remove the archives of images that are in a store now, but for the base that others are built on."""
    base = next(image for image in images.all_images() if image.name == PYTHON_IMAGE)
    for archive in cache_root().glob("image-*.tar"):
        if archive != base.archive:
            archive.unlink()


def _prune() -> None:
    """Remove all but the newest stores."""
    by_age = sorted(cache_root().glob("store-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[_KEPT:]:
        shutil.rmtree(path)
