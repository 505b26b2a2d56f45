"""Python objects between ranks: cloudpickle over the collectives.

Pickles execute code when they are read; they come only from ranks that proved to know the job's
secret.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle

from horovod._native import Buffer, NativeArray
from horovod.errors import MismatchError

if TYPE_CHECKING:
    from horovod.group import Group

T = TypeVar("T")

_LENGTH_BYTES = 8
_IS_OBJECT = b"o"
_IS_ERROR = b"e"


def broadcast_object(
    group: Group, obj: T, root: int = 0, name: str | None = None, call_site: str = ""
) -> T:
    """Returns the root's object on every rank.

    Args:
        group: the ranks that take part; all of them must call.
        obj: anything that cloudpickle can write; read on the root only.
        root: a global rank of the group.
        name: what the ranks agree on; must not be in flight twice.
        call_site: ``file:line`` of the caller.

    Returns:
        On the root the very same object, elsewhere a copy.

    Raises:
        HorovodInternalError: the root could not pickle the object, or the job failed. The root
            itself sees the error of the pickling.
    """
    name = "object" if name is None else name
    is_root = group.ranks[group.rank] == root
    failure, message = _encode(obj) if is_root else (None, bytearray())
    size = bytearray(len(message).to_bytes(_LENGTH_BYTES, "little"))
    _broadcast_bytes(group, size, root, f"{name}.sz", call_site)
    if not is_root:
        message = bytearray(int.from_bytes(size, "little"))
    _broadcast_bytes(group, message, root, f"{name}.t", call_site)
    if failure is not None:
        raise failure
    return obj if is_root else _decode(bytes(message), f"rank {root}", name)


def allgather_object(group: Group, obj: T, name: str | None = None, call_site: str = "") -> list[T]:
    """Returns the objects of all ranks in rank order.

    Args:
        group: the ranks that take part; all of them must call.
        obj: anything that cloudpickle can write; may differ in type and size between ranks.
        name: what the ranks agree on; must not be in flight twice.
        call_site: ``file:line`` of the caller.

    Raises:
        HorovodInternalError: a rank could not pickle its object, or the job failed. The rank itself
            sees the error of the pickling.
    """
    name = "object" if name is None else name
    failure, message = _encode(obj)
    size = bytearray(len(message).to_bytes(_LENGTH_BYTES, "little"))
    sizes = _allgather_bytes(group, size, f"{name}.sz", call_site)
    messages = _allgather_bytes(group, message, f"{name}.t", call_site)
    if failure is not None:
        raise failure
    objects = []
    start = 0
    for index, rank in enumerate(group.ranks):
        length = int.from_bytes(sizes[index * _LENGTH_BYTES :][:_LENGTH_BYTES], "little")
        objects.append(_decode(messages[start : start + length], f"rank {rank}", name))
        start += length
    return objects


def agree(group: Group, problem: str, what: str, call_site: str = "") -> None:
    """Fails on all ranks if one of them has found a problem, so that none waits for it.

    Args:
        group: the ranks that take part; all of them must call.
        problem: what this rank has found; empty if all is well.
        what: who asks; also what the ranks agree on.
        call_site: ``file:line`` of the caller.

    Raises:
        MismatchError: at least one rank has a problem; the message lists them.
    """
    problems = allgather_object(group, problem, what, call_site)
    found = [
        f"rank {rank}: {text}" for rank, text in zip(group.ranks, problems, strict=True) if text
    ]
    if found:
        raise MismatchError(f"{what}: {'; '.join(found)}")


def _encode(obj: Any) -> tuple[Exception | None, bytearray]:
    """A message for the other ranks: the object, or why it could not be pickled."""
    try:
        return None, bytearray(_IS_OBJECT + cloudpickle.dumps(obj))
    except Exception as error:
        # The others must hear of it: they are already waiting for this message.
        return error, bytearray(_IS_ERROR + f"{type(error).__name__}: {error}".encode())


def _decode(message: bytes, sender: str, name: str) -> Any:
    if message[:1] == _IS_ERROR:
        reason = message[1:].decode(errors="replace")
        raise MismatchError(f"object {name!r}: {sender} could not pickle it: {reason}")
    return pickle.loads(memoryview(message)[1:])


def _broadcast_bytes(group: Group, data: bytearray, root: int, name: str, call_site: str) -> None:
    view = Buffer.from_array(data)
    group.broadcast(
        (view,), (view,), root, name=name, waits_next=True, call_site=call_site, keep=data
    ).wait()


def _allgather_bytes(group: Group, data: bytearray, name: str, call_site: str) -> bytes:
    view = Buffer.from_array(data)
    handle = group.allgather((view,), name=name, waits_next=True, call_site=call_site, keep=data)
    handle.wait()
    return _bytes_of(handle.results()[0])


def _bytes_of(array: NativeArray) -> bytes:
    (num_bytes,) = array.shape
    return ctypes.string_at(array.address, num_bytes) if num_bytes else b""
