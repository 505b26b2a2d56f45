"""The outlets: a descriptor, a stream of Python, a file. Each may take its time, or fail."""

from __future__ import annotations

import io
import os
import select
from typing import TYPE_CHECKING, Protocol, TextIO

from horovod._base import files

if TYPE_CHECKING:
    from pathlib import Path


class Outlet(Protocol):
    """Takes bytes."""

    def write(self, data: bytes) -> None:
        """Writes all of it, however long that takes.

        Args:
            data: UTF-8 for a console, anything for a file.

        Raises:
            OSError: it cannot be written.
        """

    def close(self) -> None:
        """Takes nothing more. Idempotent; a console stays open for others."""


class DescriptorOutlet:
    """A console that is a descriptor, past the buffers of its stream.

    A thread that waits inside of a stream would hold its lock, and Python could not end. The
    descriptor is a copy: a thread that nobody waits for any more may still write to it, when its
    number would belong to another file.

    Args:
        stream: what it still buffers is written first.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        self._stream: io.TextIOWrapper | None = stream
        self._copy = io.FileIO(os.dup(stream.fileno()), "w")
        self._encoding = "" if _is_utf8(stream.encoding) else stream.encoding

    @property
    def identity(self) -> tuple[int, int]:
        """Return a key that is equal for two descriptors of one terminal, pipe or file."""
        status = os.fstat(self._copy.fileno())
        return status.st_dev, status.st_ino

    def write(self, data: bytes) -> None:
        """See :class:`Outlet`."""
        if self._stream is not None:
            self._stream.flush()
            self._stream = None
        if self._encoding and not data.isascii():
            data = data.decode().encode(self._encoding, "replace")
        _write_all(self._copy.fileno(), data)

    def close(self) -> None:
        """See :class:`Outlet`."""
        self._copy.close()


class TextOutlet:
    """A console that is an object of Python, such as that of a notebook."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        """See :class:`Outlet`."""
        text = data.decode()
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()

    def close(self) -> None:
        """See :class:`Outlet`."""


class NoOutlet:
    """In place of a console that was closed before the launcher began."""

    def write(self, data: bytes) -> None:
        """See :class:`Outlet`."""

    def close(self) -> None:
        """See :class:`Outlet`."""


class FileOutlet:
    """A new file.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.fdopen(files.create_anew(path), "wb", buffering=0)

    def write(self, data: bytes) -> None:
        """See :class:`Outlet`; the error names the file."""
        try:
            _write_all(self._file.fileno(), data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def close(self) -> None:
        """See :class:`Outlet`."""
        self._file.close()


def outlet_of(stream: TextIO | None) -> Outlet:
    """The outlet for a console."""
    if stream is None:
        return NoOutlet()
    # Its own class, not one that was derived to bring the text elsewhere.
    if type(stream) is io.TextIOWrapper:
        raw = getattr(stream.buffer, "raw", None)
        if isinstance(raw, io.FileIO):
            return DescriptorOutlet(stream)
    return TextOutlet(stream)


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(descriptor, left) :]
        except BlockingIOError:  # whoever shares the descriptor made it so
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8")
