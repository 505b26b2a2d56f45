"""Refuse columns that no estimator can train on, before a rank starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horovod.errors import UsageError
from horovod.spark.common import metadata as known
from horovod.spark.common.column_types import check_types
from horovod.spark.common.frames import check_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from horovod.spark.common.column_types import Given, Use
    from horovod.spark.common.metadata import Column
    from horovod.spark.common.params import EstimatorParams


def check_frame(estimator: EstimatorParams, frame: DataFrame) -> None:
    """Refuse a DataFrame of which the model cannot use a column, from its schema alone.

    Args:
        estimator: its Params say what each column is for.
        frame: has all of these columns.

    Raises:
        UsageError: names the column, its type, and what to do.
    """
    uses = uses_of(estimator)
    validation = estimator.value("validation")
    more = [validation] if isinstance(validation, str) else []
    check_names(frame, list(dict.fromkeys([name for _, name in uses] + more)))
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    check_types(
        type(estimator).__name__,
        [(use, name, kinds[name]) for use, name in uses],
        given_of(estimator),
    )


def check_data(estimator: EstimatorParams, columns: Mapping[str, Column]) -> None:
    """Refuse written data of which the model cannot use a column.

    Args:
        estimator: its Params say what each column is for.
        columns: the metadata of all of these columns.

    Raises:
        UsageError: a column has the wrong type, nulls, or arrays of several lengths.
    """
    given, owner = given_of(estimator), type(estimator).__name__
    uses = uses_of(estimator)
    check_types(owner, [(use, name, known.type_of(columns[name])) for use, name in uses], given)
    for use, name in uses:
        if given != "files":
            _check_nulls(owner, use, name, columns[name].get("nulls", 0))
    check_lengths(
        estimator, {name: each["lengths"] for name, each in columns.items() if "lengths" in each}
    )


def check_lengths(estimator: EstimatorParams, lengths: Mapping[str, Sequence[int]]) -> None:
    """Refuse arrays and vectors of several lengths, unless the training is given rows or files.

    Args:
        estimator: its Params say what each column is for.
        lengths: the least and the most numbers of a row, of columns where they are known.

    Raises:
        UsageError: names the column and both lengths.
    """
    if given_of(estimator) != "numbers":
        return
    for use, name in uses_of(estimator):
        least, most = lengths.get(name, (0, 0))
        if least != most:
            raise UsageError(
                f"{type(estimator).__name__}: rows of {use} column {name!r} have between {least} "
                f"and {most} numbers, but must all have the same shape: pad or cut them, or give a "
                "transformation_fn that does"
            )


def uses_of(estimator: EstimatorParams) -> list[tuple[Use, str]]:
    """Return what the columns of an estimator are for, with their names."""
    weights = estimator.value("sample_weight_col")
    uses: list[tuple[Use, str]] = [("feature", name) for name in estimator.value("feature_cols")]
    uses += [("label", name) for name in estimator.value("label_cols")]
    return [*uses, ("sample weight", weights)] if weights else uses


def given_of(estimator: EstimatorParams) -> Given:
    """Return what the training of an estimator is given."""
    if estimator.value("data_module") is not estimator.param_rows["data_module"].default:
        return "files"
    return "numbers" if estimator.value("transformation_fn") is None else "rows"


def _check_nulls(owner: str, use: Use, name: str, nulls: int) -> None:
    if nulls:
        raise UsageError(
            f"{owner}: {use} column {name!r} has {nulls} null{'s' * (nulls > 1)}, with which "
            "nothing can be computed: drop these rows with df.na.drop(), or fill them with "
            "df.na.fill(); NaN is a number and is kept"
        )
