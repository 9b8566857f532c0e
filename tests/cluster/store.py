"""All images, unpacked once into a containerd folder, which every node then has by links: no import at a node's start."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.cluster import cgroups, images
from tests.cluster.build import Programs, locked
from tests.cluster.images import PAUSE_IMAGE, Image
from tests.cluster.namespaces import Namespaces
from tests.cluster.places import cache_root, digest_of
from tests.cluster.processes import wait_for

_KEPT = 5
"""Stores, and archives for each image of one, that stay in the cache; older ones are removed."""


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
            images.build(programs)
            with tempfile.TemporaryDirectory(dir=root, prefix="storing-") as scratch:
                _fill(Path(scratch), wanted, programs, _newest("store-*"))
                (Path(scratch) / "root").rename(final)
        final.touch()
        _prune("store-*", _KEPT)
        _prune("image-*.tar", _KEPT * len(wanted))
    return final


def link_tree(source: Path, target: Path) -> None:
    """Copy a containerd root folder by links; databases, which are written in place, become files of their own."""
    subprocess.run(["cp", "--archive", "--link", source, target], check=True)
    for database in target.glob("*/*.db"):
        copy = database.with_suffix(".copy")
        subprocess.run(["cp", "--archive", database, copy], check=True)
        copy.rename(database)


def _fill(folder: Path, wanted: tuple[Image, ...], programs: Programs, like: Path | None) -> None:
    """Unpack images with a containerd that lives just for that, starting from an earlier store if there is one."""
    if like:
        link_tree(like, folder / "root")
    config = folder / "containerd.toml"
    config.write_text(
        f'version = 3\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
        'disabled_plugins = ["io.containerd.nri.v1.nri"]\n'
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
        wait_for("containerd for images", (folder / "socket").exists, seconds=30)
        ctr = [str(programs.bin / "ctr"), f"--address={folder}/socket", "--namespace=k8s.io", "images"]
        for image in wanted:
            corner.run(*ctr, "import", "--local", str(image.archive))
        # What earlier images alone had goes when a name is removed in one step with what it stood for.
        corner.run(*ctr, "tag", PAUSE_IMAGE, "unused")
        corner.run(*ctr, "rm", "--sync", "unused")
        daemon.end()
    finally:
        corner.end()
        cgroups.clear(cgroup)


def _newest(pattern: str) -> Path | None:
    return max(cache_root().glob(pattern), key=lambda path: path.stat().st_mtime, default=None)


def _prune(pattern: str, kept: int) -> None:
    """Remove all but the newest."""
    by_age = sorted(cache_root().glob(pattern), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in by_age[kept:]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
