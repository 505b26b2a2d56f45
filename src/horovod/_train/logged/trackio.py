"""Logged values in a run of trackio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod._train.logged.sink import describe, library
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.destinations import Destination
    from horovod._train.logged.record import Run

_DEFAULT_PROJECT = "horovod"


class TrackioRun:
    """A run of trackio with the name of this job.

    Args:
        destination: its place is the project, "horovod" without one.
        run: this job; its run goes on if another process was rank 0 before.

    Raises:
        UsageError: trackio is not installed, or does not begin a run.
    """

    def __init__(self, destination: Destination, run: Run) -> None:
        trackio = library("trackio", destination)
        project = destination.place or _DEFAULT_PROJECT
        try:
            self._run = trackio.init(project=project, name=run.name, resume="allow")
        except Exception as error:
            raise UsageError(f"HOROVOD_LOG names {destination}: {describe(error)}") from error

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Hand the values to trackio, which stores them from a thread of its own."""
        self._run.log(dict(values), step=step)

    def close(self, *, failed: bool) -> None:
        """Store what trackio still holds."""
        self._run.finish()
