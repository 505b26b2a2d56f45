"""Data of which samples are read by their place, as arrays of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Samples:
    """Arrays of one length, a sequence of samples, or a ``PyDataset``, each batch a sample.

    Args:
        dataset: as the user gives it.

    Raises:
        UsageError: samples have no places, or arrays have different lengths.
    """

    def __init__(self, dataset: Any) -> None:
        self.makes_batches = isinstance(dataset, keras.utils.PyDataset)
        self._dataset = dataset
        self._has_columns = not self.makes_batches and isinstance(
            dataset, tuple | dict | np.ndarray
        )
        if self._has_columns:
            self._dataset = keras.tree.map_structure(_as_keras_does, dataset)
            lengths = sorted({len(column) for column in keras.tree.flatten(self._dataset)})
            if len(lengths) != 1:
                raise UsageError(f"arrays of {lengths} samples: give arrays of one length")
            self._length = lengths[0]
        elif not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise UsageError(
                f"batches of {type(dataset).__name__}: samples are counted by their place, so the "
                "data needs a length and an index"
            )
        elif not self.makes_batches and not isinstance(dataset, list) and _reads_by_itself(dataset):
            raise UsageError(
                f"batches of {type(dataset).__name__}: it makes batches of its own, in an order "
                "that each rank draws for itself; give its data set and batch_size"
            )
        else:
            self._length = len(dataset)

    def __len__(self) -> int:
        return self._length

    def batch(self, indices: Sequence[int]) -> Any:
        """Return the samples of these places: a structure of arrays, rows first."""
        places = np.asarray(indices, np.int64)
        if self._has_columns:
            return keras.tree.map_structure(lambda column: column[places], self._dataset)
        if self.makes_batches:
            return self._dataset[int(places[0])]
        samples = [self._dataset[int(place)] for place in places]
        return keras.tree.map_structure(
            lambda *leaves: np.stack([_as_array(leaf) for leaf in leaves]), *samples
        )


def _as_keras_does(column: Any) -> np.ndarray:
    """Return an array; floating point numbers have Keras' own type, as in ``fit`` of arrays."""
    array = _as_array(column)
    return array.astype(keras.config.floatx()) if array.dtype.kind == "f" else array


def _as_array(value: Any) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(value) if keras.ops.is_tensor(value) else value)


def _reads_by_itself(dataset: Any) -> bool:
    return any(kind.__name__ == "DataLoader" for kind in type(dataset).__mro__)
