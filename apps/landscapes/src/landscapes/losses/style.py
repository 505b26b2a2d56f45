"""The distance of styles from the standard normal distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FREE = 0.1  # nats of each number of a style that cost nothing


def divergence(mean: torch.Tensor, log_variance: torch.Tensor, free: float = FREE) -> torch.Tensor:
    """Return the Kullback-Leibler divergence of styles (n, z), summed over z, the mean over n.

    Each number of each picture counts ``free`` at least, and has no gradient below that: a style
    may always carry that much. The threshold is per picture, so that the mean over pictures does
    not depend on how ranks divide them.
    """
    each = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)
    return each.clamp(min=free).sum(1).mean()
