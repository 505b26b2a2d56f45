"""The loop of an elastic job on Ray: brings what happens to the policy, and does what it decides.

It is the policy of ``horovodrun`` (:mod:`horovod.runner.supervision.elastic`). There, agents start
processes on hosts; here, Ray starts actors on nodes, so each host that is wanted is there at once.
"""

from __future__ import annotations

import logging
import select
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from horovod.ray.elastic_actor import Failed, Finished
from horovod.runner.supervision import events
from horovod.runner.supervision.elastic import events as elastic
from horovod.runner.supervision.elastic.policy import Going
from horovod.runner.supervision.events import Event
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from horovod._job.job import Job
    from horovod._job.membership import Membership
    from horovod.runner.supervision.events import Command, Policy
    from horovod.runner.supervision.news import News

_logger = logging.getLogger(__name__)

_MOST_CHARACTERS = 300


@dataclass(frozen=True)
class Placed(Event):
    """The actor of a worker runs; ``future`` has its node, address and process."""

    worker: int
    future: Future[Any]


@dataclass(frozen=True)
class Ended(Event):
    """A worker has come to its end; ``future`` has what became of it."""

    worker: int
    future: Future[Any]


@dataclass
class Started:
    """A worker whose actor was started and has not ended.

    Attributes:
        identity: in the store.
        host: where it was started.
        actor: it.
        rank: the first one that it had; -1 before.
    """

    identity: str
    host: str
    actor: Any
    rank: int = -1


class RaySupervisor:
    """Runs one elastic job from start to end, in the thread that calls :meth:`run`.

    Args:
        job: publishes generations.
        news: brings what discovery finds and what workers tell.
        policy: decides.
        start_actor: starts a worker; returns its actor and, as references, where it runs and what
            becomes of it.
        published: hears of each generation, once it is in the store.

    Attributes:
        results: what functions have returned, each with the first rank of its worker.
        errors: what functions have raised, by the number of the worker.
    """

    def __init__(
        self,
        job: Job,
        news: News,
        policy: Policy,
        start_actor: Callable[[elastic.StartOn], tuple[Any, Any, Any]],
        published: Callable[[Membership], None],
    ) -> None:
        self.results: list[tuple[int, Any]] = []
        self.errors: dict[int, Failed] = {}
        self._job = job
        self._news = news
        self._policy = policy
        self._start_actor = start_actor
        self._published = published
        self._workers: dict[int, Started] = {}
        self._state = policy.begin(time.monotonic())
        self._lock = threading.Lock()
        self._is_over = False

    def run(self) -> Outcome:
        """Runs the job; returns when no worker of it is left.

        Raises:
            BaseException: such as KeyboardInterrupt, by which the workers have been ended.
        """
        try:
            while self._workers or isinstance(self._state, Going):
                self._await_news()
        finally:
            self._end_all()
            with self._lock:
                self._is_over = True
        self._feed(events.HostsGone(time.monotonic()))
        return self._state.outcome or Outcome(1, "nobody knows what became of the job")

    def _await_news(self) -> None:
        due_s = self._state.deadline_s
        patience_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        select.select([self._news], [], [], patience_s)
        for event in self._news.take():
            match event:
                case Placed():
                    self._on_placed(event)
                case Ended():
                    self._on_end(event)
                case _:
                    self._feed(event)
        now_s = time.monotonic()
        if self._state.deadline_s is not None and now_s >= self._state.deadline_s:
            self._feed(events.Deadline(now_s))

    def _feed(self, event: Event) -> None:
        decision = self._policy.decide(self._state, event)
        self._state = decision.state
        if decision.reason:
            _logger.info("%s", decision.reason)
        for command in decision.commands:
            self._execute(command)

    def _execute(self, command: Command) -> None:
        match command:
            case elastic.UseHost():
                self._news.put(events.HostFound(time.monotonic(), command.host))
            case elastic.StartOn():
                self._start(command)
            case elastic.Publish():
                self._publish(command.membership)
            case elastic.BreakUp():
                self._job.break_up(command.text)
            case elastic.Dismiss():
                self._job.dismiss(command.identity, command.text)
            case events.EndWorker():
                self._kill(command.worker)
            case events.EndAll() | events.KillAll():
                for worker in self._workers:
                    self._kill(worker)
            case events.Abandon():
                self._workers.clear()
            case events.Announce():
                _logger.warning("%s", command.line)

    # -- workers

    def _start(self, command: elastic.StartOn) -> None:
        number = command.worker
        actor, where, end = self._start_actor(command)
        self._workers[number] = Started(command.identity, command.host, actor)
        self._tell_of(where, lambda future: Placed(time.monotonic(), number, future))
        self._tell_of(end, lambda future: Ended(time.monotonic(), number, future))

    def _tell_of(self, reference: Any, event_of: Callable[[Future[Any]], Event]) -> None:
        """Makes an event of it when Ray knows the value of a reference, on a thread of Ray."""

        def tell(future: Future[Any]) -> None:
            with self._lock:
                if not self._is_over:
                    self._news.put(event_of(future))

        reference.future().add_done_callback(tell)

    def _kill(self, worker: int) -> None:
        if worker in self._workers:
            ray.kill(self._workers[worker].actor)

    def _end_all(self) -> None:
        for worker in self._workers:
            self._kill(worker)
        self._workers.clear()

    def _publish(self, membership: Membership) -> None:
        places = membership.places
        for each in self._workers.values():
            if each.rank < 0 and each.identity in places:
                each.rank = places[each.identity].rank
        self._job.publish(membership)
        self._published(membership)

    def _on_placed(self, event: Placed) -> None:
        if event.worker in self._workers and event.future.exception() is None:
            node, address, pid = event.future.result()
            identity = self._workers[event.worker].identity
            _logger.info("worker %s is process %d on %s, node %s", identity, pid, address, node[:8])
            self._feed(events.WorkerStarted(event.at_s, event.worker))

    def _on_end(self, event: Ended) -> None:
        started = self._workers.pop(event.worker, None)
        if started is None:
            return
        ray.kill(started.actor)
        error = event.future.exception()
        result = None if error is not None else event.future.result()
        if isinstance(result, Finished):
            self.results.append((started.rank, result.value))
        ended = RankExit(-1, started.host, 0, event.at_s, worker=event.worker)
        if isinstance(result, Failed):
            self.errors[event.worker] = result
            ended = RankExit(
                -1,
                started.host,
                1,
                event.at_s,
                worker=event.worker,
                report=result.report,
                ending=f"has failed with {result.report.kind}",
            )
        elif error is not None:
            ending = f"is gone: {text_of(error)}"
            ended = RankExit(-1, started.host, 1, event.at_s, worker=event.worker, ending=ending)
        self._feed(events.WorkerExited(event.at_s, event.worker, ended))


def results_of(values: Sequence[tuple[int, object]]) -> list[Any]:
    """What functions have returned, in the order of the first ranks of their workers. Pure."""
    return [value for _, value in sorted(values, key=lambda each: each[0])]


def text_of(error: BaseException) -> str:
    """What Ray says of an actor that is gone, in one sentence. Pure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # The first lines repeat which actor it was, and after the first sentence come guesses.
    line = lines[-1] if isinstance(error, RayActorError | RayTaskError) else lines[0]
    return line.partition(". ")[0].rstrip(".")[:_MOST_CHARACTERS]
