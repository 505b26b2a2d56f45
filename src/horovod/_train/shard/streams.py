"""Data sets that can only be read from their beginning, in one part or several."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from horovod._train.shard.indexed import length_of
from horovod._train.shard.source import Parts
from horovod._train.shard.torch_loader import check_loader, pinning
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class Stream(Parts):
    """Any iterable, as one part: every rank reads all of it, and keeps its share.

    ``set_epoch(epoch)`` is called before it is read, if it exists.
    """

    def __init__(self, data: Any) -> None:
        if isinstance(data, Iterator):
            raise UsageError(
                f"shard of {type(data).__name__}, an iterator, which can be read once only, but "
                "a resumed job reads from the beginning: give an object with __iter__, or a list"
            )
        self.name = type(data).__name__
        self._data = data

    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        if callable(set_epoch := getattr(self._data, "set_epoch", None)):
            set_epoch(epoch)
        yield from self._data


class LoaderStream(Parts):
    """A ``DataLoader`` of an ``IterableDataset``: its data, and what makes its batches."""

    def __init__(self, loader: Any, inner: Parts) -> None:
        check_loader(loader, "shard")
        if loader.num_workers:
            raise UsageError(
                f"shard of a DataLoader of {inner.name} with num_workers={loader.num_workers}: its "
                "workers divide a stream in ways of their own; leave num_workers out"
            )
        self._inner = inner
        self.name = f"DataLoader of {inner.name}"
        self.num_parts = inner.num_parts
        self.shuffles = inner.shuffles
        self.batch_size = loader.batch_size
        self.drops_last = loader.drop_last
        self.collate = pinning(loader) if loader.pin_memory else loader.collate_fn

    @property
    def identity(self) -> list[Any]:
        return self._inner.identity

    @property
    def agreed(self) -> list[Any]:
        return self._inner.agreed

    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        return self._inner.samples_of(part, epoch)

    def read(self, part: int, epoch: int, skip: int) -> Iterator[Any]:
        return self._inner.read(part, epoch, skip)


class ShardedStream(Parts):
    """A stream that divides itself: it has ``num_shards`` and ``shard(num_shards=, index=)``.

    Such are the ``IterableDataset`` of Hugging Face, also if filtered, mapped or shuffled.
    """

    def __init__(self, data: Any) -> None:
        if getattr(data, "_distributed", None) is not None:
            raise UsageError(
                f"shard of {type(data).__name__} that split_dataset_by_node has divided by rank: "
                "give the whole one"
            )
        if getattr(data, "_starting_state_dict", None) is not None:
            raise UsageError(
                f"shard of {type(data).__name__} with a loaded state, which says what one rank has "
                "read: give it without, and load the state of the shard"
            )
        self.name = type(data).__name__
        self.num_parts = data.num_shards
        self._data = data
        # Without a seed, each process draws another order, and other shards as the first one.
        self._drawn_from = list(_generators_of(data))

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.num_parts, zlib.crc32(repr(self._drawn_from).encode())]

    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        data = self._data.shard(num_shards=self.num_parts, index=part)
        if callable(set_epoch := getattr(data, "set_epoch", None)):
            set_epoch(epoch)
        yield from data


class Blocks(Parts):
    """A ``MapDataset`` of Grain in blocks: it has an index, but a filter leaves None in it."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._length = length_of(data)
        self.name = type(data).__name__
        self._block = max(1, min(1024, self._length // 64))
        self.num_parts = -(-self._length // self._block)

    @property
    def identity(self) -> list[Any]:
        return [self.name, self._length]

    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        first = part * self._block
        for index in range(first, min(first + self._block, self._length)):
            if (sample := self._data[index]) is not None:
                yield sample


class GrainLoader(Stream):
    """A ``DataLoader`` of Grain, as one part; its workers read."""

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.name = "grain.DataLoader"
        sampler = getattr(loader, "_sampler", None)
        options = getattr(sampler, "_shard_options", None)
        if getattr(options, "shard_count", 1) > 1:
            raise UsageError(
                "shard of a grain.DataLoader whose sampler divides the samples: give it "
                "shard_options=NoSharding()"
            )
        if getattr(sampler, "_num_epochs", 1) != 1:
            raise UsageError(
                "shard of a grain.DataLoader whose sampler has not num_epochs=1: epochs() of the "
                "shard repeats it"
            )


class TensorFlowStream(Parts):
    """A ``tf.data.Dataset``, as one part; samples are NumPy arrays in its structure."""

    name = "tf.data.Dataset"

    def __init__(self, data: Any) -> None:
        if reason := next(filter(None, map(_disorder_of, _with_inputs(data))), ""):
            raise UsageError(f"shard of a tf.data.Dataset {reason}")
        self._data = data

    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        return self.read(part, epoch, 0)

    def read(self, part: int, epoch: int, skip: int) -> Iterator[Any]:
        samples: Iterator[Any] = self._data.skip(skip).as_numpy_iterator()
        return samples


def _with_inputs(data: Any) -> Iterator[Any]:
    yield data
    for each in data._inputs():
        yield from _with_inputs(each)


def _disorder_of(stage: Any) -> str:
    """Return why a stage of tf.data has another order whenever it is read, or in each process."""
    name = type(stage).__name__
    if "Shuffle" in name and (
        getattr(stage, "_reshuffle_each_iteration", True) is not False or not _has_seed(stage)
    ):
        return (
            "that shuffles in another order each time it is read: leave its shuffle() out and give "
            "shard(shuffle=True), or use shuffle(seed=…, reshuffle_each_iteration=False)"
        )
    if "Random" in name and (getattr(stage, "_rerandomize", None) or not _has_seed(stage)):
        return (
            "with other random numbers in each process: give random() or sample_from_datasets() a "
            "seed, and leave out rerandomize_each_iteration"
        )
    # Parallel interleave() does not keep what it was given.
    is_free = stage.options().deterministic is False
    if is_free or getattr(stage, "_deterministic", None) == "false":
        return "with deterministic=False, whose order differs each time it is read: leave that out"
    return ""


def _has_seed(stage: Any) -> bool:
    seeds = (getattr(stage, "_seed", None), getattr(stage, "_seed2", None))
    return any(0 if each is None else int(each) for each in seeds)


def _generators_of(data: Any) -> Iterator[str]:
    """Yield the states of the generators of a pipeline of Hugging Face that shuffles."""
    generator = getattr(data, "generator", None) or getattr(
        getattr(data, "_shuffling", None), "generator", None
    )
    if generator is not None:
        yield repr(generator.bit_generator.state)
    inner = [getattr(data, name, None) for name in ("_ex_iterable", "ex_iterable")]
    for each in [*inner, *(getattr(data, "ex_iterables", None) or ())]:
        if each is not None:
            yield from _generators_of(each)
