"""Carries out the commands of a policy on Ray, whose actors are the workers of an elastic job.

Where ``horovodrun`` starts agents on hosts, Ray starts actors on nodes, so that each host that is
wanted is there at once.
"""

from __future__ import annotations

import logging
import selectors
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError

from horovod._base import fast_dataclass
from horovod.ray.elastic_actor import Failed, Finished
from horovod.runner.supervision import commands, events
from horovod.runner.supervision.events import Event
from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.news import News
from horovod.runner.supervision.store_commands import StoreCommands

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from horovod._job.job import Job
    from horovod._job.membership import Membership
    from horovod.runner.supervision.commands import Command
    from horovod.runner.supervision.outcome import Outcome

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_CHARACTERS = 300


@fast_dataclass.dataclass(frozen=True)
class ActorPlaced(Event):
    """The actor of a worker runs; ``future`` has its node, address and process."""

    worker: int
    future: Future[Any]


@fast_dataclass.dataclass(frozen=True)
class ActorEnded(Event):
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


class ActorExecutor:
    """Starts and kills actors, and reports what becomes of them.

    Args:
        job: publishes generations.
        start_actor: starts a worker; returns its actor and, as references, where it runs and what
            becomes of it.
        published: called with each generation that is in the store.

    Attributes:
        results: what functions have returned, each with the first rank of its worker.
        errors: what functions have raised, by the number of the worker.
    """

    def __init__(
        self,
        job: Job,
        start_actor: Callable[[commands.StartWorker], tuple[Any, Any, Any]],
        published: Callable[[Membership], None],
    ) -> None:
        self.results: list[tuple[int, Any]] = []
        self.errors: dict[int, Failed] = {}
        self._start_actor = start_actor
        self._published = published
        self._store = StoreCommands(job, self._on_published)
        self._workers: dict[int, Started] = {}
        self._actor_news = News()
        self._lock = threading.Lock()
        self._is_over = False

    # -- what the supervisor asks

    def begin(self, selector: selectors.BaseSelector, report: Callable[[Event], None]) -> None:
        """Get ready for commands."""
        self._report = report
        selector.register(self._actor_news, selectors.EVENT_READ, self._on_actor_news)

    def is_busy(self) -> bool:
        """Return whether a worker is left."""
        return bool(self._workers)

    def wait_s(self) -> float | None:
        """Return None: there is nothing to look at again."""
        return None

    def finish(self, outcome: Outcome, interrupts: int | None) -> Outcome:
        """Return the outcome as it is."""
        return outcome

    def close(self) -> None:
        """Kill all workers that are left."""
        self._kill_all()
        self._workers.clear()
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._actor_news.close()

    def execute(self, command: Command) -> None:
        """Carry out a command."""
        match command:
            case commands.UseHost():
                self._report(events.HostFound(time.monotonic(), command.host))
            case commands.StartWorker():
                self._start(command)
            case commands.EndWorker():
                self._kill(command.worker)
            case commands.EndAll() | commands.KillAll():
                self._kill_all()
            case commands.Abandon():
                self._workers.clear()
            case commands.Announce():
                _logger.warning("%s", command.line)
            case _:
                self._store.execute(command, self._report)

    # -- workers

    def _start(self, command: commands.StartWorker) -> None:
        number = command.worker
        actor, where, end = self._start_actor(command)
        self._workers[number] = Started(command.identity, command.host, actor)
        self._await(where, lambda future: ActorPlaced(time.monotonic(), number, future))
        self._await(end, lambda future: ActorEnded(time.monotonic(), number, future))

    def _await(self, reference: Any, event_of: Callable[[Future[Any]], Event]) -> None:
        """Wake the loop when Ray knows the value of a reference, from a thread of Ray."""

        def tell(future: Future[Any]) -> None:
            with self._lock:
                if not self._is_over:
                    self._actor_news.put(event_of(future))

        reference.future().add_done_callback(tell)

    def _kill(self, worker: int) -> None:
        if worker in self._workers:
            ray.kill(self._workers[worker].actor)

    def _kill_all(self) -> None:
        for worker in self._workers:
            self._kill(worker)

    def _on_published(self, membership: Membership) -> None:
        places = membership.places
        for worker in self._workers.values():
            if worker.rank < 0 and worker.identity in places:
                worker.rank = places[worker.identity].rank
        self._published(membership)

    # -- what becomes of actors

    def _on_actor_news(self, news: News) -> None:
        for event in news.take():
            match event:
                case ActorPlaced():
                    self._on_placed(event)
                case ActorEnded():
                    self._on_end(event)

    def _on_placed(self, event: ActorPlaced) -> None:
        if event.worker in self._workers and event.future.exception() is None:
            node, address, pid = event.future.result()
            identity = self._workers[event.worker].identity
            _logger.info("worker %s is process %d on %s, node %s", identity, pid, address, node[:8])
            self._report(events.WorkerStarted(event.at_s, event.worker))

    def _on_end(self, event: ActorEnded) -> None:
        started = self._workers.pop(event.worker, None)
        if started is None:
            return
        ray.kill(started.actor)
        self._store.forget(event.worker, started.identity)
        error = event.future.exception()
        result = None if error is not None else event.future.result()
        code, report, ending = 0, None, ""
        if isinstance(result, Finished):
            self.results.append((started.rank, result.value))
        if isinstance(result, Failed):
            self.errors[event.worker] = result
            code, report, ending = 1, result.report, f"has failed with {result.report.kind}"
        elif error is not None:
            code, ending = 1, f"is gone: {text_of(error)}"
        ended = RankExit(
            -1, started.host, code, event.at_s, worker=event.worker, report=report, ending=ending
        )
        self._report(events.WorkerExited(event.at_s, event.worker, ended))


def results_of(values: Sequence[tuple[int, T]]) -> list[T]:
    """Return what functions returned, in the order of the first ranks of their workers. Pure."""
    return [value for _, value in sorted(values, key=lambda pair: pair[0])]


def text_of(error: BaseException) -> str:
    """Return what Ray says of an actor that is gone, in one sentence. Pure."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    # The first lines repeat which actor it was, and after the first sentence come guesses.
    line = lines[-1] if isinstance(error, RayActorError | RayTaskError) else lines[0]
    return line.partition(". ")[0].rstrip(".")[:_MOST_CHARACTERS]
