"""Collective calls on MXNet's arrays: operations of MXNet's engine, and those that are waited for.

MXNet runs an operation when its arrays are ready, so operations of one rank reach Horovod's engine
in any order; what has no name is named when it is called. With NaiveEngine all is waited for.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

import mxnet as mx

from horovod import _native
from horovod._rank import context
from horovod._rank.reduction import ReduceOp, Reduction
from horovod._train.call_site import call_site
from horovod._train.process_set import ProcessSet, group_of, number_of
from horovod.errors import HorovodInternalError, UnsupportedError, UsageError
from horovod.mxnet import native_ops
from horovod.mxnet.errors import FailedOperationError
from horovod.mxnet.tensors import (
    adopt,
    check_array,
    check_arrays,
    copy_of,
    dtype_name,
    dtype_number,
    empty_like,
    view,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._rank.group import Group

    Function = TypeVar("Function", bound=Callable[..., Any])

_unnamed: weakref.WeakKeyDictionary[Group, Counter[str]] = weakref.WeakKeyDictionary()
_unnamed_lock = threading.Lock()


def _failing_as_mxnet_does(function: Function) -> Function:
    """Turns what the engine raises, when an operation is submitted or awaited, into an MXNetError.

    Wrong arguments stay what they are.
    """

    @functools.wraps(function)
    def call_it(*args: Any) -> Any:
        try:
            return function(*args)
        except (UsageError, FailedOperationError):
            raise
        except HorovodInternalError as error:
            raise FailedOperationError(str(error)) from error

    return cast("Function", call_it)


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """The arguments common to all collectives.

    Attributes:
        group: the ranks that take part.
        process_set_id: the public number of their set.
        name: what the ranks agree on; None counts up.
        prefix: the operation's word in the name.
        call_site: ``file:line`` of the caller.
        priority: what has more goes first.
    """

    group: Group
    process_set_id: int
    name: str | None
    prefix: str
    call_site: str
    priority: int


def call_of(
    prefix: str, process_set: ProcessSet, name: str | None, priority: int
) -> CollectiveCall:
    """The call of a public function, whose caller is recorded.

    Raises:
        UsageError: ``process_set`` is none, is not registered, or is without this rank; the name
            cannot be sent.
    """
    group = group_of(process_set)
    _ = group.rank  # raises where this rank is no member
    name = name if isinstance(name, str) else None
    if name is not None:
        _native.check_name(name)
    return CollectiveCall(group, number_of(process_set), name, prefix, call_site(), priority)


def join(group: Group) -> int:
    """Waits until all ranks of the group have no more data; the global rank that came last."""
    site = call_site()
    if group.is_member:  # others are refused
        native_ops.drain()
    handle = group.join(call_site=site)
    handle.wait()
    with _unnamed_lock:  # ranks have called different numbers of operations
        _unnamed.pop(group, None)
    return handle.last_joined()


@_failing_as_mxnet_does
def allreduce_(call: CollectiveCall, arrays: Sequence[mx.nd.NDArray], reduction: Reduction) -> None:
    """Reduces arrays in place, as one operation."""
    check_arrays(arrays, written=True)
    if reduction.op is ReduceOp.ADASUM and not all("float" in dtype_name(a) for a in arrays):
        raise UnsupportedError("Adasum needs arrays of a floating type")
    if not native_ops.IS_NAIVE:
        return _push(_native.ALLREDUCE, call, arrays, reduction, 0)
    views = [view(array) for array in arrays]
    handle = call.group.allreduce(
        views, views, reduction._replace(priority=call.priority),
        name=call.name, prefix=call.prefix, waits_next=True, call_site=call.call_site,
        keep=list(arrays),
    )  # fmt: skip
    handle.wait()
    return None


def allreduce(
    call: CollectiveCall, arrays: Sequence[mx.nd.NDArray], reduction: Reduction
) -> list[mx.nd.NDArray]:
    """Reduces arrays as one operation; leaves them untouched."""
    check_arrays(arrays, written=False)
    outputs = [copy_of(array) for array in arrays]
    allreduce_(call, outputs, reduction)
    return outputs


@_failing_as_mxnet_does
def broadcast_(call: CollectiveCall, array: mx.nd.NDArray, root_rank: int) -> None:
    """Overwrites an array with that of the root."""
    check_array(array)
    if root_rank not in call.group.ranks:
        raise UsageError(
            f"root_rank={root_rank} does not belong to the process set of ranks "
            f"{list(call.group.ranks)}"
        )
    if not native_ops.IS_NAIVE:
        return _push(_native.BROADCAST, call, (array,), Reduction(), root_rank)
    views = (view(array),)
    handle = call.group.broadcast(
        views, views, root_rank, name=call.name, prefix=call.prefix, waits_next=True,
        call_site=call.call_site, keep=array, priority=call.priority,
    )  # fmt: skip
    handle.wait()
    return None


def broadcast(call: CollectiveCall, array: mx.nd.NDArray, root_rank: int) -> mx.nd.NDArray:
    """The root's array."""
    check_array(array)
    is_root = call.group.ranks[call.group.rank] == root_rank
    output = copy_of(array) if is_root else empty_like(array)
    broadcast_(call, output, root_rank)
    return output


