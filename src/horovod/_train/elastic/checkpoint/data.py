"""Values as data: a text of JSON and some memory, from which reading makes no other objects.

Unlike a pickle, which can run any code when it is read, it names no functions and classes but those
of this module and of the adapters.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")

_PLAIN = (type(None), bool, int, float, str)
_FACTORIES = {"None": None, "int": int, "float": float, "list": list, "dict": dict, "set": set}
_DEEPEST = 200


class Lent(list[T]):
    """A list of memory that its owner uses again when nobody holds the list any more."""


class NoDataError(TypeError):
    """A value is of a class that files do not hold."""


@dataclass
class Packed:
    """Values, ready to be written.

    Attributes:
        buffers: memory that belongs to them; each in one dimension, of single bytes.
    """

    buffers: list[Any] = field(default_factory=list)

    def pack(self, value: Any, depth: int = 0) -> Any:
        """Return the part of a value that JSON can write; the rest goes into the buffers.

        Raises:
            NoDataError: the value, or one in it, is no data.
        """
        kind = type(value)
        if kind in _PLAIN:
            return value
        if depth > _DEEPEST:
            raise NoDataError(f"a value that is nested more than {_DEEPEST} times")

        def pack_all(values: Any) -> list[Any]:
            return [self.pack(each, depth + 1) for each in values]

        if kind in (list, Lent):
            return pack_all(value)
        if kind in (tuple, set, frozenset):
            return {kind.__name__: pack_all(value)}
        if kind in (dict, OrderedDict, Counter):
            return {kind.__name__: [pack_all(item) for item in value.items()]}
        if kind is defaultdict:
            factory = getattr(value.default_factory, "__name__", "None")
            if _FACTORIES.get(factory, _DEEPEST) is value.default_factory:
                return {"defaultdict": [factory, *map(pack_all, value.items())]}
        if kind is deque:
            return {"deque": [value.maxlen, pack_all(value)]}
        if kind in (bytes, bytearray):
            return {kind.__name__: base64.b64encode(value).decode()}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        if kind is range:
            return {"range": [value.start, value.stop, value.step]}
        return self._pack_array(value)

    def _pack_array(self, value: Any) -> dict[str, Any]:
        for name, codec in _codecs.items():
            if codec.fits(value):
                description, buffer = codec.pack(value)
                self.buffers.append(buffer)
                return {name: [len(self.buffers) - 1, description]}
        raise NoDataError(
            f"a {type(value).__module__}.{type(value).__qualname__}, which is no data"
        )


def unpack(packed: Any, buffers: list[bytearray]) -> Any:
    """The value of what :meth:`Packed.pack` returned.

    Args:
        packed: as read from JSON.
        buffers: which the values keep.

    Raises:
        NoDataError: there is something in it that nobody has packed here.
    """
    if type(packed) in _PLAIN:
        return packed
    if isinstance(packed, list):
        return [unpack(each, buffers) for each in packed]
    if not isinstance(packed, dict) or len(packed) != 1:
        raise NoDataError("something that was not written by Horovod")
    ((kind, content),) = packed.items()
    if kind in _codecs:
        index, description = content
        return _codecs[kind].unpack(description, buffers[index])
    if kind not in _READERS:
        raise NoDataError(f"a {kind}, which this program does not know")
    return _READERS[kind](content, lambda part: unpack(part, buffers))


def _read_defaultdict(content: Any, read: Callable[[Any], Any]) -> Any:
    return defaultdict(_FACTORIES[content[0]], read(content[1:]))


_READERS: Mapping[str, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "tuple": lambda content, read: tuple(read(content)),
    "set": lambda content, read: set(read(content)),
    "frozenset": lambda content, read: frozenset(read(content)),
    "dict": lambda content, read: dict(read(content)),
    "OrderedDict": lambda content, read: OrderedDict(read(content)),
    "Counter": lambda content, read: Counter(dict(read(content))),
    "defaultdict": _read_defaultdict,
    "deque": lambda content, read: deque(read(content[1]), content[0]),
    "bytes": lambda content, read: base64.b64decode(content),
    "bytearray": lambda content, read: bytearray(base64.b64decode(content)),
    "complex": lambda content, read: complex(*content),
    "range": lambda content, read: range(*content),
}


@dataclass(frozen=True)
class Codec:
    """Conversion between arrays of one library and data.

    Attributes:
        fits: whether a value is one of them.
        pack: its description, which :meth:`Packed.pack` leaves as it is, and its bytes.
        unpack: the array of a description, which has the bytes for itself.
    """

    fits: Callable[[Any], bool]
    pack: Callable[[Any], tuple[Any, Any]]
    unpack: Callable[[Any, bytearray], Any]


def register(name: str, codec: Codec) -> None:
    """Lets files hold the arrays of a library; for adapters.

    Args:
        name: of the library, as it stands in the files.
        codec: see :class:`Codec`.
    """
    _codecs[name] = codec


def check_size(shape: Any, itemsize: int, buffer: bytearray) -> None:
    """Refuse an array that has not the bytes it says, before memory is reserved for it.

    Raises:
        NoDataError: the shape is none, or does not fit the buffer.
    """
    if not isinstance(shape, list) or any(type(each) is not int or each < 0 for each in shape):
        raise NoDataError(f"an array of the shape {shape!r:.200}, which is none")
    if math.prod(shape) * itemsize != len(buffer):
        raise NoDataError(
            f"an array of the shape {shape!r:.200} with elements of {itemsize} bytes, but "
            f"{len(buffer)} bytes of it"
        )


def _is_numpy(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return False
    return value.dtype.type is not numpy.void and not value.dtype.hasobject


def _pack_numpy(value: Any) -> tuple[Any, Any]:
    import numpy as np

    array = np.ascontiguousarray(value)
    # Types of other libraries, as bfloat16, have a name that NumPy knows once they are loaded.
    dtype = value.dtype.name if value.dtype.kind == "V" else value.dtype.str
    is_scalar = not isinstance(value, np.ndarray)
    return [dtype, list(value.shape), is_scalar], array.reshape(-1).view(np.uint8).data


def _unpack_numpy(description: Any, buffer: bytearray) -> Any:
    import numpy as np

    name, shape, is_scalar = description
    dtype = np.dtype(str(name))
    check_size(shape, dtype.itemsize, buffer)
    array = np.frombuffer(buffer, dtype).reshape(shape)
    return array[()] if is_scalar else array


_codecs = {"numpy": Codec(_is_numpy, _pack_numpy, _unpack_numpy)}
