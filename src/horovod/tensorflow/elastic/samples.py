"""Data of which samples are read by their place, whatever holds them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf

from horovod.errors import UsageError
from horovod.tensorflow.keras_generation import keras_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horovod.tensorflow.interface_types import Nested

    Batches = Iterator[Any]

_logger = logging.getLogger(__name__)


class MappedIndices:
    """Samples that a pipeline of ``tf.data`` makes of their places in the data set.

    Args:
        length: how many samples there are.
        function: makes a sample of its place, an int64 scalar; in a graph.
        num_parallel_calls: of it; ``tf.data`` chooses if None.

    Raises:
        UsageError: the length is negative.

    Example:
        >>> data = hvd.elastic.MappedIndices(len(files), lambda i: load(tf.gather(files, i)))
        >>> for images, labels in training.batches(data, batch_size=32):
        ...     ...
    """

    def __init__(
        self,
        length: int,
        function: Callable[[tf.Tensor], Nested],
        num_parallel_calls: int | None = None,
    ) -> None:
        if length < 0:
            raise UsageError(f"MappedIndices of {length} samples: the number is negative")
        self._length = length
        self._function = function
        self._calls = tf.data.AUTOTUNE if num_parallel_calls is None else num_parallel_calls

    def __len__(self) -> int:
        return self._length

    def read(self, steps: Iterator[Sequence[int]], batch_size: int) -> Batches:
        """One batch for each step, read ahead; see :class:`Samples`."""
        places = [np.asarray(indices[:batch_size], np.int64) for indices in steps]
        if places:
            # Only the last step may have fewer samples, so those of all steps are batched anew.
            dataset = tf.data.Dataset.from_tensor_slices(np.concatenate(places))
            dataset = dataset.map(self._function, self._calls, deterministic=True)
            yield from dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)


class Samples(Protocol):
    """Samples that have places."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, steps: Iterator[Sequence[int]], batch_size: int) -> Batches:
        """One batch for each step, made of the samples at its places; may read ahead."""


class _Columns:
    """Arrays and tensors of one length, in any structure."""

    def __init__(self, columns: Any) -> None:
        self._columns = columns
        lengths = {len(column) for column in tf.nest.flatten(columns)}
        if len(lengths) != 1:
            raise UsageError(f"arrays of {sorted(lengths)} samples: give arrays of one length")
        (self._length,) = lengths

    def __len__(self) -> int:
        return self._length

    def read(self, steps: Iterator[Sequence[int]], batch_size: int) -> Batches:
        for indices in steps:
            places = np.asarray(indices, np.int64)
            yield tf.nest.map_structure(lambda column: _rows(column, places), self._columns)  # noqa: B023  # called at once


class _Items:
    """A sequence of samples, each an array, a number, or a structure of them."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def read(self, steps: Iterator[Sequence[int]], batch_size: int) -> Batches:
        for indices in steps:
            samples = [self._items[index] for index in indices]
            yield tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *samples)


class _ReadyBatches:
    """A ``PyDataset`` or ``Sequence`` of Keras, of which each batch counts as one sample."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def read(self, steps: Iterator[Sequence[int]], batch_size: int) -> Batches:
        for indices in steps:
            yield tf.nest.map_structure(tf.convert_to_tensor, self._batches[indices[0]])


def samples_of(dataset: object) -> Samples:
    """Looks at data as samples that have places.

    Raises:
        UsageError: the samples have no places.
    """
    if isinstance(dataset, MappedIndices):
        return dataset
    if makes_batches(dataset):
        return _ReadyBatches(dataset)
    if isinstance(dataset, tuple | dict) or _is_array(dataset):
        return _Columns(dataset)
    if isinstance(dataset, tf.data.Dataset) or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"batches of {type(dataset).__name__}: samples are counted by their place, so the data "
            "needs a length and an index; for a pipeline of tf.data give "
            "hvd.elastic.MappedIndices(length, function)"
        )
    return _Items(dataset)


def makes_batches(dataset: object) -> bool:
    """Whether data of Keras is made of batches already."""
    return any(
        kind.__name__ in ("PyDataset", "Sequence") and keras_of(kind) is not None
        for kind in type(dataset).__mro__
    )


def report_unused_epoch_end(dataset: object) -> None:
    """Say that ``on_epoch_end`` of a ``PyDataset`` or ``Sequence`` is not called, if it has one.

    What it does to the order, ranks would each do for themselves.
    """
    kinds = [kind for kind in type(dataset).__mro__ if "on_epoch_end" in vars(kind)]
    if kinds and kinds[0].__name__ not in ("PyDataset", "Sequence"):
        _logger.warning(
            "%s.on_epoch_end is not called: an elastic training shuffles the batches itself, "
            "unless shuffle=False",
            kinds[0].__name__,
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | tf.Tensor | tf.Variable)


def _rows(column: Any, places: np.ndarray) -> tf.Tensor:
    if isinstance(column, tf.Tensor | tf.Variable):
        return tf.gather(column, places)
    return tf.convert_to_tensor(np.asarray(column)[places])
