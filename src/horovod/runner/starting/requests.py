"""Defines the requests to a launcher: one frozen class for each mode.

The command line, ``horovod.run``, job files and Spark make them; all below work with them alone.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod.errors import UsageError
from horovod.runner.starting.controller import Launcher
from horovod.runner.starting.ssh import SshOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod._job.membership import Worker
    from horovod._rendezvous.server import StoreServer
    from horovod.runner.output.console import Console
    from horovod.runner.placing.hosts import Host, Slot
    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.protocol.invitation import Invitation
    from horovod.runner.supervision.elastic.rules import Rules
    from horovod.runner.supervision.failure import RankExit
    from horovod.runner.supervision.outcome import Outcome
    from horovod.runner.supervision.sources import Discovery
    from horovod.runner.supervision.supervisor import Alarm

    Inviting = Callable[[Invitation], AbstractContextManager[Alarm | None]]
    StoreUser = Callable[[StoreServer], AbstractContextManager[None]]

GONE = "it had joined by itself, and its connection has ended"
"""Why a host that joined is lost."""


@dataclass(frozen=True)
class Watching:
    """Options for those who watch a job.

    Attributes:
        verdicts: print why steps are slow.
        dashboard: port of the page; 0 for any; None for no page.
        metrics: port for Prometheus; 0 for any; None for none.
    """

    verdicts: bool = False
    dashboard: int | None = None
    metrics: int | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether the job is watched from its beginning."""
        return self.verdicts or self.dashboard is not None or self.metrics is not None


@dataclass(frozen=True)
class LaunchOptions:
    """Options for the behavior of the launcher.

    Attributes:
        output_filename: folder for the output of the ranks; None for no files.
        prefix_timestamp: write the time in front of each line on the console.
        start_timeout_s: until the agents must run; None for HOROVOD_START_TIMEOUT or 30 s.
        verbose: log each step on stderr.
        ssh: how to log in on other hosts.
        watching: how the user wants to see what the job does.
    """

    output_filename: str | None = None
    prefix_timestamp: bool = False
    start_timeout_s: float | None = None
    verbose: bool = False
    ssh: SshOptions = field(default_factory=SshOptions)
    watching: Watching = field(default_factory=Watching)


@dataclass(frozen=True)
class Caller:
    """Resources and callbacks of the process that launches a job.

    Attributes:
        console: gets the output of the ranks and the messages of the launcher.
        interrupts, wakeups: see :class:`horovod.runner.supervision.supervisor.Supervisor`.
        alarm: ends the job for a reason outside of it; None if nothing can.
        on_exit: called with the end of each rank that ends by itself, at once.
        on_outcome: called when it is decided how the job ends.
        on_generation: called when an elastic job goes on in a new generation.
        on_line: called with each line of the launcher about the job.
        store_user: entered before the ranks start and left after their end; may use the store.
    """

    console: Console
    interrupts: int | None = None
    wakeups: int | None = None
    alarm: Alarm | None = None
    on_exit: Callable[[RankExit], object] = lambda _: None
    on_outcome: Callable[[Outcome], None] = lambda _: None
    on_generation: Callable[[], None] = lambda: None
    on_line: Callable[[str], object] = lambda _: None
    store_user: StoreUser = lambda _: nullcontext()

    def say(self, line: str) -> None:
        """Print one line about the job."""
        self.console.say(line)
        self.on_line(line)


@dataclass(frozen=True)
class JobRequest:
    """A job to run.

    Attributes:
        settings: what its ranks run.
        options: how the launcher behaves.
    """

    settings: JobSettings
    options: LaunchOptions


@dataclass(frozen=True)
class FixedRequest(JobRequest):
    """A job of a fixed size, on this machine or on several hosts.

    Attributes:
        slots: where each rank runs.
        dry_run: only print what would run.
    """

    slots: Sequence[Slot]
    dry_run: bool = False


@dataclass(frozen=True)
class MpiRequest(FixedRequest):
    """A job whose ranks mpirun or jsrun starts.

    Attributes:
        launcher: which of the two.
        mpi_args, binding_args: further options for it.
    """

    launcher: Launcher = Launcher.MPIRUN
    mpi_args: str = ""
    binding_args: str = ""


@dataclass(frozen=True)
class ElasticRequest(JobRequest):
    """A job whose hosts and workers come and go.

    Attributes:
        rules: how many ranks, and for how long to wait.
        discovery: lists the hosts there are; None if they are fixed.
        hosts: the fixed ones, each with its slots.
        inviting: lets other hosts join as long as the job lasts; what it yields may end the job.
            None if none may join.
        gone: why a host that joined is lost.
    """

    rules: Rules
    discovery: Discovery | None = None
    hosts: tuple[Host, ...] = ()
    inviting: Inviting | None = None
    gone: str = GONE


