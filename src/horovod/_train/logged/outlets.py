"""What a context keeps about logged values over all its jobs, and where rank 0 writes them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING

from horovod._settings.destinations import parse_destinations
from horovod._train.logged.record import Run
from horovod._train.logged.sink import Guarded, Sink
from horovod._train.logged.steps import StepCount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horovod._settings.destinations import Destination

_logger = logging.getLogger(__name__)

# By kind of destination, the module and the class of its sink: a rank loads only what it uses.
_SINKS = {
    "jsonl": ("json_lines", "JsonLines"),
    "tensorboard": ("tensorboard", "TensorBoard"),
    "mlflow": ("mlflow", "MlflowRun"),
    "wandb": ("wandb", "WandbRun"),
    "trackio": ("trackio", "TrackioRun"),
}


class Outlets:
    """The destinations of this job, open on rank 0 from its first record on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: list[Sink] | None = None
        self._has_warned = False

    @property
    def are_open(self) -> bool:
        """Whether records can be written."""
        return self._sinks is not None

    def open(self, destinations: str, run: Run) -> None:
        """Open all destinations, or none.

        Args:
            destinations: the setting HOROVOD_LOG.
            run: this job.

        Raises:
            UsageError: a library is not installed, or a destination cannot be written.
        """
        opened: list[Sink] = []
        try:
            for destination in parse_destinations(destinations):
                opened.append(Guarded(_sink_class(destination)(destination, run), destination))
        except BaseException:
            for sink in opened:
                sink.close(failed=True)
            raise
        if not opened and not self._has_warned:
            self._has_warned = True
            _logger.warning(
                "hvd.log writes nowhere, as HOROVOD_LOG (horovodrun --log) names no destination, "
                "such as jsonl:metrics.jsonl; only the launcher hears of the values"
            )
        with self._lock:
            self._sinks = opened

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Write a record to all destinations; one that fails says so and does not raise."""
        with self._lock:
            for sink in self._sinks or ():
                sink.write(step, values, at_s)

    def close(self, *, failed: bool) -> None:
        """Close all destinations; they can be opened again, for the same run.

        Args:
            failed: whether the program ends because of an exception.
        """
        with self._lock:
            sinks, self._sinks = self._sinks, None
            for sink in sinks or ():
                sink.close(failed=failed)


class History:
    """What a context knows about its logged values in all jobs that it takes part in.

    Attributes:
        steps: of the values.
        outlets: where they are written while this is rank 0.
        run: what the destinations call the job; None until rank 0 has told it.
    """

    def __init__(self) -> None:
        self.steps = StepCount()
        self.outlets = Outlets()
        self.run: Run | None = None

    def begin_run(self) -> Run:
        """Return the run of this job; one of its own if no rank 0 has told another one."""
        if self.run is None:
            self.run = Run(int(time.time()), secrets.randbits(40))
        return self.run


def _sink_class(destination: Destination) -> Callable[[Destination, Run], Sink]:
    module, name = _SINKS[destination.kind]
    found: Callable[[Destination, Run], Sink] = getattr(
        import_module(f"horovod._train.logged.{module}"), name
    )
    return found
