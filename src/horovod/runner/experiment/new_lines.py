"""Reads a file that others still write, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK_BYTES = 1 << 20


class NewLines:
    """The lines of a file that are new each time; each byte is read once.

    Args:
        path: of the file, which may come later, or be begun anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._begun: list[bytes] = []

    def read(self, *, is_last: bool = False) -> Iterator[str]:
        """Yield the lines written since the last time, without their ends.

        Args:
            is_last: also a line without an end.
        """
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._offset:
            self._offset, self._begun = 0, []
        if size > self._offset:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while data := file.read(_CHUNK_BYTES):
                    self._offset += len(data)
                    yield from self._whole(data)
        if is_last and any(self._begun):
            yield from self._whole(b"\n")

    def _whole(self, data: bytes) -> Iterator[str]:
        """The lines that end in some more data."""
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            text = b"".join([*self._begun, whole]).decode(errors="replace")
            self._begun = []
            yield from text.split("\n")
        self._begun.append(rest)
