"""Gradients that live in shared memory: buckets that all ranks of a host see.

Autograd puts a gradient into memory of its own. As soon as it is there, and still in the cache, it
is copied into its place in a bucket, which then is ``p.grad``; the first memory goes back to the
allocator, which gives it to the next gradient. The ranks reduce a bucket where it lies, so nothing
else is copied, and one operation takes the place of many.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import torch

from horovod._native import Buffer, NativeArray, private_array
from horovod.errors import HorovodInternalError, MismatchError
from horovod.torch.tensors import adopt, dtype_name
from horovod.train.bucket_plan import PlannedBucket, Sized, plan_buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horovod._native import Handle
    from horovod.group import Group

_NAMES_SHOWN = 4
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
        self.name = _name_of([names[param] for param in plan.items])
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


class GradientBuckets:
    """The buckets of one optimizer in one job.

    They begin in ordinary memory and move into shared memory when all ranks have asked for it. A
    rank that has joined asks for it when it is back; until then the others try again at each step.

    Args:
        group: of all ranks.
        plan: the same on all ranks.
        names: of the parameters.
        name: of the memory, on which the ranks agree.
        call_site: where the optimizer was made, for messages.
    """

    def __init__(
        self,
        group: Group,
        plan: Sequence[PlannedBucket[torch.Tensor]],
        names: Mapping[torch.Tensor, str],
        name: str,
        call_site: str,
    ) -> None:
        self._buckets = [GradientBucket(bucket, names) for bucket in plan]
        self._bucket_of = {param: bucket for bucket in self._buckets for param in bucket.params}
        self._num_bytes = plan[-1].offset + plan[-1].num_bytes if plan else 0
        self._request = partial(group.share_memory, self._num_bytes, name=name, call_site=call_site)
        self._pending: Handle | None = self._request() if plan else None
        if plan:
            self._move(private_array(self._num_bytes))

    def of(self, param: torch.Tensor) -> GradientBucket | None:
        """The bucket that holds the gradient of a parameter."""
        return self._bucket_of.get(param)

    @property
    def groups(self) -> list[tuple[torch.Tensor, ...]]:
        """Parameters that leave together."""
        return [bucket.params for bucket in self._buckets]

    def follow_memory(self) -> None:
        """Moves into shared memory if that is there now; to be called when nothing is in flight."""
        if self._pending is None or not self._pending.done():
            return
        handle, self._pending = self._pending, None
        try:
            handle.wait()
            self._move(handle.results()[0])
        except MismatchError:  # a rank has joined
            with suppress(HorovodInternalError):
                self._pending = self._request()
        except HorovodInternalError:
            return  # the next reduction tells why

    def _move(self, memory: NativeArray) -> None:
        for bucket in self._buckets:
            bucket.move(memory)


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


def plan_gradient_buckets(
    order: Sequence[torch.Tensor], groups: Iterable[Sequence[torch.Tensor]]
) -> list[PlannedBucket[torch.Tensor]]:
    """Which gradients lie in which bucket.

    Args:
        order: the parameters, as their gradients become ready.
        groups: of several parameters that the user wants to be reduced as one operation. Each has a
            bucket of its own, and so has every other parameter then. One that cannot live in a
            bucket as a whole is left out.
    """
    grouped = {param: tuple(group) for group in groups for param in group}
    wanted = set(order)
    units: dict[tuple[torch.Tensor, ...], Sized[torch.Tensor]] = {}
    for param in order:
        unit = grouped.get(param, (param,))
        if wanted.issuperset(unit) and all(member.dtype is param.dtype for member in unit):
            units.pop(unit, None)  # a group is ready when its last gradient is
            sizes = tuple(member.nbytes for member in unit)
            units[unit] = Sized(unit, sizes, dtype_name(param.dtype) or "")
    if grouped:
        return plan_buckets(list(units.values()), 0, 0)
    return plan_buckets(list(units.values()))


def _name_of(names: Sequence[str]) -> str:
    if len(names) <= _NAMES_SHOWN + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_NAMES_SHOWN])} and {len(names) - _NAMES_SHOWN} more"
