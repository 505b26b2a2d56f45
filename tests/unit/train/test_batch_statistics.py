"""Moments of several batches together."""

from __future__ import annotations

from functools import partial

import numpy as np

from horovod._train.batch_statistics import merged_moments


def test_they_are_those_of_all_values() -> None:
    generator = np.random.default_rng(1)
    # Where the mean is large, sums of squares would lose the deviations.
    batches = [1e8 + generator.normal(size=(rows, 3)) for rows in (5, 1, 12)]
    everything = np.concatenate(batches)
    shares = np.array([[len(batch) / len(everything)] for batch in batches])
    means = np.stack([batch.mean(axis=0) for batch in batches])
    variances = np.stack([batch.var(axis=0) for batch in batches])
    mean, var = merged_moments(shares, means, variances, partial(np.sum, axis=0))
    np.testing.assert_allclose(mean, everything.mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(var, everything.var(axis=0), rtol=1e-7)


def test_a_rank_without_values_counts_nothing() -> None:
    shares, means, variances = (
        np.array([[a], [b]]) for a, b in ((1.0, 0.0), (2.0, 0.0), (0.5, 0.0))
    )
    mean, var = merged_moments(shares, means, variances, partial(np.sum, axis=0))
    assert (mean.tolist(), var.tolist()) == ([2.0], [0.5])
