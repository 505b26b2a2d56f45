"""Which parts of a data set are done, and who reads which of the rest; pure.

A part is a stream of samples that can only be read from its beginning: a file, a shard. Each part
is read by one rank, or by several in turns, if there are fewer parts than ranks. At the end of a
step, a prefix of each part that was begun is done. So the ledger is one number for each part that
is begun and not finished, and a change of the size changes nothing in it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass
class PartLedger:
    """The progress within an epoch of parts.

    Places count the parts in the order of the epoch, in which they are begun.

    Attributes:
        num_parts: how many there are.
        epoch: its number.
        begun: how many were begun.
        open: by place of those that are begun and not finished, how many samples are done.
        samples_done: by all ranks, in all epochs.
    """

    num_parts: int
    epoch: int = 0
    begun: int = 0
    open: dict[int, int] = field(default_factory=dict)
    samples_done: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all samples of the epoch are done."""
        return self.begun >= self.num_parts and not self.open

    def begin(self, epoch: int) -> None:
        """Begin an epoch of which nothing is done."""
        self.epoch, self.begun, self.open = epoch, 0, {}

    def advance(self, place: int, samples: int, *, ended: bool) -> None:
        """Count samples of a part, which all of its readers together have taken."""
        self.samples_done += samples
        if ended:
            del self.open[place]
        else:
            self.open[place] += samples

    def copy(self) -> PartLedger:
        """Return a ledger that changes independently."""
        return dataclasses.replace(self, open=dict(self.open))

    def state_dict(self) -> dict[str, Any]:
        """Return the progress: some bytes for each part that is begun and not finished."""
        return {
            "epoch": self.epoch,
            "begun": self.begun,
            "open": [list(each) for each in sorted(self.open.items())],
            "samples_done": self.samples_done,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to what :meth:`state_dict` returned, on any rank of a job of any size."""
        self.epoch, self.begun = state_dict["epoch"], state_dict["begun"]
        self.open = {place: done for place, done in state_dict["open"]}
        self.samples_done = state_dict["samples_done"]


def assign(
    ledger: PartLedger, readers: Sequence[int | None], wanted: Sequence[int]
) -> list[int | None]:
    """Return the place of the part that each rank reads next; begins parts in the ledger.

    A rank keeps its part until that has ended. Then it takes one that is begun and has no reader,
    else the next one, else it shares the one with the fewest readers.

    Args:
        ledger: the same on all ranks, and so is all else.
        readers: by rank, the place that it has read last; None at the beginning.
        wanted: by rank, how many samples are missing in its batch.

    Example:
        >>> assign(PartLedger(3), [None] * 4, [8] * 4)
        [0, 1, 2, 0]
    """
    chosen = [place if place in ledger.open else None for place in readers]
    num_readers = Counter(place for place in chosen if place is not None)
    orphans = iter(sorted(ledger.open.keys() - num_readers.keys()))
    for rank, missing in enumerate(wanted):
        if chosen[rank] is not None or not missing:
            continue
        place = next(orphans, None)
        if place is None and ledger.begun < ledger.num_parts:
            place = ledger.begun
            ledger.open[place] = 0
            ledger.begun += 1
        elif place is None and ledger.open:
            place = min(ledger.open, key=lambda each: (num_readers[each], each))
        if place is not None:
            chosen[rank] = place
            num_readers[place] += 1
    return chosen


def deal(samples: int, wanted: Sequence[int]) -> list[list[int]]:
    """Return which of the next samples of a part each of its readers takes: they take turns.

    Args:
        samples: how many there are; at most the sum of ``wanted``.
        wanted: by reader, how many it can take.

    Example:
        >>> deal(5, [3, 1, 3])
        [[0, 3], [1], [2, 4]]
    """
    taken: list[list[int]] = [[] for _ in wanted]
    offset = 0
    while offset < samples:
        for reader, most in enumerate(wanted):
            if len(taken[reader]) < most and offset < samples:
                taken[reader].append(offset)
                offset += 1
    return taken


class PartsDifferError(Exception):
    """Ranks that read the same part have found different numbers of samples in it.

    Args:
        place: of the part.
        counts: by rank, how many samples there were next.
    """

    def __init__(self, place: int, counts: Mapping[int, int]) -> None:
        super().__init__(place, counts)
        self.place, self.counts = place, counts


@dataclass(frozen=True)
class Report:
    """What a rank has found in its part.

    Attributes:
        samples: how many there were, up to the number that all of its readers want.
        ended: whether no more come.
    """

    samples: int
    ended: bool


class Division:
    """A step of all ranks, in rounds: whose part has ended before its batch is full reads another.

    Args:
        ledger: of what is done before the step; it is at the end of the step when that is over.
        readers: see :func:`assign`.
        batch_size: samples per rank.

    Attributes:
        ledger: see above.
        readers: by rank, the place that it reads.
        samples: by rank, how many samples it has.
    """

    def __init__(self, ledger: PartLedger, readers: Sequence[int | None], batch_size: int) -> None:
        self.ledger = ledger
        self.readers = list(readers)
        self.samples = [0] * len(readers)
        self._batch_size = batch_size

    @property
    def wanted(self) -> list[int]:
        """Return by rank, how many samples are missing in its batch."""
        return [self._batch_size - samples for samples in self.samples]

    @property
    def is_over(self) -> bool:
        """Whether all batches are full, or nothing is left."""
        return not any(self.wanted) or self.ledger.is_over

    def begin_round(self) -> None:
        """Decide which part each rank reads."""
        self.readers = assign(self.ledger, self.readers, self.wanted)

    def asked_of(self, rank: int) -> tuple[int, int, int] | None:
        """Return place, first sample and number of samples that a rank reads; None for nothing."""
        place = self.readers[rank]
        wanted = self.wanted
        if place is None or not wanted[rank]:
            return None
        number = sum(wanted[each] for each in self._ranks_of_places()[place])
        return place, self.ledger.open[place], number

    def end_round(self, reports: Sequence[Report | None]) -> list[list[int]]:
        """Count what ranks have found, and return for each which of the samples it takes.

        Raises:
            PartsDifferError: readers of the same part differ.
        """
        wanted = self.wanted
        taken: list[list[int]] = [[] for _ in wanted]
        for place, ranks in sorted(self._ranks_of_places().items()):
            found = {rank: reports[rank] for rank in ranks}
            report = reports[ranks[0]]
            if report is None:
                continue
            if any(each != report for each in found.values()):
                counts = {rank: each.samples for rank, each in found.items() if each is not None}
                raise PartsDifferError(place, counts)
            dealt = deal(report.samples, [wanted[rank] for rank in ranks])
            for rank, offsets in zip(ranks, dealt, strict=True):
                taken[rank] = offsets
                self.samples[rank] += len(offsets)
            self.ledger.advance(place, report.samples, ended=report.ended)
        return taken

    def _ranks_of_places(self) -> dict[int, list[int]]:
        """Return, for each part that is read, the ranks that read it and want samples."""
        ranks_of: dict[int, list[int]] = {}
        for rank, (place, missing) in enumerate(zip(self.readers, self.wanted, strict=True)):
            if place is not None and missing:
                ranks_of.setdefault(place, []).append(rank)
        return ranks_of
