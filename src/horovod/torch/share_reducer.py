"""Reduces gradients so that each rank gets the sums of its own share alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from horovod._rank.reduction import ReduceOp
from horovod._train.optimizer_options import reduces
from horovod.errors import UsageError
from horovod.torch.gradient_reducer import GradientReducer, fill_bucket
from horovod.torch.share_buckets import ShareBuckets, ShareGradientBucket, ShareInFlight
from horovod.torch.share_checks import WeightSum
from horovod.torch.tensors import memory_of, view

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._rank.group import Group
    from horovod._train.gradient_reducer import GradientsInFlight, ReducerSettings
    from horovod.torch.gradient_buckets import GradientBucket
    from horovod.torch.parameter_shares import ParameterShares

Gradients = list[tuple[torch.Tensor, "torch.Tensor | None", torch.Tensor]]


class ShareReducer(GradientReducer):
    """Watches parameters, and reduces a bucket as soon as its last gradient is there.

    ``p.grad`` keeps this rank's own gradient; the sums are the gradients of the pieces.

    Args:
        settings, names, passes: as of the base class.
        shares: how the parameters are divided.
        densifies: whether sparse gradients may travel as dense ones.
    """

    def __init__(
        self,
        settings: ReducerSettings,
        names: dict[torch.Tensor, str],
        shares: ParameterShares,
        passes: int,
        *,
        densifies: bool,
    ) -> None:
        self._shares = shares
        self._densifies = densifies
        self._laid_out: Group | None = None
        # The gradients that have left in this step, and their versions.
        self._left: dict[torch.Tensor, tuple[int, int]] = {}
        self._weights: WeightSum | None = None
        members = [shares.members_of(bucket) for bucket in shares.layout.buckets]
        trained = [of_bucket for of_bucket in members if of_bucket[0].requires_grad]
        super().__init__(settings, names, trained, passes)

    @property
    def call_site(self) -> str:
        """Where the optimizer was made, for messages."""
        return self._settings.call_site

    @property
    def has_ranks(self) -> bool:
        """Whether the parameters have been divided among ranks."""
        return self._laid_out is not None

    def name_of(self, what: str) -> str:
        """Return the name of an operation about all parameters together."""
        return self._name_of(what, self.follow())

    def follow(self) -> Group:
        """Return the ranks that share now; divides the parameters among them if they are new."""
        return self._bind()

    def divide_again(self) -> None:
        """Divide the parameters again before they are used next, as there are new ones."""
        self._laid_out = None

    def on_gradient(self, param: torch.Tensor) -> None:
        """Count a backward pass that has added to the gradient; launch what is complete.

        Raises:
            UsageError: the gradient is sparse, and ``sparse_as_dense`` was not asked for.
        """
        gradient = param.grad
        if not self._densifies and gradient is not None and gradient.layout is not torch.strided:
            raise UsageError(
                f"shard_state=True: the gradient of {self.names[param]} is sparse, which cannot be "
                "cut into shares; pass sparse_as_dense=True, or use the optimizer without "
                "shard_state"
            )
        del gradient
        super().on_gradient(param)

    def reduce(self, params: Iterable[torch.Tensor]) -> None:
        """Launch what is missing, wait for everything and give the pieces their gradients.

        Raises:
            HorovodInternalError: a reduction failed.
        """
        super().reduce(params)
        if not reduces(self.follow()):
            self._shares.take_whole_gradients()

    def discard(self, params: Iterable[torch.Tensor]) -> None:
        """Begin a new step; wait for gradients in flight, as other ranks wait for them."""
        super().discard(params)
        self._left.clear()

    def check_untouched(self) -> None:
        """Refuse a step whose gradients the program has changed where nobody reads them.

        Raises:
            UsageError: ``p.grad`` was changed after it had left.
        """
        for param, (identity, version) in self._left.items():
            gradient = param.grad
            now = (id(gradient), 0 if gradient is None else gradient._version)
            if now != (identity, version):
                raise UsageError(
                    f"the gradient of {self.names[param]} was changed between the backward pass "
                    "and the step. With shard_state=True the sums of all ranks are in shares and "
                    "p.grad holds this rank's own gradient, so the change would be lost: clip with "
                    "hvd.clip_grad_norm_(optimizer, max_norm), and change gradients in hooks of "
                    "the parameters"
                )
        self._left.clear()

    def _bind(self) -> Group:
        group = super()._bind()
        if group is not self._laid_out and not self._in_flight:
            self._laid_out = group
            is_shared = reduces(group)
            self._shares.lay_out(*((group.size, group.rank) if is_shared else (1, 0)))
            self._buckets = ShareBuckets(self._shares) if is_shared else None
        return group

    def _places(self, group: Group) -> dict[torch.Tensor, int]:
        """Return no places: the buckets are there from the first step on."""
        return {}

    def _send_bucket(
        self, group: Group, bucket: GradientBucket, weight: float | None
    ) -> GradientsInFlight[torch.Tensor]:
        assert isinstance(bucket, ShareGradientBucket)
        self._remember(fill_bucket(bucket, weight))
        settings = self._settings
        share, whole = bucket.share, bucket.whole()
        if weight is not None:
            whole = whole * weight
        sent, restored = settings.compression.compress(whole)
        wire = torch.empty(share.share_elements, dtype=sent.dtype, device=sent.device)
        handle = group.reducescatter(
            (view(sent),),
            (view(wire),),
            op=settings.op if weight is None else ReduceOp.SUM,
            prescale=1.0 / settings.predivide_factor,
            postscale=settings.predivide_factor,
            name=bucket.name + self._suffix.within(group),
            prefix="shared_gradients",
            call_site=settings.call_site,
            keep=(memory_of((sent, wire)), bucket.memory),
        )
        restore = partial(settings.compression.decompress, wire, restored)
        return ShareInFlight(
            handle, wire, restore, self._shares, share, self._sum_of_weights(group, weight)
        )

    def _sum_of_weights(self, group: Group, weight: float | None) -> WeightSum | None:
        """Return the sum of the weights of this step, which all buckets have."""
        if weight is not None and self._weights is None:
            name = self._name_of("weights", group)
            self._weights = WeightSum(group, weight, name, self.call_site)
        return self._weights

    def _begin_step(self) -> None:
        self._weights = None
        super()._begin_step()

    def _remember(self, gradients: Gradients) -> None:
        """Note what leaves, by identity: a reference would let the place count as held."""
        for param, gradient, _ in gradients:
            self._left[param] = (id(gradient), 0 if gradient is None else gradient._version)

    def _by_device(self, params: Sequence[torch.Tensor]) -> Iterable[Sequence[torch.Tensor]]:
        if params:  # without elements, or added while gradients were in flight
            return [part for part in super()._by_device(params) if part[0].numel()]
        return []
