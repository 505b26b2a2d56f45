"""``horovodrun --node-rank``: the same command on every host, without ssh.

Node 0 opens the store of the job. Each node tells there how many ranks it takes, computes the place
of all ranks from what all told, and starts its own. A node that fails, or whose connection ends
before it has finished, leaves a word in the store that ends the job on the others.
"""

from __future__ import annotations

import json
import os
import selectors
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import horovod
from horovod._job.bootstrap import TWIN_KEY, Bootstrap, check_twin, claim_place
from horovod._job.environment import StoreAddress
from horovod._job.job import Job
from horovod._rank.reports.end import EndReport, end_report
from horovod._rendezvous.interfaces import interfaces_of
from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError
from horovod.runner.output.output import Output
from horovod.runner.placing import this_machine
from horovod.runner.placing.hosts import Host, Slot, assign
from horovod.runner.placing.plan import interface_environment, make_plan, membership_of
from horovod.runner.starting import local
from horovod.runner.supervision.agent_executor import AgentExecutor
from horovod.runner.supervision.agents import Agents, Reporting, job_by_host
from horovod.runner.supervision.early_exit import leave_note
from horovod.runner.supervision.fixed import SETTLE_S, FixedJob, placed_in
from horovod.runner.supervision.outcome import Outcome, stopped_by
from horovod.runner.supervision.supervisor import Alarm, Outside, Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod.runner.placing.plan import JobSettings
    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.starting.launch import LaunchOptions
    from horovod.runner.supervision.failure import RankExit

_FAILED = "nodes/failed"
_LOOK_S = 60.0
# Ranks of a node may fail because of one of another node, of which its launcher hears later.
_FOLLOW_UP_S = SETTLE_S + 1.0
_SECRET_NAMES = ("HOROVOD_SECRET_KEY", "HOROVOD_SECRET_FILE", "HOROVOD_START_TIMEOUT")


