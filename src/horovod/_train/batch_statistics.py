"""Mean and variance of all ranks' batches together, from those of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def merged_moments(
    shares: Any, means: Any, variances: Any, sum_of_ranks: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Merges the moments of several batches without losing digits.

    Sums of squares would lose them where the mean is much larger than the deviation.

    Args:
        shares: of each rank in all values of a channel; arrays of any framework, one row per rank.
        means: of each rank's values.
        variances: of each rank's values, the biased ones.
        sum_of_ranks: adds the rows of such an array.

    Returns:
        Mean and biased variance of each channel.
    """
    mean = sum_of_ranks(shares * means)
    deviations = means - mean
    return mean, sum_of_ranks(shares * (variances + deviations * deviations))
