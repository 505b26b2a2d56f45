"""Hands a job over to mpirun or jsrun: this process becomes it, or waits for it.

Results of ``horovod.run(use_mpi=True)`` come back over our store.
"""

from __future__ import annotations

import codecs
import os
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from horovod._job.environment import without_job
from horovod._job.job import LocalJob, open_job
from horovod._rank.cores import computing_cores
from horovod._rendezvous.interfaces import reachable_addresses
from horovod.errors import UsageError
from horovod.runner.observation.watched import FixedJob, FixedRanks
from horovod.runner.output.console import PATIENCE_S, say
from horovod.runner.output.lines import Tail
from horovod.runner.placing import this_machine
from horovod.runner.placing.plan import interface_environment
from horovod.runner.placing.threads import thread_variables
from horovod.runner.protocol.frames import GRACE_S
from horovod.runner.starting.controller import Launcher
from horovod.runner.starting.mpirun import MpiJob, identify, jsrun_line, mpirun_line
from horovod.runner.starting.observed_job import (
    check_watching,
    observed,
    variables_of,
    watching_of,
)
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.output.console import Console
    from horovod.runner.placing.hosts import Slot
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.requests import Caller, MpiRequest

_VERSION_TIMEOUT_S = 20.0
_READ_BYTES = 65536
_FULL_BYTES = 4 << 20
_OUTPUT = "mpirun brings the output of all ranks together, so this page does not have it by rank."


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
    check_watching(watching_of(request))
    job = job_of(request)
    # Rank 0 serves those who watch: see horovod._rank.reports.shown.
    job = replace(job, environ={**job.environ, **variables_of(request.options.watching)})
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


def launch_by_mpirun(request: MpiRequest, caller: Caller) -> Outcome:
    """Run a job under mpirun, and wait for its end; nobody knows which rank failed.

    Raises:
        UsageError: there is no mpirun, or it cannot do what the job asks for.
    """
    slots, settings, options = request.slots, request.settings, request.options
    check_watching(watching_of(request))
    with (
        _open_job(slots, settings) as opened,
        caller.store_user(opened.server),
        observed(_shown(opened, slots), request, caller, None, _OUTPUT) as watched,
    ):
        job = job_of(request)
        environ = {**without_job(job.environ), **opened.told().variables()}
        job = replace(job, environ=environ)
        line = line_of(job, Launcher.MPIRUN, options.verbose)
        outcome = _wait(line, job, caller.console)
        watched.on_outcome(outcome)  # viewers see how the job ended
        return outcome


def _shown(opened: LocalJob, slots: Sequence[Slot]) -> FixedJob:
    return FixedJob(opened.store, FixedRanks(tuple(slot.hostname for slot in slots)))


def _open_job(slots: Sequence[Slot], settings: JobSettings) -> LocalJob:
    """At loopback, or where other hosts find it: mpirun has no agents that could try addresses."""
    hostnames = list(dict.fromkeys(slot.hostname for slot in slots))
    if not this_machine.other_machines(hostnames):
        return open_job()
    return open_job(reachable_addresses(settings.network_interfaces)[0])


def _wait(line: list[str], job: MpiJob, console: Console) -> Outcome:
    process = subprocess.Popen(
        line,
        env=dict(job.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C reaches this process alone, which then ends mpirun
    )
    assert process.stdout is not None
    assert process.stderr is not None
    tail = Tail()
    relays = [
        threading.Thread(
            target=_relay, daemon=True, args=(process.stdout, "stdout", console, None)
        ),
        threading.Thread(
            target=_relay, daemon=True, args=(process.stderr, "stderr", console, tail)
        ),
    ]
    for relay in relays:
        relay.start()
    try:
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        for relay in relays:
            relay.join(PATIENCE_S)
    if code == 0:
        return Outcome(0)
    lines = "".join(f"\n    {text}" for text in tail.lines())
    message = f"mpirun ended with code {code}{lines and f'; the last lines of its stderr:{lines}'}"
    return Outcome(code if code > 0 else 128 - code, message)


def _relay(pipe: IO[bytes], name: str, console: Console, tail: Tail | None) -> None:
    """Copies what mpirun prints, until its end; a console that is slow lets mpirun wait."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    with pipe:
        while data := os.read(pipe.fileno(), _READ_BYTES):
            if tail is not None:
                tail.feed(data)
            console.put(name, decoder.decode(data).encode())
            console.wait_for_room(_FULL_BYTES)


def _end(process: subprocess.Popen[bytes]) -> None:
    """mpirun ends its ranks when it is told to; if it does not, it is killed."""
    process.terminate()
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
