"""The loop around a training function: it follows the job through its changes."""

from __future__ import annotations

import functools
import itertools
import logging
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from horovod._job.worker import Dismissed
from horovod._rank import context
from horovod._train.elastic.changes import agree_on_round
from horovod._train.elastic.checkpoint.commits import open_commits
from horovod._train.elastic.leaving import leave_politely
from horovod._train.process_set import registered_sets
from horovod.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    PeerLostError,
    ShutDownError,
    StartError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from horovod._train.elastic.state import State
    from horovod._train.process_set import ProcessSet

P = ParamSpec("P")
T = TypeVar("T")
StateT = TypeVar("StateT", bound="State")

_logger = logging.getLogger(__name__)

# What the engine calls a rank that ended by itself, for example with an error of the program.
_A_RANK_LEFT = " has shut Horovod down ("

# How many states there are before the next one, whose files have names of their own.
_states = context.PerContext(itertools.count)

# The rounds that a context is in, the innermost last.
_running: context.PerContext[list[Rounds]] = context.PerContext(list)


def run_fn(
    func: Callable[Concatenate[StateT, P], T],
    reset: Callable[[], object],
    translating: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Callable[Concatenate[StateT, P], T]:
    """Makes a training function elastic; see :func:`run`.

    Args:
        func: takes the state and any further arguments.
        reset: leaves the job and joins it again.
        translating: a context in which errors of a framework become those of Horovod.
    """

    @functools.wraps(func)
    def wrapper(state: StateT, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with leave_politely():
            return Rounds(state, reset, translating=translating).run(
                lambda: func(state, *args, **kwargs)
            )

    return wrapper


def run(func: Callable[Concatenate[StateT, P], T]) -> Callable[Concatenate[StateT, P], T]:
    """Decorates a training function, which is called again after every change of the job.

    Each call begins when all ranks have the same state. A rank that was lost sends all others back
    to their last commit; members that come or leave orderly cost nothing that was trained. Errors
    of the program, for example shapes that do not match, are raised as they are. If the job goes on
    without this process, the process ends with exit code 0.

    Outside of an elastic job the function runs just as well. A lost rank then ends it, unless all
    ranks come back.

    Args:
        func: ``func(state, *args, **kwargs)``; the state is a :class:`State`.

    Returns:
        A function with the same arguments, which returns what the last call of ``func`` does.

    Example:
        >>> @hvd.elastic.run
        ... def train(state):
        ...     for state.epoch in range(state.epoch, epochs):
        ...         ...
        ...         state.commit()
    """
    return run_fn(func, rejoin)


def is_recoverable(error: BaseException) -> bool:
    """Whether an error says that the job has lost a member, and not that the program is wrong."""
    lost = isinstance(error, (PeerLostError, ShutDownError))
    return lost or type(error) is HorovodInternalError


def error_of_engine(message: str) -> HorovodInternalError | None:
    """Return the error of this process's engine; None if it still works.

    Args:
        message: of a framework's error. It may say that a rank has left in good order: the engine
            has not failed then, but refuses at once what needs that rank; otherwise asking it would
            wait.
    """
    if not context.is_initialized():
        return None
    group = context.global_group()
    text = group.engine.error()
    if not (text or _A_RANK_LEFT in message):
        return None
    try:
        # Refused at once: by the engine if it has failed, or by the rank that answers.
        group.barrier().wait()
    except HorovodInternalError as error:
        return type(error)(text or str(error))
    return None


@contextmanager
def engine_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Inside the block, an operation that failed with the job raises what the engine says.

    All other errors of the framework stay as they are.

    Args:
        kinds: what the framework raises for an operation that failed.

    Raises:
        HorovodInternalError: of the engine, for example PeerLostError.
    """
    try:
        yield
    except kinds as error:
        cause = error_of_engine(str(error))
        if cause is None or not is_recoverable(cause):
            raise
        raise cause from error


@contextmanager
def suppress_recoverable() -> Iterator[None]:
    """Ignores the loss of a member inside the block."""
    try:
        yield
    except HorovodInternalError as error:
        if not is_recoverable(error):
            raise


def current_rounds() -> Rounds | None:
    """Return the rounds in which the calling thread's job trains; None outside of them."""
    running = _running.get()
    return running[-1] if running else None


def rejoin() -> None:
    """Leaves the job, and joins its next generation."""
    context.shutdown()
    context.init()


class Rounds:
    """The rounds of elastic training, with a change between two.

    Args:
        state: goes from round to round.
        reset: leaves the job and joins it again.
        progress: how far this rank is in the program, if all begin a round together where the
            rank is that is farthest; otherwise the same number always.
        translating: see :func:`run_fn`.

    Attributes:
        number: of rounds that have begun.
        calls_function: whether each round calls a function of the program.
    """

    def __init__(
        self,
        state: State,
        reset: Callable[[], object] = rejoin,
        progress: Callable[[], int] = lambda: 0,
        translating: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._state = state
        self._reset = reset
        self._progress = progress
        self._translating = translating
        self.number = 0
        self.calls_function = False
        self._needs_sync = True
        self._has_state = False
        self._sets: list[ProcessSet] = []
        # What ended the last round.
        self._cause: Exception | None = None
        self._must_restore = False
        # Samples that were done since the last commit, of which the job does not know yet.
        self._replayed = 0

    def run(self, train: Callable[[], T]) -> T:
        """Calls the function until it returns, or raises what no other round can heal."""
        self.calls_function = True
        with self:
            self.begin()
            while True:
                try:
                    with self._translating():
                        return train()
                except (HostsUpdatedInterrupt, HorovodInternalError) as error:
                    ended = error
                # Not while the loss is handled: an error of the program that is raised in the
                # change would look like its consequence.
                self.follow(ended)

    def __enter__(self) -> Rounds:
        _running.get().append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Awaits that the last commit is written into its file."""
        _running.get().remove(self)
        if (commits := self._state._commits) is not None:
            worker = context.elastic_worker()
            is_dismissed = kind is not None and issubclass(kind, Dismissed)
            # Of a worker that was left out, the others have a newer one.
            commits.finish(writes=not is_dismissed or bool(worker and worker.leaving))

    def tracks(self, value: object) -> bool:
        """Return whether the state goes back together with this object, as far as is known."""
        return self._state._tracks(value)

    def begin(self) -> None:
        """Begins the first round: all ranks have the same state."""
        self._sets = registered_sets()
        if self._state._commits is None:
            self._state._commits = open_commits(next(_states.get()))
        self._until_all_agree()

    def follow(self, error: HostsUpdatedInterrupt | HorovodInternalError) -> None:
        """Goes from the round that an error has ended to the next one.

        Raises:
            HorovodInternalError: the error, if no other round can heal it.
            StartError: there is no other round.
            Dismissed: the job goes on without this worker.
        """
        self._note(error)
        self._until_all_agree()

    def _until_all_agree(self) -> None:
        while True:
            try:
                with self._translating():
                    if self._cause is not None:
                        self._go_on()
                    self._synchronize()
                return
            except (HostsUpdatedInterrupt, HorovodInternalError) as error:
                self._note(error)

    def _note(self, error: HostsUpdatedInterrupt | HorovodInternalError) -> None:
        """Note what must be done before the next round."""
        if isinstance(error, HostsUpdatedInterrupt):
            self._needs_sync = self._needs_sync or not error.skip_sync
        elif is_recoverable(error):
            self._needs_sync = True
        else:
            raise error
        self._cause = error

    def _go_on(self) -> None:
        """From the round that has ended to the next one."""
        cause = self._cause
        assert cause is not None
        failed = isinstance(cause, HorovodInternalError)
        if failed:
            _logger.info("training goes back to its last commit: %s", cause)
            self._must_restore = True
            with suppress_recoverable():  # what needs the other ranks is done after the reset
                self._restore()
        self._tell_job(str(cause) if failed else "")
        try:
            self._reset()
        except StartError as error:
            raise error from cause
        for process_set in self._sets:
            if process_set.process_set_id is None:
                process_set.register()
        self._cause = None
        self._restore()
        self._state.on_reset()

    def _restore(self) -> None:
        if self._must_restore:
            done = self._state._samples_done()
            self._state.restore()
            self._must_restore = False
            self._replayed += max(0, done - self._state._samples_done())

    def _tell_job(self, failure: str) -> None:
        """Lets the job know what this worker is about to do."""
        worker = context.elastic_worker()
        if worker is None:
            return
        if worker.leaving:
            context.current().shutdown(f"its worker leaves the job: {worker.leaving}")
            worker.leave(worker.leaving)
            _logger.info("worker %s leaves the job: %s", worker.identity, worker.leaving)
            raise Dismissed(worker.leaving)
        if failure:
            context.current().shutdown(failure)
            worker.fail(failure, self._replayed)
            self._replayed = 0

    def _synchronize(self) -> None:
        agreed = agree_on_round(
            needs_sync=self._needs_sync, has_state=self._has_state, progress=self._progress()
        )
        if agreed.needs_sync:
            self._state._sync_root = agreed.root
            if agreed.is_first and context.rank() == 0:
                self._state._load_commit()
            self._state.sync()
        self._needs_sync = False
        self._has_state = True
        self.number += 1
