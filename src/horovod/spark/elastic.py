"""``horovod.spark.run_elastic``: ranks come and go with the tasks that Spark has room for."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from horovod._job.function import check_call
from horovod._settings.config import inherited_environment
from horovod.errors import UsageError
from horovod.runner.function.call import RemoteFunction, packed
from horovod.runner.starting.elastic_options import elastic_timeout_s_of, worker_timeout_s_of
from horovod.runner.starting.requests import ElasticRequest
from horovod.runner.supervision.elastic.rules import Rules, Words
from horovod.spark.running import (
    GONE,
    QUIET_COMMAND,
    check_count,
    checked_env,
    launch_options,
    python_path,
    results_of,
    settings_of,
    start_timeout_s,
)
from horovod.spark.session import Session
from horovod.spark.spark_job import SparkJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TextIO

_WORDS = Words(
    np="num_proc",
    min_np="min_num_proc",
    max_np="max_num_proc",
    elastic_timeout="elastic_timeout",
    worker_timeout="HOROVOD_WORKER_TIMEOUT",
    reset_limit="reset_limit",
    slow_worker="HOROVOD_SLOW_WORKER",
)


def run_elastic(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    num_proc: int | None = None,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    start_timeout: float | None = None,
    elastic_timeout: float | None = None,
    reset_limit: int | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Do the same as :func:`horovod.spark.run`, but let ranks come and go while ``fn`` trains.

    The job begins when Spark runs ``num_proc`` tasks. Further ones take part as soon as Spark has
    room for them, up to ``max_num_proc``. If an executor is lost, the others go on; Spark starts
    its tasks anew, as often as ``spark.task.maxFailures`` allows, and they join again. Each attempt
    of a task counts as a host of its own, so local ranks are 0: choose a GPU by
    :func:`horovod.spark.task.get_available_devices`.

    Args:
        fn: uses ``hvd.elastic``, see docs/elastic.md.
        num_proc: with how many ranks to begin; None for the default parallelism.
        min_num_proc: the fewest with which the job goes on; None for ``num_proc``.
        max_num_proc: the most; None for ``num_proc``.
        start_timeout: seconds until ``num_proc`` tasks must run; None for
            ``HOROVOD_SPARK_START_TIMEOUT``, or 600.
        elastic_timeout: seconds to wait for tasks when there are too few; None for
            ``HOROVOD_ELASTIC_TIMEOUT``, or 600.
        reset_limit: how often the ranks may change; None for any number.
        args, kwargs, env, stdout, stderr, verbose, nics, prefix_output_with_timestamp: see
            :func:`horovod.spark.run`.
        min_np, max_np: what ``min_num_proc`` and ``max_num_proc`` were once called.

    Returns:
        The results of the ranks that there were at the end, in their order.

    Raises:
        RankFailedError: the job failed; it holds the host and the traceback of the first failure.
        StartError, UsageError: see :func:`horovod.spark.run`.
    """
    caller = "horovod.spark.run_elastic"
    kwargs = {} if kwargs is None else kwargs
    check_call(fn, args, kwargs, caller)
    env = checked_env(env, caller)
    fewest = _renamed("min_np", min_np, "min_num_proc", min_num_proc)
    most = _renamed("max_np", max_np, "max_num_proc", max_num_proc)
    session = Session(caller)
    size = session.default_parallelism() if num_proc is None else num_proc
    fewest, most = limits(size, fewest, most, caller)
    timeout_s = start_timeout_s(start_timeout, caller)
    payload = packed(fn, tuple(args), dict(kwargs), python_path(None), caller)
    settings = replace(settings_of(env, timeout_s, nics), command=QUIET_COMMAND)
    environ = {**inherited_environment(), **settings.variables}
    rules = Rules(
        size,
        fewest,
        most,
        elastic_timeout_s=elastic_timeout or elastic_timeout_s_of(environ),
        gate_timeout_s=timeout_s,
        reset_limit=reset_limit,
        grace_s=settings.grace_s,
        worker_timeout_s=worker_timeout_s_of(environ),
        words=_WORDS,
    )
    tasks = SparkJob(session, most, env, is_elastic=True)
    call = RemoteFunction(payload, [""] * most, fewest=1, tells_others=True)
    options = launch_options(verbose, prefix_output_with_timestamp, timeout_s)
    request = ElasticRequest(settings, options, rules, inviting=tasks.inviting, gone=GONE)
    return results_of(request, call, stdout, stderr)


def limits(size: int, fewest: int | None, most: int | None, caller: str) -> tuple[int, int]:
    """The fewest and the most ranks of a job.

    Args:
        size: with how many it begins.
        fewest, most: as asked for; None for ``size``.
        caller: for messages.

    Raises:
        UsageError: a number is below 1, or they are not in order.
    """
    fewest = size if fewest is None else fewest
    most = size if most is None else most
    for name, number in (("num_proc", size), ("min_num_proc", fewest), ("max_num_proc", most)):
        check_count(name, number, caller)
    if not fewest <= size <= most:
        raise UsageError(
            f"{caller}: num_proc={size} is not between min_num_proc={fewest} and "
            f"max_num_proc={most}"
        )
    return fewest, most


def _renamed(old: str, old_value: int | None, new: str, value: int | None) -> int | None:
    if old_value is None:
        return value
    warnings.warn(f"{old} is called {new} now", DeprecationWarning, stacklevel=3)
    return old_value
