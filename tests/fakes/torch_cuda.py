"""CUDA tensors without CUDA: for tests of what ``horovod.torch`` does with tensors on GPUs.

A :class:`CudaTensor` says of itself that it is on ``cuda:<index>``; its elements lie in memory of
the host, which the fake driver (``tests/fakes/gpu``) takes for that of the device. Before PyTorch
reads or writes one of them, the current stream of the fake driver must have come to its end: so an
operation that was not ordered before it shows, in wrong values. What a real PyTorch refuses, namely
tensors on the host among those on a device, is refused here, too.

``torch.cuda`` is patched while :func:`installed` is open, in all threads; tensors are made on a
device by threads that are inside of a :class:`CudaMode`.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from fake_gpu import FakeCuda
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

if TYPE_CHECKING:
    from collections.abc import Iterator

_thread = threading.local()
_graveyards: list[list[torch.Tensor]] = []  # of all threads
_driver: FakeDriver


class FakeDriver(FakeCuda):
    """What PyTorch would ask of the driver, asked of the fake one."""

    def __init__(self) -> None:
        super().__init__()
        self._check(self.functions.cuInit(0), "cuInit")
        count = ctypes.c_int()
        self._check(self.functions.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
        self.num_devices = count.value
        self._contexts: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.Lock()

    def make_stream(self, index: int) -> int:
        """A stream of a device; its handle."""
        stream = ctypes.c_void_p()
        with self.current(index):
            self._check(self.functions.cuStreamCreate(ctypes.byref(stream), 1), "cuStreamCreate")
        return stream.value or 0

    def synchronize(self, index: int, stream: int) -> None:
        """Waits until a stream has nothing left to do."""
        with self.current(index):
            handle = ctypes.c_void_p(stream)
            self._check(self.functions.cuStreamSynchronize(handle), "cuStreamSynchronize")

    def fill_later(self, tensor: CudaTensor, value: int) -> None:
        """Fills the bytes of a tensor when its current stream comes there."""
        index = tensor.device.index
        with self.current(index):
            address = ctypes.c_uint64(tensor.data_ptr())
            stream = ctypes.c_void_p(current_stream(index).cuda_stream)
            size = ctypes.c_size_t(tensor.nbytes)
            result = self.functions.cuMemsetD8Async(address, ctypes.c_ubyte(value), size, stream)
            self._check(result, "cuMemsetD8Async")

    @contextmanager
    def current(self, index: int) -> Iterator[None]:
        """A device's primary context on this thread, as PyTorch has it."""
        self._check(self.functions.cuCtxPushCurrent_v2(self._context(index)), "cuCtxPushCurrent")
        try:
            yield
        finally:
            popped = ctypes.c_void_p()
            self.functions.cuCtxPopCurrent_v2(ctypes.byref(popped))

    def _context(self, index: int) -> ctypes.c_void_p:
        with self._lock:
            if index not in self._contexts:
                context = ctypes.c_void_p()
                result = self.functions.cuDevicePrimaryCtxRetain(ctypes.byref(context), index)
                self._check(result, "cuDevicePrimaryCtxRetain")
                self._contexts[index] = context
            return self._contexts[index]

    @staticmethod
    def _check(result: int, call: str) -> None:
        if result:
            # As PyTorch does, whose own calls fail too when a device has failed.
            raise RuntimeError(f"CUDA error: {call} returned {result}")


class Stream:
    """As ``torch.cuda.Stream``.

    Args:
        device: index of a device; the current one if None.
    """

    def __init__(self, device: Any = None, cuda_stream: int | None = None) -> None:
        self.device_index = _index(device)
        self.cuda_stream = (
            _driver.make_stream(self.device_index) if cuda_stream is None else cuda_stream
        )

    def synchronize(self) -> None:
        """Waits for all that is in the stream."""
        _driver.synchronize(self.device_index, self.cuda_stream)


def current_stream(device: Any = None) -> Stream:
    """The stream of this thread; the default one at first."""
    index = _index(device)
    streams: dict[int, Stream] = _thread.__dict__.setdefault("streams", {})
    return streams.setdefault(index, Stream(index, 0))


@contextmanager
def _stream_context(stream: Stream) -> Iterator[None]:
    before = current_stream(stream.device_index)
    _thread.streams[stream.device_index] = stream
    try:
        yield
    finally:
        _thread.streams[stream.device_index] = before


def _current_device() -> int:
    return int(getattr(_thread, "device", 0))


def _set_device(device: Any) -> None:
    _thread.device = _index(device)


def _index(device: Any) -> int:
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        device = device.index
    return _current_device() if device is None else int(device)


def _synchronize(device: Any = None) -> None:
    index = _index(device)
    _driver.synchronize(index, current_stream(index).cuda_stream)


