"""Loaders of PyTorch tensors from Parquet files, with and without a thread and memory of their own.

Example:
    >>> reader = ParquetReader("/data/train", columns=["x", "y"], batch_size=32)
    >>> loader = PytorchAsyncDataLoader(reader=reader, batch_size=32)
    >>> for batch in loader:
    ...     train(batch["x"], batch["y"])
    >>> loader.close_async_loader()
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

import torch

from horovod.data import AsyncDataLoaderMixin, BaseDataLoader
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy as np

    from horovod.spark.data.reader import ParquetReader

__all__ = [
    "PytorchAsyncDataLoader",
    "PytorchDataLoader",
    "PytorchInfiniteAsyncDataLoader",
    "PytorchInfiniteDataLoader",
    "PytorchInmemAsyncDataLoader",
    "PytorchInmemDataLoader",
]

# Kinds of NumPy types that have a tensor.
_NUMBERS = "biuf"


class PytorchDataLoader(BaseDataLoader):
    """Epochs of a reader as dicts of column to tensor, the first dimension being the batch.

    What is no number stays an array. Each iteration is an epoch, which begins at the beginning of
    the rank's share.

    Args:
        reader: has read ahead; whoever opened it closes it.
        batch_size: of the reader.
        shuffling_queue_capacity: has no effect, as the reader shuffles.
        name: for messages.
        limit_step_per_epoch: batches in an epoch; -1 for the reader's own number.
        verbose: say when an epoch begins.

    Raises:
        UsageError: the reader has another batch size, or is of another kind.
    """

    def __init__(
        self,
        reader: ParquetReader,
        batch_size: int,
        shuffling_queue_capacity: int = 0,
        name: str = "",
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not hasattr(reader, "batches"):
            raise UsageError(
                f"{type(reader).__name__} is no reader of batches without an end: give a "
                "ParquetReader"
            )
        if batch_size != reader.batch_size:
            raise UsageError(
                f"batch_size is {batch_size}, but the reader gives batches of {reader.batch_size}"
            )
        self.reader = reader
        self.batch_size = batch_size
        self.name = name
        self.limit_step_per_epoch = limit_step_per_epoch
        self.verbose = verbose
        self._next_epoch = itertools.count()

    def __len__(self) -> int:
        if self.limit_step_per_epoch >= 0:
            return self.limit_step_per_epoch
        return self.reader.steps()

    def _iterate(self) -> Iterable[Any]:
        epoch = next(self._next_epoch)
        self._tell(f"epoch {epoch}: {len(self)} batches")
        return self.reader.batches(epoch, len(self))

    def _process_batch(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        return {
            name: torch.from_numpy(array) if array.dtype.kind in _NUMBERS else array
            for name, array in batch.items()
        }

    def _tell(self, text: str) -> None:
        if self.verbose:
            print(f"{self.name or type(self).__name__}: {text}", file=sys.stderr, flush=True)


class PytorchAsyncDataLoader(AsyncDataLoaderMixin, PytorchDataLoader):
    """A loader that begins the next epoch on a thread while one is consumed.

    Args:
        args, kwargs: ``async_loader_queue_size`` and ``debug_data_loader``, then as of
            :class:`PytorchDataLoader`, best by name.
    """


class PytorchInfiniteDataLoader(PytorchDataLoader):
    """Goes through the rank's share again and again; an epoch begins where the last one ended.

    Args:
        args, kwargs: as of :class:`PytorchDataLoader`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._endless: Iterator[dict[str, np.ndarray]] | None = None

    def _iterate(self) -> Iterable[Any]:
        if self._endless is None:
            self._endless = self.reader.batches(0, sys.maxsize)
        self._tell(f"epoch {next(self._next_epoch)}: {len(self)} batches")
        return itertools.islice(self._endless, len(self))


class PytorchInfiniteAsyncDataLoader(AsyncDataLoaderMixin, PytorchInfiniteDataLoader):
    """An infinite loader on a thread; rows read ahead of an epoch that is left early are lost.

    Args:
        args, kwargs: as of :class:`PytorchAsyncDataLoader`.
    """


class PytorchInmemDataLoader(PytorchDataLoader):
    """Reads the rank's share once, and keeps it.

    Args:
        reader: keeps its share from now on.
        batch_size: of the reader.
        num_epochs: later epochs are empty; None for any number.
        name: for messages.
        shuffle: whether the reader shuffles.
        limit_step_per_epoch: batches in an epoch; must be given.
        verbose: say when an epoch begins.

    Raises:
        UsageError: there is no limit, or the reader has another batch size or order.
    """

    def __init__(
        self,
        reader: ParquetReader,
        batch_size: int,
        num_epochs: int | None = None,
        name: str = "",
        shuffle: bool = False,
        limit_step_per_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if limit_step_per_epoch < 1:
            raise UsageError(
                f"limit_step_per_epoch is {limit_step_per_epoch}, but a loader that keeps its data "
                "must be told how many batches are an epoch"
            )
        super().__init__(
            reader,
            batch_size,
            name=name,
            limit_step_per_epoch=limit_step_per_epoch,
            verbose=verbose,
        )
        if shuffle != reader.shuffle:
            raise UsageError(f"shuffle is {shuffle}, but the reader has shuffle={reader.shuffle}")
        reader.keep_in_memory()
        self.num_epochs = num_epochs

    def _iterate(self) -> Iterable[Any]:
        epoch = next(self._next_epoch)
        if self.num_epochs is not None and epoch >= self.num_epochs:
            return iter(())
        return self.reader.batches(epoch, len(self))


class PytorchInmemAsyncDataLoader(AsyncDataLoaderMixin, PytorchInmemDataLoader):
    """An in-memory loader on a thread.

    Args:
        args, kwargs: ``async_loader_queue_size`` and ``debug_data_loader``, then as of
            :class:`PytorchInmemDataLoader`, best by name.
    """
