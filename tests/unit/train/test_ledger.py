"""The order of an epoch, and who does which part of it."""

from __future__ import annotations

import pytest

from horovod._train.elastic.ledger import Ledger, order_of
from horovod.errors import UsageError


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(0, [7, 8, 1, 5, 3, 4, 2, 0, 9, 6]), (1, [6, 8, 9, 7, 5, 3, 0, 4, 1, 2])],
)
def test_the_order_is_that_of_cpython(seed: int, expected: list[int]) -> None:
    assert list(order_of(10, seed)) == expected
    assert list(order_of(10, seed, shuffle=False)) == list(range(10))


def test_a_sample_takes_4_bytes() -> None:
    assert order_of(1000, 0).itemsize == 4


def test_each_epoch_has_its_order_made_once() -> None:
    ledger = Ledger(10, seed=1)
    first = ledger.order
    assert ledger.order is first
    ledger.begin(1)
    assert list(ledger.order) == list(order_of(10, 2))


def test_the_rest_is_repeated_until_all_have_equally_many() -> None:
    ledger = Ledger(10)
    parts = [[7, 3, 9], [8, 4, 6], [1, 2, 7], [5, 0, 8]]
    assert [ledger.padded(rank, 4) for rank in range(4)] == parts
    ledger.consumed = 4
    assert [ledger.padded(rank, 3) for rank in range(3)] == [[3, 0], [4, 9], [2, 6]]


@pytest.mark.parametrize(("left", "size"), [(1, 3), (3, 7), (0, 2), (1, 1)])
def test_few_samples_suffice_for_many_ranks(left: int, size: int) -> None:
    ledger = Ledger(10, shuffle=False)
    ledger.consumed = 10 - left
    parts = [ledger.padded(rank, size) for rank in range(size)]
    assert {len(part) for part in parts} == {-(-left // size)}
    assert {index for part in parts for index in part} == set(range(10 - left, 10))


def test_a_rank_for_which_nothing_is_left_has_stand_ins() -> None:
    ledger = Ledger(7, shuffle=False)
    ledger.consumed = 6
    shares = [ledger.share(rank, 3, 2) for rank in range(3)]
    assert [(list(share.indices), share.samples) for share in shares] == [
        ([6], 1),
        ([6], 0),
        ([6], 0),
    ]
    assert not any(share.is_full for share in shares)


def test_a_state_goes_to_a_job_of_another_size() -> None:
    ledger = Ledger(12, seed=5)
    ledger.begin(3)
    ledger.consumed = 8
    other = Ledger(12, seed=5)
    other.load_state_dict(ledger.state_dict())
    rest = [
        index for rank in range(2) for share in other.shares(rank, 2, 1) for index in share.indices
    ]
    assert sorted(rest) == sorted(ledger.order[8:])


def test_wrong_arguments_say_so() -> None:
    with pytest.raises(UsageError, match="negative"):
        Ledger(-1)
    ledger = Ledger(4)
    for rank, size, batch_size in [(2, 2, 1), (-1, 2, 1), (0, 1, 0)]:
        with pytest.raises(UsageError, match="rank"):
            ledger.share(rank, size, batch_size)
    with pytest.raises(UsageError, match="no step that begins at sample 4"):
        ledger.share(0, 2, 2, ahead=1)
