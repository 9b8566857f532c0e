"""`python -m tests.cluster test|up|down`: the cluster tier, and a cluster that stays, for working by hand."""

from __future__ import annotations

import os
import sys
import time
from typing import NoReturn

from tests.cluster import requirements
from tests.cluster.build import locked
from tests.cluster.cluster import Cluster, clear, refuse_if_used
from tests.cluster.places import REPOSITORY, Places


def main(arguments: list[str]) -> int:
    """Do as told and give the exit code."""
    match arguments:
        case ["test", *chosen]:
            return _test(chosen)
        case ["up"]:
            return _up()
        case ["down"]:
            places = Places()
            with locked(places.lock):
                refuse_if_used(places)
                clear(places)
            return 0
        case _:
            print("usage: python -m tests.cluster test [pytest's arguments]|up|down", file=sys.stderr)
            return 2


def _become(command: list[str]) -> NoReturn:
    """Go on as another program: nobody then has to pass signals on."""
    os.chdir(REPOSITORY)
    os.execv(command[0], command)  # noqa: S606 - by its path


def _test(chosen: list[str]) -> int:
    """Run the tier in a process of its own, if there can be a cluster here.

    Returns:
        0 where there can be none and that is allowed: one line says why, since pytest would count every test skipped.
    """
    requirements.install()
    why = requirements.reason()
    if why:
        print(f"The cluster tier is left out: {why}.", flush=True)
        return 1 if requirements.required() else 0
    named = any(word.startswith("tests/cluster") for word in chosen)
    _become([sys.executable, "-m", "pytest", *([] if named else ["tests/cluster"]), *chosen])


def _up() -> int:
    requirements.install()
    why = requirements.reason()
    if why:
        print(why, file=sys.stderr)
        return 1
    start = time.monotonic()
    cluster = Cluster.running() or Cluster.start()
    print(f"# {len(cluster.nodes)} nodes after {time.monotonic() - start:.1f} s")
    print(f"export KUBECONFIG={cluster.places.kubeconfig} PATH={cluster.programs.bin}:$PATH")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
