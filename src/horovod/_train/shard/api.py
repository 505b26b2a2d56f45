"""``hvd.shard`` of all adapters."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from horovod._train.shard.collation import stack
from horovod._train.shard.indexed_shard import IndexedShard
from horovod._train.shard.parted_shard import PartedShard
from horovod._train.shard.recognition import source_of
from horovod._train.shard.source import Indexed, Maker, Parts, Source
from horovod.errors import UsageError

if TYPE_CHECKING:
    from horovod._train.shard.shard import Collate, Shard, Uneven

__all__ = ["shard"]


def shard(
    data: Any,
    batch_size: int | None = None,
    *,
    shuffle: bool | None = None,
    seed: int = 0,
    uneven: Uneven | None = None,
    collate: Collate | None = None,
    buffer: int = 1024,
) -> Shard:
    """Return the batches of this rank of any data set; each sample is in one batch of an epoch.

    It communicates when a loop begins, and, for data without places, in each step. All ranks must
    make the same loops.

    Args:
        data: the whole data set, the same on all ranks. Samples with places: a list, an array, a
            tuple or dictionary of arrays, a torch ``Dataset``, a ``DataLoader``, a
            ``StatefulDataLoader``, a ``Dataset`` of Hugging Face, a ``PyDataset``, a
            ``pyarrow.Table``. Streams in parts: an ``IterableDataset`` of Hugging Face, a
            WebDataset, a ``MapDataset`` of Grain, a ``pyarrow.dataset.Dataset`` of Parquet files.
            Streams that each rank reads whole: a ``tf.data.Dataset``, a torch ``IterableDataset``,
            an ``IterDataset`` or ``DataLoader`` of Grain, any iterable.
        batch_size: samples per rank. A ``DataLoader`` has its own; a ``PyDataset`` has none, as
            its items are batches.
        shuffle: whether each epoch has an order of its own, which follows from ``seed``. None: as
            a loader says; otherwise True for samples with places, and False for streams. Of a
            stream, the order of parts is shuffled, and ``buffer`` samples at a time.
        seed: of the orders, the same on all ranks.
        uneven: in steps in which ranks have different numbers of samples, ``"weight"``, the
            default: all ranks take part, and ``weight`` says how much; ``"join"``: the loop of a
            rank without a sample ends, and it calls ``hvd.join()``; ``"drop"``: such steps are
            left out, as by ``drop_last=True`` of a loader.
        collate: makes a batch of a list of samples. By default, that of a loader; otherwise
            samples are stacked, in ``horovod.torch`` as tensors, by torch's ``default_collate``.
        buffer: samples of a stream that are shuffled at a time, if ``shuffle=True``.

    Returns:
        A :class:`Shard`: an iterable with ``epoch``, ``epochs(number)``, ``samples``, ``weight``,
        ``state_dict()`` and ``load_state_dict()``.

    Raises:
        UsageError: the data or an argument cannot be honored.

    Example:
        >>> shard = hvd.shard(dataset, batch_size=32, seed=1)
        >>> for epoch in shard.epochs(10):
        ...     for batch in shard:
        ...         loss = loss_of(model, batch) * shard.weight
    """
    source = source_of(data)
    seed, buffer = _integer("seed", seed), _integer("buffer", buffer)
    size = _checked_batch_size(source, batch_size)
    _check(source, shuffle, uneven, collate, buffer)
    chosen = uneven or ("drop" if source.drops_last else "weight")
    given = collate or source.collate
    maker = Maker(given or stack, lambda batch: batch, is_given=given is not None)
    is_shuffled = source.shuffles if shuffle is None else shuffle
    if isinstance(source, Indexed):
        return IndexedShard(source, maker, size, is_shuffled, seed, chosen)
    assert isinstance(source, Parts)
    return PartedShard(source, maker, size, is_shuffled, seed, chosen, buffer if shuffle else 0)


def _checked_batch_size(source: Source, batch_size: int | None) -> int:
    if source.has_batches:
        if batch_size is not None:
            raise UsageError(
                f"shard of {source.name}, whose items are batches: leave batch_size out"
            )
        return 1
    size = source.batch_size if batch_size is None else _integer("batch_size", batch_size)
    if size is None or size < 1:
        raise UsageError(
            f"shard of {source.name} with batch_size={size}: say how many samples a rank has in a "
            "step"
        )
    return size


def _integer(name: str, value: Any) -> int:
    """Return an integer of Python, also for one of NumPy, whose arithmetic overflows."""
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"shard: {name}={value!r} must be an integer") from None


def _check(
    source: Source,
    shuffle: bool | None,
    uneven: str | None,
    collate: Collate | None,
    buffer: int,
) -> None:
    if uneven not in (None, "weight", "join", "drop"):
        raise UsageError(f"shard: uneven={uneven!r} is not weight, join or drop")
    if shuffle is not None and (reason := source.refuse_shuffle()):
        raise UsageError(f"shard(shuffle={shuffle}) of {source.name}: {reason}; leave shuffle out")
    if collate is not None and (source.collate is not None or source.has_batches):
        raise UsageError(f"shard of {source.name}, which makes batches itself: leave collate out")
    if source.drops_last and uneven not in (None, "drop"):
        raise UsageError(f"shard(uneven={uneven!r}) of a loader with drop_last=True: choose one")
    if buffer < 1:
        raise UsageError(f"shard: buffer={buffer} must be at least 1")
