"""``horovod.run(use_mpi=True)``: mpirun starts the ranks, results come back over our store."""

from __future__ import annotations

import codecs
import os
import subprocess
import threading
from dataclasses import replace
from typing import IO, TYPE_CHECKING

from horovod._job.environment import without_job
from horovod._job.job import LocalJob, open_job
from horovod._rendezvous.interfaces import reachable_addresses
from horovod.runner.output.console import PATIENCE_S
from horovod.runner.output.lines import Tail
from horovod.runner.placing import this_machine
from horovod.runner.protocol.frames import GRACE_S
from horovod.runner.starting import by_mpi
from horovod.runner.starting.controller import Launcher
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod.runner.output.console import Console
    from horovod.runner.placing.hosts import Slot
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.starting.mpirun import MpiJob
    from horovod.runner.starting.requests import Caller, MpiRequest

_READ_BYTES = 65536
_FULL_BYTES = 4 << 20


def launch_by_mpirun(request: MpiRequest, caller: Caller) -> Outcome:
    """Run a job under mpirun and wait for its end.

    Args:
        request: what to run, and where.
        caller: who launches it.

    Returns:
        How the job ended; it does not know which rank failed.

    Raises:
        UsageError: there is no mpirun, or it cannot do what the job asks for.
    """
    slots, settings, options = request.slots, request.settings, request.options
    with _open_job(slots, settings) as opened, caller.store_user(opened.server):
        job = by_mpi.job_of(request)
        environ = {**without_job(job.environ), **opened.told().variables()}
        job = replace(job, environ=environ)
        line = by_mpi.line_of(job, Launcher.MPIRUN, options.verbose)
        return _wait(line, job, caller.console)


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
