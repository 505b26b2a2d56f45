"""A policy other than that of a fixed job, over a real agent: workers come one after another."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass

from horovod.runner.output.console import Console
from horovod.runner.output.output import Output
from horovod.runner.protocol.agent_job import AgentJob, WorkerJob
from horovod.runner.protocol.frames import STOP_SOON, Stop
from horovod.runner.starting.local import start_agent
from horovod.runner.supervision import events
from horovod.runner.supervision.events import Decision, Event, State
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.supervisor import Supervisor

LIMIT_S = 60.0


@dataclass(frozen=True)
class Line(State):
    """Which of the workers runs now, and how the ones before it ended."""

    index: int = -1
    codes: tuple[int, ...] = ()


class OneAfterAnother:
    """Starts each worker when the one before it has ended; ends those that say that they run on."""

    def __init__(self, workers: list[WorkerJob], endless: frozenset[int]) -> None:
        self._workers = workers
        self._endless = endless

    def begin(self, at_s: float) -> State:
        return Line(at_s + LIMIT_S)

    def decide(self, state: State, event: Event) -> Decision:
        assert isinstance(state, Line)
        match event:
            case events.HostFound():
                return self._next(state)
            case events.WorkerStarted(worker=worker) if worker in self._endless:
                how = Stop(grace_s=30.0)
                return Decision(state, [events.EndWorker(worker, how)], "nobody needs it")
            case events.WorkerExited(ended=ended):
                codes = (*state.codes, ended.returncode)
                return self._next(Line(state.deadline_s, None, state.index, codes))
            case events.HostsGone():
                told = Outcome(0, f"ended with {', '.join(map(str, state.codes))}")
                return Decision(Line(None, told, state.index, state.codes))
            case events.Deadline():
                return Decision(Line(None, None, state.index, state.codes), [events.Abandon()])
        return Decision(state)

    def _next(self, state: Line) -> Decision:
        index = state.index + 1
        moved = Line(state.deadline_s, None, index, state.codes)
        if index == len(self._workers):
            return Decision(moved, [events.EndAll(STOP_SOON)], "all lines have run")
        return Decision(moved, [events.StartWorker("here", self._workers[index])])


def worker(identity: int, rank: int, script: str, role: str = "worker") -> WorkerJob:
    return WorkerJob(identity, rank, {}, ("sh", "-c", script), role)


def test_workers_of_one_host_come_and_go_by_a_policy_of_its_own() -> None:
    workers = [
        worker(0, 0, "echo first"),
        worker(1, 0, "exec sleep 1000"),
        worker(2, 1, "echo third; exit 3", "evaluator"),
    ]
    console = io.StringIO()
    job = AgentJob("here", "/", dict(os.environ), (), b"s" * 32, os.getpid(), stays=True)
    reasons: list[str] = []
    outcome = Supervisor(
        [job],
        lambda each: start_agent(each.env),
        Output(Console(console, io.StringIO())),
        start_timeout_s=LIMIT_S,
        log=reasons.append,
        announce=reasons.append,
        policy=OneAfterAnother(workers, frozenset([1])),
    ).run()
    assert outcome.message == "ended with 0, -15, 3"
    assert console.getvalue() == "[0]<stdout>:first\n[1]<stdout>:third\n"
    assert "nobody needs it" in reasons
    assert reasons.index("all lines have run") > reasons.index("nobody needs it")
