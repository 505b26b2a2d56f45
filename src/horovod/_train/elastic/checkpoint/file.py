"""The file of a commit: what stands in it, and how to see that nothing is missing.

In this order: the line "horovod commit 1"; 8 bytes, little-endian, the length of the next part; an
object of JSON in UTF-8, with "values" by section and name, and the "sizes" of the buffers; the
buffers; 4 bytes, little-endian, CRC-32 of all before.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO

from horovod._train.elastic.checkpoint.data import NoDataError, unpack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_KIND = b"horovod commit "
_FIRST = _KIND + b"1\n"
_LENGTH_BYTES = 8
_SUM_BYTES = 4
# Nobody waits long for the other threads of this process.
_BLOCK = 4 << 20


class IncompleteError(Exception):
    """A file is not what was written: a part is missing, or has changed."""


class UnreadableError(Exception):
    """A complete file holds what this program cannot read."""


def write(
    stream: BinaryIO, values: Mapping[str, Mapping[str, Any]], buffers: Sequence[Any]
) -> None:
    """Writes a commit.

    Args:
        stream: of a new file.
        values: by section and name, each as ``Packed.pack`` returns it.
        buffers: those of the Packed.
    """
    views = [memoryview(buffer) for buffer in buffers]
    text = json.dumps({"values": values, "sizes": [view.nbytes for view in views]}).encode()
    total = 0
    before = (_FIRST, len(text).to_bytes(_LENGTH_BYTES, "little"), text)
    for view in (*(memoryview(part) for part in before), *views):
        for begin in range(0, len(view), _BLOCK):
            block = view[begin : begin + _BLOCK]
            total = zlib.crc32(block, total)
            stream.write(block)
    stream.write(total.to_bytes(_SUM_BYTES, "little"))


def read(stream: BinaryIO, size: int) -> dict[str, dict[str, Any]]:
    """Reads a commit; returns its values by section and name.

    Args:
        stream: at the beginning of the file.
        size: of the file in bytes.

    Raises:
        IncompleteError: a part is missing, or has changed.
        UnreadableError: the file is of another version, or holds what is no data.
    """
    reader = _begin(stream, size)
    text = reader.take(int.from_bytes(reader.take(_LENGTH_BYTES), "little"))
    try:
        header = json.loads(text)
        buffers = [reader.take(length) for length in header["sizes"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise IncompleteError(f"its description is damaged: {error}") from None
    reader.check_sum()
    try:
        return {
            section: {name: unpack(packed, buffers) for name, packed in values.items()}
            for section, values in header["values"].items()
        }
    except NoDataError as error:
        raise UnreadableError(f"it holds {error}") from None
    except Exception as error:  # whatever constructors say of wrong arguments
        raise UnreadableError(f"it holds no values: {type(error).__name__}: {error}") from error


def check(stream: BinaryIO, size: int) -> None:
    """Read a commit to see that nothing of it is missing or has changed; keeps nothing of it.

    Raises:
        IncompleteError, UnreadableError: see :func:`read`.
    """
    reader = _begin(stream, size)
    while reader.left > _SUM_BYTES:
        reader.take(min(_BLOCK, reader.left - _SUM_BYTES))
    reader.check_sum()


def _begin(stream: BinaryIO, size: int) -> _Reader:
    reader = _Reader(stream, size)
    first = bytes(reader.take(len(_FIRST)))
    if first != _FIRST:
        if first.startswith(_KIND):
            raise UnreadableError(f"it is of another version, {first.decode(errors='replace')!r}")
        raise IncompleteError("it does not begin as a commit does")
    return reader


class _Reader:
    """Reads parts of a known length.

    Attributes:
        left: bytes of the file that were not read yet.
        sum: CRC-32 of those that were.
    """

    def __init__(self, stream: BinaryIO, size: int) -> None:
        self._stream = stream
        self.left = size
        self.sum = 0

    def take(self, length: int) -> bytearray:
        # Before memory is reserved for it.
        if not 0 <= length <= self.left:
            raise IncompleteError(f"{length - self.left} bytes are missing")
        part = bytearray(length)
        begin = 0
        while begin < length:
            block = self._stream.read(min(_BLOCK, length - begin))
            if not block:
                raise IncompleteError(f"{length - begin} bytes are missing")
            part[begin : begin + len(block)] = block
            begin += len(block)
        self.left -= length
        self.sum = zlib.crc32(part, self.sum)
        return part

    def check_sum(self) -> None:
        """Read the end of the file."""
        found = self.sum
        if int.from_bytes(self.take(_SUM_BYTES), "little") != found or self.left:
            raise IncompleteError("its checksum is wrong")
