"""Runs a job from its settings: makes the secret, opens the store, supervises the agents."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from horovod._job.job import LocalJob, open_job
from horovod._rank.reports.end import end_report
from horovod._rendezvous.interfaces import reachable_addresses
from horovod._settings.config import Config
from horovod.errors import UsageError
from horovod.runner.output.output import Output
from horovod.runner.placing import this_machine
from horovod.runner.placing.plan import JobSettings, make_plan, membership_of
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.starting import local, ssh
from horovod.runner.starting.before_start import check_timeline
from horovod.runner.starting.ssh import SshOptions
from horovod.runner.starting.stdin import check_stdin_rank, lend_stdin, own_stdin
from horovod.runner.supervision.agent_executor import AgentExecutor
from horovod.runner.supervision.agents import Agents, Reporting, job_by_host
from horovod.runner.supervision.early_exit import leave_note
from horovod.runner.supervision.fixed import FixedJob, placed_in
from horovod.runner.supervision.slow_worker_watch import SlowWorkerWatch
from horovod.runner.supervision.supervisor import Outside, Supervisor

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

    from horovod._rendezvous.server import StoreServer
    from horovod.runner.output.console import Console
    from horovod.runner.placing.hosts import Slot
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.link import AgentLink
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.supervisor import Alarm

AGENT_MODULE = "horovod.runner.agent"
EXIT_WAIT_S = 1.0  # from the end of an agent's output to its exit code

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LaunchOptions:
    """How the launcher itself behaves.

    Attributes:
        console: gets the output of the ranks and the messages of the launcher.
        output_filename: folder for the output of the ranks; None for no files.
        prefix_timestamp: write the time in front of each line on the console.
        start_timeout_s: until the agents must run; None for HOROVOD_START_TIMEOUT or 30 s.
        verbose: tell each step on stderr.
        interrupts, wakeups: see :class:`horovod.runner.supervision.supervisor.Outside`.
        ssh: how to log in on other hosts.
        on_exit: called with the end of each rank that ends by itself, at once.
        alarm: tells when something elsewhere ends the job; None if nothing can.
    """

    console: Console
    output_filename: str | None = None
    prefix_timestamp: bool = False
    start_timeout_s: float | None = None
    verbose: bool = False
    interrupts: int | None = None
    wakeups: int | None = None
    ssh: SshOptions = field(default_factory=SshOptions)
    on_exit: Callable[[RankExit], object] = lambda _: None
    alarm: Alarm | None = None

    @property
    def from_outside(self) -> Outside:
        """What reaches the job from outside."""
        return Outside(self.interrupts, self.wakeups, self.alarm)


def check_interfaces(names: Sequence[str]) -> None:
    """Makes sure that the network interfaces exist.

    Raises:
        UsageError: one does not; the message lists those that do.
    """
    known = this_machine.network_interfaces()
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
    """Runs a job on this machine, and others, and waits for its end.

    Args:
        slots: where each rank runs.
        settings: what to run.
        options: how the launcher behaves.
        store_user: entered before the ranks start and left after their end; may use the store.

    Returns:
        How the job ended. No process of it is left.

    Raises:
        UsageError: an interface does not exist, the output or the timeline cannot be written, or
            the rank that shall have stdin cannot have it.
        StartError: the store cannot listen.
    """
    remote = this_machine.other_machines(list(dict.fromkeys(slot.hostname for slot in slots)))
    if not remote:
        check_interfaces(settings.network_interfaces)
    if slots[0].hostname not in remote:
        check_timeline(settings)
    if settings.stdin_rank is not None:
        check_stdin_rank(settings.stdin_rank, slots, remote)

    def log(line: str) -> None:
        if options.verbose:
            options.console.say(line)

    with ExitStack() as stack:
        output = Output(
            options.console,
            directory=options.output_filename,
            timestamps=options.prefix_timestamp,
            colored=options.console.colored(settings.environ),
            stdin_rank=settings.stdin_rank,
        )
        stack.callback(output.close)
        output.place({slot.rank: slot.rank for slot in slots}, len(slots))
        addresses = reachable_addresses(settings.network_interfaces) if remote else [_LOOPBACK]
        opened = stack.enter_context(open_job(addresses[0], further_addresses=addresses[1:]))
        server = opened.server
        for address, port in server.endpoints:
            log(f"the store of the job listens at {address} port {port}")
        opened.publish(membership_of(slots))
        if store_user is not None:
            stack.enter_context(store_user(server))
        if slow_worker_of({**settings.environ, **settings.variables}) != "off":
            slow = SlowWorkerWatch([slot.hostname for slot in slots], options.console.say)
            stack.enter_context(slow.using(server))
        jobs = make_plan(slots, settings, opened.where, os.getpid(), remote)
        if settings.stdin_rank is not None:
            own = stack.enter_context(own_stdin())
            jobs = [lend_stdin(job, settings.stdin_rank, own) for job in jobs]

        def told_of_exit(ended: RankExit) -> None:
            leave_note(ended, server.try_get, server.add)
            options.on_exit(ended)

        endpoints = server.endpoints if remote else ()
        policy = FixedJob(
            placed_in(jobs),
            _start_timeout_s(settings, options),
            settings.grace_s,
            endpoints=endpoints,
        )
        agents = _agents(jobs, settings, options, opened, crosses=bool(remote))
        reporting = Reporting(
            announce=options.console.say,
            log=log,
            on_exit=told_of_exit,
            report_of=lambda worker: end_report(worker, server.try_get),
        )
        executor = AgentExecutor(agents, output, reporting)
        return Supervisor(policy, executor, options.from_outside, log).run()


def _agents(
    jobs: Sequence[AgentJob],
    settings: JobSettings,
    options: LaunchOptions,
    opened: LocalJob,
    *,
    crosses: bool,
) -> Agents:
    invitation = Invitation(
        opened.server.endpoints, opened.where.secret, settings.network_interfaces
    )
    return Agents(
        start=lambda job: start_agent(job, settings, options),
        job_of=job_by_host(jobs),
        explain=explain,
        invitation=invitation if crosses else None,
        on_chosen=opened.narrow,
    )


def start_agent(
    job: AgentJob, settings: JobSettings, options: LaunchOptions
) -> subprocess.Popen[bytes]:
    """Starts the agent of a host, here or through ssh.

    Raises:
        OSError: the process cannot be created.
    """
    if not job.remote:
        return local.start_agent(settings.environ, job.stdin)
    return ssh.start(job.hostname, job.user, options.ssh, AGENT_MODULE, settings.environ)


def explain(link: AgentLink) -> str:
    """Why an agent is gone, in one line."""
    code = link.exit_code(EXIT_WAIT_S)
    lines = link.complaints()
    if link.job.remote:
        return ssh.explain(code, lines)
    return (
        "it ended; it wrote:" + "".join(f"\n    {line}" for line in lines) if lines else "it ended"
    )


def _start_timeout_s(settings: JobSettings, options: LaunchOptions) -> float:
    if options.start_timeout_s is not None:
        return options.start_timeout_s
    return _config("HOROVOD_START_TIMEOUT", settings.environ).start_timeout_s


def grace_s_of(environ: Mapping[str, str]) -> float:
    """How long ranks may take to end after a signal.

    Raises:
        StartError: the variable is no number, or below 0.
    """
    return _config("HOROVOD_GRACE_SECONDS", environ).grace_s


def slow_worker_of(environ: Mapping[str, str]) -> str:
    """What becomes of ranks that make the others wait: "off", "report", "replace" or "remove".

    Raises:
        StartError: the variable says something else.
    """
    return _config("HOROVOD_SLOW_WORKER", environ).slow_worker


def _config(name: str, environ: Mapping[str, str]) -> Config:
    # Only this one: the launcher may itself be a rank of another job, with more in its environment.
    return Config.from_env({key: value for key, value in environ.items() if key == name})


def say(stderr: TextIO, line: str) -> None:
    """Writes a message of the launcher itself before a job; a console that is gone is no error."""
    try:
        stderr.write(f"horovodrun: {line}\n")
        stderr.flush()
    except OSError:
        return
