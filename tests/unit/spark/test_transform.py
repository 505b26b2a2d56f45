"""Columns of features as arrays, and arrays of predictions as columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")
pa = pytest.importorskip("pyarrow")
from pyspark.ml.linalg import VectorUDT  # noqa: E402
from pyspark.sql.types import (  # noqa: E402
    BooleanType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
)

from horovod.errors import UsageError  # noqa: E402
from horovod.spark.common.training import expanded  # noqa: E402
from horovod.spark.common.transform import array_of, column_of  # noqa: E402


def dense(*values: float) -> dict[str, Any]:
    return {"type": 1, "size": None, "indices": None, "values": list(values)}


def sparse(size: int, **values: float) -> dict[str, Any]:
    return {
        "type": 0,
        "size": size,
        "indices": [int(place[1:]) for place in values],
        "values": list(values.values()),
    }


VECTORS = pa.struct(
    [
        ("type", pa.int8()),
        ("size", pa.int32()),
        ("indices", pa.list_(pa.int32())),
        ("values", pa.list_(pa.float64())),
    ]
)


@pytest.mark.parametrize(
    ("column", "array"),
    [
        (pa.array([1, 2], pa.int32()), [1, 2]),
        (pa.array([[1.0, 2.0], [3.0, 4.0]]), [[1, 2], [3, 4]]),
        (pa.array([dense(1, 2, 3), dense(4, 5, 6)], VECTORS), [[1, 2, 3], [4, 5, 6]]),
        (pa.array([sparse(3, i1=5.0), sparse(3)], VECTORS), [[0, 5, 0], [0, 0, 0]]),
        (pa.array([dense(1, 2, 3), sparse(3, i2=7.0)], VECTORS), [[1, 2, 3], [0, 0, 7]]),
    ],
)
def test_features_become_arrays(column: Any, array: Any) -> None:
    assert array_of(column, "x").tolist() == array
    both = pa.concat_arrays([column, column])
    assert array_of(both.slice(1, 2), "x").tolist() == [array[1], array[0]]


def test_missing_values_and_ragged_arrays_are_refused() -> None:
    with pytest.raises(UsageError, match="'x' has rows without a value"):
        array_of(pa.array([1, None]), "x")
    with pytest.raises(UsageError, match="'x' has arrays of 1 to 2 numbers"):
        array_of(pa.array([[1.0], [1.0, 2.0]]), "x")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (DoubleType(), [0.25, 2.75]),
        (FloatType(), [0.25, 2.75]),
        (IntegerType(), [0, 3]),
        (LongType(), [0, 3]),
        (BooleanType(), [False, True]),
    ],
)
def test_scalars_have_the_type_of_the_label(kind: Any, expected: list[Any]) -> None:
    column = column_of(np.array([[0.25], [2.75]], np.float32), kind, False)
    assert column.to_pylist() == expected


def test_vectors() -> None:
    rows = np.array([[1.0, 0.0], [0.0, 0.0]])
    assert column_of(rows, VectorUDT(), False).to_pylist() == [dense(1, 0), dense(0, 0)]
    assert column_of(rows, VectorUDT(), True).to_pylist() == [sparse(2, i0=1.0), sparse(2)]
    assert column_of(rows, VectorUDT(), True).type == VECTORS


def test_rows_without_zeros_are_expanded() -> None:
    packed = np.array([[2, 0, 3, 1.5, 2.5], [1, 1, 7, 0, 0], [0, 0, 0, 0, 0.0]])
    assert expanded(packed, 4).tolist() == [[1.5, 0, 0, 2.5], [0, 7, 0, 0], [0, 0, 0, 0]]
