"""Answers of the store to those who wait for keys. Pure: no I/O, one thread."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from horovod._rendezvous import messages
from horovod._rendezvous.framing import GIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._rendezvous.table import Found

# An answer with fewer values is encoded anew for each who asks, and so is one of more bytes.
_LEAST_SHARED_VALUES = 16
_MOST_SHARED_BYTES = 64 << 20
# The fastest: what ranks tell of themselves is much alike, and takes a sixth of the bytes.
_LEVEL = 1


class Answers:
    """Encodes what waits have found. Ranks that start together are all told the same, at once.

    So the last long answer is kept, compressed, and all connections send the same bytes: a thousand
    ranks would otherwise need a thousand copies of what a thousand ranks have published.
    """

    def __init__(self) -> None:
        self._found: tuple[list[str], list[bytes]] = ([], [])
        self._body = b""

    def encode(self, found: Found) -> list[bytes]:
        """Return the parts of a message.

        Raises:
            MessageError: there are too many keys for a message.
        """
        keys, values = list(found), list(found.values())
        if len(values) < _LEAST_SHARED_VALUES or sum(map(len, values)) > _MOST_SHARED_BYTES:
            return messages.encode({"keys": keys}, values)
        if (keys, values) != self._found:
            plain = b"".join(messages.encode({"keys": keys}, values))
            compressed = zlib.compress(plain, _LEVEL)
            self._body = b"".join(messages.encode({"compressed": True}, [compressed]))
            self._found = (keys, values)
        return [self._body]


def found_in(header: dict[str, Any], values: Sequence[bytes]) -> Found:
    """Return what a wait has found, of its answer.

    Raises:
        MessageError: the answer makes no sense.
    """
    if header.get("compressed") is True and len(values) == 1:
        header, values = messages.decode(memoryview(_decompressed(values[0])))
    keys = header.get("keys")
    if not isinstance(keys, list) or len(keys) != len(values):
        raise messages.MessageError("an answer does not have a value for each key")
    return dict(zip(messages.check_keys(keys), values, strict=True))


def _decompressed(value: bytes) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(value, GIB)
    except zlib.error as error:
        raise messages.MessageError(f"an answer cannot be decompressed: {error}") from error
    if not stream.eof:
        raise messages.MessageError("a compressed answer is cut short, or too long")
    return plain
