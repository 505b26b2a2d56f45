from __future__ import annotations

from dataclasses import replace

import pytest

from horovod._rank.reports.end import EndReport
from horovod.runner.supervision.failure import RankExit, cause, first_failure, headline, last_words

LOST = ("Traceback ...", "horovod.errors.PeerLostError: rank 0 on a died")


def ended(rank: int, returncode: int, at_s: float = 0.0, tail: tuple[str, ...] = ()) -> RankExit:
    return RankExit(rank, "a", returncode, at_s, tail)


def first(*exits: RankExit) -> int | None:
    failure = first_failure(exits)
    return None if failure is None else failure.rank


def test_no_failure() -> None:
    assert first() is None
    assert first(ended(0, 0), ended(1, 0)) is None


def test_the_earliest_failure_is_first() -> None:
    assert first(ended(2, 0, 0.0), ended(1, 7, 1.0), ended(0, 9, 1.5)) == 1
    assert first(ended(3, 7, 1.0), ended(0, 9, 1.0)) == 3


def test_a_signal_is_first_only_within_the_same_instant() -> None:
    assert first(ended(0, 1, 1.0), ended(1, -9, 1.05)) == 1
    assert first(ended(0, 1, 1.0), ended(1, -9, 1.5)) == 0


def test_a_rank_that_lost_a_peer_is_not_the_cause() -> None:
    assert first(ended(1, 1, 1.0, LOST), ended(0, 3, 2.5)) == 0
    assert first(ended(1, -6, 1.0, LOST), ended(0, 3, 1.0)) == 0
    assert first(ended(1, 1, 1.0, LOST), ended(2, 1, 1.2, LOST)) == 1


def test_a_rank_that_could_not_start_because_of_another_is_not_the_cause() -> None:
    tail = ("horovod.errors.StartError: rank 1 (a:12) could not start: no memory",)
    assert first(ended(0, 1, 1.0, tail), ended(1, 1, 1.2, tail)) == 1


@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        ("horovod.errors.PeerLostError: allreduce.x failed: rank 2 (b:7) was lost: its", 2),
        ("horovod.errors.ShutDownError: x failed: rank 0 (b:7) has shut Horovod down (it", 0),
        ("ShutDownError: x failed: rank 3 has shut Horovod down (", None),  # itself
        ("ValueError: rank 2 (b:7) was lost", None),
    ],
)
def test_the_rank_that_an_error_names(line: str, culprit: int | None) -> None:
    assert ended(3, 1, 0.0, ("Traceback", line)).culprit == culprit


def test_the_first_cause_is_named_even_if_its_process_lives_longer() -> None:
    line = "horovod.errors.ShutDownError: x failed: rank 1 (b:7) has shut Horovod down (it raised"
    failure = ended(0, 1, 1.0, (line,))
    assert cause(failure, {1: "b", 2: "c"}) == (
        "rank 1 on b failed first, according to rank 0, but its process has not ended; "
        "rank 0 on a exited with code 1"
    )
    assert cause(failure, {2: "c"}) == "rank 0 on a exited with code 1"


def reported(*lines: str) -> EndReport:
    kind, _, text = lines[-1].partition(": ")
    return EndReport(kind, text, "train.py:7", lines[-2::-1])


def test_what_a_rank_reported_counts_and_not_what_it_printed() -> None:
    """One logs an error that it overcame, another one has sent its stderr elsewhere."""
    overcame = replace(ended(1, 1, 1.0, LOST), report=reported("ValueError: bad batch"))
    silent = replace(ended(0, 1, 0.5), report=reported(LOST[1].removeprefix("horovod.errors.")))
    assert first(silent, overcame) == 1
    assert silent.is_follow_up
    assert not overcame.is_follow_up


def test_an_error_that_follows_from_a_lost_peer_is_not_the_cause() -> None:
    lost = "ShutDownError: x failed: rank 1 (b:7) has shut Horovod down (it raised"
    wrapped = replace(ended(0, 1, 1.0), report=reported(lost, "RuntimeError: epoch 3 failed"))
    assert wrapped.is_follow_up
    assert wrapped.culprit == 1
    assert first(wrapped, ended(1, 1, 2.0)) == 1


def test_the_report_of_a_rank_that_printed_nothing_is_told() -> None:
    quiet = replace(ended(3, 1), report=reported("ValueError: bad batch"))
    assert last_words(quiet) == "; it raised ValueError at train.py:7: bad batch"
    assert "its stderr" in last_words(replace(quiet, stderr_tail=("boom",)))


def test_a_mismatch_is_a_cause() -> None:
    tail = ("horovod.errors.MismatchError: ranks disagree",)
    assert first(ended(1, 1, 1.0, tail), ended(0, 1, 1.01, LOST)) == 1


@pytest.mark.parametrize(
    ("returncode", "exit_code", "text"),
    [
        (7, 7, "rank 3 on a exited with code 7"),
        (-15, 143, "rank 3 on a was killed by SIGTERM"),
        (-9, 137, "rank 3 on a was killed by SIGKILL; was it out of memory?"),
        (-40, 168, "rank 3 on a was killed by signal 40"),
    ],
)
def test_headline(returncode: int, exit_code: int, text: str) -> None:
    failure = ended(3, returncode)
    assert headline(failure).startswith(text)
    assert failure.exit_code == exit_code


def test_report_has_the_tail() -> None:
    assert last_words(ended(3, 7, tail=("one", "two"))).endswith("of its stderr:\n    one\n    two")
    assert last_words(ended(3, 7)) == ""


def test_report_of_a_command_that_did_not_start() -> None:
    failure = RankExit(0, "a", 127, 0.0, start_error="the command 'x' was not found")
    assert cause(failure) == "rank 0 on a could not be started: the command 'x' was not found"
