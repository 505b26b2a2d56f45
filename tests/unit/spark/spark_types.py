"""Every type of Spark SQL, and what the estimators make of columns of it.

The table that both the tests of pure functions and those in a cluster go through.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pyspark.ml.linalg import MatrixUDT, Vectors, VectorUDT
from pyspark.sql import types as T


@dataclass(frozen=True)
class Row:
    """A type, and what becomes of it.

    Attributes:
        kind: the type.
        values: two of them that a model can be trained on, or that can be passed through; none if
            PySpark cannot make any.
        dtype: of a feature on a rank; None if it is refused.
        label_dtype: of a label on a rank.
        fed: what a model gives for a label of this type, and what it is as a prediction.
        remedy: what the refusal advises.
        as_weight: whether it can be a weight.
        as_row: whether a ``transformation_fn`` may get it.
    """

    kind: Any
    values: tuple[Any, Any] | None = None
    dtype: str | None = None
    label_dtype: str | None = None
    fed: tuple[Any, Any] = (2.75, None)
    remedy: str = ""
    as_weight: bool = False
    as_row: bool = False


def number(kind: Any, values: Any, dtype: str, label: str, predicted: Any) -> Row:
    """A type of numbers, for which a model gives 2.75."""
    return Row(kind, values, dtype, label, (2.75, predicted), as_weight=True, as_row=True)


def several(kind: Any, values: Any, dtype: str, label: str, fed: Any, predicted: Any) -> Row:
    """A type of several numbers in a row."""
    return Row(kind, values, dtype, label, (fed, predicted), as_row=True)


def no_number(kind: Any, remedy: str, *values: Any, as_row: bool = False) -> Row:
    """A type that is refused."""
    return Row(kind, values or None, remedy=remedy, as_row=as_row)  # type: ignore[arg-type]


def optional(name: str, remedy: str, *arguments: Any) -> list[Row]:
    """A type that not every Spark has."""
    found = getattr(T, name, None)
    return [] if found is None else [no_number(found(*arguments), remedy)]


A, B = Vectors.dense([1.0, 2.0]), Vectors.sparse(2, {1: 3.0})
IMAGE = T.StructType(
    [
        T.StructField(name, T.IntegerType() if name != "data" else T.BinaryType())
        for name in ("height", "width", "nChannels", "mode", "data")
    ]
)
DAY = datetime.date(2026, 1, 2)
TIME = datetime.datetime(2026, 1, 2, 3)

ROWS = [
    number(T.BooleanType(), (True, False), "bool", "int64", True),
    number(T.ByteType(), (1, 2), "int8", "int64", 3),
    number(T.ShortType(), (1, 2), "int16", "int64", 3),
    number(T.IntegerType(), (1, 2), "int32", "int64", 3),
    number(T.LongType(), (1, 2), "int64", "int64", 3),
    number(T.FloatType(), (1.5, 2.5), "float32", "float32", 2.75),
    number(T.DoubleType(), (1.5, 2.5), "float64", "float64", 2.75),
    number(
        T.DecimalType(6, 3),
        (Decimal("1.125"), Decimal("2.5")),
        "float64",
        "float64",
        Decimal("2.750"),
    ),
    number(T.DecimalType(20, 0), (Decimal(1), Decimal(2)), "float64", "float64", Decimal(3)),
    several(VectorUDT(), (A, B), "float64", "float64", [0.25, 2.75], Vectors.dense(0.25, 2.75)),
    several(
        T.ArrayType(T.FloatType()),
        ([1.5, 2.0], [3.0, 4.0]),
        "float32",
        "float32",
        [0.25, 2.75],
        [0.25, 2.75],
    ),
    several(T.ArrayType(T.IntegerType()), ([1, 2], [3, 4]), "int32", "int64", [0.25, 2.75], [0, 3]),
    several(
        T.ArrayType(T.BooleanType()),
        ([True, False], [False, True]),
        "bool",
        "int64",
        [0.25, 2.75],
        [False, True],
    ),
    several(
        T.ArrayType(T.DecimalType(5, 2)),
        ([Decimal("1.25"), Decimal(2)],) * 2,
        "float64",
        "float64",
        [0.25, 2.75],
        [Decimal("0.25"), Decimal("2.75")],
    ),
    several(
        T.ArrayType(T.ArrayType(T.DoubleType())),
        ([[1.0, 2.0], [3.0, 4.0]],) * 2,
        "float64",
        "float64",
        [[0.25, 2.75], [1.0, 2.0]],
        [[0.25, 2.75], [1.0, 2.0]],
    ),
    no_number(T.StringType(), "StringIndexer", "a", "b", as_row=True),
    no_number(T.CharType(1), "StringIndexer", as_row=True),
    no_number(T.VarcharType(1), "StringIndexer", as_row=True),
    no_number(T.BinaryType(), "decode it", b"a", b"b", as_row=True),
    no_number(T.DateType(), "unix_date", DAY, DAY, as_row=True),
    no_number(T.TimestampType(), "unix_seconds", TIME, TIME, as_row=True),
    no_number(T.TimestampNTZType(), "unix_seconds", TIME, TIME, as_row=True),
    no_number(T.DayTimeIntervalType(), "extract", datetime.timedelta(1), datetime.timedelta(2)),
    no_number(T.YearMonthIntervalType(), "extract"),
    *optional("CalendarIntervalType", "extract"),
    no_number(T.NullType(), "cast it", None, None),
    no_number(
        T.StructType([T.StructField("a", T.IntegerType())]), "its fields", {"a": 1}, {"a": 2}
    ),
    no_number(IMAGE, "data_module", (1, 1, 1, 0, b"a"), (1, 1, 1, 0, b"b")),
    no_number(T.MapType(T.StringType(), T.IntegerType()), "its keys", {"a": 1}, {"b": 2}),
    no_number(MatrixUDT(), "toArray"),
    no_number(T.ArrayType(T.StringType()), "holds no numbers", ["a"], ["b"], as_row=True),
    no_number(T.ArrayType(T.DateType()), "unix_date", [DAY], [DAY]),
    no_number(T.ArrayType(VectorUDT()), "holds no numbers", [A], [B]),
    *optional("VariantType", "variant_get"),
    *optional("TimeType", "hour and minute"),
    *optional("GeometryType", "make numbers of it", 0),
    *optional("GeographyType", "make numbers of it", 4326),
]
IDS = [row.kind.simpleString() for row in ROWS]
