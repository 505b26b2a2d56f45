"""What a DataLoader says of its samples is honored by ``Training.batches``, or refused."""

from __future__ import annotations

import logging
import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from elastic_threads import PATIENCE_S, elastic_threads
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import horovod.torch as hvd
from horovod._train.shard.torch_loader import drawing, order_of_sampler
from horovod.errors import UsageError
from horovod.testing import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH = 24
TRAIN = [3, 1, 4, 15, 9, 2, 6, 5, 13, 8, 7]


class Own(Sampler[int]):
    """Draws from the numbers of one library."""

    def __init__(self, draw: Callable[[], list[int]]) -> None:
        self._draw = draw

    def __iter__(self) -> Iterator[int]:
        return iter(self._draw())

    def __len__(self) -> int:
        return LENGTH


def seeded(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(number)


SAMPLERS: dict[str, tuple[Callable[[], Any], list[int] | None]] = {
    "subset": (lambda: SubsetRandomSampler(TRAIN), TRAIN),
    "list": (lambda: TRAIN, TRAIN),
    "part": (lambda: SequentialSampler(range(5)), list(range(5))),
    "generator": (lambda: RandomSampler(range(LENGTH), generator=seeded(7)), list(range(LENGTH))),
    "fewer": (lambda: RandomSampler(range(LENGTH), num_samples=7), None),
    "replacement": (lambda: RandomSampler(range(LENGTH), replacement=True), None),
    "weights": (lambda: WeightedRandomSampler([0.0, 1.0, 2.0] * 8, 17), None),
    "own of torch": (lambda: Own(lambda: torch.randperm(LENGTH).tolist()), list(range(LENGTH))),
    "own of numpy": (lambda: Own(lambda: np.random.permutation(LENGTH)), list(range(LENGTH))),
    "own of Python": (
        lambda: Own(lambda: random.sample(range(LENGTH), LENGTH)),
        list(range(LENGTH)),
    ),
}


def epochs_of(make: Callable[[], Any], number: int = 2, **options: Any) -> list[list[int]]:
    """The indices that count of this rank, by epoch."""
    training = hvd.elastic.Training()
    loader = DataLoader(range(LENGTH), sampler=make(), batch_size=2, **options)
    seen: list[list[int]] = []
    for _ in training.epochs(number):
        seen.append([])
        for batch in training.batches(loader):
            seen[-1] += batch.tolist()[: training.samples]
    return seen


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_indices_of_the_sampler_are_divided_among_the_ranks(kind: str) -> None:
    make, expected = SAMPLERS[kind]
    drawn = [order_of_sampler(DataLoader(range(LENGTH), sampler=make()), 0, i) for i in range(2)]

    def train() -> list[list[int]]:
        hvd.init()
        return epochs_of(make)

    by_rank = run_ranks(3, train)
    for epoch in range(2):
        together = Counter(index for seen in by_rank for index in seen[epoch])
        assert together == Counter(drawn[epoch])
        if expected is not None:
            assert together == Counter(expected)
    if kind not in ("list", "part"):
        assert drawn[0] != drawn[1]


def test_a_loader_takes_its_seed_while_no_sampler_draws(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[bool] = []
    plain = DataLoader.__iter__

    def begin(loader: DataLoader[Any]) -> Any:
        locked.append(drawing.locked())
        return plain(loader)

    monkeypatch.setattr(DataLoader, "__iter__", begin)
    assert epochs_of(lambda: range(LENGTH), 1) == [list(range(LENGTH))]
    assert locked == [True]


def test_drawing_disturbs_no_other_random_numbers() -> None:
    generator = seeded(7)
    states = (torch.get_rng_state(), random.getstate(), generator.get_state())
    data: Any = range(LENGTH)
    for sampler in (
        Own(lambda: torch.randperm(LENGTH).tolist()),
        RandomSampler(data, generator=generator),
        Own(lambda: random.sample(range(LENGTH), LENGTH)),
    ):
        order_of_sampler(DataLoader(data, sampler=sampler), 0, 3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert torch.equal(generator.get_state(), states[2])
    assert generator.initial_seed() == 7


def test_a_subset_stays_one_when_ranks_come() -> None:
    def work() -> list[int]:
        training = hvd.elastic.Training(commit_every_s=0.0)
        values = training.track(seen=[])
        loader = DataLoader(range(LENGTH), sampler=SubsetRandomSampler(TRAIN), batch_size=1)
        for epoch in training.epochs(2):
            for step, batch in enumerate(training.batches(loader)):
                if hvd.elastic.generation() == 0 and (epoch, step) == (1, 1):
                    fleet.await_generation(1)
                mine = batch.tolist() if training.samples else []
                for each in hvd.allgather_object(mine):
                    values.seen += each
        return values.seen

    with elastic_threads() as fleet:
        workers = fleet.start(work, 2)
        fleet.begin([0, 1])
        fleet.await_waiting(2)
        workers += fleet.start(work)
        fleet.begin([0, 1, 2])
        for worker in workers:
            assert Counter(worker.result(PATIENCE_S)) == Counter(TRAIN * 2)


def test_drop_last_leaves_out_the_last_step(caplog: pytest.LogCaptureFixture) -> None:
    def train() -> Any:
        hvd.init()
        subset = epochs_of(lambda: SubsetRandomSampler(TRAIN), drop_last=True)
        stream = IterableOf(range(7))
        batches = hvd.elastic.Training().batches(DataLoader(stream, batch_size=2, drop_last=True))
        return subset, [batch.tolist() for batch in batches]

    results = run_ranks(2, train)
    for epoch in range(2):
        seen = [index for subset, _ in results for index in subset[epoch]]
        assert len(seen) == len(set(seen)) == 8  # two steps of two ranks, two samples each
        assert set(seen) < set(TRAIN)
    assert [stream for _, stream in results] == [[[0, 2]], [[1, 3]]]


def test_drop_last_that_leaves_nothing_is_said(
    alone: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "horovod"):
        loader = DataLoader(range(3), batch_size=4, drop_last=True)
        assert list(hvd.elastic.Training().batches(loader)) == []
    assert "drop_last leaves no step of loop 0 in epoch 0: 3 samples are fewer" in caplog.text


class IterableOf(IterableDataset[int]):
    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return iter(self.samples)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")
@pytest.mark.parametrize("data", [range(8), IterableOf(range(8))], ids=["places", "stream"])
def test_collate_fn_and_pinned_memory_are_honored(alone: None, data: Any) -> None:
    loader = DataLoader(data, batch_size=4, collate_fn=lambda samples: [sum(samples)])
    loader.pin_memory = True  # which does nothing without a GPU
    batches = list(hvd.elastic.Training().batches(loader, shuffle=None))
    assert sum(batch[0] for batch in batches) == sum(range(8))


def test_workers_are_set_up_as_the_loader_says(alone: None) -> None:
    loader = DataLoader(
        Placed(), batch_size=2, num_workers=1, worker_init_fn=Placed.set_up, timeout=30
    )
    assert [each.tolist() for each in hvd.elastic.Training().batches(loader)] == [[5, 6], [7, 8]]


class Placed:
    """Samples that show whether a worker was set up."""

    offset = 0

    @staticmethod
    def set_up(worker: int) -> None:
        Placed.offset = 5

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index + self.offset


class LoaderOfItsOwn(DataLoader[int]):
    def __iter__(self) -> Any:
        return iter([])


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


class Longer(Endless):
    def __len__(self) -> int:
        return 3


def refused() -> list[tuple[str, DataLoader[int], dict[str, Any]]]:
    data: Any = range(8)
    batches = BatchSampler(SequentialSampler(data), 2, drop_last=False)
    one = DistributedSampler(data, num_replicas=2, rank=0)
    return [
        ("a batch_sampler", DataLoader(data, batch_sampler=batches), {}),
        ("a batch_sampler", DataLoader(data, batch_sampler=batches), {"batch_size": 2}),
        ("batch_size=None", DataLoader(data, batch_size=None), {"batch_size": 2}),
        ("a DistributedSampler, which divides", DataLoader(data, sampler=one), {}),
        ("an __iter__ of its own", LoaderOfItsOwn(data), {}),
        ("a Endless: the sampler needs a length", DataLoader(data, sampler=Endless()), {}),
        ("more indices than its length says", DataLoader(data, sampler=Longer()), {}),
        (
            "leave shuffle out",
            DataLoader(data, sampler=SubsetRandomSampler([1, 2])),
            {"shuffle": False},
        ),
    ]


@pytest.mark.parametrize("number", range(8))
def test_what_cannot_be_honored_is_refused(alone: None, number: int) -> None:
    why, loader, options = refused()[number]
    with pytest.raises(UsageError, match=why):
        next(hvd.elastic.Training().batches(loader, **options))


@pytest.mark.parametrize("differs", ["sampler", "generator", "length", "seed", "batch", "drop"])
def test_ranks_with_different_orders_are_an_error_on_all(differs: str) -> None:
    def train() -> None:
        hvd.init()
        rank = hvd.rank()
        data: Any = range(LENGTH - rank if differs == "length" else LENGTH)
        sampler: Any = None
        if differs == "sampler":
            sampler = SubsetRandomSampler(TRAIN[: 8 + rank])
        if differs == "generator":
            sampler = RandomSampler(data, generator=seeded(rank))
        loader: Any = DataLoader(
            data,
            batch_size=2 + rank if differs == "batch" else 2,
            sampler=sampler,
            drop_last=differs == "drop" and rank == 1,
        )
        seed = rank if differs == "seed" else 0
        with pytest.raises(UsageError, match="different data or orders"):
            list(
                hvd.elastic.Training().batches(
                    loader, shuffle=True if not sampler else None, seed=seed
                )
            )

    run_ranks(2, train)
