"""What a task does: columns of pandas become arrays, and outputs become columns."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

import pandas as pd

from horovod.errors import UsageError
from horovod.spark.common import prediction
from horovod.spark.common.prediction import Input, Output, Predicting, array_of
from horovod.spark.common.training import expanded

if TYPE_CHECKING:
    from collections.abc import Callable


def series(*values: Any) -> Any:
    return pd.Series(list(values))


def nested(*rows: Any) -> Any:
    """Arrays of arrays as Spark gives them: arrays of objects that are arrays."""
    column = pd.Series([None] * len(rows), dtype=object)
    for number, row in enumerate(rows):
        column[number] = np.array([*[np.array(each) for each in row], None], dtype=object)[:-1]
    return column


@pytest.mark.parametrize(
    ("values", "form", "expected", "dtype"),
    [
        (pd.Series([1, 2], dtype="int32"), "values", [1, 2], "int32"),
        (pd.Series([True, False]), "values", [True, False], "bool"),
        (pd.Series([0.5, np.nan], dtype="float32"), "values", [0.5, np.nan], "float32"),
        (series(np.array([1.0, 2]), np.array([3.0, 4])), "values", [[1, 2], [3, 4]], "float64"),
        (
            nested([[1, 2], [3, 4]], [[5, 6], [7, 8]]),
            "values",
            [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
            "int64",
        ),
        (series("a", "b"), "values", ["a", "b"], "object"),
        (series(datetime.date(2026, 1, 2)), "dates", [datetime.date(2026, 1, 2)], "datetime64[D]"),
        (pd.Series([1_000_001]), "microseconds", [1_000_001_000], "datetime64[ns]"),
    ],
)
def test_columns_become_arrays(values: Any, form: Any, expected: list[Any], dtype: str) -> None:
    array = array_of(values, Input("x", form=form))
    assert array.dtype == dtype
    np.testing.assert_array_equal(array.tolist(), expected)


def doubled(features: list[np.ndarray]) -> list[np.ndarray]:
    return [2 * np.asarray(each, np.float64) for each in features]


def predicted(
    *columns: Any,
    inputs: Any = None,
    transformation: Callable[[Any], Any] | None = None,
    missing: Any = None,
) -> list[Any]:
    inputs = inputs or [Input("x")]
    missing = pd.Series([-1] * len(columns[0])) if missing is None else missing
    predicting = Predicting(inputs, transformation, lambda: doubled, [Output("double", 0)])
    return [found["o0"].tolist() for found in predicting.batches([(missing, *columns)])]


def test_rows_are_predicted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "BATCH_ROWS", 2)
    assert predicted(series(1, 2, 3, 4, 5)) == [[2, 4, 6, 8, 10]]
    arrays = Predicting([Input("x")], None, lambda: doubled, [Output("float", 1)])
    rows = series(*(np.array([each, 1.0]) for each in range(3)))
    [found] = arrays.batches([(series(-1, -1, -1), rows)])
    assert [each.tolist() for each in found["o0"]] == [[0, 2], [2, 2], [4, 2]]


def test_rows_without_a_value_and_ragged_arrays_are_refused() -> None:
    inputs = [Input("x"), Input("a.b")]
    with pytest.raises(UsageError, match=r"'a\.b' has rows without a value"):
        predicted(series(1, 2), series(1, 2), inputs=inputs, missing=series(-1, 1))
    with pytest.raises(UsageError, match="'x' has arrays of 1 to 2 numbers"):
        predicted(series(np.array([1.0]), np.array([1.0, 2.0])))


def test_a_transformation_gets_the_columns_of_the_training() -> None:
    seen = []

    def transformation(row: dict[str, Any]) -> dict[str, Any]:
        seen.append(row)
        return {"x": len(row["x"]) + row["z"], "y": row["y"] + 1}

    inputs = [Input("x"), Input("z", is_feature=False), Input("y", False, "absent")]
    found = predicted(
        series("abc", "d"), series(1, 2), inputs=inputs, transformation=transformation
    )
    assert found == [[8, 6]]
    assert [row["x"] for row in seen] == ["abc", "d"]
    assert all(np.isnan(row["y"]) for row in seen)


def test_a_transformation_that_fails_says_how_to_go_on() -> None:
    inputs = [Input("x"), Input("y", False, "absent")]
    with pytest.raises(UsageError, match=r"KeyError: nan; .* no 'y', .* by setTransformationFn"):
        predicted(series(1), inputs=inputs, transformation=lambda row: {"x": {1: 2}[row["y"]]})
    with pytest.raises(UsageError, match=r"must return a dict with \['x'\], but returned \{'z': 1"):
        predicted(series(1), transformation=lambda row: {"z": 1})
    with pytest.raises(UsageError, match="column 'x' has no numbers"):
        predicted(series("a"), transformation=lambda row: row)


@pytest.mark.parametrize(
    ("dtype", "raw"),
    [
        ("float16", "float"),
        ("float32", "float"),
        ("float64", "double"),
        ("int32", "bigint"),
        ("int64", "bigint"),
        ("bool", "bigint"),
    ],
)
def test_outputs_keep_what_they_are(dtype: str, raw: str) -> None:
    values = np.array([[1], [0]], dtype)
    assert Output.of(values, 0) == Output(raw, 0)
    assert Output.of(values, 0).rows(values).tolist() == [1, 0]
    assert Output.of(values, 0).rows(values[:0]).tolist() == []


def test_large_integers_lose_nothing() -> None:
    values = np.array([2**60 + 1])
    assert Output.of(values, 0).rows(values).tolist() == [2**60 + 1]


def test_nested_outputs() -> None:
    values = np.arange(8.0).reshape(2, 2, 2)
    assert Output("double", 2).sql_type == "array<array<double>>"
    assert Output("double", 2).rows(values) == values.tolist()
    assert [each.tolist() for each in Output("float", 1).rows(values)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
    ]


def test_rows_without_zeros_are_expanded() -> None:
    packed = np.array([[2, 0, 3, 1.5, 2.5], [1, 1, 7, 0, 0], [0, 0, 0, 0, 0.0]])
    assert expanded(packed, 4).tolist() == [[1.5, 0, 0, 2.5], [0, 7, 0, 0], [0, 0, 0, 0]]
