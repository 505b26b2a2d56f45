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
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import horovod
from horovod._job.bootstrap import TWIN_KEY, Bootstrap, check_twin, claim_place
from horovod._job.environment import StoreAddress
from horovod._job.job import Job
from horovod._rendezvous.interfaces import interfaces_of
from horovod._rendezvous.reserved_port import reserve_port
from horovod._rendezvous.secret import secret_of
from horovod._rendezvous.store import StoreClient
from horovod._settings.config import Config
from horovod.errors import StartError, UsageError
from horovod.runner.placing import this_machine
from horovod.runner.placing.hosts import Host, Slot, assign
from horovod.runner.placing.plan import interface_environment, make_plan, membership_of
from horovod.runner.placing.torch_environment import warn_of_rank_variables, with_torch_variables
from horovod.runner.starting.launch import log_of, open_output
from horovod.runner.starting.means import Means
from horovod.runner.starting.observed_job import check_watching, observed, watching_of
from horovod.runner.starting.supervise import Crew, agents_of, supervise
from horovod.runner.supervision.fixed import SETTLE_S, FixedJob, placed_workers
from horovod.runner.supervision.outcome import Outcome, stopped_by
from horovod.runner.supervision.supervisor import Alarm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horovod.runner.protocol.agent_job import AgentJob
    from horovod.runner.starting.requests import Caller, NodeRequest

_FAILED = "nodes/failed"
_LOOK_S = 60.0
# Ranks of a node may fail because of one of another node, which lets its other ranks settle before
# it tells that. A node whose ranks hang must not keep the job for more than 10 s in all.
_FOLLOW_UP_S = SETTLE_S + 5.0
_OUTPUT = "The output of this rank goes to the launcher of its own node, not to this page."
_SECRET_NAMES = ("HOROVOD_SECRET_KEY", "HOROVOD_SECRET_FILE", "HOROVOD_START_TIMEOUT")


def _bootstrap_config(request: NodeRequest) -> Config:
    """Nodes meet as ranks do that no launcher started."""
    environ, start_timeout_s = request.settings.environ, request.options.start_timeout_s
    given = {name: environ[name] for name in _SECRET_NAMES if name in environ}
    if not (given.get(_SECRET_NAMES[0]) or given.get(_SECRET_NAMES[1])):
        raise UsageError(
            "--node-rank needs a secret that all nodes share: set HOROVOD_SECRET_KEY to what "
            "`openssl rand -hex 32` prints, or HOROVOD_SECRET_FILE to a private file of 32 bytes, "
            "the same on all of them"
        )
    config = Config.from_env({**given, "HOROVOD_RENDEZVOUS": request.rendezvous})
    timeout_s = config.start_timeout_s if start_timeout_s is None else start_timeout_s
    return replace(
        config, rank=request.node_rank, size=request.num_nodes, start_timeout_s=timeout_s
    )


class _Nodes:
    """This node's view of all nodes, through the store.

    Attributes:
        master: where rank 0 may listen for PyTorch, once the nodes agree; port 0 for nowhere.
    """

    def __init__(self, node: NodeRequest, config: Config) -> None:
        self._node = node
        self._config = config
        self.name = config.hostname
        self.where = StoreAddress(config.rendezvous_addr, config.rendezvous_port, secret_of(config))
        self._cleanup = ExitStack()
        self.store = self._cleanup.enter_context(self.connect())
        self._watch_store = self._cleanup.enter_context(self.connect())
        self._read_end, self._write_end = os.pipe()
        self._news: Outcome | None = None
        self.master = "", 0
        self._thread = threading.Thread(target=self._watch, name="horovod-nodes", daemon=True)

    def connect(self) -> StoreClient:
        """Return a new connection to the store."""
        where = self.where
        return StoreClient(where.address, where.port, where.secret, purpose="launcher")

    def agree(self) -> list[Slot]:
        """Tells the others about this node, and returns the place of every rank of the job.

        Node 0, where rank 0 will be, also tells which port it keeps free for PyTorch.
        """
        me = {
            "host": self.name,
            "slots": self._node.share,
            "num_proc": self._node.num_proc,
            "version": horovod.__version__,
            "free_port": self._reserve_port() if self._node.node_rank == 0 else 0,
        }
        name = f"{self.name} (process {os.getpid()})"
        claim_place(self.store, "node", self._node.node_rank, name, "nodes")
        self.store.set(f"nodes/info/{self._node.node_rank}", json.dumps(me).encode())
        keys = [f"nodes/info/{index}" for index in range(self._node.num_nodes)]
        found = self.store.wait_all(keys, self._config.start_timeout_s, TWIN_KEY)
        check_twin(found)
        late = [str(index) for index, key in enumerate(keys) if key not in found]
        if late:
            raise StartError(f"node {', '.join(late)} did not report how many ranks it takes")
        infos = [json.loads(found[key]) for key in keys]
        self.master = self.where.address, int(infos[0]["free_port"])
        return place_ranks(infos)

    def _reserve_port(self) -> int:
        """Return a port that is kept free until this node has finished; 0 if there is none."""
        try:
            reserved = self._cleanup.enter_context(reserve_port())
        except OSError:
            return 0
        return int(reserved.getsockname()[1])

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
            if outcome.exit_code == 0 or outcome.is_follow_up:
                self.store.set(_blameless_key(self._node.node_rank), b"")
            if outcome.is_follow_up:  # until another node has a failure to tell, or none has
                keys = [_blameless_key(index) for index in range(self._node.num_nodes)]
                self.store.wait_all(keys, _FOLLOW_UP_S, _FAILED)
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


