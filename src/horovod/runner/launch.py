"""Runs a job from its settings: makes the secret, opens the store, supervises the agents.

``python -m horovod.runner.launch`` is ``horovodrun``.
"""

from __future__ import annotations

import json
import os
import runpy
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from horovod.config import Config
from horovod.errors import UsageError
from horovod.rendezvous.roster import HOSTS_KEY
from horovod.rendezvous.secret import make_secret
from horovod.rendezvous.server import StoreServer
from horovod.runner import local
from horovod.runner.job import Outcome, Supervisor
from horovod.runner.output import Output
from horovod.runner.plan import JobSettings, StoreAddress, make_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod.runner.hosts import Slot

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LaunchOptions:
    """How the launcher itself behaves.

    Attributes:
        stdout, stderr: the console.
        output_filename: folder for the output of the ranks; None for no files.
        prefix_timestamp: write the time in front of each line on the console.
        start_timeout_s: until the agents must run; None for HOROVOD_START_TIMEOUT or 30 s.
        verbose: tell each step on stderr.
        interrupts: see :class:`horovod.runner.job.Supervisor`.
    """

    stdout: TextIO
    stderr: TextIO
    output_filename: str | None = None
    prefix_timestamp: bool = False
    start_timeout_s: float | None = None
    verbose: bool = False
    interrupts: int | None = None


def check_local(slots: Sequence[Slot]) -> None:
    """Makes sure that every rank has its place on this machine.

    Raises:
        UsageError: a host is another machine, or has no address.
    """
    for hostname in dict.fromkeys(slot.hostname for slot in slots):
        if not local.is_local(hostname):
            raise UsageError(
                f"host {hostname!r} is not this machine; this version starts local ranks only"
            )


def check_interfaces(names: Sequence[str]) -> None:
    """Makes sure that the network interfaces exist.

    Raises:
        UsageError: one does not; the message lists those that do.
    """
    known = local.network_interfaces()
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no network interface {name!r} here; there are {', '.join(known)}"
            )


def launch(
    slots: Sequence[Slot],
    settings: JobSettings,
    options: LaunchOptions,
    store_user: Callable[[StoreServer], AbstractContextManager[None]] | None = None,
) -> Outcome:
    """Runs a job on this machine and waits for its end.

    Args:
        slots: where each rank runs; all on this machine.
        settings: what to run.
        options: how the launcher behaves.
        store_user: entered before the ranks start and left after their end; may use the store.

    Returns:
        How the job ended. No process of it is left.

    Raises:
        UsageError: a host is not this machine, an interface does not exist or the folder for the
            output cannot be written.
        StartError: the store cannot listen.
    """
    check_local(slots)
    check_interfaces(settings.network_interfaces)

    def log(line: str) -> None:
        if options.verbose:
            say(options.stderr, line)

    with ExitStack() as stack:
        output = Output(
            len(slots),
            options.stdout,
            options.stderr,
            directory=options.output_filename,
            timestamps=options.prefix_timestamp,
        )
        stack.callback(output.close)
        secret = make_secret()
        server = stack.enter_context(StoreServer(secret, address=_LOOPBACK, port=0))
        log(f"the store of the job listens at {server.address} port {server.port}")
        server.set(HOSTS_KEY, json.dumps([slot.hostname for slot in slots]).encode())
        if store_user is not None:
            stack.enter_context(store_user(server))
        store = StoreAddress(server.address, server.port, secret)
        supervisor = Supervisor(
            make_plan(slots, settings, store, launcher_pid=os.getpid()),
            lambda job: local.start_agent(settings.environ),
            output,
            start_timeout_s=_start_timeout_s(settings, options),
            log=log,
            announce=lambda line: say(options.stderr, line),
            interrupts=options.interrupts,
        )
        return supervisor.run()


def _start_timeout_s(settings: JobSettings, options: LaunchOptions) -> float:
    if options.start_timeout_s is not None:
        return options.start_timeout_s
    name = "HOROVOD_START_TIMEOUT"
    # Only this one: the launcher may itself be a rank of another job, with more in its environment.
    given = {key: value for key, value in settings.environ.items() if key == name}
    return Config.from_env(given).start_timeout_s


def say(stderr: TextIO, line: str) -> None:
    """Writes a message of the launcher itself; a console that is gone is no error."""
    try:
        stderr.write(f"horovodrun: {line}\n")
        stderr.flush()
    except OSError:
        return


def run_commandline() -> None:
    """The entry point under its old name: runs ``horovodrun`` with the arguments of the process."""
    # By name, because the command line lies above this layer.
    runpy.run_module("horovod.runner.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_commandline()
