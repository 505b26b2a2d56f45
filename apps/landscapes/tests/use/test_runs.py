"""Maps as runs of ids."""

from __future__ import annotations

import numpy as np
import pytest

from landscapes.errors import LandscapesError
from landscapes.runs import from_runs, to_runs


def test_runs_return_the_map_that_they_were_made_of() -> None:
    labels = np.random.default_rng(0).integers(0, 9, (7, 5), np.uint8)
    assert np.array_equal(from_runs(to_runs(labels), 5, 7), labels)


def test_a_flat_map_is_one_run() -> None:
    assert to_runs(np.full((4, 4), 3, np.uint8)) == [3, 16]


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([0, 4, 1], "without a length"),
        ([9, 4], "holds the id 9; classes are 0 to 8"),
        ([-1, 4], "holds the id -1"),
        ([0, 3], "have 3 cells; a map of 2 x 2 has 4"),
        ([0, 10**30], "2 x 2 has 4"),
        ([0, -4, 0, 8], "2 x 2 has 4"),
    ],
)
def test_wrong_runs_are_refused(runs: list[int], reason: str) -> None:
    with pytest.raises(LandscapesError, match=reason):
        from_runs(runs, 2, 2)
