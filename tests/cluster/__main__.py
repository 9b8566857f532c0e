"""`python -m tests.cluster up|down`: a cluster that stays, for working by hand and for many runs of the tests."""

from __future__ import annotations

import sys
import time

from tests.cluster.build import locked
from tests.cluster.cluster import Cluster, clear
from tests.cluster.places import Places


def main(arguments: list[str]) -> int:
    """Start, find or stop the cluster; print how to reach it."""
    match arguments:
        case ["up"]:
            start = time.monotonic()
            cluster = Cluster.running() or Cluster.start()
            print(f"# {len(cluster.nodes)} nodes after {time.monotonic() - start:.1f} s")
            print(f"export KUBECONFIG={cluster.places.kubeconfig} PATH={cluster.programs.bin}:$PATH")
        case ["down"]:
            places = Places()
            with locked(places.lock):
                clear(places)
        case _:
            print("usage: python -m tests.cluster up|down", file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
