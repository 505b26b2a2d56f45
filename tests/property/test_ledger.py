"""Whatever joins, leaves or crashes: each sample of an epoch once since the last commit."""

from __future__ import annotations

from collections import Counter

import profiles
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from horovod._train.elastic.ledger import Ledger
from horovod._train.elastic.stream import stream_shares


class Training(RuleBasedStateMachine):
    """A job whose ranks each have a ledger of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.ledgers: list[Ledger] = []
        self.kept: list[Counter[int]] = []
        self.done: list[Counter[int]] = []

    @precondition(lambda self: not self.ledgers)
    @rule(
        length=st.integers(0, 40),
        size=st.integers(1, 5),
        batch_size=st.integers(1, 5),
        shuffle=st.booleans(),
    )
    def start(self, length: int, size: int, batch_size: int, shuffle: bool) -> None:
        self.new = lambda: Ledger(length, shuffle=shuffle, seed=3)
        self.ledgers = [self.new() for _ in range(size)]
        self.batch_size = batch_size
        # What counts, epoch by epoch: as of the last commit, and as of now.
        self.kept, self.done = [], [Counter()]
        self.commit()

    @precondition(lambda self: self.ledgers)
    @rule(steps=st.integers(1, 4))
    def train(self, steps: int) -> None:
        size = len(self.ledgers)
        for _ in range(min(steps, self.ledgers[0].steps(size, self.batch_size))):
            shares = [
                ledger.share(rank, size, self.batch_size)
                for rank, ledger in enumerate(self.ledgers)
            ]
            assert len({(share.consumed, share.is_full) for share in shares}) == 1
            for ledger, share in zip(self.ledgers, shares, strict=True):
                assert 1 <= len(share.indices) <= max(self.batch_size, size)
                assert share.samples in {0, len(share.indices)}
                self.done[-1].update(share.indices[: share.samples])
                ledger.consumed = share.consumed
        if self.ledgers[0].left == 0:
            for ledger in self.ledgers:
                ledger.begin(ledger.epoch + 1)
            self.done.append(Counter())

    @precondition(lambda self: self.ledgers)
    @rule()
    def commit(self) -> None:
        self.saved = self.ledgers[0].state_dict()
        self.kept = [Counter(epoch) for epoch in self.done]

    @precondition(lambda self: self.ledgers)
    @rule(size=st.integers(1, 5), crashes=st.booleans())
    def change(self, size: int, crashes: bool) -> None:
        state = self.saved if crashes else self.ledgers[-1].state_dict()
        if crashes:
            self.done = [Counter(epoch) for epoch in self.kept]
        self.ledgers = [*self.ledgers, *(self.new() for _ in range(size))][-size:]
        for ledger in self.ledgers:
            ledger.load_state_dict(state)

    @invariant()
    def each_sample_once(self) -> None:
        if not self.ledgers:
            return
        ledger = self.ledgers[0]
        everything = Counter(range(ledger.length))
        assert all(epoch == everything for epoch in self.done[:-1])
        assert self.done[-1].total() == ledger.consumed
        left = Counter(
            index
            for rank, each in enumerate(self.ledgers)
            for share in each.shares(rank, len(self.ledgers), self.batch_size)
            for index in share.indices[: share.samples]
        )
        assert self.done[-1] + left == everything


TestTraining = Training.TestCase
TestTraining.settings = profiles.examples()


@profiles.examples()
@given(
    length=st.integers(0, 40),
    consumed=st.integers(0, 40),
    size=st.integers(1, 5),
    batch_size=st.integers(1, 5),
)
def test_a_stream_is_divided_as_samples_with_places_are(
    length: int, consumed: int, size: int, batch_size: int
) -> None:
    ledger = Ledger(length, shuffle=False)
    ledger.consumed = min(consumed, length)
    for rank in range(size):
        by_place = list(ledger.shares(rank, size, batch_size))
        read = list(stream_shares(range(length), ledger.consumed, rank, size, batch_size))
        assert [mine for _, mine in read] == [list(share.indices) for share in by_place]
        for (share, _), expected in zip(read, by_place, strict=True):
            assert list(share.indices) == list(expected.indices)
            assert share.samples == expected.samples
            assert (share.consumed, share.total) == (expected.consumed, expected.total)
            assert (share.is_full, share.is_last) == (expected.is_full, expected.is_last)
