"""Data modules: what feeds the training on a rank; other sources are classes of this shape."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from horovod.spark.data.reader import ParquetReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    import numpy as np

    from horovod.spark.data.division import Stretches

__all__ = ["DataModule"]


class DataModule(ABC):
    """Feeds the training on one rank; a context, which opens and closes what it reads.

    Args:
        train_dir, val_dir: Parquet folders.
        num_train_epochs: how many epochs are trained.
        first_epoch: the number of the first of them, above 0 when a run is resumed.
        has_val: whether there is validation.
        train_batch_size, val_batch_size: rows in a batch.
        shuffle: another order of the training rows in each epoch.
        transform_fn: applied to each row, a dict.
        inmemory_cache_all: keep the share of this rank in memory.
        cur_shard, shard_count: which share of how many, so rank and size.
        schema_fields: columns to read.
        storage_options: of the file system.
        steps_per_epoch_train, steps_per_epoch_val: batches of an epoch; the rest of one that ranks
            train after a change is an epoch of its own here.
        whole_batches: whether an epoch of training has only batches of ``train_batch_size`` rows.
        steps_done: how many batches of the first epoch to leave out, as they were trained before
            ranks came or went.
        stretches: the same exactly: for each number of ranks that trained a part of the first
            epoch, that number and the steps they took.
        verbose: whether to tell what is done.
        kwargs: further Params of the estimator, such as ``label_cols`` and ``random_seed``.
    """

    short_name = ""

    def __init__(
        self,
        train_dir: str,
        val_dir: str,
        num_train_epochs: int = 1,
        has_val: bool = True,
        train_batch_size: int = 32,
        val_batch_size: int = 32,
        shuffle: bool = True,
        transform_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
        inmemory_cache_all: bool = False,
        cur_shard: int = 0,
        shard_count: int = 1,
        schema_fields: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        steps_per_epoch_train: int = 1,
        steps_per_epoch_val: int = 1,
        verbose: int = 1,
        first_epoch: int = 0,
        whole_batches: bool = False,
        steps_done: int = 0,
        stretches: Stretches = (),
        **kwargs: Any,
    ) -> None:
        self.train_dir = train_dir
        self.val_dir = val_dir
        self.num_train_epochs = num_train_epochs
        self.first_epoch = first_epoch
        self.has_val = has_val
        self.train_batch_size = train_batch_size
        self.val_batch_size = val_batch_size
        self.shuffle = shuffle
        self.transform_fn = transform_fn
        self.inmemory_cache_all = inmemory_cache_all
        self.cur_shard = cur_shard
        self.shard_count = shard_count
        self.schema_fields = schema_fields
        self.storage_options = storage_options
        self.steps_per_epoch_train = steps_per_epoch_train
        self.steps_per_epoch_val = steps_per_epoch_val
        self.whole_batches = whole_batches
        self.steps_done = steps_done
        self.stretches = stretches
        self.verbose = verbose
        self.options = kwargs

    def __enter__(self) -> DataModule:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    @abstractmethod
    def train_data(self) -> Any:
        """Batches of all epochs, one epoch after the other."""

    @abstractmethod
    def val_data(self) -> Any:
        """Batches of all validations, one after the other."""


class ParquetDataModule(DataModule):
    """Reads Parquet files with :class:`horovod.spark.data.reader.ParquetReader`."""

    short_name = "parquet"

    def __enter__(self) -> ParquetDataModule:
        self._opened = ExitStack()
        try:
            self._train = self._open(self.train_dir, self.train_batch_size, self.whole_batches)
            if self.has_val:
                self._val = self._open(self.val_dir, self.val_batch_size, False)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    def train_data(self) -> Iterator[dict[str, np.ndarray]]:
        """By column an array, for each batch of the training."""
        for epoch in range(self.first_epoch, self.first_epoch + self.num_train_epochs):
            stretches = self.stretches if epoch == self.first_epoch else ()
            yield from self._train.batches(epoch, self.steps_per_epoch_train, stretches)

    def val_data(self) -> Iterator[dict[str, np.ndarray]]:
        """By column an array, for each batch of the validations, one after each epoch."""
        for epoch in range(self.num_train_epochs):
            yield from self._val.batches(epoch, self.steps_per_epoch_val)

    def _open(self, path: str, batch_size: int, drop_last: bool) -> ParquetReader:
        is_training = path == self.train_dir
        side = "train" if is_training else "val"
        reader = ParquetReader(
            path,
            columns=list(self.schema_fields or ()),
            batch_size=batch_size,
            rank=self.cur_shard,
            size=self.shard_count,
            storage_options=self.storage_options,
            shuffle=self.shuffle and is_training,
            seed=self.options.get("random_seed") or 0,
            transform=self.transform_fn,
            num_threads=self.options.get(f"{side}_reader_worker_count", 2),
            in_memory=self.inmemory_cache_all,
            drop_last=drop_last,
        )
        self._opened.callback(reader.close)
        return reader
