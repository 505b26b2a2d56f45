"""Gradients that live in shared memory: buckets that all ranks of a host see.

Autograd puts a gradient into memory of its own. As soon as it is there, and still in the cache, it
is copied into its place in a bucket, which then is ``p.grad``; the first memory goes back to the
allocator, which gives it to the next gradient. The ranks reduce a bucket where it lies, so nothing
else is copied, and one operation takes the place of many.

A gradient that is part of a larger array, or that anybody else refers to, stays ``p.grad``: its
values are copied into the bucket and back. A place is not used again while anybody refers to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from horovod._native import Buffer, NativeArray, private_array
from horovod._train.gradient_buckets import name_of
from horovod.torch.tensor_holders import CAN_TELL, Holders, holders_of, is_own_gradient
from horovod.torch.tensors import adopt, dtype_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horovod._train.bucket_plan import PlannedBucket

_Places = dict[torch.Tensor, torch.Tensor]


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
        self._offsets = dict(zip(plan.items, plan.offsets, strict=True))
        self._places: _Places = {}
        self._memory: NativeArray
        self._begin: int
        self._left: tuple[NativeArray, _Places] | None = None

    def move(self, memory: NativeArray) -> None:
        """Takes its place in the memory of all buckets; nothing may be in flight.

        Gradients that are in the earlier place stay there until they are reduced again.
        """
        self._left = None
        self._settle(memory, self._plan.offset)

    def come_back(self) -> None:
        """Returns to the memory of all buckets once nobody else refers to what it holds.

        To be called when nothing is in flight.
        """
        if self._left is None:
            return
        memory, places = self._left
        if not any(holders_of(places, param) for param in self.params):
            self._left = None
            self._settle(memory, self._plan.offset, places)

    def make_room(self) -> None:
        """Makes sure that nobody else refers to a place that is not ``p.grad``; before a launch."""
        for param in self.params:
            self._free(param)

    @property
    def memory(self) -> NativeArray:
        """The memory that holds the buffer; keep it while the buffer is used."""
        return self._memory

    def place_of(self, param: torch.Tensor) -> torch.Tensor:
        """Return the tensor in which the gradient of a parameter is reduced."""
        return self._places[param]

    def take_in(self, param: torch.Tensor) -> None:
        """Moves a gradient that autograd made into the bucket; ``param.grad`` is the place then.

        Sparse gradients stay as they are, and so does what has a graph of its own, is part of a
        larger array or belongs to somebody else, too.
        """
        if not self._is_movable(param):
            return
        self._free(param)
        place = self._places[param]
        place.copy_(param.grad)  # type: ignore[arg-type]
        param.grad = place

    def _is_movable(self, param: torch.Tensor) -> bool:
        gradient, place = param.grad, self._places[param]
        if gradient is None or gradient is place or gradient.layout is not torch.strided:
            return False
        if gradient.requires_grad or gradient.dtype is not place.dtype:
            return False
        del gradient
        return is_own_gradient(param)

    def _free(self, param: torch.Tensor) -> None:
        """Makes sure that nobody else sees what is written into a place that is not ``p.grad``."""
        if param.grad is self._places[param]:
            return
        holders = holders_of(self._places, param)
        if holders is Holders.OF_MEMORY:
            self._leave()
        elif holders is Holders.OF_TENSOR:
            self._leave_to_holder(param)

    def _leave_to_holder(self, param: torch.Tensor) -> None:
        """Gives the tensor of a place, with its values, to the holder of a reference."""
        kept = self._places[param]
        kept.data = kept.clone()
        self._places[param] = self._place(param)

    def _leave(self) -> None:
        """Leaves the memory to the holders of views, and reduces in private memory meanwhile."""
        if self._left is None:
            self._left = self._memory, self._places
        self._settle(private_array(self._plan.num_bytes), 0)

    def _settle(self, memory: NativeArray, begin: int, places: _Places | None = None) -> None:
        plan = self._plan
        self._memory, self._begin = memory, begin
        self._places = places or {param: self._place(param) for param in plan.items}
        num_elements = plan.num_bytes // plan.items[0].element_size()
        whole = memory.part(begin, plan.dtype, (num_elements,))
        self.buffer = Buffer(whole.address, whole.dtype, whole.shape)

    def _place(self, param: torch.Tensor) -> torch.Tensor:
        offset = self._begin + self._offsets[param]
        return adopt(self._memory.part(offset, self._plan.dtype, param.shape))


def may_live_in_bucket(param: torch.Tensor) -> bool:
    """Whether this rank could reduce the gradient of a parameter in a bucket."""
    return (
        CAN_TELL
        and param.is_cpu
        and param.layout is torch.strided
        and param.is_floating_point()
        and param.is_contiguous()
        and param.numel() > 0
        and dtype_name(param.dtype) is not None
    )


def extent_of(param: torch.Tensor) -> tuple[str, int]:
    """The dtype and the bytes of the gradient of a parameter that may live in a bucket."""
    return dtype_name(param.dtype) or "", param.nbytes