def _blameless_key(index: int) -> str:
    """Exists once the ranks of a node ended well, or only because of those of other nodes."""
    return f"nodes/blameless/{index}"


def _failure(cause: dict[str, Any]) -> Outcome:
    signum = int(cause.get("signal", 0))
    became = "was" if signum else "failed:"
    return Outcome(
        int(cause["code"]),
        f"node {cause['node']} ({cause['host']}) {became} {cause['message']}",
        stop_signal=signum,
    )


def place_ranks(infos: Sequence[Mapping[str, Any]]) -> list[Slot]:
    """Return the slot of each rank, from the nodes' reports. Pure.

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


def launch_node(request: NodeRequest, caller: Caller) -> Outcome:
    """Run this node's ranks, and wait for the end of the job on all nodes.

    Args:
        request: which node this is, and what to run.
        caller: who launches it.

    Raises:
        UsageError: there is no secret, or the folder for the output cannot be written.
        StartError: the nodes did not find each other, or do not fit together.
    """
    config = _bootstrap_config(request)
    if request.node_rank == 0:
        check_watching(watching_of(request))
    with ExitStack() as stack:
        bootstrap = Bootstrap(config, "node")
        stack.callback(bootstrap.close)
        config = bootstrap.attend(config)
        nodes = _Nodes(request, config)
        stack.callback(nodes.close)
        slots = nodes.agree()
        if len(slots) > 1:
            warn_of_rank_variables(request.settings.environ, caller.console.say)
        shown = None
        if request.node_rank == 0:
            shown = Job(stack.enter_context(nodes.connect()), nodes.where)
            shown.publish(membership_of(slots))
        nodes.begin()
        try:
            outcome = _run_ranks(request, _job_of(request, slots, nodes), nodes, caller, shown)
        except BaseException as error:
            nodes.finish(Outcome(1, f"its launcher failed: {type(error).__name__}: {error}"))
            raise
        outcome = nodes.finish(outcome)
        if outcome.exit_code == 0:
            outcome = nodes.wait_for_others(caller.interrupts)
        return outcome


def _job_of(request: NodeRequest, slots: Sequence[Slot], nodes: _Nodes) -> AgentJob:
    settings = request.settings
    mine = list(dict.fromkeys(slot.hostname for slot in slots))[request.node_rank]
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
    job = replace(job, env={**job.env, **interface_environment(names, job.env)})
    return with_torch_variables(job, *nodes.master) if nodes.master[1] else job


def _run_ranks(
    request: NodeRequest, job: AgentJob, nodes: _Nodes, caller: Caller, shown: Job | None
) -> Outcome:
    """Run the ranks of this node; node 0 lets those who watch see all ranks."""
    ranks = {worker.worker: worker.rank for worker in job.workers}
    timeout_s = request.options.start_timeout_s or Config().start_timeout_s
    policy = FixedJob(placed_workers([job]), timeout_s, job.grace_s)
    crew = Crew(agents_of(Means(request, []), [job]), policy)
    with (
        closing(open_output(request, caller, ranks, request.num_proc)) as output,
        ExitStack() as stack,
    ):
        own = replace(caller, alarm=nodes.alarm, on_outcome=nodes.on_outcome)
        if shown is not None:
            own = stack.enter_context(observed(shown, request, own, output, _OUTPUT))
        return supervise(crew, output, nodes.store, own, log_of(request, caller))
