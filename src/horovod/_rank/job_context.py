"""The jobs that this process takes part in, and which of them a thread works for.

A job is held by a :class:`Context`. A process has one by default, and that is all that a training
script needs. A program that takes part in several jobs, or that runs ranks as threads, makes more
and says with :meth:`Context.use` for which of them its code works. All of Horovod's interface means
the :func:`current` one:

1. the context that this thread uses. A :class:`contextvars.ContextVar` holds it, so tasks of
   asyncio inherit it; a thread does if it is started with :func:`inherited`;
2. otherwise the only one with a job in this process, if there is exactly one, so that threads of
   libraries, such as those of autograd, find the job of their process;
3. otherwise the default one.
"""

from __future__ import annotations

import atexit
import contextvars
import itertools
import logging
import os
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from horovod._job.assigned import elastic_environment
from horovod._rank.group import Group
from horovod._rank.init_arguments import check_comm, declared_sets
from horovod._rank.libraries.mpi import ProcessMpi, was_initialized
from horovod._rank.reports.end import place_of, tell_end
from horovod._rank.reports.shared import to_print
from horovod._rank.reports.steps import Steps
from horovod._rank.start import start_engine
from horovod._rank.torch_place import TorchPlace
from horovod._rendezvous.incarnation import Incarnation
from horovod._settings.config import Config, tell_place
from horovod.errors import NotInitializedError, PeerLostError, ShutDownError, StartError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

    from horovod._job import Assignment
    from horovod._job.bootstrap import Bootstrap
    from horovod._job.elastic_worker import ElasticWorker
    from horovod._rank.init_arguments import DeclaredSet
    from horovod._rank.running import JobListener, Running

_logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class _Job:
    """A job that a context has joined."""

    config: Config
    running: Running
    group: Group
    bootstrap: Bootstrap | None = None
    num_holders: int = 0


_numbers = itertools.count()


