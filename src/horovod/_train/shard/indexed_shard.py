"""Batches of a data set whose samples have places."""

from __future__ import annotations

from itertools import tee
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod._train.elastic.ledger import Ledger
from horovod._train.shard.permutation import Permutation
from horovod._train.shard.shard import Shard
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horovod._train.shard.shard import Step, Uneven
    from horovod._train.shard.source import Indexed, Maker


class IndexedShard(Shard):
    """See :class:`Shard`; all ranks know the order, so steps need no communication."""

    _source: Indexed

    def __init__(
        self,
        source: Indexed,
        maker: Maker,
        batch_size: int,
        shuffle: bool,
        seed: int,
        uneven: Uneven,
    ) -> None:
        super().__init__(source, maker, batch_size, shuffle, seed, uneven)
        self._epoch = 0
        self._consumed = 0
        self._order: Sequence[Any] = ()
        # Of an order that the data has itself, in the epoch that has begun; 0 as long as unknown.
        self._digest = 0

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def samples_done(self) -> int:
        return self._epoch * self._source.length + self._consumed

    def __len__(self) -> int:
        """Return the number of steps that are left in the epoch, the same on all ranks."""
        return self._ledger(range(self._source.length)).steps(context.size(), self.batch_size)

    def _ledger(self, order: Sequence[Any]) -> Ledger:
        ledger = Ledger(self._source.length, indices=order, drop_last=self._skips_last)
        ledger.begin(self._epoch)
        ledger.consumed = self._consumed
        return ledger

    def _prepare(self) -> int:
        length = self._source.length
        order = self._source.order_in(self._epoch, self._seed)
        if order is None:
            self._order = Permutation(length, self._seed_of()) if self._shuffle else range(length)
            return 0
        digest = Ledger(length, indices=order).digest + 1
        if self._digest not in (0, digest):
            raise UsageError(
                f"shard of {self._source.name}: its sampler draws another order of epoch "
                f"{self._epoch} than in the job that has begun it, so the position means nothing: "
                "give it the same data, and a generator with a seed"
            )
        self._order, self._digest = order, digest
        return digest

    def _steps(self) -> Iterator[Step]:
        rank, size = context.rank(), context.size()
        shares, ahead = tee(self._ledger(self._order).shares(rank, size, self.batch_size))
        if self._uneven == "join":
            shares, ahead = (filter(lambda share: share.samples, each) for each in (shares, ahead))
        # A loader may take shares ahead; they count when their batches are yielded.
        indices = (list(share.indices) for share in ahead)
        for share, batch in zip(shares, self._source.batches(indices, self._maker), strict=True):
            self._consumed = share.consumed
            yield batch, share.samples, share.total

    def _begin(self, epoch: int) -> None:
        self._epoch, self._consumed, self._digest = epoch, 0, 0

    def _position(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "consumed": self._consumed, "order": self._digest}

    def _go_to(self, position: Mapping[str, Any]) -> None:
        self._epoch, self._consumed = position["epoch"], position["consumed"]
        self._digest = position["order"]
