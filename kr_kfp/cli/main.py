"""The command ``kr-kfp``.

Exit codes: 0 all is well; 1 the run or cluster failed; 2 wrong use or a wrong declaration; 75 stopped by a signal.
"""

from __future__ import annotations

import os
import sys

import click

from kr_kfp import __version__
from kr_kfp.cli.accelerators import accelerators
from kr_kfp.cli.compile import compile_command
from kr_kfp.cli.doctor import doctor
from kr_kfp.cli.install import install, uninstall
from kr_kfp.cli.reap import reap
from kr_kfp.cli.render import render
from kr_kfp.cli.run import run
from kr_kfp.errors import ClusterError, KrKfpError, StepFailedError
from kr_kfp.wire import ExitCode

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kr-kfp")
def cli() -> None:
    """Kubeflow Pipelines steps on one pod or on many TPU and GPU hosts.

    Exit codes: 0 all is well; 1 the run or cluster failed; 2 wrong use or a wrong declaration; 75 stopped by a signal.
    """


cli.add_command(accelerators)
cli.add_command(compile_command)
cli.add_command(doctor)
cli.add_command(install)
cli.add_command(reap)
cli.add_command(render)
cli.add_command(run)
cli.add_command(uninstall)


def main() -> None:
    """Run the command line and exit."""
    try:
        code = cli(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as problem:
        problem.show()
        code = ExitCode.USAGE
    except (ClusterError, StepFailedError) as problem:
        click.echo(f"Error: {problem}", err=True)
        code = ExitCode.FAILED
    except KrKfpError as problem:
        click.echo(f"Error: {problem}", err=True)
        code = ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        code = ExitCode.STOPPED
    except BrokenPipeError:
        # The reader (head, say) has seen enough; Python would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    sys.exit(code or 0)
