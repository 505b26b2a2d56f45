from __future__ import annotations

import pytest

from horovod.runner.supervision.failure import RankExit
from horovod.runner.supervision.summary import summarize

LOST = ("horovod.errors.PeerLostError: rank 0 on a died",)


def ended(rank: int, returncode: int, tail: tuple[str, ...] = (), why: str = "") -> RankExit:
    return RankExit(rank, "a", returncode, 0.0, tail, why)


def test_who_ended_how() -> None:
    first = ended(3, 7)
    exits = [first, ended(0, 0), ended(5, 1, LOST), ended(6, 1, LOST), ended(4, -9)]
    assert summarize(first, exits, [9, 1, 2, 8, 7], [10], 61.4) == (
        "the job ran for 1 min 1 s: rank 3 exited with code 7 first; rank 0 finished; "
        "ranks 5, 6 failed because they lost a peer; rank 4 was killed by SIGKILL; "
        "ranks 1, 2, 7 to 9 were stopped; rank 10 was lost"
    )


def test_many_ranks_fit_into_a_line() -> None:
    text = summarize(ended(1, 1), [], range(0, 4000, 2), [], 1)
    assert text.endswith("ranks 0, 2, 4, 6, 8, 10, … were stopped")
    assert summarize(None, [], range(4000), [], 1).endswith("ranks 0 to 3999 were stopped")


def test_a_command_that_cannot_be_started() -> None:
    first = ended(0, 127, why="no such file")
    assert summarize(first, [first], [1], [], 0.1) == (
        "the job ran for 0.1 s: rank 0 could not be started first; rank 1 was stopped"
    )


def test_one_that_lost_its_peer() -> None:
    assert "rank 2 failed because it lost a peer" in summarize(
        None, [ended(2, 1, LOST)], [0], [], 1
    )


def test_a_job_of_one_rank() -> None:
    first = ended(0, 1)
    assert summarize(first, [first], [], [], 2) == "the job ran for 2.0 s"


def test_nothing_to_say() -> None:
    assert summarize(None, [], [], [], 5) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7380, "2 h 3")],
)
def test_durations(seconds: float, text: str) -> None:
    assert f"ran for {text}" in summarize(None, [], [0], [], seconds)
