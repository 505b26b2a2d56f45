"""Norms of gradients: of those that an optimizer applies, and of those of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from horovod._native import Buffer, Handle
from horovod._rank.reduction import PLAIN_AVERAGE, ReduceOp
from horovod._train.call_site import call_site
from horovod._train.gradient_noise import NoiseAverage, estimate_noise
from horovod._train.process_set import group_of
from horovod.errors import UsageError
from horovod.torch.compiling import outside_of_graphs
from horovod.torch.gradient_reducer import GradientReducer
from horovod.torch.optimizer import ReducingOptimizer
from horovod.torch.sharded_optimizer import ShardedOptimizer
from horovod.torch.share_checks import sum_over_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horovod._rank.group import Group

__all__ = ["GradientNoiseScale", "clip_grad_norm_", "gradient_norm"]

# Sums of more float32 than that lose digits: 1e-4 of the norm of ten million elements.
_BLOCK = 4096
_DTYPES = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


@outside_of_graphs
def gradient_norm(optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Return the 2-norm of all gradients of an optimizer together, as its step applies them.

    Each rank computes it from what it has in ``p.grad``, which is the same on all, so nothing is
    sent. With ``shard_state=True`` each rank has the gradients of its share, and the squares are
    summed over the ranks: all ranks of the process set must call then.

    Call it after ``step()`` and before ``zero_grad()``, or before the step: then it waits for the
    reduction, as ``synchronize()`` does, which the step does not repeat. What the program has
    changed in ``p.grad``, such as by clipping, counts as it is.

    Args:
        optimizer: a DistributedOptimizer; sparse gradients count by their sums.

    Returns:
        A tensor of no dimension, float64, on the device of the first gradient; nothing waits for a
        GPU. 0 if no parameter has a gradient.

    Raises:
        UsageError: the optimizer is no DistributedOptimizer, or one with op=Adasum, which reduces
            no gradients; or passes of this step are missing, so that nothing is reduced yet.
        HorovodInternalError: the reduction failed.

    Example:
        >>> optimizer.step()
        >>> hvd.log(loss=loss, gradient_norm=hvd.gradient_norm(optimizer))
    """
    reducer = _reducer_of(optimizer)
    params = [param for group in optimizer.param_groups for param in group["params"]]
    if not reducer.holds_reduced:
        if reducer.passes > 1:
            raise UsageError(
                "gradient_norm() between the backward passes of a step: gradients are reduced "
                f"after {reducer.passes} of them; call it after step() and before zero_grad()"
            )
        reducer.reduce(params)
    square = square_of(_gradients_of(optimizer))
    if isinstance(optimizer, ShardedOptimizer):
        site, name = call_site(), optimizer._reducer.name_of("norm")
        square = sum_over_ranks(optimizer.group, square, name, site).to(square.device)
    return square.sqrt()


