"""What this machine must have for a cluster, and a reason in one sentence where something is missing.

Debian's packages are installed if that is possible (as root, with apt-get), as `.ci/python` does for Python's own;
where KR_KFP_REQUIRE_CLUSTER=1 (continuous integration) what is missing is a failure instead of a skip.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

REQUIRE = "KR_KFP_REQUIRE_CLUSTER"

GO = (1, 26)
"""The Go release that the pinned modules ask for (go.mod)."""

PACKAGES = {
    "buildah": "buildah",  # executes the Dockerfile
    "conntrack": "conntrack",  # kube-proxy
    "gcc": "gcc",  # runc and the pause program
    "ip": "iproute2",
    "iptables": "iptables",  # kube-proxy, port mappings
    "mmdebstrap": "mmdebstrap",  # makes the base image
    "nsenter": "util-linux",
    "openssl": "openssl",
    "pkg-config": "pkg-config",  # finds libseccomp for runc
}
"""A program that is needed, and the Debian package that has it."""

_FILES = {
    Path("/usr/lib/cni/bridge"): "containernetworking-plugins",
    Path("/usr/include/seccomp.h"): "libseccomp-dev",
    # Static linking of the pause program.
    Path(f"/usr/lib/{os.uname().machine}-linux-gnu/libc.a"): "libc6-dev",
}


def missing_packages() -> list[str]:
    """Name the Debian packages that are not installed, by looking for what is needed of them."""
    programs = {package for program, package in PACKAGES.items() if shutil.which(program) is None}
    return sorted(programs | {package for path, package in _FILES.items() if not path.exists()})


def install() -> None:
    """Install missing Debian packages, if this may be done; what is still missing is for `reason` to tell."""
    packages = missing_packages()
    if not packages or os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    print(f"Installing {' '.join(packages)} with apt-get", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=env, check=False)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    subprocess.run(command, env=env, check=False, stdout=subprocess.DEVNULL)


def reason() -> str:
    """Say why there can be no cluster here; empty if there can."""
    if sys.platform != "linux":
        return f"the cluster needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "the cluster needs root: it makes namespaces, network devices and cgroups"
    if shutil.which("go") is None:
        return f"the cluster is built with Go {GO[0]}.{GO[1]} or newer, which is not on the PATH"
    found = go_version()
    if found < GO:
        return f"the cluster is built with Go {GO[0]}.{GO[1]} or newer, this is {found[0]}.{found[1]}"
    if missing := missing_packages():
        return f"the cluster needs Debian packages: apt-get install {' '.join(missing)}"
    return ""


def required() -> bool:
    """Say whether a cluster that cannot be had is a failure."""
    return os.environ.get(REQUIRE) == "1"


def go_version() -> tuple[int, int]:
    """Read the release of the Go on the PATH; (0, 0) if it does not tell."""
    env = os.environ | {"GOTOOLCHAIN": "local"}
    done = subprocess.run(["go", "env", "GOVERSION"], env=env, capture_output=True, text=True, check=False)
    match = re.match(r"go(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2])) if match else (0, 0)