@_failing_as_mxnet_does
def allgather(call: CollectiveCall, arrays: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
    """Joins arrays along dimension 0, as one operation; waits."""
    check_arrays(arrays, written=False)
    handle = call.group.allgather(
        [view(array) for array in arrays], name=call.name, prefix=call.prefix, waits_next=True,
        call_site=call.call_site, keep=list(arrays), priority=call.priority,
    )  # fmt: skip
    handle.wait()
    return [adopt(*pair) for pair in zip(handle.results(), arrays, strict=True)]


@_failing_as_mxnet_does
def alltoall(
    call: CollectiveCall, array: mx.nd.NDArray, splits: Sequence[int] | None
) -> tuple[mx.nd.NDArray, mx.nd.NDArray]:
    """Sends rows to each rank; waits. The rows received, and how many came from each rank."""
    check_array(array)
    handle = call.group.alltoall(
        (view(array),), splits, name=call.name, prefix=call.prefix, waits_next=True,
        call_site=call.call_site, keep=array, priority=call.priority,
    )  # fmt: skip
    handle.wait()
    (result,) = handle.results()
    return adopt(result, array), mx.nd.array(handle.received_splits(), dtype="int32")


@_failing_as_mxnet_does
def reducescatter(
    call: CollectiveCall, arrays: Sequence[mx.nd.NDArray], reduction: Reduction
) -> list[mx.nd.NDArray]:
    """Reduces arrays as one operation and keeps this rank's rows; waits."""
    check_arrays(arrays, written=False)
    outputs = [empty_like(array, call.group.rows_of(_rows_of(array))) for array in arrays]
    handle = call.group.reducescatter(
        [view(array) for array in arrays], [view(output) for output in outputs], op=reduction.op,
        prescale=reduction.prescale, postscale=reduction.postscale, name=call.name,
        prefix=call.prefix, waits_next=True, call_site=call.call_site,
        keep=[*arrays, *outputs], priority=call.priority,
    )  # fmt: skip
    handle.wait()
    return outputs


def _rows_of(array: mx.nd.NDArray) -> int:
    if not array.shape:
        raise UsageError("reducescatter needs at least one dimension, but the array is a scalar")
    rows: int = array.shape[0]
    return rows


def _push(
    kind: int,
    call: CollectiveCall,
    arrays: Sequence[mx.nd.NDArray],
    reduction: Reduction,
    root: int,
) -> None:
    """Hands arrays to MXNet's engine, which lets nobody touch them before the end."""
    native_ops.push(
        native_ops.Request(
            kind=kind,
            grouped=call.prefix.startswith("grouped_"),
            name=_name_of(call).encode(),
            job=context.current().number,
            process_set=call.process_set_id,
            call_site=call.call_site.encode("utf-8", "replace"),
            reduce_op=int(reduction.op),
            prescale=reduction.prescale,
            postscale=reduction.postscale,
            root=root,
            priority=call.priority,
            arrays=(ctypes.c_void_p * len(arrays))(*(array.handle.value for array in arrays)),
            dtypes=(ctypes.c_int32 * len(arrays))(*map(dtype_number, arrays)),
            num_arrays=len(arrays),
            quantization=0 if reduction.quantized is None else int(reduction.quantized.format),
        )
    )


def _name_of(call: CollectiveCall) -> str:
    """Return a call's name, or count it now: MXNet runs operations in another order."""
    if call.name is not None:
        return call.name
    with _unnamed_lock:
        counts = _unnamed.setdefault(call.group, Counter())
        counts[call.prefix] += 1
        return f"noname.{counts[call.prefix]}"