class Context:
    """Holds a job of this process; every method may be called from any thread.

    Args:
        config: what :meth:`init` joins; None for the job that the environment describes.
        start: starts the engine of an incarnation; None to meet the other ranks and connect to
            them.

    Attributes:
        number: of this context in its process, for what cannot hold an object; that of the
            default one is 0.
        steps: counts the training steps, in all generations of a job.

    Example:
        >>> second = Context(config)
        >>> with second.use():
        ...     train()   # calls hvd.init(), hvd.rank(), hvd.allreduce()
    """

    def __init__(
        self,
        config: Config | None = None,
        start: Callable[[Config, Incarnation], Running] | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self.number = next(_numbers)
        self.steps = Steps()
        self._config = config
        self._start = start
        self._job: _Job | None = None
        self._elastic: ElasticWorker | None = None
        # Bytes; what autotuning has found in an earlier generation, on the rank that leads it.
        self._tuned_threshold = 0
        self._provisional: Config | None = None
        self._declared: list[DeclaredSet] = []
        self._incarnation = Incarnation()
        self._bootstrap: Bootstrap | None = None
        self._has_warned = False
        self._was_asked = False

    @contextmanager
    def use(self) -> Iterator[Context]:
        """Inside the block, this is the :func:`current` context of the calling thread."""
        token = _own.set(self)
        try:
            yield self
        finally:
            _own.reset(token)

    def init(
        self,
        comm: object = None,
        process_sets: object = None,
        config: Config | None = None,
        told: Assignment | None = None,
    ) -> None:
        """Do the same as :func:`init`.

        Args:
            comm, process_sets: as of :func:`init`.
            config: the settings of this rank; None for those of this context.
            told: to a worker whose place changes; None if it does not, or the environment tells.
        """
        with self._lock:
            may_change = self._elastic is not None
            if self.has_job:
                check_comm(comm, self.config.size)
                declared = declared_sets(process_sets, self.config.size, may_change=may_change)
                with self.use():
                    for process_set in declared:
                        process_set.resolve() if self._was_asked else process_set.register()
                self._was_asked = True
                return
            config = self._find_place(config, told)
            check_comm(comm, config.size)
            may_change = self._elastic is not None
            self._declared = declared_sets(process_sets, config.size, may_change=may_change)
            self._warn_if_alone(config)
            process.watch_exit(self)
            if self._provisional is None:
                self._begin(config)
            self._was_asked = True

    def lend(self, config: Config | None, bootstrap: Bootstrap | None = None) -> _Job:
        """Return the job to one more holder, who ends with :meth:`give_back`; start it if needed.

        Args:
            config: the settings of this rank, with the store of its job; None for the job that
                the environment describes. Not used while there is a job.
            bootstrap: closed when a job that starts here has ended; None for none.
        """
        with self._lock:
            if not self.has_job:
                was_asked = self._was_asked
                self.init(config=config)
                self._was_asked = was_asked
            job = self.job()
            job.bootstrap = bootstrap or job.bootstrap
            job.num_holders += 1
            return job

    def give_back(self, job: _Job, reason: str = "") -> None:
        """End one holder of a job; the last one ends the job, unless ``hvd.init()`` joined it.

        Args:
            job: what :meth:`lend` returned.
            reason: what the peers are told.
        """
        with self._lock:
            job.num_holders -= 1
            is_last = job.num_holders == 0 and not self._was_asked and self._job is job
        if is_last:
            self.end(reason)

    def _warn_if_alone(self, config: Config) -> None:
        """Say once, however often this context joins, that another launcher is not joined."""
        if config.unserved_launcher and not self._has_warned:
            self._has_warned = True
            _logger.warning("%s", config.unserved_launcher)

    def _find_place(self, config: Config | None, told: Assignment | None) -> Config:
        """The settings of this rank; those of a newcomer are provisional."""
        if self._elastic is None and told is None and (config or self._config):
            return config or self._config or Config()
        if self._elastic is None:
            told = told or elastic_environment()
            if told is None:
                return Config.from_env()
            # Here, because a job whose size is fixed does not need it.
            from horovod._job.elastic_worker import ElasticWorker

            self._elastic = ElasticWorker(told, self._break_off)
        is_new = self._elastic.generation < 0
        place = self._elastic.provisional() if is_new else None
        if place is None:
            return self._settle(self._elastic.await_place())
        self._provisional = self._settle(place)
        return self._provisional

    def _settle(self, place: Assignment) -> Config:
        config = Config.from_env(told=place.variables())
        if self is process.default:  # other contexts share the environment
            tell_place(config)
        return config

    def _begin(self, config: Config) -> _Job:
        """Starts the engine and makes the declared sets; in a later generation if one fails."""
        while True:
            try:
                if self._elastic is not None:
                    self._elastic.await_others(config.rank)
                job = self._start_job(config)
                if self._elastic is not None:
                    self._elastic.runs()
                return job
            except (StartError, PeerLostError, ShutDownError) as error:
                if self._elastic is None:
                    raise
                _logger.info("generation %d could not start: %s", config.generation, error)
                self._elastic.fail(str(error))
                config = self._settle(self._elastic.await_place())

    def _start_job(self, config: Config) -> _Job:
        job = self._connect_to_peers(config)
        self._provisional = None
        self._job = job
        process.joined(self, job)
        try:
            with self.use():
                for process_set in self._declared:
                    process_set.register()
        except BaseException as error:
            self.end(f"its process sets could not be made: {error}")
            raise
        self._declared = []
        return job

    def _connect_to_peers(self, config: Config) -> _Job:
        if self._incarnation.generation != config.generation:
            self._incarnation = Incarnation(config.generation)
        # Also after a failure: a retry must not meet what the failed try left in the store.
        self._incarnation = self._incarnation.next
        running = (self._start or self._connect)(config, self._incarnation)
        group = Group(running.engine, 0, range(config.size))
        return _Job(running.config, running, group)

    def shutdown(self, reason: str = "") -> None:
        """Leaves the job, if there is one; a job that works and that others hold goes on.

        Args:
            reason: what the peers are told.
        """
        with self._lock:
            self._was_asked = False
            job = self._job
            is_held = job is not None and job.num_holders > 0 and self._elastic is None
            if is_held and job is not None and not job.running.engine.error():
                return
        self.end(reason)

    def end(self, reason: str = "") -> None:
        """Leaves the job, if there is one, also if others hold it: what they submit will fail.

        Args:
            reason: what the peers are told.
        """
        if (ending := self._job) is not None:
            with self.use():
                for callback in process.before_end:
                    callback(ending.group)
        with self._lock:
            self._was_asked = False
            job, self._job = self._job, None
            self._provisional = None
            if job is not None:
                process.left(self, job)
                self._keep_tuned(job)
        if job is not None:
            job.running.close(reason or "it called hvd.shutdown()")
            if job.bootstrap is not None:
                job.bootstrap.close()

    def _break_off(self, generation: int, text: str) -> None:
        """Fails what waits in a generation that has lost a member, if nothing else told it.

        Called from a thread, while another one may hold the lock and wait for a lost peer.
        """
        job = self._job
        if job is None or job.config.generation != generation:
            return
        engine = job.running.engine
        if not engine.error():
            _logger.info("the engine of generation %d is ended: %s", generation, text)
            engine.close(f"its job has lost a member: {text}")

    def job(self) -> _Job:
        """The job; a newcomer awaits its real place here and connects to the other ranks.

        Raises:
            NotInitializedError: this context has joined none.
        """
        job = self._job
        if job is None and self._provisional is not None:
            with self._lock:
                job = self._job
                if job is None and self._provisional is not None and self._elastic is not None:
                    job = self._begin(self._settle(self._elastic.await_place()))
        if job is None:
            raise NotInitializedError(process.why_no_job())
        return job

    @property
    def config(self) -> Config:
        """The settings of this rank, with its place; a newcomer's is provisional at first.

        Raises:
            NotInitializedError: this context has joined no job.
        """
        config = self._provisional
        return self.job().config if config is None else config

    @property
    def incarnation(self) -> Incarnation:
        """The engine that it has started last."""
        return self._incarnation

    @property
    def elastic(self) -> ElasticWorker | None:
        """The membership in an elastic job; None if the job cannot change."""
        return self._elastic

    @property
    def has_job(self) -> bool:
        """Whether it has joined a job and not left it."""
        return self._job is not None or self._provisional is not None

    @property
    def has_met(self) -> bool:
        """Whether its ranks have met, so that they can meet again."""
        return self._bootstrap is not None or self._elastic is not None

    def forget_in_child(self) -> None:
        """In the child of a fork: the job is the parent's, whose end the peers must notice."""
        self._lock = threading.RLock()
        job, self._job = self._job, None
        self._bootstrap = None
        self._elastic = None
        self._provisional = None
        if job is not None:
            job.running.abandon()

    def part(self, *, failed: bool = False) -> None:
        """At the end of the process: takes leave of who started it."""
        if self._elastic is not None and not failed:
            self._elastic.leave("its process has ended")
        if self._bootstrap is not None:
            self._bootstrap.part(mpi_was_initialized=was_initialized())

    def _connect(self, config: Config, incarnation: Incarnation) -> Running:
        config = self._meet(config)
        if self._tuned_threshold and not config.fusion_threshold_is_set:
            config = replace(
                config, fusion_threshold=self._tuned_threshold, fusion_threshold_is_set=True
            )
        # Other contexts share the environment.
        torch_place = process.torch_place if self is process.default else None
        return start_engine(config, incarnation, process.mpi, self.steps, torch_place)

    def _keep_tuned(self, job: _Job) -> None:
        """A survivor need not tune again."""
        if self._elastic is not None and job.config.autotune:
            tuned = job.running.engine.statistics()["tuned_threshold"]
            self._tuned_threshold = tuned or self._tuned_threshold

    def _meet(self, config: Config) -> Config:
        """Finds the other ranks, if no launcher of ours told where they are; once in a context."""
        if config.rendezvous_addr or (config.size == 1 and not config.may_be_shown):
            return config
        if self._bootstrap is None:
            # Here, because a job of our launcher does not need it.
            from horovod._job.bootstrap import Bootstrap

            self._bootstrap = Bootstrap(config)
        return self._bootstrap.attend(config)


class _Process:
    """The state that all contexts share: MPI, the listeners, and the end of the process."""

    def __init__(self) -> None:
        self.default = Context()
        self.of_other_threads = self.default
        self.mpi = ProcessMpi()
        self.torch_place = TorchPlace()
        self._lock = threading.Lock()
        self._watches_exit = False
        self.exit_reason = ""
        # Those that have something to give back, although nobody else may hold them.
        self._known: dict[Context, _Job | None] = {}
        self._listeners: list[JobListener] = []
        # Called with the group of a job that is about to end, in its context; may wait a little.
        self.before_end: list[Callable[[Group], None]] = []

    def listen(self, listener: JobListener) -> None:
        with self._lock:
            self._listeners.append(listener)
            for context, job in self._known.items():
                if job is not None:
                    listener.begun(job.config, job.group, context.number)

    def joined(self, context: Context, job: _Job) -> None:
        with self._lock:
            self._know(context, job)
            for listener in self._listeners:
                listener.begun(job.config, job.group, context.number)

    def left(self, context: Context, job: _Job) -> None:
        with self._lock:
            self._know(context, None)
            for listener in self._listeners:
                listener.ended(job.group)

    def why_no_job(self) -> str:
        """Return the message for a caller that needs a job in a thread that has none."""
        count = len(self._jobs())
        if count > 1:
            return (
                f"this process takes part in {count} jobs, and the thread "
                f"{threading.current_thread().name!r} belongs to none of them: start it with "
                "threading.Thread(target=horovod.testing.inherited(function)) in the code of a "
                "rank, or call hvd.init() in it"
            )
        return "Horovod has not been initialized; call hvd.init() first"

    def watch_exit(self, context: Context) -> None:
        """Lets a context tell its peers why this process ends: its exception, or that it ended."""
        with self._lock:
            self._known.setdefault(context, None)
            if self._watches_exit:
                return
            self._watches_exit = True
        os.register_at_fork(after_in_child=self._forget_in_child)
        previous_hook = sys.excepthook

        def note_exception(
            kind: type[BaseException], value: BaseException, traceback: TracebackType | None
        ) -> None:
            place = place_of(traceback)
            where = f" at {place}" if place else ""
            self.exit_reason = f"it raised {kind.__name__}{where}: {value}"[:500]
            if previous_hook is sys.__excepthook__ and current().has_job:
                value = to_print(value, current().config)  # others may want the whole error
            previous_hook(kind, value, traceback)
            tell_end(value)

        sys.excepthook = note_exception
        atexit.register(self._leave)

    def _jobs(self) -> list[_Job]:
        return [job for job in list(self._known.values()) if job is not None]

    def _know(self, context: Context, job: _Job | None) -> None:
        if job is None and not context.has_met:
            self._known.pop(context, None)
        else:
            self._known[context] = job
        with_job = [known for known, job in self._known.items() if job is not None]
        self.of_other_threads = with_job[0] if len(with_job) == 1 else self.default

    def _forget_in_child(self) -> None:
        self._lock = threading.Lock()
        known, self._known = self._known, {}
        self.of_other_threads = self.default
        for context in known:
            context.forget_in_child()
        self.mpi.abandon()
        self.torch_place.close()

    def _leave(self) -> None:
        known = list(self._known)
        for context in known:
            context.end(self.exit_reason or "its process ended")
        for context in known:
            context.part(failed=bool(self.exit_reason))
        self.mpi.finish(failed=bool(self.exit_reason))
        self.torch_place.close()


process = _Process()
_own: contextvars.ContextVar[Context | None] = contextvars.ContextVar("horovod", default=None)


def current() -> Context:
    """The context that this thread works in; see the beginning of this module."""
    return _own.get() or process.of_other_threads


def current_job() -> _Job:
    """The job of the current context, without a call in between: loops ask for their rank.

    Raises:
        NotInitializedError: the current context has joined none.
    """
    context = _own.get() or process.of_other_threads
    return context._job or context.job()


def count_step() -> None:
    """Note that the current context has taken a training step; for those who watch the job."""
    (_own.get() or process.of_other_threads).steps.count()


def step() -> None:
    """Note that the program has finished a training step, for those who watch the job.

    For training loops without an optimizer, tape or callback of Horovod's that counts steps. Once
    a program calls it, nothing else counts. Call it from Python at the end of each step, once on
    each rank: inside a function that ``jax.jit`` or ``tf.function`` compiles, it would be executed
    only while that function is traced. It takes less than a microsecond, communicates nothing, and
    may be called before :func:`horovod._rank.context.init`.

    Example:
        >>> for batch in loader:
        ...     train(batch)
        ...     hvd.step()
    """
    (_own.get() or process.of_other_threads).steps.count_by_hand()


def current_config() -> Config:
    """The settings of the current context, as cheap; of a newcomer, with its provisional place.

    Raises:
        NotInitializedError: the current context has joined no job.
    """
    context = _own.get() or process.of_other_threads
    job = context._job
    return context.config if job is None else job.config


def inherited(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function to work in the caller's context wherever it is called.

    Example:
        >>> threading.Thread(target=inherited(load)).start()
    """
    context = current()

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with context.use():
            return function(*args, **kwargs)

    return call
