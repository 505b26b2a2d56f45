"""What becomes of a DataFrame before it is written: columns, vectors, and the split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import SparseVector
from pyspark.sql import functions as F
from pyspark.sql import types

from horovod.errors import UsageError
from horovod.spark.common.metadata import (
    Column,
    dense_column,
    is_vector,
    scalar_column,
    sparse_column,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

_SPLIT_SEED = 0
_LOOK = "struct<is_sparse: boolean, size: int, stored: int>"


class Split(NamedTuple):
    """A frame in two.

    Attributes:
        training, validation: the frames; None if nothing is for validation.
        share: of the rows that are for validation, about.
    """

    training: DataFrame
    validation: DataFrame | None
    share: float


def check_validation(validation: Any, df: DataFrame | None = None) -> None:
    """Checks what decides which rows are for validation.

    Args:
        validation: a float, the share of rows that is drawn; or a column of booleans or numbers, of
            which true and what is above 0 count; or None.
        df: has the column.

    Raises:
        UsageError: the share is not in [0, 1), there is no such column, or it is neither.
    """
    if validation is None:
        return
    if isinstance(validation, float):
        if not 0 <= validation < 1:
            raise UsageError(f"validation={validation}: the share must be at least 0 and below 1")
        return
    if not isinstance(validation, str):
        raise UsageError(
            f"validation={validation!r}: give a share as a float, or the name of a column"
        )
    if df is None:
        return
    if validation not in df.columns:
        raise UsageError(f"there is no validation column {validation!r}: there are {df.columns}")
    kind = df.schema[validation].dataType
    if not isinstance(kind, types.BooleanType | types.NumericType):
        raise UsageError(
            f"validation column {validation!r} is of type {kind.simpleString()}, but must be "
            "boolean or a number"
        )


def split(df: DataFrame, validation: float | str | None) -> Split:
    """Divides a frame into training and validation.

    Args:
        df: a column that decides is left out of both.
        validation: see :func:`check_validation`.
    """
    if not validation:
        return Split(df, None, 0.0)
    if isinstance(validation, float):
        # The same rows again in a training that goes on, if Spark divides the frame as before.
        training, chosen = df.randomSplit([1 - validation, validation], _SPLIT_SEED)
        return Split(training, chosen, validation)
    column = F.col(_quoted(validation))
    if not isinstance(df.schema[validation].dataType, types.BooleanType):
        column = column > 0
    # A row that says nothing is for training.
    is_chosen = F.coalesce(column, F.lit(False))
    share = df.agg(F.avg(is_chosen.cast("double"))).first()[0] or 0.0
    training, chosen = (df.filter(each).drop(validation) for each in (~is_chosen, is_chosen))
    return Split(training, chosen, float(share))


def content_of(df: DataFrame) -> str:
    """A text that is the same for the same rows, whatever their order, and for no others.

    Args:
        df: has no vectors.
    """
    hashed = F.xxhash64(*[F.col(_quoted(name)) for name in sorted(df.columns)])
    row = df.agg(F.count(F.lit(1)), F.sum(hashed.cast("decimal(20,0)"))).first()
    assert row is not None
    return f"{row[0]} rows {row[1]}"


def without_vectors(
    df: DataFrame, compress_sparse: bool, as_is: Sequence[str] = ()
) -> tuple[DataFrame, dict[str, Column]]:
    """Makes arrays of vectors, so that the files hold no type of Spark's own.

    If there is a vector, other numbers become the widest of their kind, long and double, as they
    always have.

    Args:
        df: the frame.
        compress_sparse: look at all rows, and write columns that hold only sparse vectors as
            ``[n, index…, value…, 0…]``.
        as_is: columns that are not written.

    Returns:
        The frame, and the metadata of columns if all rows were looked at, else nothing.

    Raises:
        UsageError: with ``compress_sparse`` rows of a column have several lengths, or nulls.
    """
    fields = df.schema.fields
    if not any(is_vector(field.dataType) for field in fields):
        return df, {}
    written = [field for field in fields if field.name not in as_is]
    columns = _look_at_all_rows(df, written) if compress_sparse else {}
    chosen = [
        F.col(_quoted(field.name)) if field.name in as_is else _written(field, columns)
        for field in fields
    ]
    return df.select(chosen), columns


def _written(field: types.StructField, columns: dict[str, Column]) -> Any:
    column = F.col(_quoted(field.name))
    if not is_vector(field.dataType):
        return column.cast(_widened(field.dataType)).alias(field.name)
    if columns.get(field.name, {}).get("is_sparse_vector_only"):
        packed = F.udf(_packer(columns[field.name]["max_size"]), "array<double>", useArrow=False)
        return packed(column).alias(field.name)
    return vector_to_array(column).alias(field.name)


def _widened(kind: Any) -> Any:
    if isinstance(kind, types.ArrayType):
        return types.ArrayType(_widened(kind.elementType), kind.containsNull)
    if isinstance(kind, types.ByteType | types.ShortType | types.IntegerType):
        return types.LongType()
    return types.DoubleType() if isinstance(kind, types.FloatType) else kind


def _look_at_all_rows(df: DataFrame, fields: Sequence[types.StructField]) -> dict[str, Column]:
    """Metadata of columns, in one pass over the frame."""
    look = F.udf(_look, _LOOK, useArrow=False)
    wanted = []
    for number, field in enumerate(fields):
        column = F.col(_quoted(field.name))
        if is_vector(field.dataType):
            seen = look(column)
            wanted += [
                F.min(seen["is_sparse"]).alias(f"sparse_{number}"),
                F.max(seen["stored"]).alias(f"stored_{number}"),
            ]
            size = seen["size"]
        elif isinstance(field.dataType, types.ArrayType):
            size = F.when(column.isNotNull(), F.size(column))
        else:
            continue
        wanted += [
            F.count(size).alias(f"count_{number}"),
            F.min(size).alias(f"least_{number}"),
            F.max(size).alias(f"most_{number}"),
        ]
    row = df.agg(F.count(F.lit(1)).alias("rows"), *wanted).first()
    assert row is not None
    return {field.name: _seen(field, number, row.asDict()) for number, field in enumerate(fields)}


def _seen(field: types.StructField, number: int, row: dict[str, Any]) -> Column:
    """Metadata of a column from what was aggregated."""
    if f"count_{number}" not in row:
        return scalar_column(field.dataType)
    nulls = row["rows"] - row[f"count_{number}"]
    if nulls:
        raise UsageError(f"column {field.name!r} has {nulls} nulls: fill or drop them")
    least, most = row[f"least_{number}"] or 0, row[f"most_{number}"] or 0
    if least != most:
        raise UsageError(
            f"rows of column {field.name!r} have between {least} and {most} numbers, but must all "
            "have the same shape"
        )
    if row.get(f"sparse_{number}"):
        return sparse_column(most, row[f"stored_{number}"])
    return dense_column(most)


def _look(vector: Any) -> tuple[bool, int, int] | None:
    if vector is None:
        return None
    is_sparse = isinstance(vector, SparseVector)
    return is_sparse, len(vector), len(vector.indices) if is_sparse else len(vector)


def _packer(most: int) -> Any:
    def pack(vector: Any) -> list[float]:
        """``[n, index…, value…, 0…]``, of length 1 + 2 · most."""
        count = len(vector.indices)
        numbers = [count, *vector.indices, *vector.values]
        return [float(each) for each in numbers] + [0.0] * 2 * (most - count)

    return pack


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
