"""A wheel of the kr_kfp that this process runs, for local steps in empty venvs.

pip could install the checkout itself, but builds it inside that folder: slowly, with a download of the build backend,
and for two steps at a time in the same place. kr_kfp is pure Python, so a wheel is its files and three texts
(packaging.python.org, "Binary distribution format").
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

__all__ = ["pack_wheel"]

# The earliest time that a zip file can name: the same files give the same wheel.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack_wheel(package: Path, name: str, version: str, folder: Path) -> Path:
    """Write a wheel of one package.

    Args:
        package: The package's folder.
        name: The distribution's name, such as ``kr-kfp``.
        version: Its version.
        folder: Where the wheel goes.

    Returns:
        The wheel's path.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {
        f"{package.name}/{file.relative_to(package).as_posix()}": file.read_bytes()
        for file in sorted(package.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: kr_kfp\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in files.items()]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in files.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
