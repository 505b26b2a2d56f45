"""Python objects between ranks: cloudpickle over the collectives.

Pickles execute code when they are read; they come only from ranks that proved to know the job's
secret.
"""

from __future__ import annotations

import ctypes
import io
import pickle
from array import array
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle

from horovod._native import Buffer, NativeArray, private_array
from horovod._rank.reduction import ReduceOp, Reduction
from horovod.errors import MismatchError

if TYPE_CHECKING:
    from horovod._rank.group import Group

T = TypeVar("T")

_NUMBER_BYTES = 8
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
    failure, message = _encode(obj) if is_root else (None, memoryview(b""))
    size = bytearray(_packed(len(message)))
    _broadcast_bytes(group, size, root, f"{name}.sz", call_site)
    if not is_root:
        message = bytes_of(private_array(_number_in(size)))
    _broadcast_bytes(group, message, root, f"{name}.t", call_site)
    if failure is not None:
        raise failure
    return obj if is_root else _decode(message, root, name)


def allgather_object(group: Group, obj: T, name: str | None = None, call_site: str = "") -> list[T]:
    """Returns the objects of all ranks in rank order, without those of ranks that have joined.

    Args:
        group: the ranks that take part; all of them must call, or have called ``join``.
        obj: anything that cloudpickle can write; may differ in type and size between ranks.
        name: what the ranks agree on; must not be in flight twice.
        call_site: ``file:line`` of the caller.

    Raises:
        HorovodInternalError: a rank could not pickle its object, or the job failed. The rank itself
            sees the error of the pickling.
    """
    return list(gather_by_rank(group, obj, name, call_site).values())


def gather_by_rank(
    group: Group, obj: T, name: str | None = None, call_site: str = ""
) -> dict[int, T]:
    """Return the objects by global rank, in rank order; ranks that have joined have none.

    Args and errors are those of :func:`allgather_object`.
    """
    name = "object" if name is None else name
    failure, message = _encode(obj)
    # With the rank, because those that have joined contribute nothing.
    header = bytearray(_packed(group.ranks[group.rank]) + _packed(len(message)))
    headers = _allgather_bytes(group, header, f"{name}.sz", call_site)
    messages = _allgather_bytes(group, message, f"{name}.t", call_site)
    if failure is not None:
        raise failure
    objects = {}
    start = 0
    for at in range(0, len(headers), 2 * _NUMBER_BYTES):
        rank, length = _number_in(headers[at:]), _number_in(headers[at + _NUMBER_BYTES :])
        objects[rank] = _decode(messages[start : start + length], rank, name)
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
    problems = gather_by_rank(group, problem, what, call_site)
    found = [f"rank {rank}: {text}" for rank, text in problems.items() if text]
    if found:
        raise MismatchError(f"{what}: {'; '.join(found)}")


def all_agree(group: Group, mine: bool, name: str) -> bool:
    """Return whether something is true on all ranks; collective.

    Args:
        group: the ranks that take part; all of them must call.
        mine: whether it is true on this one.
        name: what the ranks agree on.
    """
    answer = array("b", [mine])
    view = Buffer(answer.buffer_info()[0], "bool", (1,))
    group.allreduce(
        (view,), (view,), Reduction(ReduceOp.MIN), name=name, waits_next=True, keep=answer
    ).wait()
    return bool(answer[0])


def _encode(obj: Any) -> tuple[Exception | None, memoryview]:
    """Write a message for the other ranks: the object, or why it could not be pickled."""
    stream = io.BytesIO()
    stream.write(_IS_OBJECT)
    try:
        cloudpickle.dump(obj, stream)
    except Exception as error:
        # The others must hear of it: they are already waiting for this message.
        reason = f"{type(error).__name__}: {error}"
        return error, memoryview(bytearray(_IS_ERROR + reason.encode(errors="replace")))
    return None, stream.getbuffer()  # not a copy, which may have gigabytes


def _decode(message: memoryview, sender: int, name: str) -> Any:
    if message[:1] == _IS_ERROR:
        reason = bytes(message[1:]).decode(errors="replace")
        raise MismatchError(f"object {name!r}: rank {sender} could not pickle it: {reason}")
    return pickle.loads(message[1:])


def _packed(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "little")


def _number_in(data: bytearray | memoryview) -> int:
    return int.from_bytes(data[:_NUMBER_BYTES], "little")


def _broadcast_bytes(
    group: Group, data: bytearray | memoryview, root: int, name: str, call_site: str
) -> None:
    view = Buffer.from_array(data)
    group.broadcast(
        (view,), (view,), root, name=name, waits_next=True, call_site=call_site, keep=data
    ).wait()


def _allgather_bytes(
    group: Group, data: bytearray | memoryview, name: str, call_site: str
) -> memoryview:
    view = Buffer.from_array(data)
    handle = group.allgather((view,), name=name, waits_next=True, call_site=call_site, keep=data)
    handle.wait()
    return bytes_of(handle.results()[0])


def bytes_of(array: NativeArray) -> memoryview:
    """Return the bytes of a result without a copy; valid as long as the view is held.

    ``ctypes.string_at`` would do with less than 2 GiB only.
    """
    (num_bytes,) = array.shape
    if not num_bytes:
        return memoryview(b"")
    memory = (ctypes.c_char * num_bytes).from_address(array.address)
    memory._keep = array  # type: ignore[attr-defined]
    return memoryview(memory).cast("B")