@dataclass(frozen=True)
class NodeOptions:
    """What the user told about the nodes.

    Attributes:
        node_rank, num_nodes: this host among all.
        rendezvous: ``host:port`` at which node 0 opens the store.
        num_proc: ranks on all nodes together.
        slots: of this node; None for an equal share.
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
        """How many ranks this node takes."""
        return self.num_proc // self.num_nodes if self.slots is None else self.slots


def _bootstrap_config(
    node: NodeOptions, environ: Mapping[str, str], start_timeout_s: float | None
) -> Config:
    """Nodes meet as ranks do that no launcher started."""
    given = {name: environ[name] for name in _SECRET_NAMES if name in environ}
    if not (given.get(_SECRET_NAMES[0]) or given.get(_SECRET_NAMES[1])):
        raise UsageError(
            "--node-rank needs a secret that all nodes share: set HOROVOD_SECRET_KEY to what "
            "`openssl rand -hex 32` prints, or HOROVOD_SECRET_FILE to a private file of 32 bytes, "
            "the same on all of them"
        )
    config = Config.from_env({**given, "HOROVOD_RENDEZVOUS": node.rendezvous})
    timeout_s = config.start_timeout_s if start_timeout_s is None else start_timeout_s
    return replace(config, rank=node.node_rank, size=node.num_nodes, start_timeout_s=timeout_s)


class _Nodes:
    """This node's view of all nodes, through the store."""

    def __init__(self, node: NodeOptions, config: Config) -> None:
        self._node = node
        self._config = config
        self.name = config.hostname
        self.where = StoreAddress(config.rendezvous_addr, config.rendezvous_port, secret_of(config))
        connect = partial(
            StoreClient, self.where.address, self.where.port, self.where.secret, purpose="launcher"
        )
        self._cleanup = ExitStack()
        self.store = self._cleanup.enter_context(connect())
        self._watch_store = self._cleanup.enter_context(connect())
        self._read_end, self._write_end = os.pipe()
        self._news: Outcome | None = None
        self._thread = threading.Thread(target=self._watch, name="horovod-nodes", daemon=True)

    def agree(self) -> list[Slot]:
        """Tells the others about this node, and returns the place of every rank of the job."""
        me = {
            "host": self.name,
            "slots": self._node.share,
            "num_proc": self._node.num_proc,
            "version": horovod.__version__,
        }
        name = f"{self.name} (process {os.getpid()})"
        claim_place(self.store, "node", self._node.node_rank, name, "nodes")
        self.store.set(f"nodes/info/{self._node.node_rank}", json.dumps(me).encode())
        keys = [f"nodes/info/{index}" for index in range(self._node.num_nodes)]
        found = self.store.wait_all(keys, self._config.start_timeout_s, TWIN_KEY)
        check_twin(found)
        late = [str(index) for index, key in enumerate(keys) if key not in found]
        if late:
            raise StartError(f"node {', '.join(late)} did not tell how many ranks it takes")
        return place_ranks([json.loads(found[key]) for key in keys])

    def begin(self) -> None:
        """From now on the end of this node's connection fails the job."""
        gone = {"node": self._node.node_rank, "host": self.name, "code": 1}
        cause = {**gone, "message": "its launcher is gone, or cannot be reached"}
        self.store.leave_will(_FAILED, json.dumps(cause).encode())
        self._thread.start()

    def on_outcome(self, outcome: Outcome) -> None:
        """Tells a failure or a signal at once, unless another node is likely to have its cause.

        The launcher's loop does not wait for node 0.
        """
        if outcome.exit_code and not outcome.is_follow_up:
            threading.Thread(target=self._tell_if_possible, args=(outcome,), daemon=True).start()

    def _tell_if_possible(self, outcome: Outcome) -> None:
        with suppress(StartError):  # a store that is gone ends the job anyway
            self._tell(outcome)

    def finish(self, outcome: Outcome) -> Outcome:
        """Tells the others how the ranks of this node ended.

        Returns:
            The outcome, or that of the node whose failure this one follows from.
        """
        with suppress(StartError):  # then they know already
            if outcome.is_follow_up:
                self.store.wait_all([_FAILED], _FOLLOW_UP_S)
            if outcome.exit_code:
                first = self._tell(outcome)
                if first is not None and outcome.is_follow_up:
                    outcome = replace(_failure(json.loads(first)), summary=outcome.summary)
            self.store.set(_done_key(self._node.node_rank), b"")
            self.store.leave_will(_FAILED, None)
        return outcome

    def _tell(self, outcome: Outcome) -> bytes | None:
        """Leaves a failure in the store; returns that of another node if it came first."""
        cause = {
            "node": self._node.node_rank,
            "host": self.name,
            "code": outcome.exit_code,
            "signal": outcome.stop_signal,
            "message": outcome.message.partition("\n")[0],
        }
        text = json.dumps(cause).encode()
        first = self.store.add(_FAILED, text)
        return None if first == text else first

    def on_exit(self, ended: RankExit) -> None:
        """Ranks of other nodes may wait for one of this node, too."""
        with suppress(StartError):  # a store that is gone ends the job anyway
            leave_note(ended, self.store.try_get, self.store.add)

    def report_of(self, worker: int) -> EndReport | None:
        """What a worker of this node has said of its end."""
        try:
            return end_report(worker, self.store.try_get)
        except StartError:  # a store that is gone ends the job anyway
            return None

    @property
    def alarm(self) -> Alarm:
        """Tells when another node has failed, or all have finished."""
        return Alarm(self._read_end, lambda: self._news or Outcome(0))

    def wait_for_others(self, interrupts: int | None) -> Outcome:
        """Waits until all nodes have finished, or one has failed, or the user has enough."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._read_end, selectors.EVENT_READ)
            if interrupts is not None:
                selector.register(interrupts, selectors.EVENT_READ)
            for key, _ in selector.select():
                if key.fd == interrupts:
                    return stopped_by(os.read(key.fd, 1)[0])
        return self._news or Outcome(0)

    def _watch(self) -> None:
        keys = [_done_key(index) for index in range(self._node.num_nodes)]
        try:
            while self._news is None:
                found = self._watch_store.wait_all(keys, _LOOK_S, _FAILED)
                if _FAILED in found:
                    self._news = _failure(json.loads(found[_FAILED]))
                elif len(found) == len(keys):
                    self._news = Outcome(0)
        except StartError:
            self._news = Outcome(1, "the connection to node 0 was lost: look for its errors")
        os.close(self._write_end)  # makes the other end readable

    def close(self) -> None:
        """Ends the connections and the thread."""
        self._cleanup.close()
        if self._thread.is_alive():
            self._thread.join()
        elif self._news is None:
            os.close(self._write_end)
        os.close(self._read_end)


def _done_key(index: int) -> str:
    return f"nodes/done/{index}"


def _failure(cause: dict[str, Any]) -> Outcome:
    signum = int(cause.get("signal", 0))
    became = "was" if signum else "failed:"
    return Outcome(
        int(cause["code"]),
        f"node {cause['node']} ({cause['host']}) {became} {cause['message']}",
        stop_signal=signum,
    )


def place_ranks(infos: Sequence[Mapping[str, Any]]) -> list[Slot]:
    """Where each rank runs, from what the nodes told. Pure.

    Args:
        infos: of each node, in their order: host, slots, num_proc and version.

    Raises:
        StartError: the nodes do not fit together; the message names two that differ.
    """
    for key, word in (("num_proc", "-np"), ("version", "Horovod's version")):
        for index, info in enumerate(infos):
            if info[key] != infos[0][key]:
                raise StartError(
                    f"the nodes disagree on {word}: node 0 ({infos[0]['host']}) has "
                    f"{infos[0][key]}, node {index} ({info['host']}) has {info[key]}"
                )
    total = sum(int(info["slots"]) for info in infos)
    if total != infos[0]["num_proc"]:
        shares = ", ".join(f"{info['host']}:{info['slots']}" for info in infos)
        raise StartError(
            f"-np is {infos[0]['num_proc']}, but the nodes take {total} ranks: {shares}"
        )
    return assign(
        [
            Host(name, int(info["slots"]))
            for name, info in zip(node_names(infos), infos, strict=True)
        ],
        total,
    )


def node_names(infos: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each node that no other node has: the host's, with a number if it is not alone."""
    hosts = [str(info["host"]) for info in infos]
    return [
        host if hosts.count(host) == 1 else f"{host}#{index}" for index, host in enumerate(hosts)
    ]


