"""Agreement of the ranks on what they read: at the beginning of a loop, and in each step."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

from horovod._rank import context
from horovod._train.elastic.changes import maxima
from horovod._train.shard.parts import Report
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def digest_of(value: Any) -> int:
    """Return a checksum of numbers, strings and lists of them, from 1 to 2**32."""
    return zlib.crc32(json.dumps(value, sort_keys=True, default=repr).encode()) + 1


def agree_on_loop(values: Mapping[str, Any]) -> None:
    """Refuse to begin a loop in which ranks would not fit each other; collective.

    Args:
        values: by name, what must be the same on all ranks.

    Raises:
        UsageError: something differs; on all ranks.
        HorovodInternalError: a rank was lost.
    """
    digests = [digest_of(value) for value in values.values()]
    greatest = maxima("shard.loop", [*digests, *(-digest for digest in digests)])
    count = len(digests)
    differing = [
        name
        for name, most, least in zip(values, greatest[:count], greatest[count:], strict=True)
        if most != -least
    ]
    if differing:
        own = ", ".join(f"{name}={values[name]!r:.200}" for name in differing)
        raise UsageError(
            f"shard: the ranks differ in {', '.join(differing)}; rank {context.rank()} has {own}: "
            "give the same data and arguments on all ranks, load a state on all ranks or on none, "
            "and in elastic training give the shard to the state"
        )


def exchange_reports(report: Report | None, step: int, digest: int) -> list[Report | None]:
    """Return what each rank has found in its part; collective, one small allreduce.

    Args:
        report: of this rank; None if it reads nothing.
        step: how many reports of this loop were exchanged before.
        digest: of what must be the same on all ranks.

    Raises:
        UsageError: ranks are in different steps or loops; on all ranks.
        HorovodInternalError: a rank was lost.
    """
    rank, size = context.rank(), context.size()
    mine = [digest, -digest, step, -step, *([0] * size)]
    mine[4 + rank] = 0 if report is None else 2 * report.samples + int(report.ended) + 1
    most, least, latest, earliest, *found = maxima("shard.step", mine)
    if most != -least or latest != -earliest:
        raise UsageError(
            f"shard: rank {rank} reads step {step} of its loop while other ranks are in another "
            "step, or loop over other data: all ranks must go through the same loops"
        )
    return [Report((each - 1) // 2, bool((each - 1) % 2)) if each else None for each in found]


def exchange_fingerprints(place: int | None, fingerprint: int) -> list[int]:
    """Return the ranks that share the part of this one and begin with another sample; collective.

    Args:
        place: of the part that this rank reads; None for none.
        fingerprint: of the first sample that it has read, at least 1.

    Raises:
        HorovodInternalError: a rank was lost.
    """
    rank, size = context.rank(), context.size()
    mine = [0] * (2 * size)
    mine[rank], mine[size + rank] = 0 if place is None else place + 1, fingerprint
    found = maxima("shard.fingerprints", mine)
    return [
        each
        for each in range(size)
        if place is not None and found[each] == place + 1 and found[size + each] != fingerprint
    ]


def fingerprint_of(sample: Any) -> int:
    """Return a checksum of numbers, strings and arrays in a sample, from 1 to 2**32."""
    return zlib.crc32(b"".join(_bytes_of(sample))) + 1


def _bytes_of(sample: Any) -> Iterator[bytes]:
    if isinstance(sample, dict):
        for key, value in sample.items():
            yield repr(key).encode()
            yield from _bytes_of(value)
    elif isinstance(sample, list | tuple):
        for value in sample:
            yield from _bytes_of(value)
    elif isinstance(sample, bytes):
        yield sample
    elif isinstance(sample, str | int | float | bool | None) or hasattr(sample, "numpy"):
        yield repr(sample).encode()
    elif hasattr(sample, "tobytes"):
        yield sample.tobytes()
