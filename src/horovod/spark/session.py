"""The session of Spark that the driver has, be it its own or one of Spark Connect."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from horovod.errors import StartError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

# Executors register one after another, and Spark says neither when nor how many are to come: how
# long nothing is said of that, and how often it is afterwards.
_SAY_S = 5.0
_SAY_AGAIN_S = 60.0
_LOOK_S = 0.2
# What is left for the tasks to start, once there is room for them.
_LEAST_S = 1.0
# More partitions than any cluster has cores.
_MANY = 1_000_000


class Session:
    """The parts of a session that Horovod needs.

    Args:
        caller: who asks, for messages.

    Attributes:
        spark: the session.
        context: of a classic session; None with Spark Connect.

    Raises:
        UsageError: there is no session.
    """

    def __init__(self, caller: str) -> None:
        self.spark: Any = _active_session()
        if self.spark is None:
            raise UsageError(
                f"{caller} needs a session of Spark in this process: "
                "SparkSession.builder.getOrCreate() makes one"
            )
        self.context: Any = None if is_remote() else self.spark.sparkContext

    def conf(self, name: str, default: str) -> str:
        """A setting of the application or the session."""
        return str(self.spark.conf.get(name, default))

    @property
    def is_dynamic(self) -> bool:
        """Whether executors come when there are tasks that wait; barrier stages cannot wait."""
        return self.conf("spark.dynamicAllocation.enabled", "false").lower() == "true"

    def default_parallelism(self) -> int:
        """Return the number of tasks that Spark recommends; usually that of all cores."""
        if self.context is not None:
            return int(self.context.defaultParallelism)
        ids = self.spark.range(_MANY).selectExpr("spark_partition_id() AS id")
        return int(ids.distinct().count())

    def num_slots(self) -> int:
        """Return the number of tasks that the executors can run at once; a classic session."""
        java = self.context._jsc.sc()
        profile = java.resourceProfileManager().defaultResourceProfile()
        return int(java.maxNumConcurrentTasks(profile))

    def await_slots(self, number: int, timeout_s: float, caller: str) -> float:
        """Wait for room for all tasks, and say so if that takes more than a moment.

        An executor that was lost comes back, and others may still register. A local application
        never gets more room.

        Args:
            number: of tasks.
            timeout_s: how long to wait.
            caller: who waits, for messages.

        Returns:
            The seconds that are left.

        Raises:
            StartError: there is no room; says what there is.
        """
        if self.context is None or self.is_dynamic:
            return timeout_s  # nobody knows
        deadline_s = self._clock() + timeout_s
        say_at_s = self._clock() + _SAY_S
        while (slots := self.num_slots()) < number:
            now_s = self._clock()
            what = (
                f"{caller}: num_proc={number} tasks must run at the same time, but this "
                f"application has room for {slots} ({self._executors()})"
            )
            if self._is_local() or now_s >= deadline_s:
                waited = "" if self._is_local() else f", after {timeout_s:g} s (start_timeout)"
                raise StartError(
                    f"{what}{waited}: ask for fewer, or give it more executors or cores "
                    "(spark.executor.instances, spark.executor.cores, spark.cores.max)"
                )
            if now_s >= say_at_s:
                say_at_s = now_s + _SAY_AGAIN_S
                left_s = deadline_s - now_s
                print(f"{what}: waiting for it, up to {left_s:.0f} s more", file=sys.stderr)
            self._pause(min(_LOOK_S, deadline_s - now_s))
        return max(_LEAST_S, deadline_s - self._clock())

    def _clock(self) -> float:
        return time.monotonic()

    def _pause(self, seconds: float) -> None:
        # Spark tells nobody who waits for executors.
        threading.Event().wait(seconds)

    def _is_local(self) -> bool:
        return bool(self.context._jsc.sc().isLocal())

    def _executors(self) -> str:
        java = self.context._jsc.sc()
        if self._is_local():
            return f"it is local, master {self.context.master}"
        number = int(java.getExecutorMemoryStatus().size()) - 1  # without the driver
        return f"{number} executors, spark.task.cpus={self.conf('spark.task.cpus', '1')}"

    def grouped(self, name: str, description: str, work: Callable[[], object]) -> None:
        """Does some work so that :meth:`cancel` with this name ends its jobs. On any thread."""
        if self.context is not None:
            self.context.setJobGroup(name, description, True)
        else:
            self.spark.addTag(name)
        work()

    def cancel(self, name: str) -> None:
        """Ends the jobs of this name."""
        if self.context is not None:
            self.context.cancelJobGroup(name)
        else:
            self.spark.interruptTag(name)


def _active_session() -> Any:
    """That of this thread, or else of this process; None if there is none."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        pass
    # Whoever works with RDDs only has no session yet.
    context = None if is_remote() else SparkContext._active_spark_context
    return None if context is None else SparkSession.builder.getOrCreate()
