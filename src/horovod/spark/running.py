"""``horovod.spark.run``: a function on every rank of a job whose ranks are tasks of Spark."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from horovod._job.function import check_call
from horovod._settings.config import inherited_environment
from horovod._settings.reader import SettingsReader
from horovod.errors import StartError, UnsupportedError, UsageError
from horovod.runner.function.call import RemoteFunction, packed
from horovod.runner.function.task import QUIET
from horovod.runner.output.console import Console
from horovod.runner.placing.plan import JobSettings
from horovod.runner.protocol.joining import HOST_PYTHON
from horovod.runner.starting.launch import config_of, start
from horovod.runner.starting.requests import Caller, InvitedRequest, LaunchOptions, Watching
from horovod.runner.starting.served import with_variables
from horovod.runner.system.signals import wakeups
from horovod.spark.session import Session
from horovod.spark.spark_job import SparkJob
from horovod.spark.tasks import index_of, worker_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TextIO

    from horovod.runner.starting.requests import JobRequest

_START_TIMEOUT = "HOROVOD_SPARK_START_TIMEOUT"
GONE = "its task has ended: was its executor lost, or the job cancelled?"
"""Why a task is lost that says nothing."""
COMMAND = (HOST_PYTHON, "-m", "horovod.runner.function.task")
"""What each rank executes."""
QUIET_COMMAND = (*COMMAND, QUIET)
"""The same if the caller raises what a rank raises, so that the rank need not print it."""


def run(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str | None] | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Calls ``fn(*args, **kwargs)`` on every rank of a new job, whose ranks are tasks of Spark.

    All tasks run at the same time, in a barrier stage. Rank 0 is task 0, and ranks of a host are
    neighbors. Each rank is a process of its own beside the worker of Spark.

    Args:
        fn: calls ``hvd.init()`` as any script does; it, its arguments and its result are sent with
            cloudpickle.
        args, kwargs: arguments, the same on all ranks.
        num_proc: how many ranks; None for the default parallelism of the application.
        start_timeout: seconds until all tasks and ranks must have started; None for
            ``HOROVOD_SPARK_START_TIMEOUT``, or 600.
        use_gloo, use_mpi, extra_mpi_args: Spark starts the ranks, so the first one has no effect;
            the others are refused.
        env: variables of the ranks, beside those of the workers of Spark; None removes one. The
            environment of the driver is not sent.
        stdout, stderr: text streams that get what the ranks print, at once and with the rank in
            front of each line; None for those of the driver.
        verbose: 2 or more tells each step on ``stderr``.
        nics: names of network interfaces; None to find those that lead from host to host.
        prefix_output_with_timestamp: whether the time stands in front of each line, too.
        executable: the Python that runs the ranks; None for that of the workers of Spark.

    Returns:
        One result per rank, in the order of ranks.

    Raises:
        RankFailedError: a rank failed; it holds the host, the executor and the traceback. The other
            ranks have been ended.
        StartError: the application has too few slots, or the tasks or ranks did not start in time.
        UsageError: the arguments make no sense, or there is no session of Spark.
        UnsupportedError: MPI was asked for.
    """
    caller = "horovod.spark.run"
    kwargs = {} if kwargs is None else kwargs
    check_call(fn, args, kwargs, caller)
    refuse_mpi(use_mpi, extra_mpi_args, caller)
    env = checked_env(env, caller)
    session = Session(caller)
    size = session.default_parallelism() if num_proc is None else num_proc
    check_count("num_proc", size, caller)
    timeout_s = start_timeout_s(start_timeout, caller)
    payload = packed(fn, tuple(args), dict(kwargs), python_path(executable), caller)
    timeout_s = session.await_slots(size, timeout_s, caller)
    tasks = SparkJob(session, size, env, executable or "")
    call = RemoteFunction(payload, [""] * size, tells_others=True)
    settings = replace(settings_of(env, timeout_s, nics), command=QUIET_COMMAND)
    options = launch_options(verbose, prefix_output_with_timestamp, timeout_s)
    hosts = tasks.inviting, worker_of, index_of, timeout_s, GONE
    request = InvitedRequest(settings, options, size, *hosts)
    try:
        return results_of(request, call, stdout, stderr)
    except TimeoutError as error:
        raise StartError(
            f"Timed out waiting for Spark tasks to start. {caller}: {error}; does the application "
            "have free slots for all of them? Give it more, ask for fewer with num_proc, or wait "
            "for longer with start_timeout"
        ) from None


