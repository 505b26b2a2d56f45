"""Put shared memory of the engine under tensors that exist already.

A tensor and its views share a storage. ``storage._share_fd_cpu_()`` of PyTorch moves the storage
into a mapping of its own, which no allocator uses again. From then on the storage keeps its
address: other pages take the place of that mapping, first private ones, then those of an array of
the engine. So all views of the storage are in the array, also arrays of NumPy, which keep the
address and not the storage. PyTorch unmaps the pages when the last view has gone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

from horovod.errors import UnsupportedError

if TYPE_CHECKING:
    from typing import NoReturn

    import torch

    from horovod._native import NativeArray

_MAY_MOVE = 1  # sys/mman.h
_FIXED = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_FAILED = ctypes.c_void_p(-1).value


def shared_array_of(storage: torch.UntypedStorage) -> NativeArray | None:
    """Return the array that a storage is in; None if it is in memory of PyTorch."""
    # PyTorch keeps the Python object of a storage, with its attributes, as long as the storage.
    array: NativeArray | None = vars(storage).get("_horovod_array")
    return array


def fix_address(storage: torch.UntypedStorage) -> None:
    """Give a storage, with its values, an address that it keeps; do nothing if it has one.

    Whatever knows the address of before, such as an array of NumPy, must not be used afterwards.
    No other thread may use the storage meanwhile. Its tensors can be copied and saved as before,
    but not sent by ``torch.multiprocessing``, which would share the mapping that PyTorch has lost:
    that is an error then.

    Args:
        storage: on the CPU, in memory that PyTorch has allocated.

    Raises:
        OSError: there is no room for a copy of the storage in ``/dev/shm`` or in memory; the
            storage is as it was.
    """
    if has_fixed_address(storage):
        return
    num_bytes = storage.nbytes()
    pages = _map_private(num_bytes)
    try:
        descriptor, _ = storage._share_fd_cpu_()
    except RuntimeError as error:
        _libc.munmap(pages, _whole_pages(num_bytes))
        raise OSError(f"PyTorch cannot share {num_bytes} bytes: {error}") from error
    _move_mapping(storage, pages)
    os.ftruncate(descriptor, 0)  # PyTorch closes it with the storage; its pages are not used
    own = vars(storage)
    own["_share_fd_cpu_"] = own["_share_filename_cpu_"] = _refuse_to_share


def has_fixed_address(storage: torch.UntypedStorage) -> bool:
    """Whether a storage has been given an address that it keeps."""
    return "_share_fd_cpu_" in vars(storage)


def move_into(storage: torch.UntypedStorage, array: NativeArray) -> None:
    """Move a storage, with its values and all tensors in it, into an array of shared memory.

    No other thread may use the storage meanwhile. The storage keeps the array.

    Args:
        storage: with an address of :func:`fix_address`.
        array: as many bytes as the storage has; nobody else uses it.

    Raises:
        OSError: the array is not in shared memory; the storage is where it was.
    """
    assert has_fixed_address(storage)
    _move_mapping(storage, _map_again(array, _whole_pages(storage.nbytes())))
    vars(storage)["_horovod_array"] = array


def move_out(storage: torch.UntypedStorage) -> None:
    """Give a storage, with its values, private memory; do nothing if it is in no array.

    Raises:
        OSError: there is no memory.
    """
    if shared_array_of(storage) is None:
        return
    _move_mapping(storage, _map_private(storage.nbytes()))
    del vars(storage)["_horovod_array"]


def _map_again(array: NativeArray, size: int) -> int:
    """Map the pages of an array at a second address as well, and return it."""
    # A second mapping of the same pages: mremap(2), "if the value of old_size is zero". Before
    # Linux 4.14, other pages come of memory that is not shared.
    pages = _checked(_libc.mremap(array.address, 0, size, _MAY_MOVE, None))
    first, again = (ctypes.c_ubyte.from_address(place) for place in (array.address, pages))
    first.value ^= 0xFF
    is_same = first.value == again.value
    first.value ^= 0xFF
    if not is_same:
        _libc.munmap(pages, size)
        raise OSError("the array is not in shared memory")
    return pages


def _map_private(num_bytes: int) -> int:
    """Map private memory and return its address."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    access = mmap.PROT_READ | mmap.PROT_WRITE
    return _checked(_libc.mmap(None, _whole_pages(num_bytes), access, kind, -1, 0))


def _move_mapping(storage: torch.UntypedStorage, pages: int) -> None:
    """Copy a storage into a mapping, and move that to the address of the storage."""
    size = _whole_pages(storage.nbytes())
    ctypes.memmove(pages, storage.data_ptr(), storage.nbytes())
    _checked(_libc.mremap(pages, size, size, _MAY_MOVE | _FIXED, storage.data_ptr()))


def _checked(address: int | None) -> int:
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map memory: {os.strerror(number)}")
    return address


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _refuse_to_share(*arguments: object) -> NoReturn:
    del arguments
    raise UnsupportedError(
        "this tensor is in memory that the ranks of horovod.torch.distributed share, which "
        "torch.multiprocessing cannot send to another process: send tensor.clone()"
    )
