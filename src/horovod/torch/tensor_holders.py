"""Find out whether anything else refers to a tensor or to its memory."""

from __future__ import annotations

import sys
from enum import IntEnum
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# References to the tensor from Python and from C++, and the same of its storage.
_Counts = tuple[int, int, int, int]


def is_own_gradient(param: torch.Tensor) -> bool:
    """Return whether ``param.grad`` has its own memory, to which only the parameter refers.

    Args:
        param: has a dense gradient, which no variable of the caller holds.
    """
    gradient = param.grad
    assert gradient is not None
    if gradient.untyped_storage().nbytes() != gradient.nbytes:
        return False
    del gradient
    return _of_gradient(param) == _of_free_gradient()


def sharing_memory(params: Iterable[torch.Tensor]) -> set[torch.Tensor]:
    """Return the parameters whose gradients may share memory with the gradient of another one.

    Args:
        params: with or without gradients.
    """
    spans = []
    for param in params:
        gradient = param.grad
        if gradient is not None and gradient.layout is torch.strided and gradient.numel():
            begin = gradient.data_ptr()
            spans.append((begin, begin + _extent(gradient), param))
    sharing: set[torch.Tensor] = set()
    until, longest = 0, None
    for begin, end, param in sorted(spans, key=itemgetter(0)):
        if longest is not None and begin < until:
            sharing |= {longest, param}
        if end > until:
            until, longest = end, param
    return sharing


def _extent(tensor: torch.Tensor) -> int:
    """Return how many bytes there are from the first element of a dense tensor to its last one."""
    if tensor.is_contiguous():
        return tensor.nbytes
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()


class Holders(IntEnum):
    """Who refers to a tensor, other than its owner."""

    NOBODY = 0
    OF_TENSOR = 1
    """Variables of Python hold the tensor itself."""
    OF_MEMORY = 2
    """Somebody holds its memory: a view, an array of another library, the storage."""


def holders_of(places: Mapping[torch.Tensor, torch.Tensor], param: torch.Tensor) -> Holders:
    """Return who refers to a parameter's place, other than the dictionary and ``param.grad``.

    Args:
        places: tensors on the CPU, by parameter; no variable of the caller holds the one of
            ``param``.
        param: may have its place as its gradient.
    """
    found = _of_place(places, param)
    free = _of_free_place(param.grad is places[param])
    if found[1:] != free[1:]:
        return Holders.OF_MEMORY
    return Holders.NOBODY if found == free else Holders.OF_TENSOR


def _counts(tensor: torch.Tensor) -> _Counts:
    storage = tensor.untyped_storage()
    return (
        sys.getrefcount(tensor),
        _use_count(tensor),
        sys.getrefcount(storage),
        _storage_use_count(storage._cdata),
    )


# What a free tensor counts depends on the versions of Python and PyTorch, so it is measured, in
# the functions that are used for the others, as their own variables count, too.


def _of_gradient(param: torch.Tensor) -> _Counts:
    return _counts(param.grad)  # type: ignore[arg-type]


def _of_place(places: Mapping[torch.Tensor, torch.Tensor], param: torch.Tensor) -> _Counts:
    return _counts(places[param])


@cache
def _of_free_gradient() -> _Counts:
    param = torch.zeros(1, device="cpu")
    param.grad = torch.zeros(1, device="cpu")
    return _of_gradient(param)


@cache
def _of_free_place(is_gradient: bool) -> _Counts:
    param = torch.zeros(1, device="cpu")
    places = {param: torch.zeros(1, device="cpu")}
    if is_gradient:
        param.grad = places[param]
    return _of_place(places, param)


def _unknown(_: object) -> int:
    raise NotImplementedError


_use_count: Callable[[torch.Tensor], int] = getattr(torch.Tensor, "_use_count", _unknown)
_storage_use_count: Callable[[int], int] = getattr(torch._C, "_storage_Use_Count", _unknown)
CAN_TELL = _unknown not in (_use_count, _storage_use_count)
"""Whether this version of PyTorch counts references; false in those before 2.1."""
