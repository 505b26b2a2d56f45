"""What is said of the ranks that came to the end of a line."""

from __future__ import annotations

import pytest

from horovod.runner.experiment.lines import straggler
from horovod.runner.supervision.failure import RankExit


@pytest.mark.parametrize(
    ("ends", "line_s", "expected"),
    [
        ([1.0, 4.0, 1.5], 4.0, (1, "host1", 2.5)),
        ([1.0, 1.9], 2.0, None),  # below a second
        ([96.0, 100.0], 100.0, None),  # below a tenth of the line
        ([1.0], 4.0, None),
        ([], 4.0, None),
    ],
)
def test_who_made_the_others_wait(
    ends: list[float], line_s: float, expected: tuple[int, str, float] | None
) -> None:
    exits = [RankExit(rank, f"host{rank}", 0, at_s) for rank, at_s in enumerate(ends)]
    assert straggler(exits, line_s) == expected


def test_a_rank_that_fails_is_no_straggler() -> None:
    assert straggler([RankExit(0, "a", 0, 1.0), RankExit(1, "a", 3, 9.0)], 9.0) is None
