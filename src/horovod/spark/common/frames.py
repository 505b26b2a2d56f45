"""Prepares a DataFrame before it is written: columns, vectors, and the split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import SparseVector
from pyspark.sql import functions as F
from pyspark.sql import types

from horovod.errors import UsageError
from horovod.spark.common.column_types import element_of, is_number, is_vector
from horovod.spark.common.metadata import (
    Column,
    array_column,
    dense_column,
    scalar_column,
    sparse_column,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column as SparkColumn
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


def check_validation(validation: object, df: DataFrame | None = None) -> None:
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


def chosen(df: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return columns of a frame, whatever their names and those of others are.

    Args:
        df: the frame.
        names: exactly as the frame has them.

    Raises:
        UsageError: the frame has a column twice, or Spark cannot tell two of them apart.
    """
    check_names(df, names)
    places = {name: place for place, name in enumerate(df.columns)}
    numbered = df.toDF(*map(str, range(len(df.columns))))
    return numbered.select([F.col(str(places[name])).alias(name) for name in names])


def check_names(df: DataFrame, names: Sequence[str], only_twice: bool = False) -> None:
    """Refuse columns that cannot be in the same files, or that the frame has twice.

    Args:
        df: the frame.
        names: of its columns.
        only_twice: whether no files are to be written.

    Raises:
        UsageError: names them.
    """
    if twice := [name for name in names if df.columns.count(name) > 1]:
        raise UsageError(
            f"there are {df.columns.count(twice[0])} columns {twice[0]!r} in the DataFrame: rename "
            "all but one of them, for example by df.toDF(...)"
        )
    known: dict[str, str] = {}
    alike = [(known.setdefault(name.lower(), name), name) for name in names]
    clash = next(((other, name) for other, name in alike if other != name), None)
    if clash and not only_twice and not _is_case_sensitive(df):
        raise UsageError(
            f"columns {clash[0]!r} and {clash[1]!r} differ only in upper and lower case, which "
            "Spark ignores: rename one of them, or set spark.sql.caseSensitive"
        )


def _is_case_sensitive(df: DataFrame) -> bool:
    return str(df.sparkSession.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"


def split(df: DataFrame, validation: float | str | None, keep: bool = False) -> Split:
    """Divides a frame into training and validation.

    Args:
        df: the frame.
        validation: see :func:`check_validation`.
        keep: whether the column that decides stays in both.
    """
    if not validation:
        return Split(df, None, 0.0)
    if isinstance(validation, float):
        # The same rows again in a training that goes on, if Spark divides the frame as before.
        training, taken = df.randomSplit([1 - validation, validation], _SPLIT_SEED)
        return Split(training, taken, validation)
    column = F.col(_quoted(validation))
    if not isinstance(df.schema[validation].dataType, types.BooleanType):
        column = column > 0
    # A row that says nothing is for training.
    is_chosen = F.coalesce(column, F.lit(False))
    share = df.agg(F.avg(is_chosen.cast("double"))).first()[0] or 0.0
    training, taken = (df.filter(each) for each in (~is_chosen, is_chosen))
    if not keep:
        training, taken = training.drop(validation), taken.drop(validation)
    return Split(training, taken, float(share))


def content_of(df: DataFrame) -> str:
    """Return a text that is the same for the same rows in any order, and differs for others.

    Args:
        df: has no vectors.
    """
    fields = sorted(df.schema.fields, key=lambda field: field.name)
    hashed = F.xxhash64(*map(_hashable, fields))
    row = df.agg(F.count(F.lit(1)), F.sum(hashed.cast("decimal(20,0)"))).first()
    assert row is not None
    return f"{row[0]} rows {row[1]}"


def _hashable(field: types.StructField) -> Any:
    """Return a column, as text if Spark refuses to hash its type."""
    column, name = F.col(_quoted(field.name)), field.dataType.simpleString()
    return F.to_json(F.struct(column)) if "map<" in name or "variant" in name else column


def check_not_empty(df: DataFrame) -> None:
    """Refuse a frame without rows.

    Args:
        df: the frame, of which Spark computes no more rows than it needs.

    Raises:
        UsageError: there are no rows.
    """
    if not df.select(F.lit(True)).head(1):
        raise UsageError("there are no rows in the DataFrame: nothing can be trained on it")


def lengths_of(df: DataFrame) -> dict[str, tuple[int, int]]:
    """Return how many numbers rows have, for columns of arrays of numbers and vectors.

    Args:
        df: the frame, whose columns of these types Spark computes once.

    Returns:
        The least and the most, by column.
    """
    columns = [each for each in df.schema.fields if _has_lengths(each.dataType)]
    if not columns:
        return {}
    sizes = [size for field in columns for size in (F.min(_length(field)), F.max(_length(field)))]
    row = df.agg(*sizes).first()
    assert row is not None
    least_and_most = zip(columns, row[::2], row[1::2], strict=True)
    return {field.name: (least, most) for field, least, most in least_and_most if least is not None}


def _has_lengths(kind: types.DataType) -> bool:
    element, depth = element_of(kind)
    return is_vector(kind) or (depth > 0 and is_number(element))


def _length(field: types.StructField) -> Any:
    """Return how many numbers a row has, or null."""
    array = F.col(_quoted(field.name))
    if is_vector(field.dataType):
        array = array_of_vector(array)
    for _ in range(element_of(field.dataType)[1] - 1):
        array = F.flatten(array)
    return F.array_size(array)


def without_vectors(
    df: DataFrame, compress_sparse: bool, as_is: Sequence[str] = ()
) -> tuple[DataFrame, dict[str, Column]]:
    """Make arrays of vectors, so that the files hold no type of Spark's own.

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
        return column
    if columns.get(field.name, {}).get("is_sparse_vector_only"):
        packed = F.udf(_packer(columns[field.name]["max_size"]), "array<double>", useArrow=False)
        return packed(column).alias(field.name)
    return array_of_vector(column).alias(field.name)


def array_of_vector(column: SparkColumn) -> Any:
    """Return a column of vectors as arrays; null stays null, which Spark's function refuses."""
    return F.when(column.isNotNull(), vector_to_array(column))


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
    return dense_column(most) if is_vector(field.dataType) else array_column(field.dataType, most)


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
        return [float(number) for number in numbers] + [0.0] * 2 * (most - count)

    return pack


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