def launch_node(
    node: NodeOptions,
    settings: JobSettings,
    options: LaunchOptions,
    say: Callable[[str], None],
) -> Outcome:
    """Runs this node's ranks, and waits for the end of the job on all nodes.

    Args:
        node: which node this is.
        settings: what to run.
        options: how the launcher behaves.
        say: writes a line for the user.

    Raises:
        UsageError: there is no secret, or the folder for the output cannot be written.
        StartError: the nodes did not find each other, or do not fit together.
    """
    config = _bootstrap_config(node, settings.environ, options.start_timeout_s)
    with ExitStack() as stack:
        bootstrap = Bootstrap(config, "node")
        stack.callback(bootstrap.close)
        config = bootstrap.attend(config)
        nodes = _Nodes(node, config)
        stack.callback(nodes.close)
        slots = nodes.agree()
        if node.node_rank == 0:
            Job(nodes.store, nodes.where).publish(membership_of(slots))
        nodes.begin()
        try:
            outcome = _run_ranks(_job_of(node, slots, settings, nodes), nodes, options, say)
        except BaseException as error:
            nodes.finish(Outcome(1, f"its launcher failed: {type(error).__name__}: {error}"))
            raise
        outcome = nodes.finish(outcome)
        if outcome.exit_code == 0:
            outcome = nodes.wait_for_others(options.interrupts)
        return outcome


def _job_of(
    node: NodeOptions,
    slots: Sequence[Slot],
    settings: JobSettings,
    nodes: _Nodes,
) -> AgentJob:
    mine = list(dict.fromkeys(slot.hostname for slot in slots))[node.node_rank]
    (job,) = make_plan(
        [slot for slot in slots if slot.hostname == mine],
        settings,
        nodes.where,
        os.getpid(),
        several_hosts=True,
    )
    known = this_machine.network_interfaces()
    wanted = [name for name in settings.network_interfaces if name in known]
    names = wanted or interfaces_of(nodes.store.local_address)
    return replace(job, env={**job.env, **interface_environment(names, job.env)})


def _run_ranks(
    job: AgentJob, nodes: _Nodes, options: LaunchOptions, say: Callable[[str], None]
) -> Outcome:
    size = int(job.workers[0].env["HOROVOD_SIZE"])
    output = Output(
        options.console,
        directory=options.output_filename,
        timestamps=options.prefix_timestamp,
        colored=options.console.colored(job.env),
    )
    try:
        output.place({worker.worker: worker.rank for worker in job.workers}, size)
        log = say if options.verbose else lambda line: None
        agents = Agents(lambda each: local.start_agent(each.env), job_by_host([job]))
        reporting = Reporting(say, log, nodes.on_exit, nodes.on_outcome, nodes.report_of)
        start_timeout_s = options.start_timeout_s or Config().start_timeout_s
        policy = FixedJob(placed_in([job]), start_timeout_s, job.grace_s)
        outside = Outside(options.interrupts, alarm=nodes.alarm)
        return Supervisor(policy, AgentExecutor(agents, output, reporting), outside, log).run()
    finally:
        output.close()
