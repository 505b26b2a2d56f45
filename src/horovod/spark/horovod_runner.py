"""The call of Databricks' HorovodRunner, on any cluster."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

from horovod.errors import UsageError
from horovod.runner.function.run import run as run_here
from horovod.spark.running import run
from horovod.spark.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable

_VERBOSITIES = ("log_callback_only", "all")


class HorovodRunner:
    """Runs a training function as a job, for notebooks that were written for ``sparkdl``.

    Args:
        np: how many ranks in tasks of Spark; 0 for as many as there are slots; a negative number
            for that many processes on the driver.
        driver_log_verbosity: ``all`` shows what ranks print where :meth:`run` is called;
            ``log_callback_only`` does not. Errors come with the traceback in any case.

    Raises:
        UsageError: an argument makes no sense.

    Example:
        >>> from horovod.spark import HorovodRunner
        >>> HorovodRunner(np=2).run(train, learning_rate=0.1)   # what rank 0 returns
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if not isinstance(np, int):
            raise UsageError(f"HorovodRunner: np is {np!r}, but must be an integer")
        if driver_log_verbosity not in _VERBOSITIES:
            raise UsageError(
                f"HorovodRunner: driver_log_verbosity is {driver_log_verbosity!r}, but must be "
                f"{' or '.join(_VERBOSITIES)}"
            )
        self.num_processor = np
        self._shows_output = driver_log_verbosity == "all"

    def run(self, main: Callable[..., object], **kwargs: object) -> Any:
        """Calls ``main(**kwargs)`` on all ranks; returns what rank 0 returns.

        Raises:
            RankFailedError, StartError, UsageError: see :func:`horovod.spark.run`.
        """
        if self.num_processor < 0:
            return run_here(main, kwargs=kwargs, num_proc=-self.num_processor)[0]
        size = self.num_processor or Session("HorovodRunner").default_parallelism()
        stdout, stderr = (sys.stdout, sys.stderr) if self._shows_output else (_Nowhere(), None)
        results = run(
            main, kwargs=kwargs, num_proc=size, stdout=stdout, stderr=stderr or _Nowhere()
        )
        return results[0]


class _Nowhere(io.StringIO):
    """Keeps nothing of what is written."""

    def write(self, text: str) -> int:
        return len(text)
