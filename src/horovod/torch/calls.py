"""Collective calls on PyTorch tensors, without gradients: what to send, what comes back.

A call is made once and can be run on tensors at once, started for later, or differentiated
(:mod:`horovod.torch.autograd`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch

from horovod._rank.reduction import PLAIN_AVERAGE, Reduction
from horovod.errors import UsageError
from horovod.torch.devices import beside, wait
from horovod.torch.tensors import (
    check_rows,
    check_sums,
    complex_of,
    mark_written,
    memory_of,
    results,
    view,
    views,
)

if TYPE_CHECKING:
    from horovod._native import Handle
    from horovod._rank.group import Group

Tensors = Sequence[torch.Tensor]
C = TypeVar("C", bound="CollectiveCall")

_MOST_INT32 = 2**31 - 1


@dataclass(slots=True)
class CollectiveCall:
    """The arguments common to all collectives.

    Attributes:
        group: the ranks that take part.
        name: what the ranks agree on; None counts up.
        prefix: the operation's word in the name.
        call_site: ``file:line`` of the caller.
    """

    group: Group
    name: str | None
    prefix: str
    call_site: str

    def gradient_name(self) -> str | None:
        return None if self.name is None else f"{self.name}.gradient"

    def as_gradient(self: C) -> C:
        """Return this call under another name, as the forward one may be in flight again."""
        return replace(self, name=self.gradient_name())


@dataclass(slots=True)
class ReducingCall(CollectiveCall, ABC):
    """The arguments common to both reductions."""

    reduction: Reduction = PLAIN_AVERAGE

    @abstractmethod
    def submit(self, tensors: Tensors, outputs: Tensors, waits_next: bool = False) -> Handle:
        """Starts the reduction of ``tensors`` into ``outputs``, made by :meth:`outputs`."""

    @abstractmethod
    def outputs(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Tensors for the results."""

    def run(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Returns the results; leaves the inputs untouched."""
        outputs = self.outputs(tensors)
        wait(self.submit(tensors, outputs, waits_next=True), outputs[0])
        return outputs


@dataclass(slots=True)
class AllreduceCall(ReducingCall):
    """Reduces each tensor; any shape, the same on all ranks.

    Attributes:
        residuals: the tensors behind those of the reduction.
    """

    residuals: tuple[torch.Tensor, ...] = ()

    def submit(self, tensors: Tensors, outputs: Tensors, waits_next: bool = False) -> Handle:
        """Starts the reduction of ``tensors`` into ``outputs``, which may be the same list."""
        inputs = views(tensors)
        check_sums(self.reduction.op, tensors)
        handle = self.group.allreduce(
            inputs,
            inputs if outputs is tensors else views(outputs),
            self.reduction,
            name=self.name,
            prefix=self.prefix,
            waits_next=waits_next,
            call_site=self.call_site,
            keep=memory_of(tensors, () if outputs is tensors else outputs, self.residuals),
        )
        if outputs is tensors:
            mark_written(tensors)
        return handle

    def outputs(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(tensor) for tensor in tensors)


@dataclass(slots=True)
class ReducescatterCall(ReducingCall):
    """Reduces each tensor and keeps this rank's rows of it."""

    def submit(self, tensors: Tensors, outputs: Tensors, waits_next: bool = False) -> Handle:
        """Starts the reduction of ``tensors`` into ``outputs``, made by :meth:`outputs`."""
        inputs = views(tensors)
        op, prescale, postscale = self.reduction[:3]
        check_sums(op, tensors)
        check_rows(tensors, self.prefix)
        return self.group.reducescatter(
            inputs,
            views(outputs),
            op=op,
            prescale=prescale,
            postscale=postscale,
            name=self.name,
            prefix=self.prefix,
            waits_next=waits_next,
            call_site=self.call_site,
            keep=memory_of(tensors, outputs),
        )

    def outputs(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        return tuple(self._output(tensor) for tensor in tensors)

    def _output(self, tensor: torch.Tensor) -> torch.Tensor:
        shape = tuple(tensor.shape)
        if shape:
            shape = (self.group.rows_of(shape[0]), *shape[1:])
        return torch.empty(shape, dtype=tensor.dtype, device=tensor.device)


@dataclass(slots=True)
class AllgatherCall(CollectiveCall):
    """Joins the tensors of all ranks along dimension 0.

    Attributes:
        dtypes: of the tensors that were submitted.
    """

    dtypes: tuple[torch.dtype, ...] = ()

    def submit(self, tensors: Tensors, waits_next: bool = False) -> Handle:
        """Starts the gathering; :meth:`take` gives the result of the ended operation."""
        inputs = views(tensors)
        check_rows(tensors, self.prefix)
        self.dtypes = tuple(tensor.dtype for tensor in tensors)
        return self.group.allgather(
            inputs,
            name=self.name,
            prefix=self.prefix,
            waits_next=waits_next,
            call_site=self.call_site,
            keep=memory_of(tensors),
        )

    def take(self, handle: Handle) -> tuple[torch.Tensor, ...]:
        """The gathered tensors."""
        return tuple(map(complex_of, results(handle), self.dtypes))

    def run(self, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """Returns the gathered tensors."""
        handle = self.submit(tensors, waits_next=True)
        handle.wait()
        return self.take(handle)


@dataclass(slots=True)
class BroadcastCall(CollectiveCall):
    """Copies the root's tensor to all ranks."""

    root: int = 0

    def submit(
        self, tensor: torch.Tensor, output: torch.Tensor, waits_next: bool = False
    ) -> Handle:
        """Starts the broadcast of ``tensor`` into ``output``, which may be the same tensor."""
        source = view(tensor)
        handle = self.group.broadcast(
            (source,),
            (source if output is tensor else view(output),),
            self.root,
            name=self.name,
            prefix=self.prefix,
            waits_next=waits_next,
            call_site=self.call_site,
            keep=memory_of((tensor, output)),
        )
        if output is tensor:
            mark_written((tensor,))
        return handle

    def run(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor with the root's values; leaves the input untouched."""
        output = torch.empty_like(tensor)
        wait(self.submit(tensor, output, waits_next=True), output)
        return output

    @property
    def is_root(self) -> bool:
        return self.group.ranks[self.group.rank] == self.root


@dataclass(slots=True)
class AlltoallCall(CollectiveCall):
    """Sends consecutive rows to each rank.

    Attributes:
        splits: how many rows go to each; None divides equally.
        like: the counts of received rows are on the device of this tensor; on the CPU without one.
        dtype: of the tensor that was submitted.
    """

    splits: tuple[int, ...] | None = None
    like: torch.Tensor | None = None
    dtype: torch.dtype = torch.float32

    def submit(self, tensor: torch.Tensor, waits_next: bool = False) -> Handle:
        """Starts the exchange; :meth:`take` gives the result of the ended operation."""
        source = view(tensor)
        check_rows((tensor,), self.prefix)
        self.dtype = tensor.dtype
        return self.group.alltoall(
            (source,),
            self.splits,
            name=self.name,
            prefix=self.prefix,
            waits_next=waits_next,
            call_site=self.call_site,
            keep=memory_of((tensor,)),
        )

    def take(self, handle: Handle) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows received, and how many came from each rank (int32 if all of them fit)."""
        (output,) = results(handle)
        received = handle.received_splits()
        dtype = torch.int32 if max(received) <= _MOST_INT32 else torch.int64
        return complex_of(output, self.dtype), beside(self.like, received, dtype)

    def run(self, tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the rows received, and how many came from each rank, as :meth:`take`."""
        handle = self.submit(tensor, waits_next=True)
        handle.wait()
        return self.take(handle)


def splits_of(splits: Sequence[int] | torch.Tensor | None) -> tuple[int, ...] | None:
    """The number of rows for each rank, from what a caller may give.

    Args:
        splits: integers, a one-dimensional tensor of int32 or int64, or None.

    Raises:
        UsageError: a tensor of another dtype or number of dimensions.
    """
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        if splits.dtype not in (torch.int32, torch.int64) or splits.dim() != 1:
            raise UsageError(
                f"splits is a tensor of {splits.dtype} with {splits.dim()} dimensions; "
                "give a list of integers or a one-dimensional tensor of torch.int32 or torch.int64"
            )
        return tuple(splits.tolist())
    try:
        return tuple(int(rows) for rows in splits)
    except (TypeError, ValueError):
        raise UsageError(f"splits={splits!r} is not a sequence of integers") from None
