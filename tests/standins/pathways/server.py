"""Stands in for Pathways' images ``server`` and ``proxy_server``: takes their arguments, opens ports, reaches peers.

Run as ``server.py server|proxy_server --flag=value ...``. As the real programs it is resource manager, worker or proxy by
its arguments. It refuses, all at once, every argument and variable that the projects named in kr_kfp/spec/pathways.py
(PWJ, XPK, PWU, AXL) do not give to theirs, and misses every one that they all give. Then:

- the resource manager waits at its port for as many workers as its instances have hosts, and reaches each of them;
- a worker opens its own port and libtpu's, reaches libtpu's port of every host of its slice, and joins the manager;
- the proxy waits at its port for a client, and asks the manager for the devices of all workers.

A message is one line of JSON, and so is its answer. Only the standard library: the image has nothing else.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import socket
import socketserver
import sys
import threading
import time
from typing import Any

Json = dict[str, Any]

SECONDS = 60.0
"""How long to look for a peer: pods of a group start one after the other."""

TPU_PORT = 8471
"""libtpu's, between the hosts of a slice (PWJ:752, XPK-T:236)."""

CHIPS = 4
"""Of a host: every instance type whose name does not end in 1t (PWJ:71-84)."""

_COMMON = {"server_port": r"\d+", "gcs_scratch_location": r"gs://[a-z0-9._-]+(/\S*)?"}
_ADDRESS = {"resource_manager_address": r"[a-z0-9.-]+:29001"}

FLAGS = {  # PWJ:573-583, :620-634, :700-704
    "manager": _COMMON
    | {
        "node_type": "resource_manager",
        "instance_count": r"[1-9]\d*",
        "instance_type": r"(tpu7x|tpuv6e|tpuv6e1t|tpuv5|tpuv5e|tpuv5e1t|tpuv4):\d+(x\d+){1,2}",
    },
    "proxy": _COMMON | _ADDRESS,
    "worker": _COMMON | _ADDRESS,
}
"""Arguments that each must have, and what their values look like."""

OPTIONAL = {
    "manager": r"enable_metrics_collection",
    "proxy": r"num_elastic_slices|sidecar_name|xla_\w+",
    "worker": r"tpu_pinned_host_allocation_recycle|tpu_premapped_buffer_size|cloud_pathways_sidecar_shm_directory",
}

ENV = {  # PWJ:588-593, PWU:351-366, PWJ:717-728
    "manager": {"HOST_ADDRESS": r"[a-z0-9.-]+", "TPU_SKIP_MDS_QUERY": "true"},
    "proxy": {"PATHWAYS_HEAD": r"[a-z0-9.-]+", "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true"},
    "worker": {
        "PATHWAYS_HEAD": r"[a-z0-9.-]+",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TPU_MIN_LOG_LEVEL": "0",
        "TPU_WORKER_HOSTNAMES": r"[a-z0-9.-]+(,[a-z0-9.-]+)*",
        "TPU_WORKER_ID": r"\d+",
        "XCLOUD_ENVIRONMENT": "GCP",
    },
}
"""Variables that each must have, and what their values look like."""

SLICES = {
    "MEGASCALE_COORDINATOR_ADDRESS": r"[a-z0-9.-]+",
    "MEGASCALE_GRPC_ENABLE_XOR_TRACER": "false",
    "MEGASCALE_NUM_SLICES": r"[2-9]\d*",
    "MEGASCALE_SLICE_ID": r"\d+",
}
"""Variables of a worker that is one of several slices: all or none."""

USERS = ("JAX_PLATFORMS", "JAX_BACKEND_TARGET")
"""Variables of the user's container alone (PWJ:896-904)."""


