"""Logged values in a run of Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._train.logged.sink import describe, library
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.destinations import Destination
    from horovod._train.logged.record import Run


class WandbRun:
    """The run that the program has begun with ``wandb.init``, or else one of this job.

    Args:
        destination: its place is a project; without one, the settings of W&B count.
        run: this job; W&B goes on with its run if another process was rank 0 before.

    Raises:
        UsageError: W&B is not installed, or does not begin a run.
    """

    def __init__(self, destination: Destination, run: Run) -> None:
        wandb = library("wandb", destination)
        self._is_own = wandb.run is None
        try:
            self._run = wandb.run or wandb.init(
                project=destination.place or None, name=run.name, id=run.name, resume="allow"
            )
        except Exception as error:
            raise UsageError(f"HOROVOD_LOG names {destination}: {describe(error)}") from error

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Hand the values to W&B, which sends them from a process of its own."""
        self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        """End the run, unless it is the program's."""
        if self._is_own:
            self._run.finish(exit_code=int(failed))
