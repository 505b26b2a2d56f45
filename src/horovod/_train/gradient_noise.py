"""The gradient noise scale, from norms of gradients of two batch sizes. Pure.

McCandlish et al., "An Empirical Model of Large-Batch Training" (2018), arXiv:1812.06162,
appendix A.1. A job has both sizes at hand: each rank's gradient is that of a small batch, the
average that of the batch of all ranks.
"""

from __future__ import annotations

import math

from horovod.errors import UsageError


def estimate_noise(
    local_square: float, reduced_square: float, local_batch: float, num_ranks: int
) -> tuple[float, float]:
    """Return unbiased estimates of one step.

    Args:
        local_square: the square of the norm of a rank's gradient, averaged over the ranks.
        reduced_square: the square of the norm of the averaged gradient.
        local_batch: samples in the gradient of a rank, the same on all.
        num_ranks: above 1.

    Returns:
        The square of the norm of the true gradient, which may come out negative, and the trace of
        the covariance of the gradients of single samples.
    """
    whole_batch = local_batch * num_ranks
    square = (whole_batch * reduced_square - local_batch * local_square) / (
        whole_batch - local_batch
    )
    trace = (local_square - reduced_square) / (1.0 / local_batch - 1.0 / whole_batch)
    return square, trace


class NoiseAverage:
    """Moving averages of the two estimates, and their ratio, the noise scale.

    Each estimate varies much from step to step, and the ratio of two noisy numbers is biased; so
    they are averaged before.

    Args:
        decay: how much of an average stays in a step, from 0 to below 1.

    Raises:
        UsageError: ``decay`` is outside of that.
    """

    def __init__(self, decay: float) -> None:
        if not 0.0 <= decay < 1.0:
            raise UsageError(f"decay={decay!r} must be from 0 to below 1")
        self._decay = decay
        self._share = 0.0
        self._square = 0.0
        self._trace = 0.0

    def add(self, square: float, trace: float) -> None:
        """Add the estimates of a step; those that are not finite are passed over."""
        if not (math.isfinite(square) and math.isfinite(trace)):
            return
        kept, new = self._decay, 1.0 - self._decay
        self._share = kept * self._share + new
        self._square = kept * self._square + new * square
        self._trace = kept * self._trace + new * trace

    @property
    def scale(self) -> float:
        """The noise scale in samples; NaN while the averages do not give one."""
        if self._share == 0.0 or self._square <= 0.0:
            return math.nan
        return self._trace / self._square
