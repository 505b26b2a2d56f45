"""What a change of ranks does to the global batch, and how a constant one is divided."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from horovod._train.elastic.global_batch import GlobalBatch, check_global_batch, describe_shares
from horovod._train.elastic.ledger import Ledger, Share
from horovod._train.elastic.stream import stream_shares
from horovod.errors import UsageError


def test_each_change_of_ranks_says_both_global_batches() -> None:
    global_batch = GlobalBatch()
    lines = [global_batch.change(ranks, 32) for ranks in (4, 3, 3, 2, 4)]
    assert global_batch.change(3, 1) == "4 to 3 ranks: a step has 3 samples or batches, not 4"
    assert lines == [
        None,
        "4 to 3 ranks: the global batch is 96 samples instead of 128",
        None,
        "3 to 2 ranks: the global batch is 64 samples instead of 96",
        "2 to 4 ranks: the global batch is 128 samples instead of 64",
    ]


def test_a_change_says_that_the_global_batch_stays() -> None:
    global_batch = GlobalBatch()
    lines = [global_batch.change(ranks, 64, constant=128) for ranks in (4, 3, 3, 2)]
    assert lines == [
        None,
        "4 to 3 ranks: the global batch stays 128 samples: 3 ranks take 43, 43 and 42",
        None,
        "3 to 2 ranks: the global batch stays 128 samples: 2 ranks take 64 each",
    ]


def test_a_newcomer_knows_the_ranks_before_it_from_others() -> None:
    global_batch = GlobalBatch()
    global_batch.expect(0)
    global_batch.expect(2)
    global_batch.expect(7)
    line = global_batch.change(3, 4, constant=8)
    assert line == "2 to 3 ranks: the global batch stays 8 samples: 3 ranks take 3, 3 and 2"


@pytest.mark.parametrize(
    ("total", "ranks", "batch_size", "line"),
    [
        (128, 1, 32, "1 rank takes 128, in 4 passes"),
        (128, 3, 32, "3 ranks take 43, 43 and 42, in 2 passes"),
        (7, 2, 8, "2 ranks take 4 and 3"),
        (128, 8, 32, "8 ranks take 16 each"),
        (128, 7, 18, "2 of 7 ranks take 19, the others 18, in 2 passes"),
        (128, 200, 32, "128 of 200 ranks take 1, the others none"),
    ],
)
def test_shares_in_words(total: int, ranks: int, batch_size: int, line: str) -> None:
    assert describe_shares(total, ranks, batch_size) == line


def passes_of_all(size: int, batch_size: int, **ledger: Any) -> list[tuple[Share, ...]]:
    """The passes of all ranks: an element for each pass, which all ranks have at the same time."""
    whole = Ledger(**ledger)
    return list(zip(*(whole.shares(r, size, batch_size) for r in range(size)), strict=True))


CASES = list(itertools.product([1, 7, 40, 41], [1, 2, 3, 5], [1, 4, 32], [1, 4, 13, 64]))


@pytest.mark.parametrize(("length", "size", "batch_size", "global_batch"), CASES)
def test_each_sample_is_in_one_pass_and_steps_are_as_large_as_asked(
    length: int, size: int, batch_size: int, global_batch: int
) -> None:
    passes = passes_of_all(size, batch_size, length=length, seed=3, global_batch=global_batch)
    done: list[int] = []
    steps: list[list[int]] = [[]]
    for shares in passes:
        one = shares[0]
        assert len({(each.number, each.passes, each.consumed, each.total) for each in shares}) == 1
        assert all(1 <= len(each.indices) <= batch_size for each in shares)
        steps[-1] += [index for each in shares for index in each.indices[: each.samples]]
        if one.ends_step:
            done += steps[-1]
            assert len(steps[-1]) == one.total
            assert len(done) == one.consumed
            assert one.is_last == (len(done) == length)
            steps.append([])
    assert sorted(done) == list(range(length))
    left = length % global_batch
    assert [len(step) for step in steps[:-1]] == [global_batch] * (length // global_batch) + (
        [left] if left else []
    )


@pytest.mark.parametrize(("length", "size", "batch_size", "global_batch"), CASES)
def test_full_steps_have_equally_many_samples_in_all_passes(
    length: int, size: int, batch_size: int, global_batch: int
) -> None:
    passes = passes_of_all(size, batch_size, length=length, global_batch=global_batch)
    for shares in passes:
        of_step = [p for p in passes if p[0].consumed == shares[0].consumed]
        counts = {each.samples for p in of_step for each in p}
        assert shares[0].is_full == (len(counts) == 1)


@pytest.mark.parametrize(("length", "size", "batch_size", "global_batch"), CASES)
def test_a_stream_is_divided_as_places_are(
    length: int, size: int, batch_size: int, global_batch: int
) -> None:
    for rank, drop_last in itertools.product(range(size), (False, True)):
        ledger = Ledger(length, shuffle=False, global_batch=global_batch, drop_last=drop_last)
        expected = list(ledger.shares(rank, size, batch_size))
        found = list(
            stream_shares(
                range(length),
                0,
                rank,
                size,
                batch_size,
                drop_last=drop_last,
                global_batch=global_batch,
            )
        )
        assert len(found) == ledger.batches(size, batch_size)
        assert [mine for _, mine in found] == [list(share.indices) for share in expected]
        for (share, _), other in zip(found, expected, strict=True):
            assert (share.samples, share.number, share.of_step) == (
                other.samples,
                other.number,
                other.of_step,
            )


def test_a_change_between_steps_divides_what_is_left() -> None:
    ledger = Ledger(20, shuffle=False, global_batch=6)
    ledger.consumed = next(ledger.shares(0, 2, 3)).consumed
    shares = [list(ledger.shares(rank, 1, 4)) for rank in range(1)]
    found = [(list(share.indices), share.number, share.of_step) for share in shares[0]]
    assert found == [
        ([6, 7, 8], 0, 6),
        ([9, 10, 11], 1, 6),
        ([12, 13, 14], 0, 6),
        ([15, 16, 17], 1, 6),
        ([18, 19], 0, 2),
    ]


def test_a_rank_with_too_few_samples_for_its_passes_has_a_stand_in() -> None:
    ledger = Ledger(3, shuffle=False, global_batch=3)
    passes = [list(ledger.shares(rank, 2, 1)) for rank in range(2)]
    assert [[(list(s.indices), s.samples) for s in shares] for shares in passes] == [
        [([0], 1), ([2], 1)],
        [([1], 1), ([1], 0)],
    ]


def test_drop_last_leaves_out_a_step_of_fewer_samples() -> None:
    ledger = Ledger(10, shuffle=False, global_batch=4, drop_last=True)
    assert ledger.steps(3, 2) == 2
    assert [share.consumed for share in ledger.shares(0, 3, 2)] == [4, 8]


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "64"])
def test_what_is_no_number_of_samples_is_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="global_batch="):
        check_global_batch(wrong)
    check_global_batch(None)
