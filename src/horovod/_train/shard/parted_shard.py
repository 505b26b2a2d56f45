"""Batches of a data set that is streams of samples, whose number nobody knows before their end."""

from __future__ import annotations

import logging
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod._train.shard.agreement import (
    digest_of,
    exchange_fingerprints,
    exchange_reports,
    fingerprint_of,
)
from horovod._train.shard.parts import Division, PartLedger, PartsDifferError, Report
from horovod._train.shard.permutation import Permutation
from horovod._train.shard.shard import Shard, shuffled
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from horovod._train.shard.shard import Step, Uneven
    from horovod._train.shard.source import Maker, Parts

_logger = logging.getLogger(__name__)


class PartedShard(Shard):
    """See :class:`Shard`; in each step ranks exchange how many samples they have found.

    Args:
        buffer: how many samples of a part are shuffled at a time; 0 for none.
    """

    _source: Parts

    def __init__(
        self,
        source: Parts,
        maker: Maker,
        batch_size: int,
        shuffle: bool,
        seed: int,
        uneven: Uneven,
        buffer: int,
    ) -> None:
        super().__init__(source, maker, batch_size, shuffle, seed, uneven)
        self._buffer = buffer
        self._ledger = PartLedger(source.num_parts)

    @property
    def epoch(self) -> int:
        return self._ledger.epoch

    @property
    def samples_done(self) -> int:
        return self._ledger.samples_done

    @property
    def _order_options(self) -> list[int]:
        return [*super()._order_options, self._buffer]

    def _steps(self) -> Iterator[Step]:
        rank, size = context.rank(), context.size()
        reader = Reader(self._source, self._order(), self.epoch, self._buffer, self._seed_of())
        rounds = _Rounds(reader, digest_of([self._source.identity, self.epoch]))
        readers: Sequence[int | None] = [None] * size
        while not self._ledger.is_over:
            division = Division(self._ledger.copy(), readers, self.batch_size)
            mine = rounds.take_step(division)
            readers, counts = division.readers, division.samples
            is_full = not any(division.wanted)
            if not any(counts) or (self._skips_last and not is_full):
                self._ledger = division.ledger
                continue
            if not mine and self._uneven == "join":
                self._ledger = division.ledger
                return
            batch = self._batch(mine or reader.stand_ins())
            self._ledger = division.ledger
            yield batch, counts[rank], sum(counts)

    def _batch(self, samples: list[Any]) -> Any:
        return samples[0] if self._source.has_batches else self._maker.collate(samples)

    def _order(self) -> Sequence[int]:
        if self._shuffle:
            return Permutation(self._source.num_parts, self._seed_of())
        return range(self._source.num_parts)

    def _begin(self, epoch: int) -> None:
        self._ledger.begin(epoch)

    def _position(self) -> dict[str, Any]:
        return self._ledger.state_dict()

    def _go_to(self, position: Mapping[str, Any]) -> None:
        self._ledger.load_state_dict(position)


class _Rounds:
    """Goes through the rounds of steps together with the other ranks."""

    def __init__(self, reader: Reader, digest: int) -> None:
        self._reader = reader
        self._digest = digest
        self._exchanged = 0

    def take_step(self, division: Division) -> list[Any]:
        """Return the samples of this rank in a step."""
        rank = context.rank()
        mine: list[Any] = []
        while not division.is_over:
            division.begin_round()
            asked = division.asked_of(rank)
            chunk, report = ([], None) if asked is None else self._reader.read(*asked)
            reports = exchange_reports(report, self._exchanged, self._digest)
            if self._exchanged == 0:
                self._compare_beginnings(None if asked is None else asked[0], chunk)
            self._exchanged += 1
            try:
                taken = division.end_round(reports)[rank]
            except PartsDifferError as error:
                raise self._differ(error) from None
            mine += [chunk[offset] for offset in taken]
        return mine

    def _compare_beginnings(self, place: int | None, chunk: list[Any]) -> None:
        """Warn if ranks that share a part find different samples at the beginning."""
        others = exchange_fingerprints(place, fingerprint_of(chunk[:1]))
        rank = context.rank()
        if others and rank < min(others):
            _logger.warning(
                "shard of %s: rank %d and rank %d read the same part, but different samples come "
                "first. If each draws random changes of the same samples, this is as it should be. "
                "If the data set divides itself by rank, most samples are never trained: give the "
                "whole one",
                self._reader.name,
                rank,
                min(others),
            )

    def _differ(self, error: PartsDifferError) -> UsageError:
        found = ", ".join(f"rank {rank}: {count}" for rank, count in error.counts.items())
        return UsageError(
            f"shard of {self._reader.name}: ranks that share part {error.place} of epoch "
            f"{self._reader.epoch} have found different numbers of samples next ({found}): its "
            "samples must be the same in the same order on all ranks and whenever it is read; a "
            "data set that divides itself by rank must not"
        )


class Reader:
    """Reads parts, one at a time.

    Args:
        source: what has the parts.
        order: of the parts in this epoch.
        epoch: its number.
        buffer: how many samples are shuffled at a time; 0 for none.
        seed: of the epoch, for that.
    """

    def __init__(
        self, source: Parts, order: Sequence[int], epoch: int, buffer: int, seed: int
    ) -> None:
        self.name = source.name
        self.epoch = epoch
        self._source = source
        self._order = order
        self._buffer = buffer
        self._seed = seed
        self._place: int | None = None
        self._position = 0
        self._left: Iterator[Any] = iter(())
        # What a rank that has no sample in a step takes part with.
        self._last: list[Any] = []

    def read(self, place: int, first: int, number: int) -> tuple[list[Any], Report]:
        """Return samples of a part, and whether they are its last ones.

        Args:
            place: of the part in the order.
            first: how many samples come before.
            number: how many to return; fewer if the part ends.
        """
        if place != self._place or first < self._position:
            self._left = self._open(place, first)
            self._place = place
        elif first > self._position:
            self._left = islice(self._left, first - self._position, None)
        chunk = list(islice(self._left, number))
        following = list(islice(self._left, 1)) if len(chunk) == number else []
        self._left = chain(following, self._left)
        self._position = first + len(chunk)
        self._last = chunk[-1:] or self._last
        return chunk, Report(len(chunk), ended=not following)

    def stand_ins(self) -> list[Any]:
        """Return a sample that does not count on this rank: its last one, or any."""
        if not self._last:
            places = range(len(self._order))
            found = (sample for place in places for sample in islice(self._open(place, 0), 1))
            self._last = list(islice(found, 1))
        return self._last

    def _open(self, place: int, skip: int) -> Iterator[Any]:
        part = self._order[place]
        if not self._buffer:
            return self._source.read(part, self.epoch, skip)
        whole = self._source.read(part, self.epoch, 0)
        return islice(shuffled(whole, self._buffer, self._seed + part), skip, None)
