"""Messages between the store and its clients: a JSON header, then raw values. No pickle.

A message is ``length of the header (4 bytes) | header | values``; the header's ``sizes`` tells
how the values are cut.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any, NoReturn

from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HEADER_BYTES = 4 * 1024 * 1024
MAX_KEY_CHARACTERS = 1024
MAX_TIMEOUT_S = 20 * 86400.0  # epoll counts milliseconds in 31 bits

_LENGTH = struct.Struct(">I")


class MessageError(StartError):
    """A message between the store and a client makes no sense."""


def encode(header: dict[str, Any], values: Sequence[bytes] = ()) -> list[bytes]:
    """Returns the parts of a message."""
    sizes = [len(value) for value in values]
    text = json.dumps({**header, "sizes": sizes}, allow_nan=False).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise MessageError(f"a header of {len(text)} bytes is above {MAX_HEADER_BYTES}")
    return [_LENGTH.pack(len(text)), text, *values]


def decode(body: memoryview) -> tuple[dict[str, Any], list[bytes]]:
    """Returns the header and the values of a message.

    Raises:
        MessageError: it is malformed.
    """
    if len(body) < _LENGTH.size:
        raise MessageError("the message has no header")
    length = int(_LENGTH.unpack_from(body)[0])
    end = _LENGTH.size + length
    if length > MAX_HEADER_BYTES or end > len(body):
        raise MessageError("the length of the header is wrong")
    header = _parse(bytes(body[_LENGTH.size : end]))
    return header, _cut(body[end:], header.get("sizes"))


def key_of(header: dict[str, Any], name: str = "key") -> str:
    """The key (or prefix) in a header.

    Raises:
        MessageError: it is not a text of reasonable length.
    """
    return check_key(header.get(name))


def check_key(key: object) -> str:
    """Returns ``key`` if the store accepts it.

    Raises:
        MessageError: it is not a text of reasonable length.
    """
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_CHARACTERS:
        raise MessageError(f"a key of the store is a text of 1 to {MAX_KEY_CHARACTERS} characters")
    return key


def check_keys(keys: list[Any]) -> list[str]:
    """Returns ``keys`` if the store accepts each of them; a thousand in a tenth of a millisecond.

    Raises:
        MessageError: one is not a text of reasonable length.
    """
    if not set(map(type, keys)) <= {str} or not all(keys):
        raise MessageError("a key of the store is not a text, or empty")
    check_key(max(keys, key=len, default="none"))
    return keys


def timeout_of(header: dict[str, Any]) -> float:
    """The ``timeout_s`` in a header: finite and not negative.

    Raises:
        MessageError: it is neither.
    """
    return check_timeout(header.get("timeout_s"))


def check_timeout(timeout_s: object) -> float:
    """Returns ``timeout_s`` if it is finite and not negative, at most ``MAX_TIMEOUT_S``.

    Raises:
        MessageError: it is not such a number.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise MessageError("timeout_s is not a number")
    if not 0 <= timeout_s < math.inf:
        raise MessageError(f"timeout_s={timeout_s} is not a finite number of seconds")
    return float(min(timeout_s, MAX_TIMEOUT_S))


def _parse(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise MessageError("the header is not JSON") from error
    if not isinstance(header, dict):
        raise MessageError("the header is not an object")
    return header


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _cut(rest: memoryview, sizes: object) -> list[bytes]:
    if not isinstance(sizes, list) or any(type(size) is not int or size < 0 for size in sizes):
        raise MessageError("the sizes of the values are malformed")
    if sum(sizes) != len(rest):
        raise MessageError("the sizes of the values do not add up")
    values = []
    for size in sizes:
        values.append(bytes(rest[:size]))
        rest = rest[size:]
    return values
