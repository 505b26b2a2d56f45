"""Batch normalization whose statistics are those of the batches of all ranks together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from horovod._rank import context
from horovod._rank.reduction import Reduction
from horovod._train.batch_statistics import merged_moments
from horovod._train.call_site import call_site
from horovod._train.numbering import LayerNames
from horovod._train.process_set import ProcessSet, global_process_set, group_of
from horovod._train.reduce_op import Sum
from horovod.errors import UsageError
from horovod.torch.calls import AllgatherCall, AllreduceCall
from horovod.torch.compiling import outside_of_graphs

if TYPE_CHECKING:
    from horovod._rank.group import Group

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(_BatchNorm):
    """Batch normalization over the batches of all ranks; takes the place of torch.nn.BatchNorm*d.

    In training, and always without running statistics, mean and variance are those of all ranks'
    batches together, which may differ in size and may be empty on some ranks. The forward pass
    sends one small message, the backward pass another. In evaluation, on a single rank, and on
    ranks outside of the process set it is ordinary batch normalization.

    Gradients of weight and bias are those of this rank's batch; the optimizer reduces them. The
    gradient of the input is that of the sum of all ranks' losses. If batches differ in size, let
    each rank divide the sum of its losses by the same number.

    All ranks must make their layers, and run them, in the same order; layers that run in different
    threads do not disturb each other.

    Args:
        num_features: C of an input of shape (N, C) or (N, C, …), of any floating dtype.
        eps: added to the variance.
        momentum: weight of a batch in the running statistics; None averages over all batches.
        affine: whether to learn a weight and a bias of shape (C,).
        track_running_stats: whether to keep running statistics for evaluation.
        process_set: the ranks whose batches are normalized together.
        device, dtype: of parameters and running statistics.

    Raises:
        UsageError: forward: the input has no channels, others than ``num_features``, or all ranks
            together hold a single value per channel.
        HorovodInternalError: forward, backward: the ranks disagree about the layer, or the job
            failed.

    Example:
        >>> layer = hvd.SyncBatchNorm(16)
        >>> model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        process_set: ProcessSet = global_process_set,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.process_set = process_set
        self._made_at = call_site()
        self._enroll()

    def _enroll(self) -> None:
        self._layer_name = _names.new(self.process_set)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """Replaces every batch normalization in a module; parameters and buffers stay the same.

        Args:
            module: changed in place, unless it is a batch normalization itself.
            process_set: the ranks whose batches are normalized together.

        Returns:
            ``module``, or what takes its place.

        Raises:
            UsageError: it holds a lazy layer that has not seen an input yet.
        """
        if isinstance(module, _BatchNorm):
            return cls._like(module, process_set)
        for name, child in module.named_children():
            converted = cls.convert_sync_batchnorm(child, process_set)
            if converted is not child:
                module.add_module(name, converted)
        return module

    @classmethod
    def _like(cls, layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        if any(torch.nn.parameter.is_lazy(tensor) for tensor in layer.parameters()):
            raise UsageError("a lazy batch normalization has no size yet; run one batch first")
        converted = cls(
            layer.num_features,
            layer.eps,
            layer.momentum,
            layer.affine,
            layer.track_running_stats,
            process_set=process_set,
        )
        converted.weight, converted.bias = layer.weight, layer.bias
        converted.running_mean, converted.running_var = layer.running_mean, layer.running_var
        converted.num_batches_tracked = layer.num_batches_tracked
        return converted.train(layer.training)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_layer_name"}
        # A registered set belongs to this job; its ranks say which one it was.
        is_global = self.process_set is global_process_set
        return state | {"process_set": None if is_global else self.process_set.ranks}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copy, or what was read from a file, is a layer of its own."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.process_set = _process_set_of(state["process_set"])
        self._enroll()

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2 or input.shape[1] != self.num_features:
            raise UsageError(
                f"SyncBatchNorm({self.num_features}) got an input of shape {tuple(input.shape)}; "
                f"it needs (N, {self.num_features}) or (N, {self.num_features}, …)"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalizes a batch.

        Args:
            input: (N, C) or (N, C, …), any floating dtype and memory format; N may be 0 and may
                differ between ranks.

        Returns:
            A tensor of the input's shape, dtype and memory format.
        """
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            return super().forward(input)
        group = group_of(self.process_set)
        if group.size == 1 or not group.is_member:
            return super().forward(input)
        output: torch.Tensor = _forward_over_ranks(self, group, input)
        return output

    @torch.no_grad()
    def _update_running_statistics(self, statistics: _Statistics) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        factor = 0.0 if self.momentum is None else self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                factor = 1.0 / float(self.num_batches_tracked)
        unbiased = statistics.var * (statistics.count / (statistics.count - 1))
        self.running_mean.lerp_(statistics.mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)


def _process_set_of(ranks: list[int] | None) -> ProcessSet:
    """The registered set of these ranks, or one that is still to be registered; None is all."""
    if ranks is None:
        return global_process_set
    process_set = ProcessSet(ranks)
    if context.is_initialized():
        with suppress(KeyError):
            process_set.resolve()
    return process_set


@outside_of_graphs
def _forward_over_ranks(module: SyncBatchNorm, group: Group, batch: torch.Tensor) -> torch.Tensor:
    name = _names.use(module._layer_name, module.process_set)
    layer = _Layer(group, name, module._made_at)
    statistics = layer.gather_statistics(batch.detach())
    if module.training and module.track_running_stats:
        module._update_running_statistics(statistics)
    output: torch.Tensor = _Normalize.apply(  # type: ignore[no-untyped-call]
        batch, module.weight, module.bias, statistics, module.eps, layer
    )
    return output


_names = LayerNames("sync_batch_norm")


@dataclass(frozen=True)
class _Statistics:
    """The statistics of all ranks' batches together.

    Attributes:
        mean, var: per channel, shape (C,); the variance is the biased one. float64 for float64
            inputs, float32 for all others.
        count: values per channel, as a float64 scalar.
    """

    mean: torch.Tensor
    var: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True)
class _Layer:
    """The facts that messages of one pass through a layer need.

    Attributes:
        group: the ranks that take part.
        name: of the layer.
        call_site: ``file:line`` where the layer was made.
    """

    group: Group
    name: str
    call_site: str

    def gather_statistics(self, batch: torch.Tensor) -> _Statistics:
        """Merges count, mean and squared deviations of all ranks."""
        channels = batch.shape[1]
        count = batch.numel() // channels if channels else 0
        row = torch.zeros(1, 1 + 2 * channels, dtype=torch.float64, device=batch.device)
        if count:
            values = batch.to(_dtype_of_statistics(batch))
            var, mean = torch.var_mean(values, _all_but_channels(batch), correction=0)
            row[0, 0] = count
            row[0, 1 : 1 + channels] = mean
            row[0, 1 + channels :] = var
        (rows,) = AllgatherCall(self.group, self.name, "allgather", self.call_site).run((row,))
        counts, means = rows[:, :1], rows[:, 1 : 1 + channels]
        variances = rows[:, 1 + channels :]
        total = counts.sum()
        # Looking at it may mean to wait for a device, which is seldom necessary.
        if count < 2 and total < 2:
            raise UsageError(
                f"SyncBatchNorm got {int(total)} values per channel from all ranks together; "
                "training needs at least 2"
            )
        shares = counts / total
        mean, var = merged_moments(shares, means, variances, partial(torch.sum, dim=0))
        dtype = _dtype_of_statistics(batch)
        return _Statistics(mean.to(dtype), var.to(dtype), total)

    def sum_over_ranks(self, sums: torch.Tensor) -> torch.Tensor:
        """Adds a tensor over the ranks; for the backward pass."""
        name = f"{self.name}.gradient"
        call = AllreduceCall(self.group, name, "allreduce", self.call_site, Reduction(Sum))
        return call.run((sums,))[0]


def _dtype_of_statistics(batch: torch.Tensor) -> torch.dtype:
    return torch.float64 if batch.dtype is torch.float64 else torch.float32


def _all_but_channels(batch: torch.Tensor) -> list[int]:
    return [dim for dim in range(batch.dim()) if dim != 1]


class _Normalize(torch.autograd.Function):
    """(x - mean) / sqrt(var + eps) * weight + bias, where mean and var depend on all ranks' x."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: _Statistics,
        eps: float,
        layer: _Layer,
    ) -> torch.Tensor:
        mean, var = statistics.mean, statistics.var
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(var + eps))
        ctx.count = statistics.count
        ctx.layer = layer
        if not x.numel():
            return torch.empty_like(x)
        if weight is not None:
            weight = weight.to(mean.dtype)
        if bias is not None:
            bias = bias.to(mean.dtype)
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, eps=eps)

    @staticmethod
    @once_differentiable
    @outside_of_graphs
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, mean, inverse_std = ctx.saved_tensors
        dims = _all_but_channels(x)
        shape = [-1 if dim == 1 else 1 for dim in range(x.dim())]
        dy = gradient.to(mean.dtype)
        centered = x.to(mean.dtype) - mean.view(shape)
        # As BatchNorm does, in float64: the terms nearly cancel each other.
        sums = torch.stack(
            [values.sum(dims, dtype=torch.float64) for values in (dy, dy * centered)]
        )
        of_x = None
        if ctx.needs_input_grad[0]:
            mean_dy, mean_dy_centred = (ctx.layer.sum_over_ranks(sums) / ctx.count).to(mean.dtype)
            slope = inverse_std.square() * mean_dy_centred
            scale = inverse_std if weight is None else inverse_std * weight.to(mean.dtype)
            # dy - mean(dy) - (x - mean) * slope, and all of it times the scale.
            of_x = centered.mul_(-slope.view(shape)).add_(dy).sub_(mean_dy.view(shape))
            of_x = of_x.mul_(scale.view(shape)).to(x.dtype)
        of_weight = (sums[1] * inverse_std).to(weight.dtype) if ctx.needs_input_grad[1] else None
        of_bias = sums[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return of_x, of_weight, of_bias, None, None, None
