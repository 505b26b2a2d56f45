"""The job of Spark whose tasks lend their places to ranks."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark import InheritableThread

from horovod.errors import UsageError
from horovod.runner.supervision.outcome import Outcome
from horovod.runner.supervision.supervisor import Alarm
from horovod.spark.tasks import SCHEMA, Hosting, of_arrow, of_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horovod.runner.protocol.invitation import Invitation
    from horovod.spark.session import Session

_logger = logging.getLogger(__name__)

# From the end of the Horovod job to that of tasks that know of it.
_END_S = 3.0
_CANCEL_S = 30.0
_MOST_CHARACTERS = 4000

_numbers = itertools.count()


class SparkJob:
    """Tasks, which run on a thread while :meth:`inviting` lasts.

    Args:
        session: of Spark.
        number: how many tasks.
        env, executable: see :class:`Hosting`.
        is_elastic: whether tasks come and go; otherwise all of them run at the same time.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        env: Mapping[str, str | None],
        executable: str = "",
        *,
        is_elastic: bool = False,
    ) -> None:
        self._session = session
        self._number = number
        self._env = env
        self._executable = executable
        self._is_elastic = is_elastic
        # Executors that come when tasks wait for them would never come for a barrier stage.
        self._is_barrier = not is_elastic and not session.is_dynamic
        self._group = f"horovod.spark.run.{next(_numbers)}"
        self._error = ""

    @contextmanager
    def inviting(self, invitation: Invitation) -> Iterator[Alarm]:
        """Runs tasks that join the job inside of the block; none of them is left after it.

        Yields:
            What ends the job if Spark ends the tasks.

        Raises:
            UsageError: there is no way to run tasks.
        """
        hosting = Hosting(invitation, self._env, self._executable, self._is_elastic)
        ended = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = self._thread(hosting, ended)
        thread.start()
        try:
            yield Alarm(ended, lambda: Outcome(1, self._cause()))
        finally:
            thread.join(_END_S)
            if thread.is_alive():
                self._session.cancel(self._group)
                thread.join(_CANCEL_S)
            if thread.is_alive():
                _logger.warning("the tasks of job group %s have not ended", self._group)
            else:
                os.close(ended)

    def _thread(self, hosting: Hosting, ended: int) -> threading.Thread:
        def work() -> None:
            try:
                self._session.grouped(
                    self._group, "Horovod Spark Run", lambda: self._run_tasks(hosting)
                )
            except BaseException as error:
                self._error = str(error) or type(error).__name__
            finally:
                os.eventfd_write(ended, 1)

        if self._session.context is not None:
            # It has the scheduler pool and the properties of the caller.
            thread: threading.Thread = InheritableThread(target=work, daemon=True)
            return thread
        return threading.Thread(target=work, daemon=True)

    def _run_tasks(self, hosting: Hosting) -> None:
        spark, context, number = self._session.spark, self._session.context, self._number
        if find_spec("pyarrow") is not None:
            tasks = spark.range(0, number, 1, number)
            tasks.mapInArrow(of_arrow(hosting), SCHEMA, barrier=self._is_barrier).collect()
        elif context is not None:
            rows = context.parallelize(range(number), number)
            rows = rows.barrier() if self._is_barrier else rows
            rows.mapPartitions(of_rows(hosting)).collect()
        else:
            raise UsageError("Spark Connect needs pyarrow: pip install pyarrow")

    def _cause(self) -> str:
        text = self._error or "they returned before the ranks had ended"
        return f"Spark has ended the tasks of the job: {text[:_MOST_CHARACTERS]}"
