"""``hvd.log``: values of training, averaged over the ranks and written once per job."""

from __future__ import annotations

import atexit
import threading
import time
from typing import TYPE_CHECKING, Any

from horovod._rank.job_context import current_job, process
from horovod._rank.per_context import PerContext
from horovod._train.call_site import call_site
from horovod._train.logged.job_log import JobLog, Record
from horovod._train.logged.outlets import History
from horovod._train.logged.record import check_step, collect_values
from horovod._train.objects import broadcast_object
from horovod._train.weights import check_weight
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from horovod._rank.group import Group
    from horovod._rank.job_context import _Job
    from horovod._train.logged.job_log import Number

    Taker = Callable[[str, Any], "Number | None"]

# Ranks that end alike have logged the same, so that what is in flight arrives: at the latest when
# rank 0 has opened its destinations, which may take long. After an exception, the others may never
# log what this rank has.
_FLUSH_S = 60.0
_FLUSH_OF_FAILED_S = 1.0
# Before a join, which waits for the other ranks anyway.
_FLUSH_BEFORE_JOIN_S = 60.0

_lock = threading.Lock()
_histories: PerContext[History] = PerContext(History)
_logs: dict[Group, tuple[JobLog, History]] = {}
_takers: list[Taker] = []
_is_watching = False
_closes_at_exit = False


def log(
    values: Mapping[str, Any] | None = None,
    /,
    *,
    step: int | None = None,
    weight: float | None = None,
    **named: Any,
) -> None:
    """Average values over the ranks, and write the averages once per job.

    Rank 0 writes to what HOROVOD_LOG (``horovodrun --log``) names, such as TensorBoard; see
    ``docs/logging.md``. All ranks call it, in the same order and with the same names. It does not
    wait for the other ranks, nor for a GPU: averages are written when they have come, all of them
    at the latest by ``hvd.shutdown()`` or the end of the program. A rank that has joined does not
    count. NaN stays NaN.

    Args:
        values: by name; for names that are no identifiers, such as "train/loss".
        step: the same on all ranks, from 0. None counts: a call that repeats a name of the current
            step begins the next step.
        weight: of this rank in the average, such as the number of samples: at least 0. The average
            is the sum of weight times value over the sum of weights, in float64. A rank of weight
            0 may log anything. All ranks have one, or none has.
        named: numbers, or arrays and tensors of one element, of any framework; not complex.

    Raises:
        UsageError: an argument is wrong; on rank 0 also that a destination cannot be used.
        MismatchError: an earlier call of this rank differs from those of other ranks; it names
            ranks and lines.
        StalledError: 10,000 calls wait for ranks that do not log.
        NotInitializedError: ``hvd.init()`` was not called.
        HorovodInternalError: the job failed.

    Example:
        >>> hvd.log(loss=loss, accuracy=correct / len(batch), weight=len(batch))
    """
    site = call_site()
    collected = collect_values(values, named)
    given_step = check_step(step)
    checked_weight = None if weight is None else check_weight(weight)
    numbers = [_number_of(name, value) for name, value in collected.items()]
    job = current_job()
    job_log, history = _log_of(job)
    if job.config.rank == 0 and not history.outlets.are_open:
        _open(history, job.config.log)
    names = tuple(collected)
    steps = history.steps
    counted = steps.count(names) if given_step is None else steps.go_to(given_step, names)
    job_log.add(Record(names, numbers, checked_weight, given_step, counted, site, time.time()))


def accept_values(taker: Taker) -> None:
    """Let ``log`` take values of a framework.

    Args:
        taker: returns, for a name and a value, the number, or a function that waits for it; None
            if the value is none of this framework. It raises UsageError if there is no number.
    """
    if taker not in _takers:
        _takers.append(taker)


def check_one_element(name: str, num_elements: int, shape: Sequence[int]) -> None:
    """Refuse an array that is no scalar.

    Raises:
        UsageError: it does not have exactly one element.
    """
    if num_elements != 1:
        raise UsageError(
            f"hvd.log: {name} has the shape {tuple(shape)}; log one number, such as its mean"
        )


def flush_before_join() -> None:
    """Wait until nothing of this rank is in flight, as ``join`` demands."""
    found = _logs.get(current_job().group)
    if found is not None:
        found[0].flush(_FLUSH_BEFORE_JOIN_S)


def catch_up_after_join(last_joined: int) -> None:
    """Bring to rank 0 what it has missed while it had joined; all ranks call it after a join.

    Args:
        last_joined: the rank that came last, which has taken part in everything.

    Raises:
        HorovodInternalError: the job failed.
    """
    job = current_job()
    found = _logs.get(job.group)
    late = [] if found is None else found[0].restart()
    if last_joined == 0:
        return
    # Also if nothing is logged here: HOROVOD_LOG may be set on rank 0 only.
    mine = late, _histories.get().steps.current
    missed, (step, names) = broadcast_object(
        job.group, mine, last_joined, "log.after_join", call_site()
    )
    if job.config.rank == 0 and missed:
        job_log, history = _log_of(job)
        if not history.outlets.are_open:
            _open(history, job.config.log)
        job_log.write_late(missed)
        history.steps.go_to(step, names)


def _number_of(name: str, value: Any) -> Number:
    if isinstance(value, (bool, int, float)):
        return float(value)
    for take in _takers:
        number = take(name, value)
        if number is not None:
            return number
    shape = getattr(value, "shape", ())
    if shape:
        check_one_element(name, getattr(value, "size", 0), shape)
    try:
        if isinstance(value, (str, bytes, complex)):
            raise TypeError
        return float(value.item() if shape else value)
    except (TypeError, ValueError, AttributeError):
        raise UsageError(
            f"hvd.log: {name} is a {type(value).__name__}: log a number, or a scalar of a framework"
        ) from None


def _log_of(job: _Job) -> tuple[JobLog, History]:
    global _is_watching
    found = _logs.get(job.group)
    if found is not None:
        return found
    history = _histories.get()
    with _lock:
        if not _is_watching:
            _is_watching = True
            process.before_end.append(_finish)
        return _logs.setdefault(job.group, (JobLog(job.config, job.group, history), history))


def _open(history: History, destinations: str) -> None:
    global _closes_at_exit
    history.outlets.open(destinations, history.begin_run())
    with _lock:
        is_first, _closes_at_exit = not _closes_at_exit, True
    if is_first:
        # Behind those of the libraries just loaded, so that it runs before them.
        atexit.register(_close_all)


def _finish(group: Group) -> None:
    """Before a job ends: let nothing get lost that the ranks can still average."""
    found = _logs.pop(group, None)
    if found is None:
        return
    job_log, history = found
    job_log.close(_flush_s())
    if not group.engine.error():  # otherwise the job may go on, in another generation
        history.outlets.close(failed=bool(process.exit_reason))


def _close_all() -> None:
    """At the end of the process, while destinations still work; a later call opens them again."""
    for job_log, history in list(_logs.values()):
        job_log.flush(_flush_s())
        history.outlets.close(failed=bool(process.exit_reason))


def _flush_s() -> float:
    return _FLUSH_OF_FAILED_S if process.exit_reason else _FLUSH_S