@outside_of_graphs
def clip_grad_norm_(
    optimizer: torch.optim.Optimizer, max_norm: float, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Scale all gradients of an optimizer so that their 2-norm together is at most a number.

    Call it between the last backward pass and ``step()``, which then needs no
    ``skip_synchronize()``; with GradScaler, after ``unscale_()``. It is right for shares, too,
    where ``torch.nn.utils.clip_grad_norm_`` would see the gradients of one rank.

    Args:
        optimizer: a DistributedOptimizer. With ``shard_state=True``, all ranks of its process set
            must call.
        max_norm: at least 0.
        error_if_nonfinite: raise if the norm is infinite or NaN, on all ranks.

    Returns:
        The norm before, as :func:`gradient_norm` does.

    Raises:
        UsageError: the optimizer is no DistributedOptimizer, or one with op=Adasum; or
            ``max_norm`` is negative or NaN.
        RuntimeError: the norm is not finite, and ``error_if_nonfinite`` was asked for.
        HorovodInternalError: the reduction failed.

    Example:
        >>> loss.backward()
        >>> hvd.clip_grad_norm_(optimizer, 1.0)
        >>> optimizer.step()
    """
    if not max_norm >= 0.0:
        raise UsageError(f"max_norm={max_norm} must be at least 0")
    reducer = _reducer_of(optimizer)
    if not reducer.holds_reduced:
        reducer.reduce([param for group in optimizer.param_groups for param in group["params"]])
    norm = gradient_norm(optimizer)
    if error_if_nonfinite and not bool(torch.isfinite(norm)):
        raise RuntimeError(
            f"the norm of the gradients is {float(norm)}, so they cannot be clipped; pass "
            "error_if_nonfinite=False to scale them all the same"
        )
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for gradient in _gradients_of(optimizer):
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
    return norm


def _gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the reduced gradients that this rank has."""
    if isinstance(optimizer, ShardedOptimizer):
        params = optimizer.shares.tensors
    else:
        params = [param for group in optimizer.param_groups for param in group["params"]]
    return [param.grad for param in params if param.grad is not None]


class GradientNoiseScale:
    """Measures the gradient noise scale: about the batch size beyond which more samples help less.

    It compares the norms of each rank's own gradients with that of their average (McCandlish et
    al. 2018, arXiv:1812.06162, appendix A.1), as it was before the program clips or unscales it.
    Both estimates are averaged over steps. It reads each gradient once more before and after the
    reduction.

    Args:
        optimizer: a DistributedOptimizer with op=Average and no weight.
        batch_size: samples of this rank in a backward pass, the same on all ranks.
        decay: how much of the averages stays in a step, from 0 to below 1.

    Raises:
        UsageError: an argument is wrong.

    Example:
        >>> noise = hvd.GradientNoiseScale(optimizer, batch_size=32)
        >>> for batch in loader:
        ...     train(batch)   # with optimizer.step()
        ...     hvd.log(noise_scale=noise.update())
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, batch_size: int, decay: float = 0.99
    ) -> None:
        self._reducer = _reducer_of(optimizer)
        self._optimizer = optimizer
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size} must be at least 1")
        if not isinstance(optimizer, ReducingOptimizer) or optimizer.op != ReduceOp.AVERAGE:
            raise UsageError("GradientNoiseScale needs an optimizer with op=Average")
        self._batch_size = batch_size
        self._average = NoiseAverage(decay)
        # Of the last step: the squares of this rank's gradients, and that of the reduced ones.
        self._step: tuple[Sequence[torch.Tensor], torch.Tensor] | None = None
        self._in_flight: tuple[Handle, torch.Tensor, torch.Tensor, int] | None = None
        self._reducer.observe(self)

    @outside_of_graphs
    def update(self) -> float:
        """Take in the step that has just been taken; all ranks call it after each ``step()``.

        The average of the norms over ranks is on its way until the next call, so that nobody
        waits for it.

        Returns:
            The noise scale in samples, without this step; NaN as long as there is none.

        Raises:
            UsageError: the optimizer has gradients of one rank only, or a weight; or there was no
                step, or ``zero_grad()`` came before.
            HorovodInternalError: a reduction failed.
        """
        reducer, group = self._reducer, group_of(self._reducer.process_set)
        step, self._step = self._step, None
        if group.size < 2:
            raise UsageError("GradientNoiseScale compares ranks, but the job has only one")
        if reducer.has_weight:
            raise UsageError("GradientNoiseScale needs batches of one size, but there is a weight")
        if step is None or not reducer.holds_reduced:
            raise UsageError("GradientNoiseScale.update() belongs after step(), before zero_grad()")
        self._take_arrived()
        # On the CPU, so that one operation serves gradients of all devices.
        squares, reduced = step
        local = torch.stack([square.cpu() for square in squares]).sum().reshape(1)
        self._in_flight = self._send(group, local), local, reduced.cpu(), group.size
        return self._average.scale

    @property
    def value(self) -> float:
        """The noise scale in samples, with the last step; NaN as long as there is none.

        It waits for the norms of the last step.
        """
        self._take_arrived()
        return self._average.scale

    def before_reduction(self, params: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the square of the norm of gradients of this rank."""
        return square_of([param.grad for param in params if param.grad is not None])

    def after_reduction(self, remembered: Sequence[torch.Tensor]) -> None:
        """Take the norms of a step, before the program clips or unscales the gradients."""
        if remembered:
            self._step = remembered, gradient_norm(self._optimizer).square()

    def _send(self, group: Group, local: torch.Tensor) -> Handle:
        view = Buffer(local.data_ptr(), "float64", (1,))
        return group.allreduce(
            (view,),
            (view,),
            PLAIN_AVERAGE,
            name=f"{self._reducer.first_name}.noise",
            prefix="gradient_noise",
            call_site=call_site(),
            keep=local,
        )

    def _take_arrived(self) -> None:
        if self._in_flight is None:
            return
        handle, local, reduced, num_ranks = self._in_flight
        self._in_flight = None
        handle.wait()
        batch = self._batch_size * self._reducer.passes
        self._average.add(*estimate_noise(float(local), float(reduced), batch, num_ranks))


def square_of(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the squares of all elements, float64, with no dimension.

    Args:
        gradients: dense or sparse, on any devices; real or complex.
    """
    squares = [square for gradient in gradients for square in _squares(gradient.detach())]
    if not squares:
        return torch.zeros((), dtype=torch.float64, device="cpu")
    device = squares[0].device
    return torch.stack([s.to(device, non_blocking=True) for s in squares]).sum()


def _squares(gradient: torch.Tensor) -> list[torch.Tensor]:
    """Return the sums of squares of parts of a gradient."""
    if gradient.layout is torch.sparse_coo:
        values = gradient.coalesce().values()
    elif gradient.layout is not torch.strided:
        values = gradient.values()
    else:
        values = gradient
    flat = values.reshape(-1)
    num_whole = flat.numel() // _BLOCK * _BLOCK
    dtype = _DTYPES.get(flat.dtype)
    parts = [flat[num_whole:]] if num_whole < flat.numel() else []
    if num_whole:
        parts.append(flat[:num_whole].view(-1, _BLOCK))
    norms = (torch.linalg.vector_norm(part, dim=-1, dtype=dtype) for part in parts)
    return [norm.double().square().sum() for norm in norms]


def _reducer_of(optimizer: torch.optim.Optimizer) -> GradientReducer:
    if not isinstance(optimizer, ReducingOptimizer):
        raise UsageError(
            f"{type(optimizer).__name__} is no DistributedOptimizer: its gradients are those of "
            "this rank alone"
        )
    if not isinstance(optimizer._reducer, GradientReducer):
        raise UsageError(
            "the optimizer has op=Adasum: each rank steps by its own gradients, and there are no "
            "reduced ones"
        )
    return optimizer._reducer
