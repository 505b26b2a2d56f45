"""The destinations of logged values: what they share, and what they do when they fail."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.destinations import Destination

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """A place that records values by step. Used by one thread at a time."""

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Record values of a step.

        Args:
            step: from 0.
            values: by name.
            at_s: when they were logged, in seconds since 1970.
        """

    def close(self, *, failed: bool) -> None:
        """End the record.

        Args:
            failed: whether the program ends because of an exception.
        """


def library(name: str, destination: Destination, package: str = "") -> Any:
    """Import the library of a destination.

    Args:
        name: of the module.
        destination: for the message.
        package: the name of its distribution; empty for that of the module.

    Raises:
        UsageError: it is not installed, or cannot be imported.
    """
    package = package or name
    if find_spec(name.partition(".")[0]) is None:
        raise UsageError(
            f"HOROVOD_LOG names {destination}, but {package} is not installed in the environment "
            f"of rank 0: pip install {package}, or remove it from HOROVOD_LOG (--log)"
        )
    try:
        return import_module(name)
    except Exception as error:
        raise UsageError(
            f"HOROVOD_LOG names {destination}, but {name} cannot be imported: "
            f"{type(error).__name__}: {error}"
        ) from error


class Guarded:
    """A sink whose failures are told in one line each, and do not end the training.

    A failure that goes on is told once; the end tells how many steps are missing.

    Args:
        sink: what may fail.
        destination: its name in messages.
    """

    def __init__(self, sink: Sink, destination: Destination) -> None:
        self._sink = sink
        self._name = str(destination)
        self._num_lost = 0
        self._fails = False

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Record values of a step, or tell why not."""
        try:
            self._sink.write(step, values, at_s)
        except Exception as error:
            self._num_lost += 1
            if not self._fails:
                _logger.error(
                    "hvd.log cannot write step %d to %s: %s; training goes on, and so do the other "
                    "destinations",
                    *(step, self._name, describe(error)),
                )
            self._fails = True
        else:
            if self._fails:
                _logger.warning("hvd.log writes to %s again, from step %d on", self._name, step)
            self._fails = False

    def close(self, *, failed: bool) -> None:
        """End the record; tell what is missing in it."""
        try:
            self._sink.close(failed=failed)
        except Exception as error:
            _logger.error("hvd.log cannot finish %s: %s", self._name, describe(error))
        if self._num_lost:
            _logger.error("%d records of hvd.log are missing in %s", self._num_lost, self._name)


def describe(error: Exception) -> str:
    """Return what an exception says, in one line."""
    if isinstance(error, OSError) and error.strerror:
        file = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror}{file}"
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
