"""Hands a job over to mpirun or jsrun."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from horovod._rank.cores import computing_cores
from horovod.errors import UsageError
from horovod.runner.placing import this_machine
from horovod.runner.placing.plan import interface_environment
from horovod.runner.placing.threads import thread_variables
from horovod.runner.starting.controller import Launcher
from horovod.runner.starting.mpirun import MpiJob, identify, jsrun_line, mpirun_line
from horovod.runner.starting.say import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.placing.hosts import Slot
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.requests import MpiRequest

_VERSION_TIMEOUT_S = 20.0


def environment(settings: JobSettings, slots: Sequence[Slot]) -> dict[str, str]:
    """The variables of mpirun itself: what the ranks shall get, and what it needs to start them.

    The cores of this machine are divided among its ranks. Of other hosts nobody tells how many
    they have, so their ranks get what the user has set.

    Args:
        settings: what to run.
        slots: where each rank runs.
    """
    common = {**settings.environ, **settings.variables, "PYTHONUNBUFFERED": "1"}
    interfaces = settings.network_interfaces
    hostnames = list(dict.fromkeys(slot.hostname for slot in slots))
    threads = (
        {}
        if this_machine.other_machines(hostnames)
        else thread_variables(common, computing_cores(), len(slots))
    )
    return {
        **common,
        **threads,
        **interface_environment(interfaces, common if not interfaces else {}),
    }


def line_of(job: MpiJob, launcher: Launcher, verbose: bool) -> list[str]:
    """The command that starts a job.

    Args:
        job: what to start.
        launcher: mpirun or jsrun.
        verbose: print it on stderr.

    Raises:
        UsageError: there is no such program, or it cannot do what the job asks for.
    """
    if launcher is Launcher.JSRUN:
        line = jsrun_line(job)
    else:
        line = mpirun_line(identify(_version(job.environ)), job)
    if verbose:
        say(sys.stderr, shlex.join(line))
    return line


def job_of(request: MpiRequest) -> MpiJob:
    """Return what mpirun or jsrun is to start."""
    settings, options = request.settings, request.options
    return MpiJob(
        slots=request.slots,
        command=settings.command,
        environ=environment(settings, request.slots),
        ssh=options.ssh,
        network_interfaces=settings.network_interfaces,
        output_filename=options.output_filename or "",
        timestamps=options.prefix_timestamp,
        binding_args=request.binding_args,
        mpi_args=request.mpi_args,
        as_root=os.geteuid() == 0,
    )


def run(request: MpiRequest) -> int:
    """Make this process mpirun (or jsrun), which then gets all signals and gives the exit code.

    Returns:
        0 after a dry run; otherwise this does not return.

    Raises:
        UsageError: there is no such program, or it cannot do what the job asks for.
    """
    job = job_of(request)
    verbose = request.options.verbose and not request.dry_run
    line = line_of(job, request.launcher, verbose)
    if request.dry_run:
        print(shlex.join(line))
        return 0
    sys.stdout.flush()
    try:
        os.execvpe(line[0], line, dict(job.environ))
    except OSError as error:
        raise UsageError(f"{line[0]} cannot be started: {error.strerror}") from error


def _version(environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            ["mpirun", "--version"],
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--mpi: 'mpirun --version' failed: {error}") from error
    return done.stdout + done.stderr
