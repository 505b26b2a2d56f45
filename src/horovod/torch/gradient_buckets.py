"""Gradients that live in shared memory: buckets that all ranks of a host see.

Autograd puts a gradient into memory of its own. As soon as it is there, and still in the cache, it
is copied into its place in a bucket, which then is ``p.grad``; the first memory goes back to the
allocator, which gives it to the next gradient. The ranks reduce a bucket where it lies, so nothing
else is copied, and one operation takes the place of many.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from horovod._native import Buffer, NativeArray
from horovod.torch.tensors import adopt, dtype_name
from horovod.train.gradient_buckets import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod.train.bucket_plan import PlannedBucket

# The table, the variable and the argument of getrefcount() hold a place that nobody else holds.
_OWN_REFERENCES = 3


class GradientBucket:
    """Gradients that are reduced as one array.

    Args:
        plan: what lies where.
        names: of the parameters, for messages.

    Attributes:
        params: whose gradients they are.
        name: what the ranks agree on; tells the parameters.
        buffer: the whole bucket; after :meth:`move`.
    """

    buffer: Buffer

    def __init__(
        self, plan: PlannedBucket[torch.Tensor], names: Mapping[torch.Tensor, str]
    ) -> None:
        self.params = plan.items
        self.name = name_of([names[param] for param in plan.items])
        self._plan = plan
        self._offsets = {
            param: plan.offset + offset
            for param, offset in zip(plan.items, plan.offsets, strict=True)
        }
        self._places: dict[torch.Tensor, torch.Tensor] = {}
        self._memory: NativeArray

    def move(self, memory: NativeArray) -> None:
        """Takes its place in the memory of all buckets; nothing may be in flight.

        Gradients that are in the earlier place stay there until they are reduced again.
        """
        plan = self._plan
        self._memory = memory
        self._places = {param: self._place(param) for param in plan.items}
        num_elements = plan.num_bytes // plan.items[0].element_size()
        whole = memory.part(plan.offset, plan.dtype, (num_elements,))
        self.buffer = Buffer(whole.address, whole.dtype, whole.shape)

    @property
    def memory(self) -> NativeArray:
        """What the buffer lies in; to be held while it is used."""
        return self._memory

    def place_of(self, param: torch.Tensor) -> torch.Tensor:
        """Where the gradient of a parameter is reduced."""
        return self._places[param]

    def take_in(self, param: torch.Tensor) -> None:
        """Moves a gradient that autograd made into the bucket; ``param.grad`` is the place then.

        Sparse gradients, and what has a graph of its own, stay as they are.
        """
        gradient = param.grad
        place = self._places[param]
        if gradient is None or gradient is place or gradient.layout is not torch.strided:
            return
        if gradient.requires_grad or gradient.dtype is not place.dtype:
            return
        if sys.getrefcount(place) > _OWN_REFERENCES:
            place = self._leave_to_holder(param)
        place.copy_(gradient)
        param.grad = place

    def _leave_to_holder(self, param: torch.Tensor) -> torch.Tensor:
        """Somebody has kept the gradient of an earlier step, and shall find its values in it."""
        kept = self._places[param]
        kept.data = kept.clone()
        self._places[param] = place = self._place(param)
        return place

    def _place(self, param: torch.Tensor) -> torch.Tensor:
        return adopt(self._memory.part(self._offsets[param], self._plan.dtype, param.shape))


def may_live_in_bucket(param: torch.Tensor) -> bool:
    """Whether this rank could reduce the gradient of a parameter in a bucket."""
    return (
        param.is_cpu
        and param.layout is torch.strided
        and param.is_floating_point()
        and param.is_contiguous()
        and param.numel() > 0
        and dtype_name(param.dtype) is not None
    )


def extent_of(param: torch.Tensor) -> tuple[str, int]:
    """The dtype and the bytes of the gradient of a parameter that may live in a bucket."""
    return dtype_name(param.dtype) or "", param.nbytes
