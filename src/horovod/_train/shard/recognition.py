"""Which kind of data set a program has given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from horovod._train.shard.indexed import ArrowTable, Batches, Columns, Items, LoaderItems
from horovod._train.shard.source import Parts, Source, is_of
from horovod._train.shard.streams import (
    Blocks,
    GrainLoader,
    LoaderStream,
    ShardedStream,
    Stream,
    TensorFlowStream,
)
from horovod._train.shard.streams_of_files import WebDatasetStream, parquet_groups
from horovod.errors import UsageError


def source_of(data: Any) -> Source:
    """Return the source of a data set.

    Raises:
        UsageError: it cannot be divided; the error says what it can do.
    """
    if is_of(data, "torch", "DataLoader"):
        return _of_loader(data)
    for matches, make in _KINDS:
        if matches(data):
            return make(data)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return Items(data)
    if isinstance(data, Iterable) or hasattr(data, "__iter__"):
        return Stream(data)
    raise UsageError(
        f"shard of {type(data).__name__}: give what has a length and an index, or what can be "
        "iterated over from its beginning"
    )


def _of_loader(loader: Any) -> Source:
    data = loader.dataset
    if not is_of(data, "torch", "IterableDataset"):
        return LoaderItems(loader)
    inner = source_of(data)
    assert isinstance(inner, Parts)
    return LoaderStream(loader, inner)


def _is_sharded(data: Any) -> bool:
    return (
        hasattr(data, "num_shards")
        and callable(getattr(data, "shard", None))
        and (not hasattr(data, "__getitem__") or is_of(data, "datasets", "IterableDataset"))
    )


def _is_array(data: Any) -> bool:
    is_known = hasattr(data, "shape") and hasattr(data, "dtype")
    return is_known and len(data.shape) > 0


def _is_columns(data: Any) -> bool:
    columns = list(data.values()) if isinstance(data, dict) else data
    if not isinstance(columns, list | tuple) or not isinstance(data, dict | tuple):
        return False
    return bool(columns) and all(_is_array(each) or _is_plain_list(each) for each in columns)


def _is_plain_list(data: Any) -> bool:
    return isinstance(data, Sequence) and not isinstance(data, str | bytes)


def _refuse(reason: str) -> Callable[[Any], Source]:
    def refuse(data: Any) -> Source:
        raise UsageError(f"shard of {type(data).__name__}: {reason}")

    return refuse


_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any], Source]]] = [
    (lambda data: isinstance(data, str | bytes), _refuse("give the data set that it names")),
    (
        lambda data: isinstance(data, set | frozenset),
        _refuse("a set has another order in each process; give a sorted list"),
    ),
    (
        lambda data: is_of(data, "pandas", "DataFrame") or is_of(data, "polars", "DataFrame"),
        _refuse("give its columns as arrays, {name: frame[name].to_numpy(), ...}"),
    ),
    (
        lambda data: is_of(data, "streaming", "StreamingDataset"),
        _refuse(
            "it divides its samples by the ranks of torch.distributed; give a list of its samples, "
            "or a class whose __getitem__ and __len__ call get_item(index) and size"
        ),
    ),
    (lambda data: is_of(data, "webdataset", "DataPipeline"), WebDatasetStream),
    (lambda data: is_of(data, "tensorflow", "DatasetV2"), TensorFlowStream),
    (lambda data: is_of(data, "keras", "PyDataset", "Sequence"), Batches),
    (lambda data: is_of(data, "tf_keras", "Sequence"), Batches),
    (lambda data: is_of(data, "grain", "MapDataset"), Blocks),
    (lambda data: is_of(data, "grain", "DataLoader"), GrainLoader),
    (lambda data: is_of(data, "pyarrow", "Table"), ArrowTable),
    (
        lambda data: is_of(data, "pyarrow", "ParquetFile"),
        _refuse("give pyarrow.dataset.dataset(path), which reads its row groups by number"),
    ),
    (lambda data: is_of(data, "pyarrow", "Dataset", "ParquetDataset"), parquet_groups),
    (
        lambda data: is_of(data, "pyarrow", "Scanner", "RecordBatchReader"),
        _refuse("it can be read once only; give the pyarrow.dataset.Dataset"),
    ),
    (_is_sharded, ShardedStream),
    (_is_array, Columns),
    (_is_columns, Columns),
]
