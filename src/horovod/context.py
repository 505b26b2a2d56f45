"""The one default engine of this process: what ``hvd.init()`` makes and ``hvd.rank()`` asks.

This is the convenience layer that every adapter re-exports; below it there is no global state.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from horovod.config import Config
from horovod.errors import NotInitializedError, StartError, UsageError
from horovod.group import Group
from horovod.mpi import ProcessMpi, was_initialized
from horovod.shared_report import to_print
from horovod.start import RunningEngine, start_engine

if TYPE_CHECKING:
    from types import TracebackType

    from horovod.rendezvous.meeting import Meeting


@runtime_checkable
class DeclaredSet(Protocol):
    """What :func:`init` wants to know of a process set; see :mod:`horovod.train.process_set`."""

    @property
    def ranks(self) -> list[int] | None:
        """The global ranks of the set in rising order."""

    def register(self, call_site: str = "") -> None:
        """Makes the set on all ranks of the job that has just begun."""

    def resolve(self) -> None:
        """Finds the set of the same ranks in the running job; KeyError if there is none."""


class JobListener(Protocol):
    """Somebody who has to know what job this process takes part in."""

    def begun(self, config: Config, group: Group) -> None:
        """A job runs from now on; ``group`` is that of all its ranks."""

    def ended(self) -> None:
        """The job that has begun is about to end."""


@dataclass
class _Job:
    """An initialized job of this process."""

    config: Config
    running: RunningEngine
    group: Group


class _Context:
    """Holds the current job; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._epoch = 0
        self._meeting: Meeting | None = None
        self._exit_reason = ""
        self._listeners: list[JobListener] = []
        self._mpi = ProcessMpi()

    def listen(self, listener: JobListener) -> None:
        with self._lock:
            self._listeners.append(listener)
            if self._job is not None:
                listener.begun(self._job.config, self._job.group)

    def init(self, comm: object, process_sets: object) -> None:
        with self._lock:
            config = Config.from_env() if self._job is None else self._job.config
            _check_comm(comm, config.size)
            declared = _declared_sets(process_sets, config.size)
            if self._job is not None:
                for process_set in declared:
                    process_set.resolve()
                return
            if self._epoch == 0:
                self._watch_exit()
            # Also after a failure: a retry must not meet what the failed try left in the store.
            self._epoch += 1
            running = start_engine(self._meet(config), self._epoch, self._mpi)
            group = Group(running.engine, 0, range(config.size))
            self._job = _Job(running.config, running, group)
            for listener in self._listeners:
                listener.begun(running.config, group)
        try:
            for process_set in declared:
                process_set.register()
        except BaseException as error:
            self.shutdown(f"its process sets could not be made: {error}")
            raise

    def _meet(self, config: Config) -> Config:
        """Finds the other ranks, if no launcher of ours told where they are; once in a process."""
        if config.size == 1 or config.rendezvous_addr:
            return config
        if self._meeting is None:
            # Here, because a job of our launcher does not need it.
            from horovod.rendezvous.meeting import Meeting

            self._meeting = Meeting(config)
        return self._meeting.attend(config)

    def shutdown(self, reason: str = "") -> None:
        with self._lock:
            job, self._job = self._job, None
            if job is not None:
                for listener in self._listeners:
                    listener.ended()
        if job is not None:
            job.running.close(reason or "it called hvd.shutdown()")

    def job(self) -> _Job:
        job = self._job
        if job is None:
            raise NotInitializedError("Horovod has not been initialized; call hvd.init() first")
        return job

    def initialized(self) -> bool:
        return self._job is not None

    def _forget_in_child(self) -> None:
        """In the child of a fork: the job is the parent's, whose end the peers must notice."""
        self._lock = threading.Lock()
        job, self._job = self._job, None
        self._meeting = None
        if job is not None:
            job.running.abandon()
        self._mpi.abandon()

    def mpi(self) -> ProcessMpi:
        return self._mpi

    def _watch_exit(self) -> None:
        """Tells the peers why this process ends: its exception, or that it simply ended."""
        os.register_at_fork(after_in_child=self._forget_in_child)
        previous_hook = sys.excepthook

        def note_exception(
            kind: type[BaseException], value: BaseException, traceback: TracebackType | None
        ) -> None:
            self._exit_reason = f"it raised {kind.__name__}{_place(traceback)}: {value}"[:500]
            if previous_hook is sys.__excepthook__ and self._job is not None:
                value = to_print(value, self._job.config)  # others may want the whole error
            previous_hook(kind, value, traceback)

        sys.excepthook = note_exception
        atexit.register(self._leave)

    def _leave(self) -> None:
        self.shutdown(self._exit_reason or "its process ended")
        if self._meeting is not None:
            self._meeting.part(mpi_was_initialized=was_initialized())
        self._mpi.finish(failed=bool(self._exit_reason))