def launch_options(verbose: int, timestamps: bool, timeout_s: float) -> LaunchOptions:
    """Return how the launcher behaves; see :func:`run`."""
    return LaunchOptions(
        prefix_timestamp=timestamps,
        start_timeout_s=timeout_s,
        verbose=verbose > 1,
        # The environment of the driver is not that of the ranks, but the driver serves.
        watching=with_variables(Watching(), inherited_environment()),
    )


def results_of(
    request: JobRequest, call: RemoteFunction, stdout: TextIO | None, stderr: TextIO | None
) -> list[Any]:
    """Run a job; return what its ranks return."""
    with (
        wakeups() as descriptor,
        Console(stdout or sys.stdout, stderr or sys.stderr, "horovod.spark") as console,
    ):
        tell_errors = partial(call.tell_errors, console.say)
        caller = Caller(
            console, wakeups=descriptor, on_generation=tell_errors, store_user=call.using
        )
        outcome = start(request, caller)
        if outcome.exit_code == 0:
            tell_errors()
    return call.results(outcome)


def refuse_mpi(use_mpi: bool | None, extra_mpi_args: str | None, caller: str) -> None:
    """MPI would need to log in on executors.

    Raises:
        UnsupportedError: it was asked for.
    """
    if use_mpi or extra_mpi_args:
        raise UnsupportedError(
            f"{caller}: Spark starts the ranks, mpirun cannot: leave use_mpi and extra_mpi_args out"
        )


def check_count(name: str, number: object, caller: str) -> None:
    """Makes sure that there are ranks.

    Raises:
        UsageError: there are not.
    """
    if not isinstance(number, int) or number < 1:
        raise UsageError(f"{caller}: {name} is {number!r}, but must be an integer of at least 1")


def checked_env(env: Mapping[str, str | None] | None, caller: str) -> dict[str, str | None]:
    """A copy of the variables of the ranks.

    Raises:
        UsageError: a value is neither a string nor None.
    """
    found = dict(env or {})
    for name, value in found.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise UsageError(f"{caller}: env[{name!r}] is {value!r:.80}; give strings, or None")
    return found


def start_timeout_s(given: float | None, caller: str) -> float:
    """For how many seconds to wait for tasks.

    Raises:
        UsageError: it is not above 0.
        StartError: the variable of the environment makes no sense.
    """
    seconds = SettingsReader(inherited_environment()).value(_START_TIMEOUT)
    seconds = float(seconds if given is None else given)
    if not seconds > 0:
        raise UsageError(f"{caller}: start_timeout is {seconds:g}; it must exceed 0")
    return seconds


def python_path(executable: str | None) -> list[str]:
    """Return the paths of the driver's modules, if the ranks have the same file system."""
    # A notebook has an empty entry, which means its folder.
    return [] if executable else [os.path.abspath(entry) for entry in sys.path]


def settings_of(
    env: Mapping[str, str | None], timeout_s: float, nics: Iterable[str] | None
) -> JobSettings:
    """Return the settings of the ranks; their environment is that of their tasks."""
    own = {name: value for name, value in env.items() if name.startswith("HOROVOD_") and value}
    variables = {"HOROVOD_START_TIMEOUT": repr(timeout_s), **own}
    return JobSettings(
        command=COMMAND,
        cwd="",
        environ={},
        variables=variables,
        network_interfaces=tuple(nics or ()),
        grace_s=config_of("HOROVOD_GRACE_SECONDS", variables).grace_s,
    )