class CudaTensor(torch.Tensor):
    """A tensor of a GPU, as Python sees it. PyTorch's own code takes it for one of the host."""

    _inner: torch.Tensor
    _index: int

    @staticmethod
    def __new__(cls, inner: torch.Tensor, index: int) -> CudaTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride() if inner.layout is torch.strided else None,
            storage_offset=inner.storage_offset() if inner.layout is torch.strided else None,
            dtype=inner.dtype,
            layout=inner.layout,
            device="cpu",
        )
        made._inner, made._index = inner, index
        # A stream may still write into memory that nobody refers to any more.
        weakref.finalize(made, _graveyard().append, inner).atexit = False
        return made

    def __init__(self, inner: torch.Tensor, index: int) -> None:
        pass

    device = property(lambda self: torch.device("cuda", self._index))
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def get_device(self) -> int:
        return self._index

    def data_ptr(self) -> int:
        return self._inner.data_ptr()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: Any) -> str:
        return f"CudaTensor({self._inner}, {self._index})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _MOVES:
            return _moved(func, args, kwargs or {})
        return super().__torch_function__(func, types, args, kwargs)

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [
            leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)
        ]
        index = _common_device(func, tensors)
        _synchronize(index)
        _graveyard().clear()
        result = func(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
        wrapped = tree_map(lambda leaf: _wrapped(leaf, index), result)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


_MOVES = (torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.cuda, torch.Tensor.pin_memory)
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::index_put_")


def _graveyard() -> list[torch.Tensor]:
    """Memory of this thread that its stream may still use, even after the thread has ended."""
    if not hasattr(_thread, "graves"):
        _thread.graves = []
        _graveyards.append(_thread.graves)
    graves: list[torch.Tensor] = _thread.graves
    return graves


def _unwrapped(leaf: Any) -> Any:
    return leaf._inner if isinstance(leaf, CudaTensor) else leaf


def _wrapped(leaf: Any, index: int) -> Any:
    plain = isinstance(leaf, torch.Tensor) and not isinstance(leaf, CudaTensor)
    return CudaTensor(leaf, index) if plain else leaf


def _common_device(func: Any, tensors: list[torch.Tensor]) -> int:
    indices = {tensor._index for tensor in tensors if isinstance(tensor, CudaTensor)}
    on_host = [t for t in tensors if not isinstance(t, CudaTensor) and t.dim() > 0]
    if func._schema.name not in _COPIES and (len(indices) > 1 or on_host):
        places = sorted({str(tensor.device) for tensor in tensors})
        raise RuntimeError(
            f"{func}: Expected all tensors to be on the same device, but found {', '.join(places)}"
        )
    return min(indices)


class _Move(torch.autograd.Function):
    """A copy on another device; None is the host."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, index: int | None) -> torch.Tensor:
        ctx.source = tensor._index if isinstance(tensor, CudaTensor) else None
        if isinstance(tensor, CudaTensor):
            _synchronize(tensor._index)
        inner = _unwrapped(tensor.detach()).clone()
        return inner if index is None else CudaTensor(inner, index)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _Move.apply(gradient, ctx.source), None


def _moved(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What ``to``, ``cpu``, ``cuda`` and ``pin_memory`` return."""
    tensor, rest = args[0], args[1:]
    if func is torch.Tensor.pin_memory:
        assert not isinstance(tensor, CudaTensor), "memory of a GPU cannot be pinned"
        return tensor
    target, dtype = _target(func, tensor, rest, kwargs)
    here = tensor._index if isinstance(tensor, CudaTensor) else None
    if dtype is not None and dtype is not tensor.dtype:
        tensor = tensor.type(dtype)
    elif target == here and kwargs.get("copy"):
        tensor = tensor.clone()
    return tensor if target == here else _Move.apply(tensor, target)


def _target(func: Any, tensor: Any, rest: Any, kwargs: Any) -> tuple[int | None, Any]:
    """The device that a tensor shall be on afterward, None for the host, and its dtype."""
    here = tensor._index if isinstance(tensor, CudaTensor) else None
    if func is torch.Tensor.cpu:
        return None, None
    if func is torch.Tensor.cuda:
        return _index(rest[0] if rest else kwargs.get("device")), None
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    for value in rest:
        if isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, str | torch.device | int) and not isinstance(value, bool):
            device = value
        elif isinstance(value, torch.Tensor):
            device, dtype = value.device, value.dtype
    if device is None:
        return here, dtype
    return (_index(device) if _is_cuda(device) else None), dtype


def _is_cuda(device: Any) -> bool:
    return isinstance(device, int) or torch.device(device).type == "cuda"


class CudaMode(TorchFunctionMode):
    """Lets functions of this thread make tensors, as in ``torch.empty(..., device="cuda")``."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _MOVES:
            return _moved(func, args, kwargs)
        device = kwargs.get("device")
        if device is None or not _is_cuda(device):
            return func(*args, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        kwargs["device"] = "cpu"
        made = func(*tree_map(_unwrapped, args), **kwargs)
        return CudaTensor(made, _index(device)).requires_grad_(requires_grad)


def _run_backward(*args: Any, **kwargs: Any) -> Any:
    """The mode does not reach into a backward pass by itself."""
    with CudaMode():
        return _engine_run_backward(*args, **kwargs)


_engine_run_backward = torch.autograd._engine_run_backward


@contextmanager
def installed() -> Iterator[FakeDriver]:
    """Patches ``torch.cuda`` to be about the devices of the fake driver."""
    global _driver
    _driver = FakeDriver()
    patches = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: _driver.num_devices,
        "current_device": _current_device,
        "set_device": _set_device,
        "current_stream": current_stream,
        "is_current_stream_capturing": lambda: False,
        "synchronize": _synchronize,
        "Stream": Stream,
        "stream": _stream_context,
    }
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    # Otherwise module.to("cuda") would change what parameters are made of, not the parameters.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with (
            mock.patch.multiple(torch.cuda, **patches),
            mock.patch.object(torch.autograd, "_engine_run_backward", _run_backward),
        ):
            yield _driver
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
