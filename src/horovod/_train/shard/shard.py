"""``hvd.shard``: any data set as the batches of each rank, each sample once per epoch."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from horovod._rank import context
from horovod._train.elastic.run import current_rounds
from horovod._train.shard.agreement import agree_on_loop, digest_of
from horovod._train.shard.permutation import seed_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._train.shard.source import Maker, Source

Uneven: TypeAlias = Literal["weight", "join", "drop"]
"""What happens in steps in which ranks have different numbers of samples."""

Step: TypeAlias = tuple[Any, int, int]
"""A batch, how many of its samples count on this rank, and how many on all ranks."""


class Shard(ABC):
    """The batches of this rank; :func:`shard` makes it.

    A loop over it has what is left of the epoch, and begins the next epoch when nothing is left. A
    batch counts as done from when the loop gets it: take the state after its step.

    Attributes:
        batch_size: samples per rank.
        samples: how many samples of the batch count on this rank; 0 if all belong to other ranks.
        weight: the factor for the loss of this batch, with which the average of the gradients of
            all ranks equals the gradient of the joint batch: ``samples * size / total``. It is 1
            if all ranks have equally many.
    """

    def __init__(
        self,
        source: Source,
        maker: Maker,
        batch_size: int,
        shuffle: bool,
        seed: int,
        uneven: Uneven,
    ) -> None:
        self.batch_size = batch_size
        self.samples = 0
        self.weight = 1.0
        self._source = source
        self._maker = maker
        self._shuffle = shuffle
        self._seed = seed
        self._uneven = uneven
        # Counts the loops, and whatever else ends one.
        self._turn = 0
        rounds = current_rounds()
        self._made_in = None if rounds is None else (rounds, rounds.number)

    @property
    @abstractmethod
    def epoch(self) -> int:
        """Return the number of the epoch, from 0."""

    @property
    @abstractmethod
    def samples_done(self) -> int:
        """Return how many samples all ranks together have done, in all epochs."""

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch of which nothing is done."""
        self._turn += 1
        self._begin(epoch)

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs that are left: 0 to ``number`` - 1 in a new job.

        Where the program leaves the loop over the batches by ``break``, the rest of the epoch is
        left out.
        """
        while self.epoch < number:
            epoch = self.epoch
            yield epoch
            if self.epoch == epoch:
                self.set_epoch(epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the whole job: some numbers, the same on all ranks.

        Save it once, beside the model, and load it on all ranks of a job of any size.
        """
        data = digest_of([self._source.identity, *self._order_options])
        return {"data": data, **self._position()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to what :meth:`state_dict` returned; a loop that runs must be begun again.

        Raises:
            UsageError: it is of other data, or another ``seed``, ``shuffle`` or ``buffer``.
        """
        own = self.state_dict()
        if state_dict.keys() != own.keys() or state_dict["data"] != own["data"]:
            raise UsageError(
                f"load_state_dict() of a shard of {self._source.name}: the state is of other data, "
                "or another seed, shuffle or buffer; its position means nothing here"
            )
        self._turn += 1
        self._go_to(state_dict)

    def make_batches_by(self, stack: Collate, convert: Callable[[Any], Any]) -> None:
        """Let a framework make the batches, as far as neither the program nor a loader does.

        Args:
            stack: makes a batch of a list of samples.
            convert: makes a batch of arrays.
        """
        maker = self._maker
        collate = maker.collate if maker.is_given else stack
        self._maker = replace(maker, collate=collate, convert=convert)

    def __iter__(self) -> Iterator[Any]:
        self._check_tracked()
        self._turn += 1
        turn = self._turn
        agree_on_loop(
            {
                "data": [self._source.identity, self._source.agreed],
                "batch_size": self.batch_size,
                "seed, shuffle and buffer": self._order_options,
                "uneven": self._uneven,
                "position": self._position(),
                "order": self._prepare(),
            }
        )
        return self._loop(turn)

    def _loop(self, turn: int) -> Iterator[Any]:
        epoch = self.epoch
        size = context.size()
        steps = self._steps()
        while True:
            if self._turn != turn:
                raise UsageError(
                    "shard: this loop has ended, as another one over the same shard has begun, or "
                    "load_state_dict() or set_epoch() was called: run one loop at a time"
                )
            step = next(steps, None)
            if step is None:
                break
            batch, self.samples, total = step
            self.weight = self.samples * size / total
            yield batch
        self.set_epoch(epoch + 1)

    def _check_tracked(self) -> None:
        rounds = current_rounds()
        if rounds is None or self._made_in == (rounds, rounds.number):
            return
        if not rounds.calls_function:
            raise UsageError(
                "shard inside of the loops of hvd.elastic.Training: give the data set itself to "
                "its batches(), which divides it as well"
            )
        if not rounds.tracks(self):
            raise UsageError(
                f"shard of {self._source.name} is not in the state: after a change it would not "
                "go back with the model; give it to the state, as in TorchState(model, optimizer, "
                "shard=shard), or make it in the function"
            )

    @property
    def _order_options(self) -> list[int]:
        """Return the arguments from which the order of samples follows."""
        return [self._seed, int(self._shuffle)]

    @property
    def _skips_last(self) -> bool:
        return self._uneven == "drop"

    def _seed_of(self, *numbers: int) -> int:
        return seed_of(self._seed, self.epoch, *numbers)

    def _prepare(self) -> int:
        """Prepare a loop, and return a checksum of an order that the data has itself."""
        return 0

    @abstractmethod
    def _steps(self) -> Iterator[Step]:
        """Yield what is left of the epoch; each counts when it is yielded."""

    @abstractmethod
    def _begin(self, epoch: int) -> None:
        """Begin an epoch."""

    @abstractmethod
    def _position(self) -> dict[str, Any]:
        """Return the position as numbers."""

    @abstractmethod
    def _go_to(self, position: Mapping[str, Any]) -> None:
        """Go to a position."""


def shuffled(samples: Iterator[Any], buffer: int, seed: int) -> Iterator[Any]:
    """Yield samples of a stream out of order: each comes from among the next ``buffer``.

    The order follows from the seed, so that it is the same whenever the stream is read.
    """
    drawn = random.Random(seed)
    held: list[Any] = []
    for sample in samples:
        if len(held) < buffer:
            held.append(sample)
            continue
        place = int(drawn.random() * buffer)
        held[place], sample = sample, held[place]
        yield sample
    drawn.shuffle(held)
    yield from held


Collate: TypeAlias = Callable[[list[Any]], Any]
