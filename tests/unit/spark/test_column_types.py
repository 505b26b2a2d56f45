"""What becomes of columns of each type of Spark SQL, from the schema alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.ml.linalg import DenseVector, SparseVector, VectorUDT
from pyspark.sql import types as T
from spark_types import IDS, ROWS

from horovod.errors import UsageError
from horovod.spark.common import metadata
from horovod.spark.common.column_types import (
    check_types,
    null_sql,
    prediction_sql,
    prediction_type,
    refusal,
)

if TYPE_CHECKING:
    from spark_types import Row


def subclasses(kind: type) -> set[str]:
    found = {each.__name__ for each in kind.__subclasses__()}
    return found.union(*(subclasses(each) for each in kind.__subclasses__()))


def test_the_table_has_all_types_of_this_spark() -> None:
    abstract = {
        "AnsiIntervalType",
        "AnyTimeType",
        "AtomicType",
        "DatetimeType",
        "FractionalType",
        "IntegralType",
        "NumericType",
        "SpatialType",
        "UserDefinedType",
        "StructField",
    }
    of_spark = {name for name in subclasses(T.DataType) if hasattr(T, name)} - abstract
    assert of_spark <= {type(row.kind).__name__ for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_a_type_is_used_or_refused(row: Row) -> None:
    is_used = row.dtype is not None
    for use in ("feature", "label"):
        assert (refusal(row.kind, use) is None) == is_used
        assert (refusal(row.kind, use, "rows") is None) == row.as_row
        assert refusal(row.kind, use, "files") is None
    assert (refusal(row.kind, "sample weight") is None) == row.as_weight


@pytest.mark.parametrize("row", [row for row in ROWS if row.dtype is None], ids=str)
def test_a_refusal_names_column_type_and_remedy(row: Row) -> None:
    with pytest.raises(UsageError) as caught:
        check_types("KerasEstimator", [("feature", "a.b", row.kind)])
    text = str(caught.value)
    assert text.startswith("KerasEstimator: feature column 'a.b' is of type ")
    assert row.kind.simpleString() in text or "of type image, a struct" in text
    assert row.remedy in text


def test_weights_are_single_numbers() -> None:
    kind = T.ArrayType(T.FloatType())
    with pytest.raises(UsageError, match=r"sample weight column 'w' .*array<float>, a weight is"):
        check_types("TorchEstimator", [("sample weight", "w", kind)])


@pytest.mark.parametrize("row", [row for row in ROWS if row.dtype is not None], ids=str)
def test_a_prediction_has_the_type_of_its_label(row: Row) -> None:
    shape = {T.ArrayType: (2,), VectorUDT: (2,)}.get(type(row.kind), (1,))
    shape = (2, 2) if row.kind.simpleString().startswith("array<array") else shape
    assert prediction_type(row.kind, shape) == row.kind


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        (T.LongType(), (), T.LongType()),
        (T.LongType(), (1, 1), T.LongType()),
        (T.LongType(), (10,), VectorUDT()),
        (T.DecimalType(4, 2), (2,), VectorUDT()),
        (T.ArrayType(T.FloatType()), (2, 3), T.ArrayType(T.FloatType())),
        (T.ArrayType(T.ArrayType(T.FloatType())), (6,), VectorUDT()),
        (T.StringType(), (1,), T.DoubleType()),
        (T.StringType(), (3,), VectorUDT()),
        (None, (1,), T.DoubleType()),
    ],
)
def test_predictions_in_other_shapes(kind: Any, shape: tuple[int, ...], expected: Any) -> None:
    assert prediction_type(kind, shape) == expected


def test_expressions_of_predictions() -> None:
    assert prediction_sql("v", "bigint", T.IntegerType()) == "try_cast(v AS int)"
    assert prediction_sql("v", "float", T.IntegerType()) == "try_cast(rint(v) AS int)"
    assert prediction_sql("v", "float", T.DecimalType(5, 2)) == "try_cast(v AS decimal(5,2))"
    assert prediction_sql("v", "bigint", T.DoubleType()) == "CAST(v AS double)"
    array = T.ArrayType(T.ArrayType(T.LongType()))
    assert prediction_sql("v", "bigint", array) == (
        "transform(v, x0 -> transform(x0, x1 -> try_cast(x1 AS bigint)))"
    )
    assert null_sql("v", T.ArrayType(T.LongType())) == "(v IS NULL OR exists(v, x0 -> x0 IS NULL))"


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_metadata_keep_the_type(row: Row) -> None:
    column = metadata.column_of_file(row.kind)
    assert metadata.type_of(column) == row.kind
    assert metadata.from_json(metadata.to_json({"x": column})) == {"x": column}
    known = {"spark_data_type", "is_sparse_vector_only", "shape", "intermediate_format", "max_size"}
    assert set(column) - {"type"} == known


def test_vectors_of_both_kinds_are_vectors() -> None:
    for kind in (DenseVector, SparseVector):
        assert metadata.type_of({"spark_data_type": kind}) == VectorUDT()
    assert metadata.type_of({}) is None


@pytest.mark.parametrize(
    ("arrow", "kind"),
    [
        (pa.uint8(), T.ShortType()),
        (pa.uint16(), T.IntegerType()),
        (pa.uint32(), T.LongType()),
        (pa.uint64(), T.DecimalType(20, 0)),
        (pa.float16(), T.FloatType()),
        (pa.decimal128(7, 2), T.DecimalType(7, 2)),
        (pa.dictionary(pa.int8(), pa.string()), T.StringType()),
        (pa.list_(pa.uint8(), 3), T.ArrayType(T.ShortType())),
        (pa.large_list(pa.float32()), T.ArrayType(T.FloatType())),
        (pa.month_day_nano_interval(), T.NullType()),
    ],
)
def test_files_that_others_wrote_have_types_of_spark(arrow: Any, kind: Any) -> None:
    schema = pa.schema([("x", arrow), ("other", pa.int8())])
    assert metadata.type_of(metadata.columns_of_files(schema, ["x"])["x"]) == kind


def test_what_is_wrong_in_training_or_validation_adds_up() -> None:
    clean = metadata.column_of_file(T.FloatType())
    one, two = {**clean, "nulls": 1}, {**clean, "nulls": 2, "lengths": [1, 3]}
    both = metadata.with_nulls_of({"x": one, "y": clean}, {"x": two, "z": two})
    assert both == {"x": {**clean, "nulls": 3, "lengths": [1, 3]}, "y": clean}
