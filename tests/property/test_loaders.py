"""Whatever sampler a loader has, and whatever ranks come and go: its indices, each once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import profiles
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from horovod._train.elastic.ledger import Ledger
from horovod._train.shard.torch_loader import has_plain_order, order_of_sampler

LENGTH = 40
Loader = Any


@st.composite
def loaders(draw: st.DrawFn) -> tuple[Loader, bool]:
    """A loader, and whether its sampler may yield an index more than once."""
    data: Any = range(LENGTH)
    seed = draw(st.none() | st.integers(0, 2**64 - 1))
    generator = None if seed is None else Generator().manual_seed(seed)
    kind = draw(st.sampled_from(["plain", "subset", "random", "replacement", "weights", "part"]))
    number = draw(st.integers(1, LENGTH))
    sampler: Any = None
    if kind == "subset":
        indices = draw(st.lists(st.integers(0, LENGTH - 1), unique=True))
        sampler = SubsetRandomSampler(indices, generator=generator)
    elif kind == "part":
        sampler = SequentialSampler(range(number))
    elif kind == "random":
        sampler = RandomSampler(data, num_samples=number, generator=generator)
    elif kind == "replacement":
        sampler = RandomSampler(data, True, number, generator)
    elif kind == "weights":
        weights = draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=1, max_size=LENGTH))
        sampler = WeightedRandomSampler([*weights, 1.0], number, True, generator)
    drop_last = draw(st.booleans())
    batch_size = draw(st.integers(1, 5))
    loader = DataLoader(data, batch_size, kind == "plain", sampler, drop_last=drop_last)
    return loader, kind in ("replacement", "weights")


def ledger_of(loader: Loader, epoch: int) -> Ledger:
    """As each rank makes it."""
    indices = None if has_plain_order(loader) else order_of_sampler(loader, 3, epoch)
    length = LENGTH if indices is None else len(indices)
    ledger = Ledger(length, seed=3, indices=indices, drop_last=loader.drop_last)
    ledger.begin(epoch)
    return ledger


@profiles.examples()
@given(
    drawn=loaders(),
    epoch=st.integers(0, 3),
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=4),
)
def test_ranks_train_the_indices_of_the_sampler_and_no_others(
    drawn: tuple[Loader, bool], epoch: int, sizes: list[tuple[int, int]]
) -> None:
    loader, repeats = drawn
    of_sampler = Counter(ledger_of(loader, epoch).order)
    if isinstance(loader.sampler, SubsetRandomSampler):
        assert of_sampler == Counter(loader.sampler.indices)
    if isinstance(loader.sampler, WeightedRandomSampler):
        assert all(loader.sampler.weights[index] > 0 for index in of_sampler)
    assert repeats or max(of_sampler.values(), default=0) <= 1
    done: Counter[int] = Counter()
    consumed, size = 0, 1
    # The last size trains what is left; each change begins with ledgers of newcomers.
    for number, (size, steps) in enumerate(sizes):
        ledgers = [ledger_of(loader, epoch) for _ in range(size)]
        assert len({ledger.digest for ledger in ledgers}) == 1
        for ledger in ledgers:
            ledger.consumed = consumed
        left = ledgers[0].steps(size, loader.batch_size)
        for _ in range(left if number == len(sizes) - 1 else min(steps, left)):
            shares = [ledger.share(i, size, loader.batch_size) for i, ledger in enumerate(ledgers)]
            assert len({(share.consumed, share.is_last) for share in shares}) == 1
            for ledger, share in zip(ledgers, shares, strict=True):
                assert share.is_full or not loader.drop_last
                assert set(share.indices) <= of_sampler.keys()
                done.update(share.indices[: share.samples])
                ledger.consumed = consumed = share.consumed
    dropped = of_sampler - done
    assert done - of_sampler == Counter()
    assert dropped.total() == ((of_sampler.total() - consumed) if loader.drop_last else 0)
    assert dropped.total() < size * loader.batch_size
