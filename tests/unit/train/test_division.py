"""The elements of an array are divided among the ranks without gaps, and evenly."""

from __future__ import annotations

import numpy as np
import pytest

from horovod._train.division import Division


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("shape", [(), (0, 4), (1,), (5, 3), (7,), (2, 3, 4)])
def test_parts_of_all_ranks_are_the_whole(shape: tuple[int, ...], size: int) -> None:
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    parts = [Division(rank, size).piece_of(whole) for rank in range(size)]
    np.testing.assert_array_equal(np.concatenate(parts), whole.reshape(-1))
    counts = [len(part) for part in parts]
    assert counts == list(Division(0, size).counts(shape))
    assert max(counts) - min(counts) <= 1


def test_a_part_stays_in_the_memory_of_its_array() -> None:
    whole = np.zeros((4, 3))
    Division(1, 2).piece_of(whole)[:] = 1
    np.testing.assert_array_equal(whole, np.repeat([[0], [1]], 2, axis=0) * np.ones(3))