def _place(traceback: TracebackType | None) -> str:
    """The line that raised, " at file:line"; empty if there is none."""
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return ""
    return f" at {traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"


def _check_comm(comm: object, size: int) -> None:
    if isinstance(comm, Iterable):
        ranks = sorted(comm)
        if ranks and ranks != list(range(size)):
            raise UsageError(
                f"init(comm={ranks}) asks for some of the {size} ranks; this version only knows "
                "jobs of all ranks that the launcher started"
            )
    elif comm is not None:
        raise UsageError(
            f"init(comm=…) got a {type(comm).__name__}; MPI communicators are not supported in "
            "this version, start the job with horovodrun and call init() without arguments"
        )


def _is_dynamic(process_sets: object) -> bool:
    """Whether ``init`` got the word that once allowed process sets to change; they always may."""
    return isinstance(process_sets, str) and process_sets.lower() == "dynamic"


def _declared_sets(process_sets: object, size: int) -> list[DeclaredSet]:
    """The sets that ``init`` was given, after what can be checked without the other ranks."""
    if process_sets is None or _is_dynamic(process_sets):
        return []
    if isinstance(process_sets, str) or not isinstance(process_sets, Iterable):
        raise UsageError(
            f'init(process_sets={process_sets!r}) is neither "dynamic" nor a list of process sets'
        )
    seen = {tuple(range(size)): "the global process set"}
    declared = []
    for index, process_set in enumerate(process_sets):
        if not isinstance(process_set, DeclaredSet):
            raise UsageError(
                f"init(process_sets=…): number {index} is a {type(process_set).__name__}, not a "
                "hvd.ProcessSet"
            )
        ranks = tuple(process_set.ranks or ())
        if ranks in seen:
            raise UsageError(
                f"init(process_sets=…): number {index}, {process_set}, is the same as {seen[ranks]}"
            )
        check_ranks(ranks, size)
        seen[ranks] = f"number {index}"
        declared.append(process_set)
    return declared


def check_ranks(ranks: Sequence[int], size: int) -> None:
    """Checks that a process set of these ranks makes sense in a job of ``size`` ranks.

    Args:
        ranks: global ranks in rising order.
        size: of the job.

    Raises:
        UsageError: there is none, one is there twice, or one is not in the job.
    """
    listed = list(ranks)
    if not listed:
        raise UsageError("a process set needs at least one rank")
    if len(set(listed)) != len(listed):
        raise UsageError(f"a process set of ranks {listed} holds a rank twice")
    if listed[0] < 0 or listed[-1] >= size:
        raise UsageError(
            f"a process set of ranks {listed} does not fit into the job, whose ranks are "
            f"0 … {size - 1}"
        )


_context = _Context()


