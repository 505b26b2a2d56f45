"""A file of records, of which each is in it as a whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class RecordFile:
    """Appends records to a file that only this process writes.

    Args:
        descriptor: of the file, open for appending.
        path: for messages.
    """

    def __init__(self, descriptor: int, path: Path) -> None:
        self._descriptor = descriptor
        self._path = path
        self._size = os.fstat(descriptor).st_size

    def append(self, record: bytes) -> None:
        """Write a record; it is with the operating system when this returns.

        Raises:
            OSError: it cannot be written; the file is as it was before.
        """
        try:
            written = 0
            while written < len(record):
                written += os.write(self._descriptor, record[written:])
        except OSError as error:
            os.ftruncate(self._descriptor, self._size)
            os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._size += len(record)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
