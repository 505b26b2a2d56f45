"""From columns of Arrow to arrays of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


def to_array(column: pa.ChunkedArray, name: str) -> np.ndarray:
    """A column as an array with a row for each row.

    Numbers keep their type, decimals become float64, strings and bytes objects. Lists of the same
    length become further dimensions; lists of several lengths an array of objects, which are
    arrays. Nulls among floating-point numbers become NaN.

    Args:
        column: any number of chunks.
        name: for the message.

    Raises:
        UsageError: the column has nulls elsewhere, or a type that has no array.
    """
    return join([_chunk_to_array(chunk, name) for chunk in column.chunks] or [np.empty(0)])


def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays one after the other; those whose rows differ in shape become arrays of objects."""
    if len(arrays) == 1:
        return arrays[0]
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    return objects([row for array in arrays for row in array])


def objects(rows: Sequence[object]) -> np.ndarray:
    """A one-dimensional array of objects, also where these could make up a larger array."""
    array = np.empty(len(rows), dtype=object)
    for index, row in enumerate(rows):
        array[index] = row
    return array


def stack(rows: Sequence[object]) -> np.ndarray:
    """An array of one value for each row; of objects if their shapes differ."""
    arrays = [np.asarray(row) for row in rows]
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    return objects(arrays)


def _chunk_to_array(chunk: pa.Array, name: str) -> np.ndarray:
    kind = chunk.type
    if pa.types.is_dictionary(kind):
        return _chunk_to_array(chunk.dictionary_decode(), name)
    if chunk.null_count and not pa.types.is_floating(kind):
        raise UsageError(
            f"column {name!r} has {chunk.null_count} nulls of type {kind}: fill or drop them "
            "before training, for example by df.na.fill()"
        )
    if pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists_to_array(chunk, name)
    if pa.types.is_decimal(kind):
        chunk = chunk.cast(pa.float64())
    elif pa.types.is_nested(kind) or pa.types.is_null(kind):
        raise UsageError(
            f"column {name!r} is of type {kind}, which is no array of numbers: a Vector of Spark "
            "becomes one by prepare_data or pyspark.ml.functions.vector_to_array"
        )
    array: np.ndarray = chunk.to_numpy(zero_copy_only=False)
    return array


def _lists_to_array(chunk: pa.Array, name: str) -> np.ndarray:
    values = _chunk_to_array(chunk.flatten(), name)
    if pa.types.is_fixed_size_list(chunk.type):
        return values.reshape(len(chunk), chunk.type.list_size, *values.shape[1:])
    lengths = chunk.value_lengths().to_numpy(zero_copy_only=False)
    if len(chunk) == 0 or (lengths == lengths[0]).all():
        length = int(lengths[0]) if len(chunk) else 0
        return values.reshape(len(chunk), length, *values.shape[1:])
    return objects(np.split(values, np.cumsum(lengths)[:-1]))
