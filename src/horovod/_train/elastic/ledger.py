"""The ledger of samples: which of an epoch are done, and who does which of the rest.

At a step boundary all ranks together have done the first ``consumed`` samples of the order of the
epoch, however many ranks there were: in a step each of them takes every size-th of the next
``size * batch_size``. So the ledger is two numbers, which fit into every commit, and a change of
the size divides what is left and nothing else. With a constant global batch a step has that many
samples, whatever the size, and each rank takes its share of them in passes.
"""

from __future__ import annotations

import random
import zlib
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from horovod._train.elastic.global_batch import passes_of, split_for_passes
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


@dataclass(frozen=True)
class Share:
    """The work of one rank in one step, or in one of its passes.

    Attributes:
        indices: of the samples; never empty while there are samples in the data set.
        samples: how many of them count: all, or 0 if there were none left for this rank, and the
            indices are stand-ins, so that it takes part in the step as the others do.
        consumed: how many samples of the epoch all ranks have done after this step.
        total: how many samples all ranks together have in this step.
        is_full: whether all ranks have equally many samples in each pass of this step.
        is_last: whether it is the last step of the epoch.
        number: of the pass in the step, from 0.
        passes: how many passes the step has, the same on all ranks.
        of_step: how many samples count on this rank in all passes of the step.
    """

    indices: Sequence[int]
    samples: int
    consumed: int
    total: int
    is_full: bool
    is_last: bool
    number: int = 0
    passes: int = 1
    of_step: int = 0

    @property
    def ends_step(self) -> bool:
        """Whether this is the last pass of the step."""
        return self.number + 1 == self.passes

    def in_passes(self, size: int, batch_size: int) -> list[Share]:
        """Divide the work of a step into passes of at most ``batch_size`` samples.

        Args:
            size: of the job; all ranks have equally many passes.
            batch_size: how many samples fit into a pass.
        """
        passes = passes_of(self.total, size, batch_size)
        is_full = self.total % (size * passes) == 0
        if not self.samples:
            return [replace(self, indices=self.indices[:batch_size], is_full=is_full)]
        shares = []
        for number, (indices, samples) in enumerate(split_for_passes(self.indices, passes)):
            part = replace(self, indices=indices, samples=samples, is_full=is_full)
            shares.append(replace(part, number=number, passes=passes))
        return shares


def order_of(length: int, seed: int, *, shuffle: bool = True) -> array[int]:
    """The samples in the order of an epoch, 4 bytes each (8 above 2**32 samples).

    Args:
        length: of the data set.
        seed: of the run plus the number of the epoch.
        shuffle: as CPython's ``random.Random(seed).shuffle`` does; in their own order otherwise.
    """
    order = array("I" if length <= 1 << 32 else "Q", range(length))
    if shuffle:
        random.Random(seed).shuffle(order)
    return order


