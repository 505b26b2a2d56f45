"""Whatever data, ranks, losses and resumes: each sample once per epoch, and no rank waits."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import profiles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shard_story import Case, check_story
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler

from horovod._train.shard.parts import Division, PartLedger, Report
from horovod._train.shard.permutation import Permutation

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 40


class Items(Dataset[int]):
    """Samples with an index."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> int:
        return self.ids[index]


class Filtered(IterableDataset[int]):
    """A stream that leaves out what is no multiple of a divisor; each epoch in another order."""

    def __init__(self, number: int, divisor: int) -> None:
        self.number, self.divisor, self.epoch = number, divisor, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        numbers = list(range(self.number))
        return (n for n in numbers[:: -1 if self.epoch else 1] if n % self.divisor == 0)


class Shards:
    """A stream in shards of different lengths, filtered when it is read."""

    def __init__(self, lengths: list[int], divisor: int) -> None:
        self.lengths, self.divisor = lengths, divisor
        self.num_shards = len(lengths)

    def ids_of(self, index: int) -> list[int]:
        ids = range(100 * index, 100 * index + self.lengths[index])
        return [each for each in ids if each % self.divisor == 0]

    def shard(self, num_shards: int, index: int) -> list[int]:
        assert num_shards == self.num_shards
        return self.ids_of(index)

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("nobody reads the whole")


def case_of(kind: str, number: int, lengths: list[int], divisor: int) -> Case:
    """Return a data set of a kind."""
    ids = list(range(number))
    if kind == "list":
        return Case(lambda: ids, ids)
    if kind == "array":
        return Case(lambda: np.arange(number), ids)
    if kind == "columns":
        data = {"x": np.arange(number), "y": [2 * each for each in ids]}
        return Case(lambda: data, ids, lambda batch: list(batch["x"].tolist()))
    if kind == "dataset":
        return Case(lambda: Items(ids), ids)
    if kind == "loader":
        own = ids or [0]  # torch refuses to shuffle nothing
        return Case(lambda: DataLoader(Items(own), 3, shuffle=True), own)
    if kind == "sampler":
        own = ids[::divisor]
        case = Case(lambda: DataLoader(Items(ids), 3, sampler=SubsetRandomSampler(own)), own)
        return case
    if kind == "stream":
        return Case(lambda: Filtered(number, divisor), ids[::divisor])
    if kind == "loader of a stream":
        return Case(lambda: DataLoader(Filtered(number, divisor), 2), ids[::divisor])
    shards = Shards(lengths, divisor)
    own = [each for index in range(len(lengths)) for each in shards.ids_of(index)]
    return Case(lambda: shards, own, has_one_order=False)


KINDS = ("list", "array", "columns", "dataset", "loader", "sampler", "stream", "shards")
LOSSES = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4)), min_size=0, max_size=3
)


# Each example starts several jobs.
@settings(parent=profiles.examples(), max_examples=profiles.examples().max_examples // 5)
@pytest.mark.parametrize("kind", [*KINDS, "loader of a stream"])
@given(
    number=st.integers(0, MOST),
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8),
    divisor=st.integers(1, 4),
    batch_size=st.integers(1, 5),
    shuffle=st.sampled_from([None, True, False]),
    seed=st.integers(-3, 3),
    losses=LOSSES,
    size=st.integers(1, 6),
)
def test_each_sample_once_per_epoch_whoever_is_lost(
    kind: str,
    number: int,
    lengths: list[int],
    divisor: int,
    batch_size: int,
    shuffle: bool | None,
    seed: int,
    losses: list[tuple[int, int, int]],
    size: int,
) -> None:
    case = case_of(kind, number, lengths, divisor)
    if kind == "sampler":
        shuffle = None
    check_story(case, batch_size, shuffle=shuffle, seed=seed, losses=losses, size=size)


@settings(parent=profiles.examples())
@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12),
    sizes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(1, 5)), min_size=1, max_size=6
    ),
)
def test_parts_are_read_once_by_any_numbers_of_ranks(
    lengths: list[int], sizes: list[tuple[int, int, int]]
) -> None:
    parts = [[(place, each) for each in range(length)] for place, length in enumerate(lengths)]
    ledger = PartLedger(len(parts))
    taken: list[Any] = []
    for size, batch_size, steps in [*sizes, (2, 3, 1000)]:
        readers: list[int | None] = [None] * size
        for _ in range(steps):
            if ledger.is_over:
                break
            division = Division(ledger.copy(), readers, batch_size)
            taken += take_step(division, parts, size)
            assert all(0 <= each <= batch_size for each in division.samples)
            ledger, readers = division.ledger, division.readers
        # A change: what is left is a few numbers.
        state = ledger.state_dict()
        ledger = PartLedger(len(parts))
        ledger.load_state_dict(state)
        assert len(state["open"]) <= max(each for each, _, _ in sizes) + 2
    assert sorted(taken) == sorted(each for part in parts for each in part)
    assert ledger.samples_done == len(taken)


def take_step(division: Division, parts: list[list[Any]], size: int) -> list[Any]:
    """Take a step of all ranks, which exchange nothing but their reports."""
    taken: list[Any] = []
    while not division.is_over:
        division.begin_round()
        chunks: list[list[Any]] = [[] for _ in range(size)]
        reports: list[Report | None] = [None] * size
        for rank in range(size):
            asked = division.asked_of(rank)
            if asked is not None:
                place, first, number = asked
                chunks[rank] = list(islice(parts[place], first, first + number))
                reports[rank] = Report(len(chunks[rank]), first + number >= len(parts[place]))
        for chunk, offsets in zip(chunks, division.end_round(reports), strict=True):
            taken += [chunk[offset] for offset in offsets]
    return taken


@settings(parent=profiles.examples())
@given(length=st.integers(0, 20_000), seed=st.integers(-(2**70), 2**70))
def test_an_order_has_each_number_once(length: int, seed: int) -> None:
    order = Permutation(length, seed)
    assert sorted(order[:]) == list(range(length))
    assert length == 0 or order[length // 2] == order[:][length // 2]
