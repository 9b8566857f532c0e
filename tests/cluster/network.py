"""The cluster's network: a bridge of its own inside its namespace, and one cable to this machine.

Nodes and pods hang on the bridge; so does the cable, which gives this machine an address in the pods' network, so that
tests reach the API server, services and pods directly. There is no way out of it: what runs in the cluster has no
internet, by intention.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.namespaces import Namespaces
from tests.cluster.places import Places
from tests.cluster.processes import wait_for

_CABLE = "machine"
"""The inner end of the cable; the outer one is named like the bridge."""


def connect(places: Places, corner: Namespaces) -> None:
    """Make the bridge and the cable."""
    device, network = places.device, f"{places.pods}.0.0/16"
    used = _ip("-brief", "address", "show", "to", network) + _ip("route", "show", "root", network)
    if used:
        msg = f"{network} is used on this machine already: {used.strip()}. Choose another KR_KFP_CLUSTER_NUMBER."
        raise RuntimeError(msg)
    for command in (
        "ip link set lo up",
        f"ip link add {device} type bridge",
        f"ip address add {places.gateway}/16 dev {device}",
        # A bridge without an address of its own takes one of a pod's, and another one when that pod ends.
        f"ip link set {device} address 02:00:00:00:00:01",
        f"ip link set {device} up",
        "sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1",
    ):
        corner.run(*command.split())
    _ip("link", "add", device, "type", "veth", "peer", "name", _CABLE, "netns", str(corner.holder.pid))
    corner.run(*f"ip link set {_CABLE} master {device} up".split())
    _ip("address", "add", f"{places.machine}/16", "dev", device)
    _ip("link", "set", device, "up")
    _ip("route", "add", f"{places.services}.0.0/16", "via", places.gateway, "dev", device)


def add_address(places: Places, corner: Namespaces, address: str) -> None:
    """Give the bridge one more address, for a node (no error if it has it)."""
    corner.run("ip", "address", "replace", f"{address}/32", "dev", places.device)


def wait_until_gone(places: Places) -> None:
    """Wait until the kernel has removed the cable, which it does after the namespace's last process."""
    device = Path("/sys/class/net") / places.device
    wait_for(f"the end of network device {places.device}", lambda: not device.exists(), seconds=30)


def plugin_config(places: Places) -> str:
    """Give the network configuration that containerd hands to the plugins (CNI 1.0.0, Debian's plugins)."""
    return f"""{{
 "cniVersion": "1.0.0",
 "name": "pods",
 "plugins": [
  {{
   "type": "bridge",
   "bridge": "{places.device}",
   "isGateway": true,
   "hairpinMode": true,
   "ipam": {{
    "type": "host-local",
    "dataDir": "{places.state}/addresses",
    "ranges": [[{{"subnet": "{places.pods}.0.0/16", "rangeStart": "{places.pods}.1.0"}}]],
    "routes": [{{"dst": "0.0.0.0/0"}}]
   }}
  }},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
 ]
}}
"""


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        msg = f"ip {' '.join(arguments)}: {done.stderr.strip()}"
        raise RuntimeError(msg)
    return done.stdout
