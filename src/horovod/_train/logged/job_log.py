"""The records of one job: their way through the reduction, and what becomes of them."""

from __future__ import annotations

import array
import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from horovod import _native
from horovod._native import Buffer
from horovod._rank.reduction import PLAIN_SUM
from horovod._rank.reports.logged import LoggedReport
from horovod._train.logged.record import decode, digest_of, encode
from horovod.errors import HorovodInternalError, MismatchError, ShutDownError, StalledError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from horovod._native import Handle
    from horovod._rank.group import Group
    from horovod._settings.config import Config
    from horovod._train.logged.outlets import History

    Number: TypeAlias = float | Callable[[], float]

_logger = logging.getLogger(__name__)

# Names of operations, used in turn: the engine remembers names, so they should be few.
_NUM_NAMES = 64
_MOST_WAITING = 10_000
_LOOK_S = 0.5


@dataclass
class Record:
    """One call of ``hvd.log``.

    Attributes:
        names: of the values, sorted.
        values: of this rank; a function if it has to be waited for.
        weight: of this rank; None if all count alike.
        given_step: what the caller gave.
        step: as this rank counts it.
        call_site: ``file:line`` of the caller.
        at_s: when it was logged, in seconds since 1970.
        number: of the call in this job.
        total: what travels, and what has come; None until it has left.
        handle: of the operation; None until it has left.
    """

    names: Sequence[str]
    values: Sequence[Number]
    weight: float | None
    given_step: int | None
    step: int
    call_site: str
    at_s: float
    number: int = 0
    total: array.array[float] | None = None
    handle: Handle | None = None


@dataclass(frozen=True)
class LateRecord:
    """Averages that rank 0 does not have, because it had joined."""

    step: int
    averages: dict[str, float]
    at_s: float