class Server:
    """One of the three programs.

    Args:
        image: ``server`` or ``proxy_server``.
        arguments: As the container gives them.
    """

    def __init__(self, image: str, arguments: list[str]) -> None:
        self.arguments = arguments
        self.flags = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
        server = "manager" if self.flags.get("node_type") == "resource_manager" else "worker"
        self.role = server if image == "server" else "proxy"
        self.workers: list[tuple[Json, Any]] = []
        self.changed = threading.Condition()

    def problems(self) -> list[str]:
        """Give everything that the real program would not be given."""
        needed, optional = FLAGS[self.role], OPTIONAL[self.role]
        found = [f"argument {text!r} is no --flag=value" for text in self.arguments if not re.match(r"--\w+=\S", text)]
        found += [f"argument --{name} is missing" for name in sorted(needed.keys() - self.flags.keys())]
        if len(self.flags) != len(self.arguments):
            found.append("an argument is given twice")
        for name, value in self.flags.items():
            if name not in needed and not re.fullmatch(optional, name):
                found.append(f"argument --{name} is unknown to a {self.role}")
            if "$(" in value or not re.fullmatch(needed.get(name, r".+"), value):
                found.append(f"argument --{name}={value}")
        several = any(name in os.environ for name in SLICES)
        variables = ENV[self.role] | (SLICES if self.role == "worker" and several else {})
        for name, form in variables.items():
            value = os.environ.get(name, "")
            if not re.fullmatch(form, value):
                found.append(f"variable {name}={value!r}" if name in os.environ else f"variable {name} is missing")
        return found + [f"variable {name} is the user's alone" for name in USERS if name in os.environ]

    def report(self) -> Json:
        """Tell who this is and what it was given."""
        names = [*ENV[self.role], *(SLICES if self.role == "worker" else ())]
        env = {name: os.environ[name] for name in names if name in os.environ}
        return {"role": self.role, "pod": socket.gethostname(), "arguments": self.arguments, "env": env}

    def run(self) -> None:
        """Do the program's work for ever."""
        listen(int(self.flags["server_port"]), self.answer)
        print(f"{self.role} listens at {self.flags['server_port']}", flush=True)
        if self.role == "worker":
            self.join()
        threading.Event().wait()

    def join(self) -> None:
        """Reach the hosts of the own slice and the manager, and then do what that says."""
        listen(TPU_PORT, lambda _: {"pod": socket.gethostname()})
        hosts = os.environ["TPU_WORKER_HOSTNAMES"].split(",")
        reached = [ask(host, TPU_PORT, {})["pod"] for host in hosts]
        address = self.flags["resource_manager_address"]
        own = {"address": socket.gethostbyname(socket.gethostname()), "reached": reached, **self.report()}
        with reach(*place(address)) as connection:
            send(connection, {"kind": "join", "worker": own, "port": int(self.flags["server_port"])})
            print(f"worker joined {address}: {receive(connection)}", flush=True)
            if connection.recv(1):  # there is one order, and nothing comes while all is well
                os._exit(1)
        # The manager is gone. What a real worker does then is not known; this one leaves the failure to the manager.

    def answer(self, asked: Json, connection: Any = None) -> Json | None:
        """Answer one message; the manager keeps the connection of a worker."""
        kind = asked.get("kind")
        if kind == "end" and asked["who"] == self.role:
            os._exit(1)
        if self.role == "proxy":
            found = ask(*place(self.flags["resource_manager_address"]), asked)
            return {**found, "proxy": self.report()}
        if self.role == "worker":
            return self.report()
        if kind == "join":
            seen = ask(asked["worker"]["address"], asked["port"], {})
            assert seen["pod"] == asked["worker"]["pod"], seen
            with self.changed:
                self.workers.append((asked["worker"], connection))
                self.changed.notify_all()
            return {"ok": True}
        if kind == "end":
            send(self.workers[asked["index"]][1], {"kind": "end"})
            return {"ended": self.workers[asked["index"]][0]["pod"]}
        return self.devices()

    def devices(self) -> Json:
        """Wait for all workers, and give them in the order of slices and hosts."""
        count = int(self.flags["instance_count"])
        chips = math.prod(map(int, self.flags["instance_type"].partition(":")[2].split("x")))
        wanted = [(index, host) for index in range(count) for host in range(chips // CHIPS)]
        with self.changed:
            if not self.changed.wait_for(lambda: len(self.workers) >= len(wanted), SECONDS):
                return {"error": f"{len(self.workers)} of {len(wanted)} workers joined"}
            self.workers.sort(key=lambda worker: order(worker[0]))
            workers = [worker for worker, _ in self.workers]
        if [order(worker) for worker in workers] != wanted:
            return {"error": f"workers are {[order(worker) for worker in workers]} and not {wanted}"}
        return {"devices": count * chips, "manager": self.report(), "workers": workers}


def order(worker: Json) -> tuple[int, int]:
    """Give slice and number of a worker."""
    return int(worker["env"].get("MEGASCALE_SLICE_ID", "0")), int(worker["env"]["TPU_WORKER_ID"])


def place(address: str) -> tuple[str, int]:
    """Cut host:port."""
    host, _, port = address.rpartition(":")
    return host, int(port)


def listen(port: int, answer: Any) -> None:
    """Answer messages at a port, each in a thread of its own."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            asked = json.loads(self.rfile.readline() or b"{}")
            takes_connection = asked.get("kind") == "join"
            send(self.connection, answer(asked, self.connection) if takes_connection else answer(asked))
            if takes_connection:
                self.rfile.readline()  # until the worker is gone

    class Listener(socketserver.ThreadingTCPServer):
        daemon_threads = allow_reuse_address = True

    listener = Listener(("0.0.0.0", port), Handler)  # noqa: S104 - other pods ask
    threading.Thread(target=listener.serve_forever, daemon=True).start()


def reach(host: str, port: int) -> socket.socket:
    """Connect, and try again while the other is not there yet."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=5)
        except OSError as problem:
            if time.monotonic() > deadline:
                sys.exit(f"{host}:{port} cannot be reached: {problem}")
            time.sleep(0.1)
        else:
            connection.settimeout(None)
            return connection


def send(connection: Any, message: Json | None) -> None:
    """Send a message."""
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket) -> Json:
    """Wait for a message; an end of the connection is the end of this program."""
    data = b""
    while not data.endswith(b"\n"):
        more = connection.recv(65536)
        if not more:
            sys.exit("the other end is gone")
        data += more
    found: Json = json.loads(data)
    return found


def ask(host: str, port: int, message: Json) -> Json:
    """Send a message and give its answer."""
    with reach(host, port) as connection:
        send(connection, message)
        return receive(connection)


def main(image: str, arguments: list[str]) -> None:
    """Check what was given, then serve."""
    # The first process of a container has no default for this signal.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = Server(image, arguments)
    problems = server.problems()
    if problems:
        sys.exit("; ".join(problems))
    server.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
