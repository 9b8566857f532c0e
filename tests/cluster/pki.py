"""Keys, certificates and tokens of a cluster that lives for a day (elliptic curves: made in milliseconds)."""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_CURVE = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
_DAYS = "3650"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority in a folder: `ca.crt` and `ca.key` beside what it signed."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """Make the folder and a new authority in it."""
        folder.mkdir(parents=True, mode=0o700)
        _openssl(
            folder,
            [
                "req",
                "-x509",
                *_CURVE,
                "-keyout",
                "ca.key",
                "-out",
                "ca.crt",
                "-days",
                _DAYS,
                "-subj",
                "/CN=kr-kfp-test",
            ],
        )
        return cls(folder=folder)

    @property
    def certificate(self) -> Path:
        """What others trust."""
        return self.folder / "ca.crt"

    def sign(self, name: str, subject: str, *, names: Sequence[str] = ()) -> tuple[Path, Path]:
        """Make a key and a certificate for a subject and for names such as DNS:localhost; give their files."""
        certificate, key = f"{name}.crt", f"{name}.key"
        extension = ["-addext", f"subjectAltName={','.join(names)}"] if names else []
        issuer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE"]
        _openssl(
            self.folder,
            [
                "req",
                "-x509",
                *issuer,
                *_CURVE,
                "-keyout",
                key,
                "-out",
                certificate,
                "-days",
                _DAYS,
                "-subj",
                subject,
                *extension,
            ],
        )
        return self.folder / certificate, self.folder / key

    def key_pair(self, name: str) -> tuple[Path, Path]:
        """Make a private and a public key; give their files."""
        private, public = f"{name}.key", f"{name}.pub"
        _openssl(self.folder, ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", private])
        _openssl(self.folder, ["pkey", "-in", private, "-pubout", "-out", public])
        return self.folder / private, self.folder / public


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Someone whom the API server knows by a token (`--token-auth-file`)."""

    user: str
    group: str = ""
    token: str

    @classmethod
    def create(cls, user: str, group: str = "") -> Account:
        """Make up a token."""
        return cls(user=user, group=group, token=secrets.token_hex(16))

    def line(self) -> str:
        """Give the line of the API server's file: token, name, id, groups."""
        return f'{self.token},{self.user},{self.user},"{self.group}"\n'

    def kubeconfig(self, server: str, authority: Path) -> str:
        """Give the account's way in: kubeconfig, as JSON."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": self.user}}],
            "users": [{"name": self.user, "user": {"token": self.token}}],
            "clusters": [{"name": "test", "cluster": {"server": server, "certificate-authority": str(authority)}}],
        }
        return json.dumps(config, indent=1)


def _openssl(folder: Path, arguments: list[str]) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"openssl {' '.join(arguments)}: {done.stderr}"
        raise RuntimeError(msg)
