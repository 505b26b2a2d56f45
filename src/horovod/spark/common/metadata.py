"""Metadata of the columns that a model is trained on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.ml import linalg
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_type

from horovod.errors import UsageError
from horovod.spark.common.column_types import is_vector
from horovod.spark.common.constants import ARRAY, CUSTOM_SPARSE, NOCHANGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Column = dict[str, Any]
"""Of a column: ``spark_data_type``, a class; ``is_sparse_vector_only``; ``shape``, how many numbers
a row has, ``max_size``, how many of them are written at most, None where nobody has looked; and
``intermediate_format``, a constant of ``horovod.spark.common.constants``.

Further keys exist only where they say something: ``type``, the whole type of Spark in JSON, if the
class does not say it all; ``nulls``, how many values and elements of arrays are null; ``lengths``,
the least and the most numbers of a row if they differ."""

# Types that are nothing but their class.
_PLAIN = (
    types.BooleanType,
    types.ByteType,
    types.ShortType,
    types.IntegerType,
    types.LongType,
    types.FloatType,
    types.DoubleType,
)
_OF_ARROW = {
    pa.uint8(): types.ShortType(),
    pa.uint16(): types.IntegerType(),
    pa.uint32(): types.LongType(),
    pa.uint64(): types.DecimalType(20, 0),
    pa.float16(): types.FloatType(),
}


def column_of_file(kind: types.DataType) -> Column:
    """Return what is known of a column that is written as it is, from its type of Spark."""
    is_list = isinstance(kind, types.ArrayType) or is_vector(kind)
    return _column(
        linalg.DenseVector if is_list else type(kind), None, None, NOCHANGE, _whole_type(kind)
    )


def columns_of_files(schema: pa.Schema, names: Sequence[str]) -> dict[str, Column]:
    """Return what is known of columns of Parquet files, from the schema of a file."""
    return {name: column_of_file(_of_arrow(schema.field(name).type)) for name in names}


def columns_of_frame(schema: types.StructType) -> dict[str, Column]:
    """Return what is known of the columns of a DataFrame, of which vectors become arrays."""
    return {field.name: column_of_file(field.dataType) for field in schema.fields}


def scalar_column(kind: types.DataType) -> Column:
    """Return what is known of a column of single values, from its type of Spark."""
    return _column(type(kind), 1, 1, NOCHANGE, _whole_type(kind))


def array_column(kind: types.DataType, length: int) -> Column:
    """Return what is known of a column of arrays that all have the same length."""
    return _column(linalg.DenseVector, length, length, ARRAY, _whole_type(kind))


def dense_column(length: int) -> Column:
    """Return the metadata of a column of vectors that all have the same length."""
    return _column(linalg.DenseVector, length, length, ARRAY)


def sparse_column(length: int, most: int) -> Column:
    """Return the metadata of a column of sparse vectors with at most so many stored numbers."""
    column = _column(linalg.SparseVector, length, most, CUSTOM_SPARSE)
    return {**column, "is_sparse_vector_only": True}


def type_of(column: Column) -> Any:
    """Return the type of Spark that a column had; None if nobody knows."""
    if "type" in column:
        field = {"name": "", "type": json.loads(column["type"]), "nullable": True, "metadata": {}}
        return types.StructType.fromJson({"fields": [field]}).fields[0].dataType
    kind = column.get("spark_data_type")
    if kind in (linalg.DenseVector, linalg.SparseVector):
        return linalg.VectorUDT()
    return kind() if isinstance(kind, type) else kind


def with_nulls_of(columns: Mapping[str, Column], more: Mapping[str, Column]) -> dict[str, Column]:
    """Return columns with what was found wrong in them and in further rows of them."""
    return {name: _both(column, more.get(name, {})) for name, column in columns.items()}


def to_json(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Columns with names in place of classes."""
    return {
        name: {**column, "spark_data_type": column["spark_data_type"].__name__}
        for name, column in columns.items()
    }


def from_json(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Undoes :func:`to_json`."""
    return {
        name: {**column, "spark_data_type": _class_of(column["spark_data_type"])}
        for name, column in columns.items()
    }


def get_spark_df_output_schema(
    input_df_schema: types.StructType,
    label_cols: Sequence[str],
    output_cols: Sequence[str],
    metadata: Mapping[str, Column],
) -> types.StructType:
    """The schema of a transformed frame: its own columns, and an output for each label.

    Args:
        input_df_schema: of the frame.
        label_cols: the outputs have their types; vectors of both kinds are vectors.
        output_cols: the names of the outputs.
        metadata: of the labels.

    Raises:
        UsageError: there are not as many outputs as labels.
    """
    if len(label_cols) != len(output_cols):
        raise UsageError(
            f"there are {len(output_cols)} output columns for {len(label_cols)} labels"
        )
    outputs = [
        types.StructField(output, _output_type(metadata[label]), nullable=True)
        for label, output in zip(label_cols, output_cols, strict=True)
    ]
    return types.StructType([*input_df_schema.fields, *outputs])


def _column(
    kind: type, shape: int | None, most: int | None, form: str, whole: str | None = None
) -> Column:
    column = {
        "spark_data_type": kind,
        "is_sparse_vector_only": False,
        "shape": shape,
        "intermediate_format": form,
        "max_size": most,
    }
    return column if whole is None else {**column, "type": whole}


def _whole_type(kind: Any) -> str | None:
    """A type in JSON; None if its class says all."""
    return None if is_vector(kind) or type(kind) in _PLAIN else str(kind.json())


def _of_arrow(kind: pa.DataType) -> Any:
    """The type of Spark for one of Arrow; the nearest if Spark has no such type."""
    if pa.types.is_dictionary(kind):
        return _of_arrow(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return types.ArrayType(_of_arrow(kind.value_type))
    try:
        return _OF_ARROW.get(kind) or from_arrow_type(kind)
    except (PySparkException, NotImplementedError, TypeError):
        return types.NullType()


def _both(column: Column, other: Mapping[str, Any]) -> Column:
    found = dict(column)
    if nulls := column.get("nulls", 0) + other.get("nulls", 0):
        found["nulls"] = nulls
    if lengths := [*column.get("lengths", ()), *other.get("lengths", ())]:
        found["lengths"] = [min(lengths), max(lengths)]
    return found


def _class_of(name: str) -> type:
    found: type = getattr(linalg, name, None) or getattr(types, name)
    return found


def _output_type(column: Column) -> Any:
    kind = column["spark_data_type"]
    is_a_vector = kind in (linalg.DenseVector, linalg.SparseVector) and "type" not in column
    return linalg.VectorUDT() if is_a_vector else type_of(column)
