"""``run_ranks``: a function on all ranks of a new job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from horovod.errors import UsageError
from horovod.testing.places import configs_of
from horovod.testing.threads import ThreadWorld

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

T = TypeVar("T")


def run_ranks(
    num_ranks: int,
    function: Callable[..., T],
    *args: Any,
    processes: bool = False,
    hosts: Sequence[int] | None = None,
    timeout: float = 60.0,
) -> list[T]:
    """Calls ``function(*args)`` on every rank of a new job and returns what the ranks returned.

    The function is training code as it is: it calls ``hvd.init()`` and may call ``hvd.shutdown()``.
    Each rank finds its own place with ``hvd.rank()``. Settings come from the environment of this
    process (``HOROVOD_*``).

    With threads, ranks share what a process has only once: modules and their globals, the
    environment, the state of random generators and of Keras. A ``tf.function`` belongs to the rank
    that calls it first, so each rank makes its own.
    A thread that a rank starts belongs to the rank if its target is
    ``horovod.testing.inherited(function)``.

    Args:
        num_ranks: size of the job, at least 1.
        function: what each rank does. For processes it must be possible to send it, its arguments
            and its result with cloudpickle.
        args: its arguments, the same on all ranks; threads share the objects.
        processes: whether each rank is a process of its own, with real connections, instead of a
            thread of this one.
        hosts: the number of ranks on each host, for example ``[2, 2]``; local and cross ranks are
            as if there were so many. None for one host.
        timeout: seconds until all ranks must have ended.

    Returns:
        One result per rank, in the order of ranks.

    Raises:
        UsageError: the arguments make no sense.
        TimeoutError: some ranks did not end; says which, and where they are. Threads that are stuck
            outside of Horovod are left behind, processes are killed.
        RankFailedError: the process of a rank ended without a result.
        BaseException: what the rank raised that failed first; its notes name the rank and the
            failures of others. The other ranks are stopped.

    Example:
        >>> run_ranks(4, train, hosts=[2, 2])
        >>> with pytest.raises(ValueError, match="no such file"):
        ...     run_ranks(2, train, "missing.csv", processes=True)
    """
    if timeout <= 0:
        raise UsageError(f"run_ranks(…, timeout={timeout:g}): it must be above 0")
    configs = configs_of(num_ranks, hosts)
    if processes:
        # Threads alone need neither a store nor pickles.
        from horovod.testing.processes import run_processes

        return run_processes(configs, function, args, timeout)
    with ThreadWorld(configs) as world:
        return world.run(lambda rank: function(*args), timeout)
