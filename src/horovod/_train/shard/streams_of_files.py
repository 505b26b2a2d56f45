"""Data sets in files, each of which is a part, or several: WebDataset and Parquet."""

from __future__ import annotations

import copy
import zlib
from typing import TYPE_CHECKING, Any

from horovod._train.shard.source import Parts, is_of
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Stages of WebDataset in front of the one that opens files: they divide files, or order them.
_OPENERS = ("StreamingOpen", "FileCache")
_DIVIDING = ("single_node_only", "split_by_node", "split_by_worker")
_SHUFFLING = ("_shuffle", "detshuffle")


class WebDatasetStream(Parts):
    """A pipeline of WebDataset: each of its files is a part, which its own stages read."""

    name = "WebDataset"

    def __init__(self, data: Any) -> None:
        first, *stages = data.pipeline
        if not is_of(first, "webdataset", "SimpleShardList"):
            raise UsageError(
                f"shard of WebDataset that begins with {type(first).__name__}: its files have no "
                "end, or no list; give a list of files, without resampled=True"
            )
        if data.repetitions != 1:
            raise UsageError(
                "shard of WebDataset with repeat() or with_epoch(): leave them out; an epoch of "
                "the shard has each sample once"
            )
        opener = next(
            (i for i, each in enumerate(stages) if is_of(each, "webdataset", *_OPENERS)), 0
        )
        before, self._stages = stages[:opener], stages[opener:]
        for stage in self._stages:
            if _name_of(stage) in _SHUFFLING and getattr(stage, "kw", {}).get("seed") is None:
                raise UsageError(
                    "shard of WebDataset with shuffle() without a seed, which draws another order "
                    "each time it is read: leave it out and give shard(shuffle=True), or a seed"
                )
        # Its order of files is drawn in each process, ours follows from the seed.
        self.shuffles = any(_name_of(each) in _SHUFFLING and _is_active(each) for each in before)
        left_out = (*_DIVIDING, *_SHUFFLING)
        self._stages = [each for each in before if _name_of(each) not in left_out] + [
            each for each in self._stages if _name_of(each) != "check_empty"
        ]
        self._data = data
        self._files = list(first.urls)
        self.num_parts = len(self._files)

    @property
    def identity(self) -> list[Any]:
        return [self.name, len(self._files), zlib.crc32(repr(self._files).encode())]

    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        files = copy.copy(self._data.pipeline[0])
        files.urls = [self._files[part]]
        pipeline = copy.copy(self._data)
        pipeline.pipeline = [files, *self._stages]
        yield from pipeline


class ParquetGroups(Parts):
    """Row groups of Parquet files; samples are dictionaries, by column."""

    name = "Parquet"

    def __init__(self, groups: list[Any], schema: Any) -> None:
        self._groups = groups
        self._schema = schema
        self.num_parts = len(groups)

    @property
    def identity(self) -> list[Any]:
        return [self.name, self.num_parts, str(self._schema)]

    def samples_of(self, part: int, epoch: int) -> Iterable[Any]:
        return self.read(part, epoch, 0)

    def read(self, part: int, epoch: int, skip: int) -> Iterator[Any]:
        table = self._groups[part].to_table(schema=self._schema).slice(skip)
        for batch in table.to_batches(max_chunksize=1024):
            yield from batch.to_pylist()


def parquet_groups(data: Any) -> ParquetGroups:
    """Return the row groups of a ``pyarrow.dataset.Dataset`` or a ``ParquetDataset``.

    Raises:
        UsageError: it has other files than Parquet's.
    """
    fragments = list(data.fragments if hasattr(data, "fragments") else data.get_fragments())
    if not all(hasattr(each, "split_by_row_group") for each in fragments):
        raise UsageError(
            f"shard of {type(data).__name__} with other files than Parquet's: give its table, "
            "to_table()"
        )
    fragments.sort(key=lambda each: str(each.path))
    groups = [group for each in fragments for group in each.split_by_row_group()]
    return ParquetGroups(groups, data.schema)


def _name_of(stage: Any) -> str:
    """Return the name of the function of a stage."""
    function = getattr(stage, "f", stage)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_active(stage: Any) -> bool:
    arguments = getattr(stage, "args", ()) or (getattr(stage, "bufsize", 1),)
    return bool(arguments[0])
