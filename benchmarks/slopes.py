"""Straight lines through samples, by least squares: whether something grows. Pure.

Samples that follow each other are not independent, so a line is fitted to the means of a few long
blocks. These means may scatter around the line, as a number of threads does, or wander, as memory
does: a piece that an allocator once got stays. Either gives the slope an error, and the larger one
counts. So one more piece of memory is no growth, however little the rest scatters, and a piece in
each block is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, mean, stdev
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCKS = 20
LEAST_BLOCKS = 5
PER = 1000.0
# Of a statement about all rows of a table together.
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Slope:
    """How a number grows with the steps of a training.

    Attributes:
        per_1000: growth per 1,000 steps, in the unit of the number.
        error: the standard error of that.
        factor: how many standard errors the confidence interval extends to each side.
        blocks: the means of the blocks, in order.
    """

    per_1000: float
    error: float
    factor: float
    blocks: Sequence[float]

    @property
    def begin(self) -> float:
        """The mean of the first block."""
        return self.blocks[0]

    @property
    def end(self) -> float:
        """The mean of the last block."""
        return self.blocks[-1]

    @property
    def is_zero(self) -> bool:
        """Whether the confidence interval contains 0, or is below it."""
        return self.per_1000 <= self.factor * self.error

    @property
    def at_most(self) -> float:
        """The upper end of the confidence interval, 0 or more."""
        return max(0.0, self.per_1000 + self.factor * self.error)


def fit(
    steps: Sequence[float], values: Sequence[float], resolution: float, num_rows: int = 1
) -> Slope:
    """Fit a line to samples.

    Args:
        steps: at which the samples were taken, in order.
        values: the samples.
        resolution: the least difference that a sample can show, such as a page.
        num_rows: how many lines are fitted; the confidence holds for all of them (Bonferroni).

    Raises:
        ValueError: there are too few samples for :data:`LEAST_BLOCKS` blocks.
    """
    count = min(BLOCKS, len(steps))
    if count < LEAST_BLOCKS:
        raise ValueError(f"{len(steps)} samples are too few for a line: at least {LEAST_BLOCKS}")
    bounds = [len(steps) * number // count for number in range(count + 1)]
    parts = [slice(*pair) for pair in pairwise(bounds)]
    x = [mean(steps[part]) for part in parts]
    y = [mean(values[part]) for part in parts]
    middle, spread = mean(x), sum((each - mean(x)) ** 2 for each in x)
    slope = sum((a - middle) * b for a, b in zip(x, y, strict=True)) / spread
    start = mean(y) - slope * middle
    squares = sum((b - start - slope * a) ** 2 for a, b in zip(x, y, strict=True))
    # A sample that is rounded to a multiple of the resolution is off by that much (uniform).
    scatters = math.sqrt(max(squares / (count - 2), resolution**2 / 12) / spread)
    error = max(scatters, _error_if_it_wanders(x, y, spread))
    factor = quantile_of_t(1 - (1 - CONFIDENCE) / (2 * num_rows), count - 2)
    return Slope(PER * slope, PER * error, factor, y)


def _error_if_it_wanders(x: Sequence[float], y: Sequence[float], spread: float) -> float:
    """Return the standard error of the slope of a random walk with drift.

    The slope is a sum of the increments, each with the weight that all blocks behind it have.
    """
    increments = [after - before for before, after in pairwise(y)]
    middle = mean(x)
    weights = [sum(each - middle for each in x[i:]) / spread for i in range(1, len(x))]
    return stdev(increments) * math.sqrt(sum(weight**2 for weight in weights))


def quantile_of_t(probability: float, freedom: int) -> float:
    """Return a quantile of Student's distribution, by the expansion of Cornish and Fisher.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = NormalDist().inv_cdf(probability)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / freedom**power for power, term in enumerate(terms))
