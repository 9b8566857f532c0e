"""The prefix of a component's command: a small shell script that finds or installs kr_kfp, then runs a verb of it.

It is ``sh`` because nothing else is sure to be there: kfp.local starts a step in an empty venv, and an image need only
have Python 3.11. It calls ``python3`` (kfp.local rewrites only that name, and Debian images have no ``python``).
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Literal

from kr_kfp.errors import WireError
from kr_kfp.wire import PROTOCOL, chunks

__all__ = ["KILL_COMMAND", "PID_FILE", "STOP_FILE", "prefix", "split"]

Verb = Literal["launch", "run", "provide"]

_NAME = "kr-kfp"
_PYTHON = "python3"
PID_FILE = "kr-kfp.pid"
"""Holds the launcher's process id, in ``$KR_KFP_RUN_DIR`` (``/tmp``)."""
STOP_FILE = "kr-kfp.stop"
"""Asks a launcher that has not written its process id yet to stop, in the same folder."""

KILL_COMMAND = [
    "/bin/sh",
    "-c",
    'd=${KR_KFP_RUN_DIR:-/tmp}; s=%d; if [ -s "$d/' + PID_FILE + '" ]; then read -r p < "$d/' + PID_FILE + '"; '
    '[ "$s" = 9 ] || s=USR1; kill -s "$s" "$p"; else : > "$d/' + STOP_FILE + '"; fi',
]
"""Value of the annotation ``workflows.argoproj.io/kill-cmd-main``: what Argo runs in the container instead of
signalling process 1. Argo puts the signal's number for ``%d``, once (argoproj/argo-workflows ``workflow/signal``).
Terminate (15) becomes SIGUSR1 for the launcher, which then has time to delete its group."""

_CLIENT = "kubernetes>=30,<40"
"""What the launcher needs in a pod beside kr_kfp itself; locally it needs nothing."""

_STORE = "obstore>=0.12,<0.13"
"""What the init container hands on to the training container, for its transfers."""

# Short on purpose: the text stands in the IR once for every step.
_SCRIPT = """\
python3 -c 'from kr_kfp.wire import PROTOCOL as p; raise SystemExit(p != {protocol})' 2>/dev/null || {{
{install}  m="kr_kfp: $m on $(python3 -V 2>&1). Python 3.11 or newer is needed. Install kr-kfp in the image."
  echo "$m" >&2
  l=${{KR_KFP_TERMINATION_LOG:-/dev/termination-log}}
  [ ! -e "$l" ] && [ -z "$KR_KFP_TERMINATION_LOG" ] || printf %s "$m" >"$l"
  exit 64
{done}}}
exec python3 -m kr_kfp.runtime "$@"
"""

_INSTALL = """\
k=${{KR_KFP_PACKAGE:-{requirement}}}
i() {{ {pip} "$@"; }}
python3 -m pip -V >/dev/null 2>&1 || python3 -m ensurepip >/dev/null 2>&1
n() {{ case "$1${{KFP_POD_NAME:+ pod}}" in "launch pod") i {client} ;; provide*) i {store} ;; esac; }}
i --no-deps "$k" && n "$1" || {{
  m="pip could not install $k"
"""

_NO_INSTALL = """\
  m="kr_kfp of protocol {protocol} is not in the image and install_kr_kfp_package=False"
"""


def prefix(
    verb: Verb,
    packed_spec: str,
    *,
    requirement: str | None,
    index_urls: Sequence[str] = (),
    trusted_hosts: Sequence[str] | None = None,
) -> list[str]:
    """Build what stands before KFP's own command in ``container.command``.

    Args:
        verb: ``launch`` (the task is a launcher of a LeaderWorkerSet), ``run`` (the task runs the function itself) or
            ``provide`` (an init container copies kr_kfp to where the training image finds it).
        packed_spec: The StepSpec, packed by :func:`kr_kfp.wire.pack`.
        requirement: What pip installs when no kr_kfp of this protocol is there; None installs nothing and says so.
            Where the environment variable KR_KFP_PACKAGE is set (local runs), pip installs that instead.
        index_urls: ``pip_index_urls`` of the component: the first is ``--index-url``, others ``--extra-index-url``.
        trusted_hosts: ``pip_trusted_hosts`` of the component; None trusts the index URLs, as KFP does.
    """
    options = ["python3", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--root-user-action=ignore"]
    for at, url in enumerate(index_urls):
        options += ["--extra-index-url" if at else "--index-url", url]
    for host in index_urls if trusted_hosts is None else trusted_hosts:
        options += ["--trusted-host", host]
    if requirement is None:
        install, done = _NO_INSTALL.format(protocol=PROTOCOL), ""
    else:
        names = {"requirement": requirement, "client": _CLIENT, "store": _STORE}
        quoted = {name: shlex.quote(text) for name, text in names.items()}
        install, done = _INSTALL.format(**quoted, pip=shlex.join(options)), "}\n"
    parts = chunks(packed_spec)
    return [
        "sh",
        "-c",
        _SCRIPT.format(protocol=PROTOCOL, install=install, done=done),
        _NAME,
        verb,
        str(len(parts)),
        *parts,
        _PYTHON,
        "--",
    ]


def split(command: Sequence[str]) -> tuple[str, str, list[str]]:
    """Read a component's command back.

    Returns:
        The verb, the packed StepSpec, and KFP's own command.

    Raises:
        WireError: If the command was not made by :func:`prefix`.
    """
    if list(command[:2]) != ["sh", "-c"] or len(command) < 6 or command[3] != _NAME:
        msg = "the command does not begin with kr_kfp's prefix: the component was not made by kr_kfp"
        raise WireError(msg)
    verb, packed, _, own = parse_arguments(command[4:])
    return verb, packed, own


def parse_arguments(arguments: Sequence[str]) -> tuple[str, str, str, list[str]]:
    """Read ``verb n chunk... python3 -- command...``, as the script hands it on.

    Returns:
        The verb, the packed StepSpec, what became of the text ``python3`` on the way (kfp.local puts a path in its
        place, wherever it stands), and KFP's own command.

    Raises:
        WireError: If it is not of that form.
    """
    try:
        verb, count = arguments[0], int(arguments[1])
        packed, python, mark = "".join(arguments[2 : 2 + count]), arguments[2 + count], arguments[3 + count]
    except (IndexError, ValueError) as problem:
        msg = f"not of the form: verb n chunk... python3 -- command...: {problem}"
        raise WireError(msg) from problem
    if verb not in ("launch", "run", "provide") or mark != "--":
        msg = f"not of the form: verb n chunk... python3 -- command...: verb {verb!r}, mark {mark!r}"
        raise WireError(msg)
    return verb, packed, python, list(arguments[4 + count :])
