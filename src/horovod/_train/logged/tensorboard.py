"""Logged values as scalars of TensorBoard."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horovod._base import files
from horovod._train.logged.record_file import RecordFile
from horovod._train.logged.sink import library
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._settings.destinations import Destination
    from horovod._train.logged.record import Run


class TensorBoard:
    """A folder with the name of the run, which is one run of TensorBoard.

    The records are those of the package ``tensorboard``, or else of ``tensorboardX``; no framework
    is loaded for them. They are written here, because the writers of these packages do so on a
    thread of their own, which a full disk ends.

    Args:
        destination: its place is the folder of all runs.
        run: this job.

    Raises:
        UsageError: no such package is installed, or the folder cannot be written.
    """

    def __init__(self, destination: Destination, run: Run) -> None:
        self._events, self._summaries, self._record_of = _formats(destination)
        folder = Path(destination.place, run.name)
        # A job that changes may come back to the folder, from another process.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}.hvd"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordFile(files.create(folder / name), folder / name)
            begin = self._events.Event(wall_time=time.time(), file_version="brain.Event:2")
            self._append(begin)
        except OSError as error:
            raise UsageError(
                f"HOROVOD_LOG names {destination}, which cannot be written: {error.strerror}"
            ) from None

    def write(self, step: int, values: Mapping[str, float], at_s: float) -> None:
        """Append one event with all values, in float32, as TensorBoard has them."""
        value_of = self._summaries.Summary.Value
        scalars = [value_of(tag=name, simple_value=value) for name, value in values.items()]
        summary = self._summaries.Summary(value=scalars)
        self._append(self._events.Event(wall_time=at_s, step=step, summary=summary))

    def close(self, *, failed: bool) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Any) -> None:
        self._file.append(self._record_of(event.SerializeToString()))


def _formats(destination: Destination) -> tuple[Any, Any, Any]:
    """Return the modules of events and of summaries, and what makes a record of bytes."""
    try:
        writer = library("tensorboard.summary.writer.record_writer", destination, "tensorboard")
        package = "tensorboard.compat.proto"
    except UsageError as missing:
        try:
            writer = library("tensorboardX.record_writer", destination)
            package = "tensorboardX.proto"
        except UsageError:
            raise missing from None
    events = library(f"{package}.event_pb2", destination)
    return events, library(f"{package}.summary_pb2", destination), _record_maker(writer)


def _record_maker(writer: Any) -> Any:
    """Return a function from bytes to a record: their length, the bytes, and checksums of both."""

    def record_of(data: bytes) -> bytes:
        header = len(data).to_bytes(8, "little")
        parts = (header, _packed(writer, header), data, _packed(writer, data))
        return b"".join(parts)

    return record_of


def _packed(writer: Any, data: bytes) -> bytes:
    checksum: int = writer.masked_crc32c(data)
    return checksum.to_bytes(4, "little")
