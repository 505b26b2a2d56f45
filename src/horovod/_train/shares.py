"""How the elements of many parameters are divided into one share for each rank.

Parameters of one kind are side by side in *buckets*, without regard to where one ends. Each bucket
is cut into as many equal shares as there are ranks, so that a reduce-scatter and an allgather of
the whole bucket serve all of its parameters. The part of a parameter that is in a share is a
*piece*. Everything here is a pure function of sizes, the same on all ranks.
"""

from __future__ import annotations

import bisect
import sys
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from horovod._train.bucket_plan import (
    ALIGNMENT,
    BUCKET_BYTES,
    FIRST_BUCKET_BYTES,
    PlannedBucket,
    Sized,
    plan_buckets,
)
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class Extent:
    """The size of a parameter.

    Attributes:
        num_elements: how many it has; may be 0.
        item_bytes: of an element: 1, 2, 4, 8 or 16.
        kind: parameters of different kinds, such as dtypes or devices, have buckets of their own.
    """

    num_elements: int
    item_bytes: int
    kind: str


@dataclass(frozen=True)
class Piece:
    """Elements of a flattened parameter, at least one.

    Attributes:
        parameter: the index of the parameter.
        begin, end: the elements, without that at ``end``.
    """

    parameter: int
    begin: int
    end: int

    @property
    def num_elements(self) -> int:
        """How many elements these are."""
        return self.end - self.begin


@dataclass(frozen=True)
class ShareBucket:
    """Parameters of one kind, side by side in one array that the ranks share equally.

    Between parameters, and at the end, may be elements that belong to nobody. All numbers are
    elements.

    Attributes:
        kind: of all its parameters.
        parameters: their indices, in the order in which they are here.
        sizes: of each parameter.
        offsets: where each parameter begins.
        num_ranks: how many shares there are.
        share_elements: of each share; rank ``r`` has those from ``r * share_elements`` on.
    """

    kind: str
    parameters: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    num_ranks: int
    share_elements: int

    @property
    def num_elements(self) -> int:
        """The elements of the whole array, with those that belong to nobody."""
        return self.share_elements * self.num_ranks

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """Return what is in the share of a rank, in the order in which it is there."""
        first = rank * self.share_elements
        last = first + self.share_elements
        pieces = []
        for parameter, offset, size in zip(self.parameters, self.offsets, self.sizes, strict=True):
            begin, end = max(first - offset, 0), min(last - offset, size)
            if begin < end:
                pieces.append(Piece(parameter, begin, end))
        return tuple(pieces)

    def place_of(self, piece: Piece) -> int:
        """Return where a piece begins in the whole array.

        Raises:
            KeyError: the parameter is not in this bucket.
        """
        return self._offset_of[piece.parameter] + piece.begin

    @cached_property
    def _offset_of(self) -> dict[int, int]:
        return dict(zip(self.parameters, self.offsets, strict=True))


@dataclass(frozen=True)
class Shares:
    """All buckets.

    Attributes:
        num_ranks: how many shares there are.
        sizes: the elements of each parameter, by its index.
        buckets: each parameter is in one of them.
    """

    num_ranks: int
    sizes: tuple[int, ...]
    buckets: tuple[ShareBucket, ...]

    def pieces(self, rank: int) -> tuple[Piece, ...]:
        """Return what is in the share of a rank, bucket after bucket."""
        return tuple(piece for bucket in self.buckets for piece in bucket.pieces(rank))

    def bucket_of(self, parameter: int) -> int:
        """Return the index of the bucket that holds a parameter."""
        return self._bucket_of[parameter]

    @cached_property
    def _bucket_of(self) -> dict[int, int]:
        return {
            parameter: index
            for index, bucket in enumerate(self.buckets)
            for parameter in bucket.parameters
        }


def divide(
    extents: Sequence[Extent],
    num_ranks: int,
    *,
    order: Iterable[int] | None = None,
    bucket_bytes: int | None = BUCKET_BYTES,
) -> Shares:
    """Divide parameters into one share for each rank.

    Args:
        extents: of all parameters; those of one index mean the same parameter on all ranks.
        num_ranks: how many ranks share.
        order: the indices of all parameters in the order in which their gradients become ready;
            None for that of the indices.
        bucket_bytes: how large a bucket may be, unless one parameter alone is larger; None for one
            bucket of each kind. The first bucket of each kind is small, so that communication
            begins early.
    """
    largest = sys.maxsize if bucket_bytes is None else bucket_bytes
    first = sys.maxsize if bucket_bytes is None else min(bucket_bytes, FIRST_BUCKET_BYTES)
    units = defaultdict(list)
    for index in range(len(extents)) if order is None else order:
        extent = extents[index]
        num_bytes = extent.num_elements * extent.item_bytes
        units[extent.kind].append(Sized((index,), (num_bytes,), extent.kind))
    buckets = [
        _share_out(planned, extents, num_ranks)
        for of_kind in units.values()
        for planned in plan_buckets(of_kind, largest, first)
    ]
    return Shares(num_ranks, tuple(extent.num_elements for extent in extents), tuple(buckets))


def _share_out(
    planned: PlannedBucket[int], extents: Sequence[Extent], num_ranks: int
) -> ShareBucket:
    item_bytes = extents[planned.items[0]].item_bytes
    lines = -(-planned.num_bytes // (ALIGNMENT * num_ranks))
    return ShareBucket(
        planned.dtype,
        planned.items,
        tuple(extents[index].num_elements for index in planned.items),
        tuple(offset // item_bytes for offset in planned.offsets),
        num_ranks,
        lines * ALIGNMENT // item_bytes,
    )


@dataclass(frozen=True)
class Copy:
    """Elements that go from one list of pieces into another.

    Attributes:
        source, target: the indices of the pieces in their lists.
        source_begin, target_begin: the first element within each piece.
        num_elements: how many go.
    """

    source: int
    target: int
    source_begin: int
    target_begin: int
    num_elements: int


def copies_between(
    have: Sequence[Piece], want: Sequence[Piece], names: Sequence[str] | None = None
) -> list[Copy]:
    """Return how to fill pieces from others that were cut for another number of ranks.

    Args:
        have: what there is, of all ranks, in any order. Pieces may overlap; of equal elements the
            later ones in the list are not used.
        want: what is to be filled.
        names: of the parameters by their index, for messages.

    Raises:
        UsageError: some elements are in no piece; the message says which.
    """
    by_parameter: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for index, piece in enumerate(have):
        by_parameter[piece.parameter].append((piece.begin, index, piece.end))
    for candidates in by_parameter.values():
        candidates.sort()
    copies: list[Copy] = []
    for target, piece in enumerate(want):
        candidates = by_parameter[piece.parameter]
        at, place = piece.begin, 0
        while at < piece.end:
            place = bisect.bisect_right(candidates, (at, sys.maxsize, 0), place)
            fitting = [c for c in candidates[:place] if c[2] > at]
            if not fitting:
                raise _missing(piece, at, names)
            begin, source, end = min(fitting, key=lambda candidate: candidate[1])
            stop = min(end, piece.end)
            copies.append(Copy(source, target, at - begin, at - piece.begin, stop - at))
            at = stop
    return copies


def _missing(piece: Piece, at: int, names: Sequence[str] | None) -> UsageError:
    name = (
        f"parameter {piece.parameter}" if names is None else f"parameter {names[piece.parameter]}"
    )
    return UsageError(
        f"the optimizer state of {name} is incomplete: no share holds its elements from {at} on, "
        f"of which those up to {piece.end} are needed"
    )
