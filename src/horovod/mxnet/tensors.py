"""MXNet's arrays and the engine's buffers: the one place where memory changes hands."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import mxnet as mx

from horovod._native import Buffer
from horovod.errors import UsageError
from horovod.mxnet.waits import check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horovod._native import NativeArray

# As the engine counts them.
_NUMBERS = {
    "bool": 0,
    "uint8": 1,
    "int8": 2,
    "int32": 6,
    "int64": 8,
    "float16": 9,
    "float32": 11,
    "float64": 12,
}


def dtype_name(array: mx.nd.NDArray) -> str:
    """Return NumPy's name of the dtype of an array."""
    dtype: Any = array.dtype
    name: str = getattr(dtype, "__name__", None) or str(dtype)
    return name.rstrip("_")


def check_array(array: object) -> None:
    """Says what is wrong with what a caller gave.

    Raises:
        UsageError: it is no dense array of MXNet on the CPU, of a dtype that can be sent.
    """
    if not isinstance(array, mx.nd.NDArray):
        raise UsageError(
            f"a collective of MXNet takes an mx.nd.NDArray, not a {type(array).__name__}"
        )
    what = f"the array of shape {array.shape}"
    if array.stype != "default":
        raise UsageError(f"{what} is sparse ({array.stype}); use array.tostype('default')")
    if array.context.device_type == "gpu":
        raise UsageError(f"{what} is on {array.context}; use array.as_in_context(mx.cpu())")
    name = dtype_name(array)
    if name not in _NUMBERS:
        raise UsageError(f"{what} is of dtype {name}; supported are {', '.join(_NUMBERS)}")


def check_arrays(arrays: Sequence[object], written: bool) -> None:
    """Says what is wrong with the arrays of a group.

    Args:
        arrays: the group.
        written: whether the operation writes into them.

    Raises:
        UsageError: one cannot be sent, or two that are written into share memory.
    """
    for array in arrays:
        check_array(array)
    if written and len({_storage_of(array) for array in arrays}) < len(arrays):
        raise UsageError(
            "two arrays of the group share memory, and both would be written into; give each once, "
            "and no two views of one array"
        )


def _storage_of(array: Any) -> int:
    """Return what views of one array share: the first word of MXNet 1.9.1's NDArray."""
    first: int = ctypes.cast(array.handle, ctypes.POINTER(ctypes.c_size_t))[0]
    return first


def dtype_number(array: mx.nd.NDArray) -> int:
    """The engine's number of a dtype."""
    return _NUMBERS[dtype_name(array)]


def copy_of(array: mx.nd.NDArray) -> mx.nd.NDArray:
    """A copy, made by MXNet when the values are there, in a plain layout."""
    output = empty_like(array)
    with mx.autograd.pause():
        array.as_nd_ndarray().copyto(output.as_nd_ndarray())
    return output


def empty_like(array: mx.nd.NDArray, num_rows: int | None = None) -> mx.nd.NDArray:
    """An array of the same class, dtype and shape, or with another number of rows; any values."""
    shape = array.shape if num_rows is None else (num_rows, *array.shape[1:])
    output = mx.nd.empty(shape, dtype=array.dtype)
    return output.as_np_ndarray() if isinstance(array, mx.np.ndarray) else output


def address_of(array: mx.nd.NDArray) -> int:
    """Return the address of the values of an array, which is not being written."""
    address = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return address.value or 0


def make_plain(array: mx.nd.NDArray) -> None:
    """Waits for an array, and takes it out of the layout that oneDNN gives weights in a prediction.

    Raises:
        FailedOperationError: it depends on a collective that has failed.
    """
    check(array)
    array.wait_to_read()
    address_of(array)


def view(array: mx.nd.NDArray) -> Buffer:
    """Waits for an array and views its memory; the caller keeps the array alive.

    Raises:
        FailedOperationError: it depends on a collective that has failed.
    """
    check(array)
    array.wait_to_read()
    return Buffer(address_of(array), dtype_name(array), array.shape)


def adopt(result: NativeArray, like: mx.nd.NDArray) -> mx.nd.NDArray:
    """An array of the class of ``like`` with a copy of memory that the engine allocated."""
    array = mx.nd.empty(result.shape, dtype=result.dtype)
    array = array.as_np_ndarray() if isinstance(like, mx.np.ndarray) else array
    num_bytes = Buffer(result.address, result.dtype, result.shape).num_bytes
    if num_bytes:
        ctypes.memmove(address_of(array), result.address, num_bytes)
    return array