def init(
    comm: Sequence[int] | None = None, process_sets: Iterable[DeclaredSet] | str | None = None
) -> None:
    """Joins the job that the launcher describes in the environment; a job of one rank without it.

    Does nothing while Horovod is initialized. After :func:`shutdown` it can be called again.

    Args:
        comm: the ranks of the job; None, an empty list, or all of them.
        process_sets: the ``hvd.ProcessSet`` objects to register, the same on all ranks; or
            "dynamic", to add and remove process sets later; or None. While Horovod is initialized
            the sets are only looked up among the registered ones.

    Raises:
        StartError: a setting is wrong, or a rank did not appear within the start timeout.
        UsageError: ``comm`` asks for what this version does not have; two process sets are equal,
            or one does not fit into the job.
        KeyError: Horovod is initialized, and has no process set of these ranks.
        HorovodInternalError: the ranks named different process sets.

    Example:
        >>> even, odd = hvd.ProcessSet([0, 2]), hvd.ProcessSet([1, 3])
        >>> hvd.init(process_sets=[even, odd])   # with 4 ranks
    """
    try:
        _context.init(comm, process_sets)
    except (StartError, UsageError) as error:
        # The sentence says all; where in here it was found would only push it off the screen.
        raise error.with_traceback(None)  # noqa: B904


def shutdown() -> None:
    """Leaves the job: pending operations fail here, and later ones fail on the other ranks."""
    _context.shutdown()


def is_initialized() -> bool:
    """Whether :func:`init` was called and :func:`shutdown` was not."""
    return _context.initialized()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Records what all ranks do, from now on, into one file in Chrome's trace format.

    Rank 0 writes; on other ranks the call does nothing, so all may call it. Needs no
    ``HOROVOD_TIMELINE``. A timeline that is being written to another file ends before; one of the
    same file goes on. Open the file with https://ui.perfetto.dev or chrome://tracing.

    Args:
        file_path: on the host of rank 0; what it held is gone.
        mark_cycles: whether each answer of the coordinator is marked as ``CYCLE_START``.

    Raises:
        NotInitializedError: Horovod has not been initialized.
        UsageError: the file cannot be written.
    """
    _context.job().running.engine.start_timeline(os.fspath(file_path), mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline; all records are in the file when it returns. Nothing if there is none.

    Raises:
        NotInitializedError: Horovod has not been initialized.
    """
    _context.job().running.engine.stop_timeline()


def listen(listener: JobListener) -> None:
    """Tells a listener of the current job, if there is one, and of all later ones."""
    _context.listen(listener)


def global_group() -> Group:
    """The process set of all ranks.

    Raises:
        NotInitializedError: Horovod has not been initialized.
    """
    return _context.job().group


def uses_mpi() -> bool:
    """Whether MPI moves the data of the job; False while Horovod is not initialized."""
    return settings().cpu_operations == "mpi"


def mpi_threads_supported() -> bool:
    """Whether the program may call MPI from any thread while Horovod does.

    False if MPI does not move the data of the job: Horovod has not initialized it then.

    Raises:
        NotInitializedError: Horovod has not been initialized.
    """
    if _context.job().config.cpu_operations != "mpi":
        return False
    return _context.mpi().all_threads


def settings() -> Config:
    """What the job was started with; the defaults while Horovod is not initialized."""
    return _context.job().config if _context.initialized() else Config()


def rank() -> int:
    """This process among all processes of the job, from 0. Raises NotInitializedError."""
    return _context.job().config.rank


def size() -> int:
    """The number of processes of the job. Raises NotInitializedError."""
    return _context.job().config.size


def local_rank() -> int:
    """This process among those of its host, from 0. Raises NotInitializedError."""
    return _context.job().config.local_rank


def local_size() -> int:
    """The number of processes on this host. Raises NotInitializedError."""
    return _context.job().config.local_size


def cross_rank() -> int:
    """This host among those with a process of this local rank. Raises NotInitializedError."""
    return _context.job().config.cross_rank


def cross_size() -> int:
    """The number of hosts that have a process of this local rank. Raises NotInitializedError."""
    return _context.job().config.cross_size


def is_homogeneous() -> bool:
    """Whether every host runs the same number of processes. Raises NotInitializedError."""
    config = _context.job().config
    return config.local_size * config.cross_size == config.size
