"""From the columns of a batch to what ``model.fit`` takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horovod.spark.common.training import TrainingData


@dataclass(frozen=True)
class Shaping:
    """Turns the columns of a batch into inputs, labels and sample weights.

    Attributes:
        data: which columns there are, and in what form.
        inputs, outputs: shape and dtype of each of the model's, None if it does not tell.
        label_shapes: of the labels; None for those of the outputs, if they have as many elements.
        prefetch: batches that TensorFlow keeps ready; 0 lets it choose.
    """

    data: TrainingData
    inputs: Sequence[Any] | None
    outputs: Sequence[Any] | None
    label_shapes: Sequence[Sequence[int]] | None
    prefetch: int

    def batch(self, columns: Mapping[str, object]) -> tuple[Any, ...]:
        """Inputs and labels of a batch, and sample weights if there are any."""
        data = self.data
        features = as_inputs([data.dense(columns, name) for name in data.features], self.inputs)
        labels = [np.asarray(data.label(columns, name)) for name in data.labels]
        if self.label_shapes is not None:
            labels = [
                label.reshape(list(shape))
                for label, shape in zip(labels, self.label_shapes, strict=True)
            ]
        elif self.outputs is not None and len(self.outputs) == len(labels):
            labels = [
                _like(label, output.shape)
                for label, output in zip(labels, self.outputs, strict=True)
            ]
        found = (_single(features), _single(labels))
        if data.weights is None:
            return found
        weights = np.asarray(data.dense(columns, data.weights), dtype=keras.config.floatx())
        return (*found, _single([weights] * len(labels)))

    def dataset(self, batches: Callable[[], Iterator[Mapping[str, object]]]) -> tf.data.Dataset:
        """A data set of TensorFlow, for the ``make_dataset`` of data modules.

        Args:
            batches: gives dicts of columns; called for each time that the data is read. Keras
                begins validation anew in each epoch, and what was read ahead is lost then.
        """
        first = self.batch(next(iter(batches())))
        signature = tf.nest.map_structure(
            lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype), first
        )
        whole = tf.data.Dataset.from_generator(
            lambda: map(self.batch, batches()), output_signature=signature
        )
        return whole.prefetch(self.prefetch or tf.data.AUTOTUNE)


def as_inputs(
    features: Sequence[object], inputs: Sequence[keras.KerasTensor] | None
) -> list[np.ndarray]:
    """Columns in the shapes and types of the inputs of a model.

    Args:
        features: (rows, …) each.
        inputs: of the model; None leaves the columns as they are.

    Raises:
        ValueError: the numbers of both differ, or a row has another number of elements.
    """
    arrays = [np.asarray(feature) for feature in features]
    if inputs is None:
        return arrays
    if len(inputs) != len(arrays):
        raise ValueError(f"the model has {len(inputs)} inputs for {len(arrays)} feature columns")
    return [
        _like(array, each.shape).astype(each.dtype)
        for array, each in zip(arrays, inputs, strict=True)
    ]


def _like(array: np.ndarray, shape: Sequence[int | None]) -> np.ndarray:
    """Rows in the shape of an input or output, if they have as many elements."""
    sizes = [-1 if size is None else size for size in shape[1:]]
    if sizes.count(-1) > 1 or (-1 not in sizes and math.prod(sizes) != math.prod(array.shape[1:])):
        return array
    return array.reshape([len(array), *sizes])


def _single(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)
