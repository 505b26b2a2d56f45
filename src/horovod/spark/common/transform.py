"""Adding columns of predictions to a DataFrame, by a UDF, so also through Spark Connect.

Python gets the columns that the model needs, and nothing else: all others stay with Spark, whatever
their types are. Columns are called by their places here, so that their names do not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.ml.functions import array_to_vector
from pyspark.ml.linalg import SparseVector, Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types

from horovod.errors import UsageError
from horovod.spark.common.column_types import (
    check_types,
    element_of,
    is_number,
    is_vector,
    null_sql,
    prediction_sql,
    prediction_type,
    refusal,
)
from horovod.spark.common.frames import array_of_vector, check_names
from horovod.spark.common.metadata import Column, type_of
from horovod.spark.common.prediction import Input, Output, Predicting

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from horovod.spark.common.column_types import Given
    from horovod.spark.common.prediction import Predictor

_FOUND = "found"


@dataclass(frozen=True)
class Plan:
    """The columns that are predicted, and those from which they are.

    Attributes:
        features: columns, in the order of the model's inputs.
        labels: columns of the training, in the order of the model's outputs.
        outputs: the columns of the predictions.
        metadata: by column of the training, its ``spark_data_type`` among others.
        transformation: applied to each row, as in the training, or None.
    """

    features: Sequence[str]
    labels: Sequence[str]
    outputs: Sequence[str]
    metadata: Mapping[str, Column]
    transformation: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def predicted(
    frame: DataFrame, plan: Plan, predictor: Predictor, example: list[np.ndarray] | None
) -> DataFrame:
    """Return a DataFrame with the predictions of a model as further columns.

    Args:
        frame: has the features.
        plan: what is predicted.
        predictor: makes the model.
        example: a row of features as the model takes them; None takes one of the frame.

    Raises:
        UsageError: a feature is missing or of a type that has no numbers, or an output is there
            already.
    """
    _check(frame, plan)
    source = _Source(frame, plan)
    if example is None:
        example = source.first_row(plan, predictor)
    outputs = [np.asarray(each) for each in predictor()(example)]
    if len(outputs) != len(plan.labels):
        raise UsageError(
            f"transform: the model has {len(outputs)} outputs for {len(plan.labels)} label columns"
        )
    known = [plan.metadata.get(label, {}) for label in plan.labels]
    kinds = [
        prediction_type(type_of(column), output.shape[1:])
        for column, output in zip(known, outputs, strict=True)
    ]
    raws = [
        Output.of(output, 1 if is_vector(kind) else element_of(kind)[1])
        for output, kind in zip(outputs, kinds, strict=True)
    ]
    predicting = Predicting(source.inputs, plan.transformation, predictor, raws)
    with_outputs = source.numbered.select("*", _udf(predicting)(*source.columns).alias(_FOUND))
    sparse = [column.get("spark_data_type") is SparseVector for column in known]
    columns = [
        _prediction(f"{_FOUND}.o{number}", *each)
        for number, each in enumerate(zip(raws, kinds, sparse, strict=True))
    ]
    named = [column.alias(f"o{number}") for number, column in enumerate(columns)]
    return with_outputs.select("*", *named).drop(_FOUND).toDF(*frame.columns, *plan.outputs)


class _Source:
    """The columns of a frame that the model needs.

    Attributes:
        numbered: the frame, whose columns are called ``c0``, ``c1`` and so on.
        inputs: what the training had.
        columns: what the UDF is given: which row has nulls, and the inputs that are not absent.
    """

    def __init__(self, frame: DataFrame, plan: Plan) -> None:
        self.numbered = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
        fields = frame.schema.fields
        places = {field.name: place for place, field in enumerate(fields)}
        wanted = [(name, True) for name in plan.features]
        if plan.transformation is not None:
            others = [name for name in plan.metadata if name not in plan.features]
            wanted += [(name, False) for name in others]
        self.inputs: list[Input] = []
        columns, nulls = [], []
        for number, (name, is_feature) in enumerate(wanted):
            kind = fields[places[name]].dataType if name in places else None
            form = _form_of(kind)
            self.inputs.append(Input(name, is_feature, form))
            if form == "absent":
                continue
            column = f"c{places[name]}"
            columns.append(_as_numbers(column, kind))
            if is_feature:
                nulls.append(f"WHEN {null_sql(column, kind)} THEN {number}")
        self.columns = [F.expr(f"CASE {' '.join(nulls)} ELSE -1 END"), *columns]
        kinds = [fields[places[name]].dataType for name in plan.features]
        self._has_only_numbers = plan.transformation is None and all(map(is_number, kinds))

    def first_row(self, plan: Plan, predictor: Predictor) -> list[np.ndarray]:
        """Return the features of a row, which say what shapes the outputs have."""
        named = [column.alias(f"c{place}") for place, column in enumerate(self.columns)]
        rows = self.numbered.select(*named).limit(1).toPandas()
        if not len(rows) and self._has_only_numbers:
            return [np.zeros(1)] * len(plan.features)
        if not len(rows):
            raise UsageError(
                "transform: the DataFrame is empty, and the shapes of features are unknown"
            )
        predicting = Predicting(self.inputs, plan.transformation, predictor, [])
        return predicting.features([rows[name] for name in rows.columns])


def _check(frame: DataFrame, plan: Plan) -> None:
    missing = [name for name in plan.features if name not in frame.columns]
    present = [name for name in plan.outputs if name in frame.columns]
    if missing:
        raise UsageError(f"transform: there is no column {missing[0]!r}")
    if present:
        raise UsageError(
            f"transform: there is a column {present[0]!r} already; choose others with setOutputCols"
        )
    if twice := [name for name in plan.outputs if list(plan.outputs).count(name) > 1]:
        raise UsageError(f"transform: there are several outputs {twice[0]!r} in setOutputCols")
    check_names(frame, list(dict.fromkeys(plan.features)), only_twice=True)
    given: Given = "numbers" if plan.transformation is None else "rows"
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    check_types("transform", [("feature", name, kinds[name]) for name in plan.features], given)


def _form_of(kind: Any) -> Any:
    if kind is None or refusal(kind, "feature", "rows") is not None:
        return "absent"
    if isinstance(kind, types.DateType):
        return "dates"
    return "microseconds" if isinstance(kind, types.TimestampType) else "values"


def _as_numbers(column: str, kind: Any) -> Any:
    """A column as Python gets it, with the numbers that the training had."""
    element, depth = element_of(kind)
    if is_vector(kind):
        return array_of_vector(F.col(column))
    if isinstance(element, types.DecimalType):
        return F.col(column).cast("array<" * depth + "double" + ">" * depth)
    if isinstance(kind, types.TimestampType):
        return F.expr(f"unix_micros({column})")
    return F.col(column)


def _udf(predicting: Predicting) -> Any:
    """Return what Spark calls in each task, once for each partition."""
    import pandas as pd

    def predict(parts: Any) -> Any:
        for columns in predicting.batches(parts):
            yield pd.DataFrame(columns)

    predict.__annotations__ = {
        "parts": Iterator[tuple[pd.Series, ...]],
        "return": Iterator[pd.DataFrame],
    }
    fields = [f"o{place} {each.sql_type}" for place, each in enumerate(predicting.outputs)]
    # Spark would otherwise compute it once for each of its uses.
    return F.pandas_udf(predict, ", ".join(fields)).asNondeterministic()


def _prediction(value: str, output: Output, kind: Any, is_sparse: bool) -> Any:
    column = F.expr(prediction_sql(value, output.raw, kind))
    if not is_vector(kind):
        return column
    if is_sparse:
        return F.udf(_sparse, VectorUDT(), useArrow=False)(column)
    return array_to_vector(column)


def _sparse(values: Sequence[float]) -> SparseVector:
    places = [place for place, value in enumerate(values) if value != 0]
    return Vectors.sparse(len(values), places, [values[place] for place in places])
