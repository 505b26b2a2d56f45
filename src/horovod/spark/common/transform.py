"""Adding columns of predictions to a DataFrame, in Arrow batches, so also through Spark Connect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BooleanType, DoubleType, IntegralType, StructField, StructType

from horovod.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Predict: TypeAlias = Callable[[list[np.ndarray]], list[np.ndarray]]
"""From the features of some rows, each (rows,) or (rows, n), to the outputs, each (rows, …)."""

Predictor: TypeAlias = Callable[[], Predict]
"""Is sent to the tasks, and makes a model there."""

BATCH_ROWS = 1024
"""The most rows that a model predicts at once."""

_DENSE = 1  # in the column "type" of Spark's vectors; 0 is sparse


@dataclass(frozen=True)
class Plan:
    """What is predicted from what.

    Attributes:
        features: columns, in the order of the model's inputs.
        labels: columns of the training, in the order of the model's outputs.
        outputs: the columns of the predictions.
        metadata: by column of the training, its ``spark_data_type`` among others.
    """

    features: Sequence[str]
    labels: Sequence[str]
    outputs: Sequence[str]
    metadata: Mapping[str, Mapping[str, Any]]


def predicted(
    frame: DataFrame, plan: Plan, predictor: Predictor, example: list[np.ndarray] | None
) -> DataFrame:
    """A DataFrame with the predictions of a model as further columns.

    Args:
        frame: has the features.
        plan: what is predicted.
        predictor: makes the model.
        example: a row of features; None takes one of the frame.

    Raises:
        UsageError: a feature is missing, or an output is there already.
    """
    missing = [name for name in plan.features if name not in frame.columns]
    present = [name for name in plan.outputs if name in frame.columns]
    if missing:
        raise UsageError(f"transform: there is no column {missing[0]!r}")
    if present:
        raise UsageError(
            f"transform: there is a column {present[0]!r} already; choose others with setOutputCols"
        )
    if example is None:
        example = _first_row(frame, plan.features)
    outputs = predictor()(example)
    if len(outputs) != len(plan.labels):
        raise UsageError(
            f"transform: the model has {len(outputs)} outputs for {len(plan.labels)} label columns"
        )
    types = [
        _output_type(plan.metadata.get(label, {}), output)
        for label, output in zip(plan.labels, outputs, strict=True)
    ]
    fields = [StructField(*each) for each in zip(plan.outputs, types, strict=True)]
    schema = StructType([*frame.schema.fields, *fields])
    sparse = [_is(plan.metadata.get(label, {}), SparseVector) for label in plan.labels]
    return frame.mapInArrow(_Batches(tuple(plan.features), fields, sparse, predictor), schema)


class _Batches:
    """What runs in each task."""

    def __init__(
        self,
        features: tuple[str, ...],
        fields: list[StructField],
        sparse: list[bool],
        predictor: Predictor,
    ) -> None:
        self._features = features
        self._fields = fields
        self._sparse = sparse
        self._predictor = predictor

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        predict: Predict | None = None
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):
                predict = predict or self._predictor()
                yield self._extended(batch.slice(start, BATCH_ROWS), predict)

    def _extended(self, batch: pa.RecordBatch, predict: Predict) -> pa.RecordBatch:
        outputs = predict([array_of(batch.column(name), name) for name in self._features])
        columns = [
            column_of(output, field.dataType, is_sparse)
            for output, field, is_sparse in zip(outputs, self._fields, self._sparse, strict=True)
        ]
        names = [*batch.schema.names, *(field.name for field in self._fields)]
        return pa.RecordBatch.from_arrays([*batch.columns, *columns], names=names)


def array_of(column: pa.Array, name: str) -> np.ndarray:
    """A column of features: (rows,) of numbers, (rows, n) of arrays or vectors.

    Args:
        column: numbers, lists of numbers, or Spark's vectors, which may be sparse.
        name: for messages.

    Raises:
        UsageError: a value is missing, or arrays have different lengths.
    """
    if column.null_count:
        raise UsageError(f"column {name!r} has rows without a value")
    if pa.types.is_struct(column.type):
        return _of_vectors(column)
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    lengths = pc.list_value_length(column).to_numpy(zero_copy_only=False)
    if len(set(lengths.tolist())) > 1:
        raise UsageError(f"column {name!r} has arrays of {min(lengths)} to {max(lengths)} numbers")
    flat = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(flat.reshape(len(column), -1))


def _of_vectors(column: pa.StructArray) -> np.ndarray:
    values = column.field("values")
    lengths = pc.list_value_length(values).to_numpy(zero_copy_only=False)
    row = np.repeat(np.arange(len(column)), lengths)
    position = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    is_dense = column.field("type").to_numpy(zero_copy_only=False) == _DENSE
    position[~is_dense[row]] = column.field("indices").flatten().to_numpy(zero_copy_only=False)
    sizes = column.field("size").fill_null(0).to_numpy(zero_copy_only=False)
    width = int(np.where(is_dense, lengths, sizes).max(initial=0))
    dense = np.zeros((len(column), width))
    dense[row, position] = values.flatten().to_numpy(zero_copy_only=False)
    return dense


def column_of(output: np.ndarray, kind: Any, is_sparse: bool) -> pa.Array:
    """A column of predictions.

    Args:
        output: (rows, …).
        kind: the Spark type of the column.
        is_sparse: whether vectors are to be sparse.
    """
    rows = np.asarray(output).reshape(len(output), -1)
    if isinstance(kind, VectorUDT):
        return _vectors(rows.astype(np.float64), is_sparse)
    numbers = rows[:, 0]
    if isinstance(kind, IntegralType | BooleanType):
        numbers = np.rint(numbers).astype(np.int64)
    if isinstance(kind, BooleanType):
        numbers = numbers != 0
    return pa.array(numbers).cast(to_arrow_type(kind), safe=False)


def _vectors(rows: np.ndarray, is_sparse: bool) -> pa.Array:
    count, width = rows.shape
    keep = rows != 0 if is_sparse else np.ones(rows.shape, bool)
    offsets = pa.array(np.concatenate([[0], np.cumsum(keep.sum(axis=1))]).astype(np.int32))
    values = pa.ListArray.from_arrays(offsets, pa.array(rows[keep]))
    sizes, indices = pa.nulls(count, pa.int32()), pa.nulls(count, pa.list_(pa.int32()))
    if is_sparse:
        sizes = pa.array(np.full(count, width, np.int32))
        positions = np.broadcast_to(np.arange(width, dtype=np.int32), rows.shape)[keep]
        indices = pa.ListArray.from_arrays(offsets, pa.array(positions))
    kinds = pa.array(np.full(count, 0 if is_sparse else _DENSE, np.int8))
    names = ["type", "size", "indices", "values"]
    return pa.StructArray.from_arrays([kinds, sizes, indices, values], names=names)


def _first_row(frame: DataFrame, features: Sequence[str]) -> list[np.ndarray]:
    row = frame.select(*features).first()
    if row is None:
        raise UsageError(
            "transform: the DataFrame is empty, and the shapes of features are unknown"
        )
    return [np.asarray([value.toArray() if hasattr(value, "toArray") else value]) for value in row]


def _output_type(metadata: Mapping[str, Any], output: np.ndarray) -> Any:
    """Like the label, except that several numbers are a vector."""
    if _is(metadata, DenseVector, SparseVector) or np.asarray(output)[0].size > 1:
        return VectorUDT()
    kind = metadata.get("spark_data_type", DoubleType)
    return kind() if isinstance(kind, type) else kind


def _is(metadata: Mapping[str, Any], *kinds: type) -> bool:
    return metadata.get("spark_data_type") in kinds