class JobLog:
    """Averages records over the ranks of a job; rank 0 writes the averages.

    A record leaves at once if its values are there, and nobody waits for it. On rank 0, and where
    values have to be waited for, a thread follows the records in the order of the calls.

    Args:
        config: the settings of this rank.
        group: all ranks of the job.
        history: what its context keeps over all jobs.
    """

    def __init__(self, config: Config, group: Group, history: History) -> None:
        self._group = group
        self._history = history
        self._is_writer = config.rank == 0
        self._report = LoggedReport(config) if self._is_writer else None
        self._changed = threading.Condition()
        self._completions = _native.Completions()
        self._thread: threading.Thread | None = None
        self._waiting: deque[Record] = deque()
        self._recent: list[Record | None] = [None] * _NUM_NAMES
        self._num_calls = 0
        self._is_closed = False
        self._problem: HorovodInternalError | None = None
        self._lost: list[Record] = []
        self._cause: Exception | None = None
        self._has_warned = False
        self._late: list[LateRecord] = []

    def add(self, record: Record) -> None:
        """Send a record on its way.

        Args:
            record: of the caller; all ranks add theirs in the same order.

        Raises:
            MismatchError: the ranks differ in an earlier call.
            StalledError: too many records wait, because some ranks do not log.
            HorovodInternalError: the engine can no longer work.
        """
        with self._changed:
            self._take_ended()
            self._raise_problem()
            if len(self._waiting) >= _MOST_WAITING:
                raise StalledError(_too_many(self._waiting[0]))
            record.number = self._num_calls
            is_free = self._is_free(record)
            if is_free and not any(map(callable, record.values)):
                self._submit(record)
            self._num_calls += 1
            self._recent[record.number % _NUM_NAMES] = record
            self._waiting.append(record)
            if self._is_writer or record.handle is None:
                self._start_thread()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all records have been averaged and written.

        Args:
            timeout_s: seconds; ends earlier if the job fails.

        Returns:
            Whether none is left.
        """
        with self._changed:
            if self._waiting:
                self._start_thread()
            return self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Flush, and say what was lost; nothing can be added any more. Idempotent."""
        self.flush(timeout_s)
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
            left = list(self._waiting)
        self._completions.close()
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._report is not None:
            self._report.close()
        self._tell_end(left)

    def restart(self) -> list[LateRecord]:
        """Count calls from 0 again: ranks that join have called different numbers of times.

        Returns:
            What rank 0 lacks, because it had joined; once.
        """
        with self._changed:
            self._num_calls = 0
            self._recent = [None] * _NUM_NAMES
            late, self._late = self._late, []
        return late

    def write_late(self, late: Sequence[LateRecord]) -> None:
        """Write on rank 0 what another rank has kept for it."""
        for record in late:
            self._history.outlets.write(record.step, record.averages, record.at_s)

    # -- With self._changed

    def _is_free(self, record: Record) -> bool:
        """Whether all before have left, and the name of the record is not in use any more."""
        before = self._recent[record.number % _NUM_NAMES]
        if before is not None and (before.handle is None or not before.handle.done()):
            return False
        return not self._waiting or self._waiting[-1].handle is not None

    def _take_ended(self) -> None:
        """Where no thread does: look at the operations that have ended."""
        while self._thread is None and self._waiting:
            handle = self._waiting[0].handle
            if handle is None or not handle.done():
                return
            self._resolve(self._waiting.popleft())

    def _raise_problem(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="hvd-log", daemon=True)
            self._thread.start()

    # -- The thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                record = self._waiting[0]
            self._follow(record)
            with self._changed:
                self._waiting.popleft()
                self._changed.notify_all()

    def _follow(self, record: Record) -> None:
        """Take a record from here to its end; all before it have ended, so its name is free."""
        try:
            if record.handle is None:
                self._submit(record)
        except Exception as error:  # those behind it still have to be followed
            self._lose(record, error)
            return
        if record.handle is not None and self._await(record.handle):
            self._resolve(record)

    def _await(self, handle: Handle) -> bool:
        """Return whether the operation has ended; False if this log is closed before."""
        if not handle.done():
            handle.notify(self._completions, self)
        while not handle.done():
            if self._completions.closed:
                return False
            self._completions.take(_LOOK_S)
        return True

    # -- Records

    def _submit(self, record: Record) -> None:
        """Let a record leave; its values are waited for if they are not there."""
        numbers = [self._read(record, index) for index in range(len(record.names))]
        run = self._history.begin_run() if self._is_writer else None
        step = self._history.steps.shifted(record.step)
        total = array.array("d", encode(numbers, record.weight, step, run))
        is_weighted = record.weight is not None
        digest = digest_of(record.names, record.given_step, is_weighted=is_weighted)
        # The engine compares shapes: one of no element tells what else must be the same.
        buffers = Buffer.from_array(total), Buffer(0, "uint8", (digest, 0))
        record.total = total
        record.handle = self._group.allreduce(
            buffers,
            buffers,
            PLAIN_SUM,
            name=str(record.number % _NUM_NAMES),
            prefix="log",
            call_site=record.call_site,
            keep=total,
        )

    def _read(self, record: Record, index: int) -> float:
        value = record.values[index]
        if not callable(value):
            return value
        try:
            return value()
        except Exception as error:
            # Others wait for the record.
            _logger.error(
                "rank %d cannot read the value %r that %s has logged, and logs NaN: %s: %s",
                *(self._group.rank, record.names[index], record.call_site),
                *(type(error).__name__, error),
            )
            return float("nan")

    def _resolve(self, record: Record) -> None:
        """Take what an ended operation has brought."""
        handle, total = record.handle, record.total
        if handle is None or total is None:
            return
        try:
            handle.wait()
        except MismatchError as error:
            self._problem = MismatchError(f"{_difference(record)}\n{error}")
            return
        except HorovodInternalError as error:
            self._lose(record, error)
            return
        resolved = decode(total)
        history = self._history
        if resolved.run is not None and resolved.step is not None:
            history.run = resolved.run
            history.steps.follow(record.step, resolved.step)
        if not resolved.averages:
            self._warn_of_no_weight(record)
            return
        averages = dict(zip(record.names, resolved.averages, strict=True))
        step = history.steps.shifted(record.step)
        if self._report is not None:
            history.outlets.write(step, averages, record.at_s)
            self._report.tell(step, averages)
        elif resolved.run is None:
            self._late.append(LateRecord(step, averages, record.at_s))

    def _lose(self, record: Record, error: Exception) -> None:
        self._lost.append(record)
        self._cause = self._cause or error

    def _warn_of_no_weight(self, record: Record) -> None:
        if self._is_writer and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "hvd.log at %s: the weight is 0 on all ranks, so there is no average of %s; "
                "nothing is written",
                *(record.call_site, ", ".join(record.names)),
            )

    def _tell_end(self, left: Sequence[Record]) -> None:
        if self._problem is not None:
            _logger.error("%s", self._problem)
        # The other ranks lose the same, unless rank 0 has ended before them.
        if self._lost and (self._is_writer or isinstance(self._cause, ShutDownError)):
            _logger.error(
                "rank %d: %s lost, as the job ended or changed before the ranks had averaged "
                "them: %s",
                *(self._group.rank, _records(self._lost), _first_line(self._cause)),
            )
        if left:
            _logger.error(
                "rank %d: %s lost, as not all ranks have called hvd.log in the same way; the first "
                "was logged at %s",
                *(self._group.rank, _records(left), left[0].call_site),
            )


def _records(records: Sequence[Record]) -> str:
    """Name records by their steps and values, with the verb."""
    first, last = records[0].step, records[-1].step
    names = ", ".join(sorted({name for record in records for name in record.names}))
    if first == last:
        return f"the values of hvd.log of step {first} ({names}) are"
    return f"the values of hvd.log of steps {first} to {last} ({names}) are"


def _difference(record: Record) -> str:
    step = "no step" if record.given_step is None else f"step {record.given_step}"
    weight = "no weight" if record.weight is None else "a weight"
    return (
        f"hvd.log: the ranks do not log the same. This rank has logged {', '.join(record.names)} "
        f"with {step} and {weight} at {record.call_site}; call hvd.log on all ranks in the same "
        "order, with the same names and step, and with a weight on all or on none"
    )


def _too_many(oldest: Record) -> str:
    return (
        f"{_MOST_WAITING} calls of hvd.log wait for other ranks, the first of them at "
        f"{oldest.call_site} ({', '.join(oldest.names)}): call hvd.log on all ranks"
    )


def _first_line(error: Exception | None) -> str:
    return str(error).partition("\n")[0]
