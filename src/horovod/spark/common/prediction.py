"""Predicts in a task: from columns of pandas to arrays, through the model, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from horovod.errors import UsageError
from horovod.spark.data.columns import objects, stack

if TYPE_CHECKING:
    import pandas as pd

Predict: TypeAlias = Callable[[list[np.ndarray]], list[np.ndarray]]
"""From the features of some rows, each (rows,) or (rows, n), to the outputs, each (rows, …)."""

Predictor: TypeAlias = Callable[[], Predict]
"""Is sent to the tasks, and makes a model there."""

BATCH_ROWS = 1024
"""The most rows that a model predicts at once."""

_DTYPES = {"float": np.float32, "double": np.float64, "bigint": np.int64}


@dataclass(frozen=True)
class Input:
    """A column that the training had, too.

    Attributes:
        name: of the column.
        is_feature: else it is a label or a weight, which only a ``transformation_fn`` may want.
        form: how its values come; absent if the frame does not have it.
    """

    name: str
    is_feature: bool = True
    form: Literal["values", "dates", "microseconds", "absent"] = "values"


@dataclass(frozen=True)
class Output:
    """The type in which the numbers of an output return to Spark.

    Attributes:
        raw: their type in SQL: float, double or bigint.
        depth: of the arrays of a row: 0 for one number.
    """

    raw: str
    depth: int

    @classmethod
    def of(cls, values: np.ndarray, depth: int) -> Output:
        """Return how to send the values of an output with as little as possible lost."""
        if values.dtype.kind in "biu":
            return cls("bigint", depth)
        is_narrow = values.dtype.kind == "f" and values.dtype.itemsize <= 4
        return cls("float" if is_narrow else "double", depth)

    @property
    def sql_type(self) -> str:
        """The type of a row in SQL."""
        return "array<" * self.depth + self.raw + ">" * self.depth

    def rows(self, values: np.ndarray) -> Any:
        """Return an output, (rows, …), as a column of pandas."""
        values = np.asarray(values).astype(_DTYPES[self.raw])
        if self.depth > 1:
            return values.tolist()
        flat = values.reshape(len(values), -1 if values.size else 1)
        return list(flat) if self.depth else flat[:, 0]


@dataclass(frozen=True)
class Predicting:
    """Predicts the rows of a partition; can be sent to a task.

    Attributes:
        inputs: the columns that come, those that are absent among them.
        transformation: applied to each row, or None.
        predictor: makes the model.
        outputs: how predictions go back.
    """

    inputs: Sequence[Input]
    transformation: Callable[[dict[str, Any]], dict[str, Any]] | None
    predictor: Predictor
    outputs: Sequence[Output]

    def batches(self, parts: Iterable[Sequence[pd.Series]]) -> Iterator[dict[str, Any]]:
        """Predict one batch of Spark after the other.

        Args:
            parts: of each batch, as columns of pandas, the number of the first input in which a row
                has a null, or -1; and the inputs that are not absent.

        Yields:
            The columns of the outputs by name.

        Raises:
            UsageError: a feature has a null or an odd shape, or the transformation fails.
        """
        predict: Predict | None = None
        for part in parts:
            starts = range(0, len(part[0]), BATCH_ROWS)
            predict = predict or self.predictor()
            found = [
                predict(self.features([each.iloc[at : at + BATCH_ROWS] for each in part]))
                for at in starts
            ]
            yield {
                f"o{number}": _concatenated([output.rows(each[number]) for each in found])
                for number, output in enumerate(self.outputs)
            }

    def features(self, part: Sequence[pd.Series]) -> list[np.ndarray]:
        """Return the features of some rows as the model takes them, (rows, …) each."""
        missing, *values = part
        if (missing >= 0).any():
            name = self.inputs[int(missing.max())].name
            raise UsageError(
                f"transform: column {name!r} has rows without a value, or arrays with nulls: drop "
                "them with df.na.drop(), or fill them"
            )
        given = iter(values)
        columns = [
            None if each.form == "absent" else array_of(next(given), each) for each in self.inputs
        ]
        if self.transformation is not None:
            return self._transformed(columns, len(missing))
        return [
            _with_one_shape(values, each.name)
            for values, each in zip(columns, self.inputs, strict=True)
            if values is not None and each.is_feature
        ]

    def _transformed(self, columns: Sequence[Any], count: int) -> list[np.ndarray]:
        assert self.transformation is not None
        names = [each.name for each in self.inputs]
        filled = [[np.nan] * count if column is None else column for column in columns]
        rows = [self._row(dict(zip(names, row, strict=True))) for row in zip(*filled, strict=True)]
        return [
            _with_one_shape(stack([row[each.name] for row in rows]), each.name)
            for each in self.inputs
            if each.is_feature
        ]

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        assert self.transformation is not None
        absent = [each.name for each in self.inputs if each.form == "absent"]
        hint = "set another one for predictions by setTransformationFn, or None to use none"
        if absent:
            hint = f"the DataFrame has no {', '.join(map(repr, absent))}, so it got NaN; {hint}"
        try:
            found = self.transformation(row)
        except Exception as error:
            raise UsageError(
                f"transform: the transformation_fn of the training failed for a row: "
                f"{type(error).__name__}: {error}; {hint}"
            ) from error
        wanted = [each.name for each in self.inputs if each.is_feature]
        if not isinstance(found, dict) or not set(wanted) <= set(found):
            raise UsageError(
                f"transform: the transformation_fn of the training must return a dict with "
                f"{wanted}, but returned {found!r:.200}; {hint}"
            )
        return found


def array_of(values: pd.Series, column: Input) -> np.ndarray:
    """Return a column as the training had it: (rows, …), or objects that are rows.

    Args:
        values: of pandas.
        column: what they are.
    """
    if column.form == "microseconds":
        return np.asarray(values.to_numpy()).astype("datetime64[us]").astype("datetime64[ns]")
    if column.form == "dates":
        return np.array(list(values), dtype="datetime64[D]")
    if values.dtype != object:
        return np.asarray(values.to_numpy())
    rows = [_row_of(value) for value in values]
    return stack(rows) if rows and isinstance(rows[0], np.ndarray) else objects(rows)


def _row_of(value: Any) -> Any:
    """A value, or an array of the arrays in it."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value
    if not isinstance(value, np.ndarray | list):
        return value
    inner = [_row_of(each) for each in value]
    if inner and isinstance(inner[0], str | bytes):
        return objects(inner)
    return stack(inner) if inner else np.empty(0)


def _with_one_shape(values: np.ndarray, name: str) -> np.ndarray:
    if values.dtype.kind in "biuf":
        return values
    lengths = sorted({np.size(value) for value in values})
    why = f"arrays of {lengths[0]} to {lengths[-1]} numbers" if len(lengths) > 1 else "no numbers"
    raise UsageError(f"transform: column {name!r} has {why}")


def _concatenated(parts: Sequence[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if parts and isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return [row for part in parts for row in part]
