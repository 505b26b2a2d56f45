"""Lets those who watch see a job: the stream, and what the user asked for with it."""

from __future__ import annotations

import os
import socket
import stat
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horovod.runner.observation.watched import WatchedJob
    from horovod.runner.output.output import Output
    from horovod.runner.starting.requests import Caller, JobRequest, Watching
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome

NEEDS = "starlette", "uvicorn"


def check_dashboard() -> None:
    """Refuse a page whose libraries are not installed.

    Raises:
        UsageError: one is missing; the message says how to install it.
    """
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the page needs {' and '.join(missing)}: pip install {' '.join(missing)}, or install "
            "Horovod with [dashboard]. "
            "'horovodrun watch' shows the same in a terminal without them"
        )


def check_watching(watching: Watching) -> None:
    """Refuse what cannot work before anything is started.

    Raises:
        UsageError: a library is missing, the port is in use, or the address of the page would be
            in a file that others can read.
    """
    check_serving(watching)
    check_output(watching)


def check_serving(watching: Watching) -> None:
    """Refuse a page that this host cannot serve; as :func:`check_watching`."""
    if watching.dashboard is None:
        return
    check_dashboard()
    if watching.dashboard:
        try:
            socket.create_server(("127.0.0.1", watching.dashboard)).close()
        except OSError as error:
            raise UsageError(f"--dashboard={watching.dashboard}: {error.strerror}") from None


def check_output(watching: Watching) -> None:
    """Refuse to print the address of a page where others can read it; as :func:`check_watching`."""
    if watching.dashboard is not None and _others_read_stderr():
        raise UsageError(
            "--dashboard (HOROVOD_DASHBOARD) prints an address with a secret token, but stderr is "
            "a file that others can read: chmod 600 it, or run 'horovodrun dashboard' beside the "
            "job"
        )


def _others_read_stderr() -> bool:
    try:
        mode = os.fstat(sys.stderr.fileno()).st_mode
    except (OSError, ValueError):  # there is none
        return False
    return stat.S_ISREG(mode) and bool(mode & 0o044)


def watching_of(request: JobRequest) -> Watching:
    """Return how the user wants to watch a job: by options, or by variables of the environment.

    Raises:
        StartError: a variable makes no sense; the message names it.
    """
    from horovod.runner.starting.served import with_variables

    settings = request.settings
    return with_variables(request.options.watching, {**settings.environ, **settings.variables})


def variables_of(watching: Watching) -> dict[str, str]:
    """Return the variables that tell rank 0 of a job under mpirun how the user wants to watch.

    The inverse of :func:`horovod.runner.starting.served.with_variables`.
    """
    found = {}
    if watching.verdicts:
        found["HOROVOD_WATCH"] = "1"
    if watching.dashboard is not None:
        found["HOROVOD_DASHBOARD"] = str(watching.dashboard or 1)
    if watching.metrics is not None:
        found["HOROVOD_METRICS_PORT"] = str(watching.metrics)
    return found


@contextmanager
def observed(
    job: WatchedJob, request: JobRequest, caller: Caller, output: Output | None, elsewhere: str = ""
) -> Iterator[Caller]:
    """Serve the stream of a job inside of the block.

    Args:
        job: with its store.
        request: what it runs, and how the user wants to watch.
        caller: who launches it.
        output: of its ranks; None if their output does not come by rank.
        elsewhere: where the output is of ranks that ``output`` does not get.

    Yields:
        The caller, from which the stream hears what happens.
    """
    from horovod.runner.starting.served import served

    say = caller.console.say
    command, watching = request.settings.command, watching_of(request)
    with served(job, command, watching, say, elsewhere=elsewhere) as stream:
        if output is not None:
            output.listener = stream.news.take_output

        def on_exit(ended: RankExit) -> None:
            text = f"rank {ended.rank} on {ended.hostname} {how_ended(ended.returncode)}"
            stream.news.rank_ended(ended.rank, ended.returncode, text)
            caller.on_exit(ended)

        def on_outcome(outcome: Outcome) -> None:
            stream.end(outcome.message)
            caller.on_outcome(outcome)

        def on_generation() -> None:
            stream.news.begin_generation()
            caller.on_generation()

        def on_line(line: str) -> None:
            stream.news.add("launcher", line)
            caller.on_line(line)

        yield replace(
            caller,
            on_exit=on_exit,
            on_outcome=on_outcome,
            on_generation=on_generation,
            on_line=on_line,
        )


def how_ended(returncode: int) -> str:
    """Return how a process ended, in words."""
    if returncode < 0:
        return f"was killed by signal {-returncode}"
    return f"ended with code {returncode}" if returncode else "has ended"