class Ledger:
    """The progress within an epoch.

    Args:
        length: how many samples an epoch has.
        shuffle: whether each epoch has an order of its own.
        seed: of the orders, the same on all ranks.
        indices: the samples in their order, if something else than the seed says it; as many as
            ``length``.
        drop_last: whether to leave out a last step in which some rank would have fewer samples.
        global_batch: how many samples all ranks together have in a step, whatever their number;
            None for ``batch_size`` of each rank. The last step of an epoch has what is left.

    Attributes:
        length, shuffle, seed, drop_last, global_batch: see above.
        epoch: its number.
        consumed: how many samples of it all ranks together have done.

    Raises:
        UsageError: the length is negative.

    Example:
        >>> ledger = Ledger(10, shuffle=False)
        >>> [list(share.indices) for share in ledger.shares(rank=1, size=2, batch_size=3)]
        [[1, 3, 5], [7, 9]]
        >>> ledger.consumed = 6
        >>> [list(share.indices) for share in ledger.shares(rank=1, size=3, batch_size=3)]
        [[7]]
    """

    def __init__(
        self,
        length: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        indices: Sequence[Any] | None = None,
        drop_last: bool = False,
        global_batch: int | None = None,
    ) -> None:
        if length < 0:
            raise UsageError(f"a data set of {length} samples: the number is negative")
        self.global_batch = global_batch
        self.length = length
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self._indices = indices
        self.epoch = 0
        self.consumed = 0
        self._order: array[int] | None = None
        self._ordered: tuple[int, int, bool] | None = None

    def begin(self, epoch: int) -> None:
        """Begins an epoch of which nothing is done."""
        self.epoch = epoch
        self.consumed = 0

    @property
    def order(self) -> Sequence[Any]:
        """All samples of the epoch; made once in an epoch."""
        if self._indices is not None:
            return self._indices
        asked = (self.length, self.seed + self.epoch, self.shuffle)
        if self._order is None or self._ordered != asked:
            self._order = order_of(self.length, self.seed + self.epoch, shuffle=self.shuffle)
            self._ordered = asked
        return self._order

    @property
    def digest(self) -> int:
        """Return a checksum of an order, below 2**32."""
        if self._indices is None:
            return zlib.crc32(repr((self.length, self.seed, self.shuffle)).encode())
        if isinstance(self._indices, array):
            return zlib.crc32(self._indices)
        return zlib.crc32(repr(self._indices).encode())

    @property
    def left(self) -> int:
        """Number of samples of the epoch that are not done."""
        return max(self.length - self.consumed, 0)

    def step_samples(self, size: int, batch_size: int) -> int:
        """Return how many samples all ranks together have in a step that is not the last."""
        return self.global_batch or size * batch_size

    def steps(self, size: int, batch_size: int) -> int:
        """Return the number of steps left, the same on all ranks."""
        if self.drop_last:
            return self.left // self.step_samples(size, batch_size)
        return -(-self.left // self.step_samples(size, batch_size))

    def batches(self, size: int, batch_size: int) -> int:
        """Return the number of passes left, the same on all ranks."""
        steps = self.steps(size, batch_size)
        if not steps or self.global_batch is None:
            return steps
        last = self.left - (steps - 1) * self.global_batch
        each, of_last = (
            passes_of(total, size, batch_size)
            for total in (self.global_batch, min(last, self.global_batch))
        )
        return (steps - 1) * each + of_last

    def share(self, rank: int, size: int, batch_size: int, ahead: int = 0) -> Share:
        """Return a rank's share of a step, with all its passes.

        Args:
            rank, size: of the job as it is now.
            batch_size: samples per rank.
            ahead: how many steps after the next one.

        Raises:
            UsageError: an argument is out of range, or the epoch is over by then.
        """
        if not 0 <= rank < size or batch_size < 1:
            raise UsageError(f"rank {rank} of {size} with batch_size={batch_size}")
        full = self.step_samples(size, batch_size)
        first = self.consumed + ahead * full
        if ahead < 0 or ahead >= self.steps(size, batch_size):
            raise UsageError(f"epoch {self.epoch} has no step that begins at sample {first}")
        after = min(first + full, self.length)
        indices = self.order[first + rank : after : size]
        samples = len(indices)
        if not indices:
            indices = self.order[first:after]
        total = after - first
        is_full = total == full
        is_last = ahead + 1 == self.steps(size, batch_size)
        return Share(indices, samples, after, total, is_full, is_last, of_step=samples)

    def shares(self, rank: int, size: int, batch_size: int) -> Iterator[Share]:
        """Yield a rank's share of each pass that is left if the size stays; counts nothing.

        Without a global batch, a step is one pass.
        """
        for ahead in range(self.steps(size, batch_size)):
            share = self.share(rank, size, batch_size, ahead)
            if self.global_batch is None:
                yield share
            else:
                yield from share.in_passes(size, batch_size)

    def padded(self, rank: int, size: int) -> list[int]:
        """All that a rank does of what is left, equally many on all ranks.

        The samples are repeated cyclically until they suffice.
        """
        if not self.left:
            return []
        count = -(-self.left // size)
        left = self.order[self.consumed :]
        own = list(left[rank::size])
        own += [
            left[place % len(left)] for place in range(rank + len(own) * size, count * size, size)
        ]
        return own

    def state_dict(self) -> dict[str, int]:
        """The number of the epoch and how many samples are done; small, whatever the data set."""
        return {"epoch": self.epoch, "consumed": self.consumed}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes to what :meth:`state_dict` returned, on any rank of a job of any size."""
        self.epoch = state_dict["epoch"]
        self.consumed = state_dict["consumed"]
