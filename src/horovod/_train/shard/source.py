"""What a shard needs to know of a data set: samples with places, or parts that are streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@dataclass(frozen=True)
class Maker:
    """How batches are made.

    Attributes:
        collate: makes a batch of a list of samples.
        convert: makes a batch of what is one already, such as rows of arrays.
        is_given: whether the program has said how, so that rows of arrays are collated, too.
    """

    collate: Callable[[list[Any]], Any]
    convert: Callable[[Any], Any]
    is_given: bool


class Source:
    """A data set.

    Attributes:
        name: for messages.
        identity: numbers and strings that are the same for the same data, in any job.
        agreed: the same, but only on the ranks of one job.
        has_batches: whether its elements are batches.
        batch_size: samples per rank that it asks for itself, if it does.
        shuffles: whether it is shuffled if the program does not say so.
        drops_last: whether it asks to skip a last step in which some rank would have fewer samples.
        collate: its function that makes a batch of a list of samples, if it has one.
    """

    name = ""
    has_batches = False
    batch_size: int | None = None
    shuffles = False
    drops_last = False
    collate: Callable[[list[Any]], Any] | None = None

    @property
    def identity(self) -> list[Any]:
        """Return what says which data it is."""
        return [self.name]

    @property
    def agreed(self) -> list[Any]:
        """Return what else must be the same on all ranks."""
        return []

    def refuse_shuffle(self) -> str:
        """Return why ``shuffle`` cannot be chosen; empty if it can."""
        return ""


class Indexed(Source, ABC):
    """Samples that can be read in any order, and more than once."""

    shuffles = True

    def __init__(self, length: int) -> None:
        self.length = length

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.length]

    def order_in(self, epoch: int, seed: int) -> Sequence[Any] | None:
        """Return the indices of an epoch in an order that the data has itself; None for no such."""
        return None

    @abstractmethod
    def batches(self, indices: Iterable[list[Any]], maker: Maker) -> Iterator[Any]:
        """Yield the batch of each list of indices; may read ahead."""


class Parts(Source, ABC):
    """Streams of samples, each of which can be read from its beginning as often as needed."""

    num_parts = 1

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.num_parts]

    @abstractmethod
    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        """Return the samples of a part: the same in the same order whenever it is read."""

    def read(self, part: int, epoch: int, skip: int) -> Iterator[Any]:
        """Yield the samples of a part after the first ``skip``."""
        return islice(self.samples_of(part, epoch), skip, None)


def is_of(value: Any, package: str, *names: str) -> bool:
    """Whether a value is of a class of a package, or one derived from it; imports nothing."""
    return any(
        each.__name__ in names and each.__module__.partition(".")[0] == package
        for each in type(value).__mro__
    )