@dataclass(frozen=True)
class Asked:
    """Options given for an elastic job; None or empty for those not given.

    Attributes:
        min_num_proc, max_num_proc, slots, elastic_timeout, reset_limit, cooldown_range,
            worker_timeout, host_discovery_script, join_file: as the flags of about the same names.
        host_discovery: an object in place of the script.
    """

    min_num_proc: int | None = None
    max_num_proc: int | None = None
    slots: int | None = None
    elastic_timeout: float | None = None
    reset_limit: int | None = None
    cooldown_range: Sequence[int] | None = None
    worker_timeout: float | None = None
    host_discovery_script: str | None = None
    host_discovery: Discovery | None = None
    join_file: str | None = None

    @property
    def is_elastic(self) -> bool:
        """Whether the job is one whose hosts and workers come and go."""
        discovers = bool(self.host_discovery_script) or self.host_discovery is not None
        return self.min_num_proc is not None or discovers or bool(self.join_file)


@dataclass(frozen=True)
class InvitedRequest(JobRequest):
    """A job of a fixed size of which each rank comes with a host of its own that joins.

    Hosts of such a job are whatever joins with one slot. Ranks of which :attr:`worker_of` says
    that they share a machine become neighbors, and have local ranks there.

    Attributes:
        size: how many ranks.
        inviting: lets hosts join, as long as the job lasts; what it yields may end the job.
        worker_of: who runs on a host that has joined, and on which machine.
        order: the key by which hosts are sorted; rank 0 is on the first one.
        start_timeout_s: until all must have joined.
        gone: why a host is lost that gives no other reason.
    """

    size: int
    inviting: Inviting
    worker_of: Callable[[StoreServer, str], Worker]
    order: Callable[[str], int]
    start_timeout_s: float
    gone: str = GONE


@dataclass(frozen=True)
class NodeRequest(JobRequest):
    """The ranks of one node; each of the other nodes has a launcher of its own.

    Attributes:
        node_rank, num_nodes: this host among all.
        rendezvous: ``host:port`` at which node 0 opens the store.
        num_proc: ranks on all nodes together.
        slots: of this node; None for an equal share.

    Raises:
        UsageError: there is no such node, or the ranks cannot be shared equally.
    """

    node_rank: int
    num_nodes: int
    rendezvous: str
    num_proc: int
    slots: int | None = None

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or not 0 <= self.node_rank < self.num_nodes:
            raise UsageError(
                f"--node-rank {self.node_rank} is not below --num-nodes {self.num_nodes}"
            )
        if self.slots is None and self.num_proc % self.num_nodes:
            raise UsageError(
                f"-np {self.num_proc} cannot be shared equally by {self.num_nodes} nodes: say how "
                "many ranks this one takes with -H localhost:N"
            )

    @property
    def share(self) -> int:
        """Number of ranks on this node."""
        return self.num_proc // self.num_nodes if self.slots is None else self.slots


@dataclass(frozen=True)
class JobFileRequest(JobRequest):
    """The runs of a job file; the command of ``settings`` is not used.

    Attributes:
        path: of the file.
        hosts: that the user named, or those of an allocation, or this machine; none on a Ray
            cluster, or if a discovery lists them.
        asked: options of elastic jobs.
        for_elastic: those that were given, as the user spells them.
        backend: ``ray``, or where ``hosts`` are.
        detach: run in the background.
        resume: the number of an experiment to go on with; None for a new one.
        dry_run: only print what would run.
    """

    path: str
    hosts: Sequence[Host]
    asked: Asked
    for_elastic: tuple[str, ...] = ()
    backend: str = "hosts"
    detach: bool = False
    resume: int | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class JoinRequest:
    """This host is to join an elastic job.

    Attributes:
        where: a file that ``--join-file`` wrote, ``-`` for its text on stdin, or ``address:port``.
        host: a name for this host in the job.
        slots: how many workers it may have.
        environ: what the workers inherit.
        cwd: where they run.
        python: what starts workers that are Python functions; this one by default.
        once: whether the visit ends with the first agent, even if the job continues.
    """

    where: str
    host: str
    slots: int
    environ: Mapping[str, str] = field(repr=False)
    cwd: str
    python: str = sys.executable
    once: bool = False


@dataclass(frozen=True)
class Workload:
    """A training, as one rank knows it.

    Attributes:
        step_s: seconds of a step without communication.
        gradient_bytes: of all gradients.
    """

    step_s: float
    gradient_bytes: float


@dataclass(frozen=True)
class CheckRequest:
    """Hosts to examine.

    Attributes:
        hosts: whom to ask.
        environ: the variables of the processes there, or of ssh.
        ssh: how to log in on other hosts.
        timeout_s: until a host must have answered.
        network_interfaces: at whose addresses the hosts may reach this machine; empty for any.
        workload: the training whose steps to forecast; None for none.
    """

    hosts: Sequence[Host]
    environ: Mapping[str, str] = field(repr=False)
    ssh: SshOptions
    timeout_s: float
    network_interfaces: tuple[str, ...] = ()
    workload: Workload | None = None


Request = JobRequest | JoinRequest | CheckRequest
