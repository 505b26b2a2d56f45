"""Which gradients lie in one bucket: a pure function of their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

ALIGNMENT = 64
"""Bytes to whose multiples arrays are aligned in a bucket: vectors, and lines of the cache."""

FIRST_BUCKET_BYTES = 1 << 20
"""The first bucket is small, so that communication begins early in the backward pass."""

BUCKET_BYTES = 25 << 20


@dataclass(frozen=True)
class Sized(Generic[T]):
    """Items that stay together in a bucket.

    Attributes:
        items: one or more.
        num_bytes: of each item.
        dtype: of all items.
    """

    items: tuple[T, ...]
    num_bytes: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class PlannedBucket(Generic[T]):
    """Items of one dtype, side by side.

    Attributes:
        dtype: of all items.
        offset: of the bucket in the memory of all buckets, in bytes.
        num_bytes: of the bucket.
        items: what lies in it.
        offsets: of each item from the begin of the bucket.
    """

    dtype: str
    offset: int
    num_bytes: int
    items: tuple[T, ...]
    offsets: tuple[int, ...]


def plan_buckets(
    units: Sequence[Sized[T]],
    bucket_bytes: int = BUCKET_BYTES,
    first_bytes: int = FIRST_BUCKET_BYTES,
) -> list[PlannedBucket[T]]:
    """Fills buckets in the order of the units.

    A bucket holds units of one dtype, up to its size, or a single one that is larger. It is closed
    when the next unit does not fit, is of another dtype, or the bucket has reached its size.

    Args:
        units: in the order in which they become ready.
        bucket_bytes: how large a bucket may be.
        first_bytes: the same for the first one.
    """
    parts: list[list[Sized[T]]] = []
    room = 0
    for unit in units:
        size = sum(map(aligned, unit.num_bytes))
        if not parts or size > room or unit.dtype != parts[-1][0].dtype:
            parts.append([])
            room = bucket_bytes if len(parts) > 1 else first_bytes
        parts[-1].append(unit)
        room -= size
    planned = []
    begin = 0
    for part in parts:
        planned.append(_lay_out(part, begin))
        begin += planned[-1].num_bytes
    return planned


def aligned(num_bytes: int) -> int:
    """The room that an item takes."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _lay_out(part: Sequence[Sized[T]], begin: int) -> PlannedBucket[T]:
    items: list[T] = []
    offsets = []
    end = 0
    for unit in part:
        for item, num_bytes in zip(unit.items, unit.num_bytes, strict=True):
            items.append(item)
            offsets.append(end)
            end += aligned(num_bytes)
    return PlannedBucket(part[0].dtype, begin, end, tuple(items), tuple(offsets))
