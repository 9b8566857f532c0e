"""``python -m kr_kfp.runtime``: the verbs that run in pods. People use ``kr-kfp`` instead."""

from __future__ import annotations

import sys

from kr_kfp.errors import WireError
from kr_kfp.wire import ExitCode

_USAGE = """\
kr_kfp.runtime runs inside the steps that kr_kfp compiled; it is not for people. See: kr-kfp --help
  launch n chunk... python3 -- command...   run KFP's command on a group of hosts and wait for it
  run    n chunk... python3 -- command...   run KFP's command here
  host   chunk...                   run one host of a group
  provide 0 python3 -- folder           copy kr_kfp into a folder
  reap   namespace...               delete left-over groups, as kr-kfp reap does; for the CronJob of kr-kfp install"""


def main(arguments: list[str]) -> int:
    """Run one verb and give its exit code."""
    verb = arguments[0] if arguments else ""
    try:
        if verb == "host":
            from kr_kfp.runtime import host

            return host.main(arguments[1:])
        if verb == "reap" and arguments[1:]:
            from kr_kfp.runtime import reap

            return reap.main(arguments[1:])
        if verb in ("launch", "run", "provide"):
            return _step(arguments)
    except WireError as problem:
        print(f"kr_kfp: {problem}", file=sys.stderr)
        return ExitCode.USAGE
    print(_USAGE, file=sys.stderr)
    return ExitCode.USAGE


def _step(arguments: list[str]) -> int:
    """Run a verb of a step's command.

    Raises:
        WireError: If the arguments are not what :mod:`kr_kfp.runtime.bootstrap` writes.
    """
    from kr_kfp.runtime.bootstrap import parse_arguments

    verb, packed, python, command = parse_arguments(arguments)
    if verb == "provide":
        from kr_kfp.runtime import provide

        return provide.main(command[0])
    from kr_kfp.executor_input import restore_python

    if verb == "run":
        from kr_kfp.runtime import single

        return single.main(packed, restore_python(command, python))
    from kr_kfp.runtime import launch

    return launch.main(packed, restore_python(command, python))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
