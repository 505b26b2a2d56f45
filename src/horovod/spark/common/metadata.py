"""What is known of the columns that a model is trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.ml import linalg
from pyspark.sql import types
from pyspark.sql.pandas.types import from_arrow_type

from horovod.errors import UsageError
from horovod.spark.common.constants import ARRAY, CUSTOM_SPARSE, NOCHANGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

Column = dict[str, Any]
"""Of a column: ``spark_data_type``, a class; ``is_sparse_vector_only``; ``shape``, how many numbers
a row has, ``max_size``, how many of them are written at most, None where nobody has looked; and
``intermediate_format``, a constant of ``horovod.spark.common.constants``."""


def column_of_file(kind: Any) -> Column:
    """Of a column that is written as it is, from its type of Spark in the files."""
    is_list = isinstance(kind, types.ArrayType) or is_vector(kind)
    return _column(linalg.DenseVector if is_list else type(kind), None, None, NOCHANGE)


def columns_of_files(schema: pa.Schema, names: Sequence[str]) -> dict[str, Column]:
    """Of columns of Parquet files, from the schema of a file."""
    return {name: column_of_file(from_arrow_type(schema.field(name).type)) for name in names}


def scalar_column(kind: Any) -> Column:
    """Of a column of single values, from its type of Spark."""
    return _column(type(kind), 1, 1, NOCHANGE)


def dense_column(length: int) -> Column:
    """Of a column of arrays or vectors that all have the same length."""
    return _column(linalg.DenseVector, length, length, ARRAY)


def sparse_column(length: int, most: int) -> Column:
    """Of a column of sparse vectors, of which each stores so many numbers at most."""
    column = _column(linalg.SparseVector, length, most, CUSTOM_SPARSE)
    return {**column, "is_sparse_vector_only": True}


def is_vector(kind: Any) -> bool:
    """Whether a type of Spark is that of vectors."""
    return type(kind).__name__ == "VectorUDT"


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


def _column(kind: type, shape: int | None, most: int | None, form: str) -> Column:
    return {
        "spark_data_type": kind,
        "is_sparse_vector_only": False,
        "shape": shape,
        "intermediate_format": form,
        "max_size": most,
    }


def _class_of(name: str) -> type:
    found: type = getattr(linalg, name, None) or getattr(types, name)
    return found


def _output_type(column: Column) -> Any:
    kind = column["spark_data_type"]
    is_a_vector = kind in (linalg.DenseVector, linalg.SparseVector)
    return linalg.VectorUDT() if is_a_vector else kind()
