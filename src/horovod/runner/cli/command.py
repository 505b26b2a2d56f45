"""``horovodrun``: starts a command once per rank, or shows what would become of it.

Exit codes: 0 if all ranks ended with 0; that of the rank that failed first; 128 + number if that
rank was killed by a signal, or the launcher was stopped by one; 126 or 127 if the command cannot be
executed or found; 2 for a wrong command line; 1 for anything else.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import horovod
from horovod._settings.config import inherited_environment
from horovod.errors import StartError, UsageError
from horovod.runner.cli.options import SHORT_HELP, completion_of, parse, words_after_options
from horovod.runner.cli.requests import make_request
from horovod.runner.output.console import say
from horovod.runner.starting.requests import (
    CheckRequest,
    FixedRequest,
    JobFileRequest,
    JoinRequest,
    MpiRequest,
)
from horovod.runner.starting.run_job import drop_stdout, run
from horovod.runner.system import processes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.starting.requests import Request


def main(words: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Runs ``horovodrun``.

    Args:
        words: the command line without the program's name; that of this process if None.
        environ: the variables that the ranks inherit; those of this process if None.

    Returns:
        The exit code.
    """
    if words is None:  # this process is the launcher, and nothing else
        processes.forbid_core_dumps()
        words = sys.argv[1:]
    environ = inherited_environment() if environ is None else environ
    try:
        return _run(words, environ)
    except UsageError as error:
        say(sys.stderr, str(error))
        return 2
    except StartError as error:
        say(sys.stderr, str(error))
        return 1
    except BrokenPipeError:  # nobody reads on: a pager was left, or head has enough
        drop_stdout()
        return 128 + signal.SIGPIPE


# What a job does not need is imported only where it is used: a job is to start soon.


def _run(words: Sequence[str], environ: Mapping[str, str]) -> int:
    if not words:
        print(SHORT_HELP, file=sys.stderr)
        return 2
    if words[0] == "doctor":
        from horovod.runner.doctor.command import examine

        return examine(words[1:], environ, sys.stdout, words_after_options())
    if words[0] == "report-issue":
        from horovod.runner.issue.command import write_report

        return write_report(words[1:], environ, sys.stdout)
    if words[0] == "experiment":
        from horovod.runner.experiment.command import manage

        return manage(words[1:], lambda more: _run(more, environ), sys.stdout)
    if words[0] in ("dashboard", "watch"):
        from horovod.runner.dashboard.command import show

        return show(words[0], words[1:], sys.stdout)
    line = parse(words)
    if line.values.version:
        print(horovod.__version__)
        return 0
    if line.values.print_completion:
        print(completion_of(line.values.print_completion), end="")
        return 0
    if line.values.check_build:
        from horovod.runner.checks.check_build import build_report

        print(build_report(line.values.verbose))
        return 0
    return _run_request(make_request(line, environ))


def _run_request(request: Request) -> int:
    match request:
        case CheckRequest():
            from horovod.runner.checks import check_hosts

            return check_hosts.run(request)
        case JoinRequest():
            from horovod.runner.starting import joining

            return joining.run(request)
        case JobFileRequest():
            from horovod.runner.experiment import train

            return train.run(request)
        case MpiRequest():
            from horovod.runner.starting import by_mpi

            return by_mpi.run(request)
        case FixedRequest(dry_run=True):
            from horovod.runner.cli import dry_run

            return dry_run.run(request)
    return run(request)
