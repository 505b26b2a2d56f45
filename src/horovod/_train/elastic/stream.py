"""Samples without places: an iterable that every rank reads, each for its own part of each step."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from horovod._train.elastic.ledger import Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def stream_shares(
    samples: Iterable[Any],
    consumed: int,
    rank: int,
    size: int,
    batch_size: int,
    *,
    drop_last: bool = False,
    global_batch: int | None = None,
) -> Iterator[tuple[Share, list[Any]]]:
    """Yield this rank's part of each remaining pass, as the ledger divides samples with places.

    One step is read ahead, to know which is the last.

    Args:
        samples: of an epoch, the same in the same order on all ranks and whenever they are read.
        consumed: how many of them all ranks together have done.
        rank, size: of the job as it is now.
        batch_size: samples per rank.
        drop_last: whether to leave out a last step in which some rank would have fewer samples.
        global_batch: how many samples all ranks together have in a step; None for ``batch_size``
            of each rank.

    Yields:
        The share of the rank, whose indices count samples from 0, and its samples.

    Example:
        >>> for share, mine in stream_shares("abcdefg", 2, rank=1, size=2, batch_size=2):
        ...     print(mine, share.consumed, share.is_last)
        ['d', 'f'] 6 False
        ['g'] 7 True
    """
    full = global_batch or size * batch_size
    left = islice(samples, consumed, None)
    chunk = _next_chunk(left, full, drop_last)
    while chunk:
        following = _next_chunk(left, full, drop_last)
        after = consumed + len(chunk)
        places = range(consumed + rank, after, size)
        # A rank for which nothing is left takes part with samples of others, which do not count.
        mine = chunk[rank::size] or chunk
        share = Share(
            places or range(consumed, after),
            len(places),
            after,
            len(chunk),
            len(chunk) == full,
            is_last=not following,
            of_step=len(places),
        )
        if global_batch is None:
            yield share, mine
        else:
            sample_at = dict(zip(share.indices, mine, strict=True))
            for part in share.in_passes(size, batch_size):
                yield part, [sample_at[index] for index in part.indices]
        consumed, chunk = after, following


def _next_chunk(left: Iterator[Any], number: int, drop_last: bool) -> list[Any]:
    chunk = list(islice(left, number))
    return [] if drop_last and len(chunk) < number else chunk
