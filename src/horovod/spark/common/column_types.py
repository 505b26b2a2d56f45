"""Which types of Spark a model can use, and as what; all of it follows from the schema."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types

from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Use: TypeAlias = Literal["feature", "label", "sample weight"]
"""What a column is for."""

Given: TypeAlias = Literal["numbers", "rows", "files"]
"""What the training is given: the numbers of the columns; rows of which a ``transformation_fn``
makes numbers; or the files, which a ``data_module`` of the user reads."""

_IN_ARRAYS = types.StringType, types.CharType, types.VarcharType, types.BinaryType
_OPAQUE = (
    *_IN_ARRAYS,
    types.DateType,
    types.TimestampType,
    types.TimestampNTZType,
)
_FUNCTIONS = "of pyspark.sql.functions"
_BY_FUNCTION = "or give a transformation_fn that makes numbers of it"
_TEXT = f"make numbers of it, for example by StringIndexer of pyspark.ml.feature, {_BY_FUNCTION}"
_REMEDIES = {
    "string": _TEXT,
    "char": _TEXT,
    "varchar": _TEXT,
    "binary": f"decode it into an array of numbers, {_BY_FUNCTION}",
    "date": f"make a number of it, for example by unix_date {_FUNCTIONS}, {_BY_FUNCTION}",
    "timestamp": f"make a number of it, for example by unix_seconds {_FUNCTIONS}, {_BY_FUNCTION}",
    "timestamp_ntz": "make a number of it, for example by a cast to timestamp and unix_seconds "
    f"{_FUNCTIONS}, {_BY_FUNCTION}",
    "time": f"make a number of it, for example by hour and minute {_FUNCTIONS}",
    "interval": f"make a number of it, for example by extract {_FUNCTIONS}",
    "void": "cast it to a type of numbers",
    "struct": "make columns of its fields, for example by df.select('name.*')",
    "map": "make columns of its keys, for example by df.select(df.name['key'])",
    "variant": f"make numbers of it by variant_get {_FUNCTIONS}",
    "matrix": "make an array of it, for example by a UDF that calls toArray()",
}
_IMAGE = (
    "decode it into an array of numbers of one size, for example by a UDF with "
    "numpy.frombuffer(image.data, 'uint8')"
)
_IMAGE_FIELDS = {"height", "width", "nChannels", "mode", "data"}


def is_vector(kind: types.DataType) -> bool:
    """Return whether a type of Spark is that of vectors."""
    return type(kind).__name__ == "VectorUDT"


def element_of(kind: types.DataType) -> tuple[Any, int]:
    """Return the type of the values in arrays, and how deep these are nested: 0 for no array."""
    depth = 0
    while isinstance(kind, types.ArrayType):
        kind, depth = kind.elementType, depth + 1
    return kind, depth


def is_number(kind: types.DataType) -> bool:
    """Return whether single values of a type are numbers or booleans."""
    return isinstance(kind, types.NumericType | types.BooleanType)


def refusal(kind: types.DataType, use: Use, given: Given = "numbers") -> str | None:
    """Return why a model cannot use columns of a type, and what to do; None if it can.

    Args:
        kind: the type of Spark.
        use: what the column is for.
        given: what the training is given.
    """
    if given == "files":
        return None
    element, depth = element_of(kind)
    if use == "sample weight" and (depth or is_vector(kind)):
        return "a weight is a single number for each row"
    if is_number(element) or (is_vector(kind) and not depth):
        return None
    if given == "rows" and isinstance(element, _IN_ARRAYS if depth else _OPAQUE):
        return None
    what = "which holds no numbers" if depth else "which is no number"
    return f"{what}: {_remedy(element)}"


def check_types(
    owner: str, columns: Iterable[tuple[Use, str, object]], given: Given = "numbers"
) -> None:
    """Refuse a schema of which a model cannot use a column.

    Args:
        owner: who needs the columns, for the message.
        columns: use, name and type of each.
        given: what the training is given.

    Raises:
        UsageError: names the column, its type, and what to do.
    """
    for use, name, kind in columns:
        why = refusal(kind, use, given)
        if why is not None:
            raise UsageError(f"{owner}: {use} column {name!r} is of type {short_name(kind)}, {why}")


def prediction_type(kind: types.DataType, shape: Sequence[int]) -> Any:
    """Return the type of the predictions for a label.

    It is that of the label, except that several numbers for a label of one number are a vector, as
    are those in other dimensions than the label has, and that a label that is no number has
    numbers.

    Args:
        kind: the type of the label; None if nobody knows.
        shape: of what the model gives for one row.
    """
    if kind is None or not is_number(element_of(kind)[0]):
        kind = VectorUDT() if is_vector(kind) else types.DoubleType()
    depth = element_of(kind)[1]
    if is_vector(kind) or (not depth and math.prod(shape) != 1):
        return VectorUDT()
    return VectorUDT() if depth > 1 and depth != len(shape) else kind


def prediction_sql(value: str, raw: str, kind: types.DataType) -> str:
    """Return the SQL expression of a prediction in its type.

    Integers and booleans are rounded. What a type cannot hold, such as NaN among integers, is null.

    Args:
        value: an expression: what the model gives, with null for NaN; an array of it for arrays and
            vectors.
        raw: the type of its numbers: ``float``, ``double``, or ``bigint``.
        kind: as :func:`prediction_type` gives it.
    """
    if is_vector(kind):
        return f"transform({value}, x -> {_number_sql('x', raw, types.DoubleType())})"
    return _nested_sql(value, raw, kind, 0)


def null_sql(value: str, kind: types.DataType) -> str:
    """Return the SQL condition that a value, or anything in its arrays, is null."""
    return _null_sql(value, kind, 0)


def short_name(kind: types.DataType) -> str:
    """Return a type as messages name it."""
    if _is_image(kind):
        return "image, a struct"
    return str(kind.simpleString())


def _nested_sql(value: str, raw: str, kind: Any, depth: int) -> str:
    if not isinstance(kind, types.ArrayType):
        return _number_sql(value, raw, kind)
    inner = _nested_sql(f"x{depth}", raw, kind.elementType, depth + 1)
    return f"transform({value}, x{depth} -> {inner})"


def _number_sql(value: str, raw: str, kind: Any) -> str:
    name = kind.simpleString()
    if isinstance(kind, types.BooleanType):
        return f"CASE WHEN isnan({value}) THEN NULL ELSE {value} > 0.5D END"
    if isinstance(kind, types.FloatType | types.DoubleType):
        number = value if raw == "bigint" else f"coalesce({value}, CAST('NaN' AS {raw}))"
        return f"CAST({number} AS {name})"
    if isinstance(kind, types.IntegralType) and raw != "bigint":
        value = f"rint({value})"
    return f"try_cast({value} AS {name})"


def _null_sql(value: str, kind: Any, depth: int) -> str:
    if not isinstance(kind, types.ArrayType):
        return f"{value} IS NULL"
    inner = _null_sql(f"x{depth}", kind.elementType, depth + 1)
    return f"({value} IS NULL OR exists({value}, x{depth} -> {inner}))"


def _remedy(kind: Any) -> str:
    if _is_image(kind):
        return f"{_IMAGE}, or give a data_module that reads it"
    name = "matrix" if type(kind).__name__ == "MatrixUDT" else type(kind).typeName()
    return _REMEDIES.get("interval" if "interval" in name else name, "make numbers of it")


def _is_image(kind: Any) -> bool:
    return isinstance(kind, types.StructType) and set(kind.names) >= _IMAGE_FIELDS
