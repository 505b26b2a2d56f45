"""Gradients side by side in buckets, of which each rank gets the sums of its share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from horovod._native import private_array
from horovod._train.bucket_plan import PlannedBucket
from horovod.torch.devices import wait
from horovod.torch.gradient_buckets import GradientBucket
from horovod.torch.tensors import adopt, dtype_name

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from horovod._native import Handle
    from horovod._train.shares import ShareBucket
    from horovod.torch.parameter_shares import ParameterShares
    from horovod.torch.share_checks import WeightSum


class ShareGradientBucket(GradientBucket):
    """Gradients on the CPU that are reduced as one array, laid out as their parameters are.

    Args:
        share: what is where.
        params: of the bucket, in its order.
        names: of the parameters, for messages.
    """

    def __init__(
        self,
        share: ShareBucket,
        params: tuple[torch.Tensor, ...],
        names: Mapping[torch.Tensor, str],
    ) -> None:
        item_bytes = params[0].element_size()
        plan = PlannedBucket(
            dtype_name(params[0].dtype) or "",
            0,
            share.num_elements * item_bytes,
            params,
            tuple(offset * item_bytes for offset in share.offsets),
        )
        super().__init__(plan, names)
        self.share = share
        self.move(private_array(plan.num_bytes))

    def whole(self) -> torch.Tensor:
        """View the whole bucket in one dimension."""
        return adopt(self._memory.part(0, self._plan.dtype, (self.share.num_elements,)))

    def _place(self, param: torch.Tensor) -> torch.Tensor:
        if param.is_contiguous():
            return super()._place(param)
        offset = self._begin + self._offsets[param]
        storage = adopt(
            self._memory.part(offset, self._plan.dtype, (param.numel(),))
        ).untyped_storage()
        place = torch.empty(0, dtype=param.dtype, device="cpu")
        return place.set_(storage, 0, param.shape, param.stride())


class ShareBuckets:
    """The buckets of one optimizer in one job, in memory of this rank.

    Args:
        shares: the parameters and how they are divided.
    """

    def __init__(self, shares: ParameterShares) -> None:
        self._buckets = [
            ShareGradientBucket(bucket, shares.members_of(bucket), shares.names)
            for bucket in shares.layout.buckets
            if bucket.num_elements
        ]
        self._bucket_of = {param: bucket for bucket in self._buckets for param in bucket.params}

    def of(self, param: torch.Tensor) -> ShareGradientBucket | None:
        """The bucket that holds the gradient of a parameter."""
        return self._bucket_of.get(param)

    @property
    def groups(self) -> list[tuple[torch.Tensor, ...]]:
        """Parameters that leave together."""
        return [bucket.params for bucket in self._buckets]

    def follow_memory(self) -> None:
        """Return to the buckets' own memory where somebody held gradients of an earlier step."""
        for bucket in self._buckets:
            bucket.come_back()


@dataclass(frozen=True)
class ShareInFlight:
    """The sums of this rank's share of a bucket, on their way.

    Attributes:
        handle: of the operation.
        wire: receives the sums.
        restore: returns them as they are without compression.
        shares: the parameters and this rank's pieces.
        bucket: what is where.
        weights: of all ranks, by whose sum the sums are divided; None if there are none.
    """

    handle: Handle
    wire: torch.Tensor
    restore: Callable[[], torch.Tensor]
    shares: ParameterShares
    bucket: ShareBucket
    weights: WeightSum | None

    def wait(self) -> None:
        """Wait for the end of the operation."""
        wait(self.handle, self.wire)
        if self.weights is not None:
            self.weights.wait()

    def write_back(self, unused: Container[torch.Tensor]) -> None:
        """Make the sums the gradients of the pieces; of unused parameters they have none."""
        sums = self.restore()
        if self.weights is not None:
            sums = sums / self.weights.total()
        first = self.shares.rank * self.bucket.share_elements
        for piece, tensor in self.shares.tensors_of(self.bucket):
            begin = self.bucket.place_of(piece) - first
            gradient = sums[begin : begin + piece.num_elements]
            is_used = self.shares.params[piece.parameter] not in unused
            tensor.grad = gradient if is_used else None
