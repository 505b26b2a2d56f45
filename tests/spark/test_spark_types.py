"""Columns of every type of Spark SQL, end to end, in every role and every framework.

``tests/unit/spark/test_column_types.py`` goes through the same table without Spark.
"""

from __future__ import annotations

import importlib.util
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.ml.linalg import SparseVector, Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T
from spark_types import ROWS
from tests.spark.spark_models import ESTIMATORS, KINDS
from tests.spark.spark_type_models import estimator_of, keras_model

from horovod.errors import UsageError
from horovod.spark.common.checks import check_data
from horovod.spark.common.datamodule import DataModule
from horovod.spark.common.frames import content_of
from horovod.spark.common.metadata import column_of_file
from horovod.spark.common.preparation import get_dataset_properties, prepare_data
from horovod.spark.torch import TorchModel

if TYPE_CHECKING:
    from spark_types import Row

USED = [row for row in ROWS if row.dtype is not None]
REFUSED = [row for row in ROWS if row.dtype is None]
FEATURES = [f"feature.{number} of `{row.kind.typeName()}`" for number, row in enumerate(USED)]
LABELS = [f"label {number}, {row.kind.simpleString()}." for number, row in enumerate(USED)]
TOTAL, WEIGHT = "total", "größe;w.w"
ODD = ["a.b", "a", "A", "A", "", " ", "`x`", "select", "a\tb\nc", "{x}()=", "__index__", "found"]
# Spark makes what PySpark cannot.
MADE = ["make_ym_interval(1, 2)", "CAST(NULL AS INTERVAL)", "parse_json('{\"a\": 1}')", "NULL"]
NO_TEXT = ("vector", "matrix", "array<vector>", "void")


class NoRanks:
    """A backend that must not be used."""

    def num_processes(self) -> int:
        return 1

    def run(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("ranks were started")


def flat(value: Any) -> list[float]:
    """All numbers in a value."""
    value = value.toArray().tolist() if hasattr(value, "toArray") else value
    if isinstance(value, list):
        return [number for each in value for number in flat(each)]
    return [float(value)]


def used_frame(spark: Any) -> Any:
    """Each type that can be used as a feature and as a label, the sum of features, a weight."""
    kinds = [row.kind for row in USED]
    columns = [*zip(FEATURES, kinds, strict=True), *zip(LABELS, kinds, strict=True)]
    columns += [(TOTAL, T.DoubleType()), (WEIGHT, T.ShortType())]
    rows = []
    for half in (0, 1, 0, 1):
        values = [row.values[half] for row in USED if row.values]
        rows.append([*values, *values, sum(map(sum, map(flat, values))), half + 1])
    return spark.createDataFrame(rows, T.StructType([T.StructField(*each) for each in columns]))


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    """That, and beside it what can only be passed through, with odd names."""
    used = used_frame(spark)
    given = [row for row in REFUSED if row.values and not isinstance(row.kind, T.NullType)]
    schema = T.StructType([T.StructField(f"q{n}", row.kind) for n, row in enumerate(given)])
    other = spark.createDataFrame([[row.values[0] for row in given]], schema)  # type: ignore[index]
    made = [F.expr(text).alias(f"m{n}") for n, text in enumerate(MADE) if is_known(spark, text)]
    wide = used.crossJoin(other).select("*", *made)
    names = (f"{name}{'.' * turn}" for turn in itertools.count() for name in ODD)
    odd = list(itertools.islice(names, len(wide.columns) - len(used.columns)))
    return wide.toDF(*used.columns, *odd).coalesce(1)


def is_known(spark: Any, text: str) -> bool:
    """Whether this Spark and this PySpark have what an expression makes."""
    try:
        return bool(spark.range(1).select(F.expr(text)).schema)
    except PySparkException:
        return False


def for_all_types(kind: str, store: Any, **more: Any) -> Any:
    return estimator_of(
        kind,
        inputs=[np.shape(row.fed[0]) or (1,) for row in USED],
        outputs=[np.atleast_1d(row.fed[0]).tolist() for row in USED],
        dtypes=[*("int64" if row.label_dtype == "int64" else "float32" for row in USED), "float32"],
        store=store,
        feature_cols=FEATURES,
        label_cols=[*LABELS, TOTAL],
        **more,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_all_types_are_trained_on_and_predicted(kind: str, frame: Any, store: Any) -> None:
    if kind == "lightning":
        pytest.importorskip("lightning")
    more = {"sample_weight_col": WEIGHT} if kind == "keras" else {}
    model = for_all_types(kind, store, num_proc=1, **more).fit(frame)
    history = model.getHistory()
    if kind == "keras":
        assert history["total_loss"] == pytest.approx([0], abs=1e-4)
    else:
        loss = history[0]["train"]["loss"] if kind == "torch" else history["loss"]
        assert loss == pytest.approx(0, abs=1e-4)
    names = [f"output.{number}" for number in range(len(USED))]
    predictions = model.setOutputCols([*names, "sum"]).transform(frame)
    fields, count = predictions.schema.fields, len(frame.columns)
    assert fields[:count] == frame.schema.fields
    found = [field.dataType.simpleString() for field in fields[count:]]
    assert found == [*(row.kind.simpleString() for row in USED), "double"]
    numbered = predictions.toDF(*(f"c{number}" for number in range(len(fields))))
    outputs = [f"c{number}" for number in range(count, len(fields))]
    total = f"c{frame.columns.index(TOTAL)}"
    passed = texts(numbered, count)
    rows = numbered.select(*passed, *outputs, total).collect()
    for row in rows:
        assert list(row[len(passed) : -2]) == [each.fed[1] for each in USED]
        assert row[-2] == pytest.approx(row[-1])
    originals = frame.toDF(*(f"c{number}" for number in range(count)))
    assert [row[: len(passed)] for row in rows] == originals.select(*passed).collect()


def texts(numbered: Any, count: int) -> list[Any]:
    """The first columns as texts where Spark makes any of them."""
    fields = numbered.schema.fields[:count]
    return [
        F.col(field.name).isNull()
        if field.dataType.simpleString() in NO_TEXT
        else F.col(field.name).cast("string")
        for field in fields
    ]


def small(kind: str, store: Any, **more: Any) -> Any:
    """An estimator whose ranks must not start."""
    options: dict[str, Any] = {"backend": NoRanks(), "store": store, "verbose": 0, **more}
    if kind == "keras":
        options |= {"model": keras_model([(1,)], []), "loss": "mse", "optimizer": "sgd"}
    else:
        model = torch.nn.Linear(1, 1)
        options |= {
            "model": model,
            "optimizer": torch.optim.SGD(model.parameters(), lr=0.0),
            "loss": torch.nn.functional.mse_loss,
        }
    return ESTIMATORS[kind](**options)


def roles(name: str, other: str) -> dict[str, dict[str, Any]]:
    """Params that give a column each of its roles."""
    return {
        "feature": {"feature_cols": [name], "label_cols": [other]},
        "label": {"feature_cols": [other], "label_cols": [name]},
        "sample weight": {
            "feature_cols": [other],
            "label_cols": [other],
            "sample_weight_col": name,
        },
    }


@pytest.mark.parametrize("kind", KINDS)
def test_other_types_are_refused_before_data_is_written(kind: str, spark: Any, store: Any) -> None:
    if kind == "lightning":
        pytest.importorskip("lightning")
    refused = 0
    for row in REFUSED:
        schema = T.StructType([T.StructField("x.x", row.kind), T.StructField("y", T.DoubleType())])
        try:
            frame = spark.createDataFrame([], schema)
        except (PySparkException, Py4JError, TypeError, ValueError):
            continue  # PySpark cannot make a column of it
        for use, columns in roles("x.x", "y").items():
            is_one = use != "sample weight" or row.kind.typeName() != "array"
            remedy = row.remedy if is_one else "a weight is a single number"
            with pytest.raises(UsageError) as caught:
                small(kind, store, **columns).fit(frame)
            assert f"{use} column 'x.x' is of type" in str(caught.value)
            assert remedy in str(caught.value)
            refused += 1
    assert refused >= 40
    assert not store.exists(store.prefix_path)


@pytest.fixture(scope="module")
def holes(spark: Any) -> Any:
    """Each type that can be used, with one null among three rows; arrays also with one inside."""

    def with_null(row: Row, place: int) -> Any:
        value = row.values[0]  # type: ignore[index]
        if place == 0:
            return None
        if place == 1 and isinstance(row.kind, T.ArrayType):
            return [None, value[1]]
        return value

    rows = [[1.0, *(with_null(row, place) for row in USED)] for place in range(3)]
    fields = [T.StructField(f"x.{number}", row.kind) for number, row in enumerate(USED)]
    return spark.createDataFrame(rows, T.StructType([T.StructField("y", T.DoubleType()), *fields]))


def test_nulls_are_refused_in_every_role(holes: Any, store: Any) -> None:
    names = [f"x.{number}" for number in range(len(USED))]
    with prepare_data(1, store, holes, ["y"], names, partitions_per_process=2) as index:
        metadata = get_dataset_properties(index)[2]
    for kind, (name, row) in itertools.product(installed(), zip(names, USED, strict=True)):
        for use, columns in roles(name, "y").items():
            if use == "sample weight" and not row.as_weight:
                continue
            count = "2 nulls" if isinstance(row.kind, T.ArrayType) else "1 null"
            with pytest.raises(UsageError) as caught:
                check_data(small(kind, store, **columns), metadata)
            assert f": {use} column {name!r} has {count}, with" in str(caught.value)


def installed() -> list[str]:
    return [kind for kind in KINDS if kind != "lightning" or importlib.util.find_spec("lightning")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_null_starts_no_rank_and_nan_does(kind: str, spark: Any, store: Any) -> None:
    if kind == "lightning":
        pytest.importorskip("lightning")
    nan = float("nan")
    frame = spark.createDataFrame([(1.0, None), (2.0, nan), (3.0, 1.0)], "x double, y double")
    estimator = small(kind, store, feature_cols=["x"], label_cols=["y"])
    with pytest.raises(UsageError, match="label column 'y' has 1 null, with"):
        estimator.fit(frame)
    with pytest.raises(AssertionError, match="ranks were started"):
        estimator.fit(frame.na.drop(subset=["x"]).fillna(nan, ["y"]))
    # The files of validation count, too.
    marked = frame.withColumn("is_val", F.col("y").isNull())
    with pytest.raises(UsageError, match="label column 'y' has 1 null, with"):
        estimator.fit(marked, {estimator.validation: "is_val"})


def test_what_the_schema_does_not_say_is_refused_before_a_rank_starts(
    spark: Any, store: Any
) -> None:
    ragged = spark.createDataFrame(
        [([1.0], 1.0), ([1.0, 2.0, 3.0], 2.0)], "`x.x` array<double>, y double"
    )
    estimator = small("torch", store, feature_cols=["x.x"], label_cols=["y"])
    with pytest.raises(UsageError, match=r"feature column 'x\.x' have between 1 and 3 numbers"):
        estimator.fit(ragged)
    vectors = spark.createDataFrame(
        [(Vectors.dense([1.0]), 1.0), (Vectors.dense([1.0, 2.0]), 2.0)], ["x.x", "y"]
    )
    with pytest.raises(UsageError, match="have between 1 and 2 numbers"):
        estimator.fit(vectors)
    with pytest.raises(UsageError, match="there are no rows in the DataFrame"):
        estimator.fit(ragged.where("y > 5"))
    for late in (
        "array_repeat(1D, IF(id = 199, 2, 1))",
        "array(array_repeat(1, IF(id = 0, 2, 1)))",
    ):
        frame = spark.range(0, 200, 1, 1).selectExpr(f"{late} AS `x.x`", "1D AS y")
        with pytest.raises(UsageError, match=r"feature column 'x\.x' have between 1 and 2 numbers"):
            estimator.fit(frame, {estimator.partitions_per_process: 1})
    assert not store.exists(store.get_train_data_path(0))
    with pytest.raises(AssertionError, match="ranks were started"):
        estimator.fit(ragged, {estimator.transformation_fn: dict})


def test_a_data_module_of_the_user_gets_columns_that_spark_does_not_hash(
    spark: Any, store: Any
) -> None:
    class Module(DataModule):
        pass

    made = [text for text in ("map('a', id)", "parse_json('[1]')") if is_known(spark, text)]
    columns = [f"{text} AS `x.{place}`" for place, text in enumerate(made)]
    frame = spark.range(4).selectExpr(*columns, "array(map(id, 'b')) AS nested", "id AS y")
    features = frame.columns[:-1]
    estimator = small("torch", store, feature_cols=features, label_cols=["y"], data_module=Module)
    with pytest.raises(AssertionError, match="ranks were started"):
        estimator.fit(frame)
    turned = frame.orderBy(F.desc("y"))
    assert content_of(frame) == content_of(turned) != content_of(frame.where("y != 2"))


def test_columns_that_spark_cannot_tell_apart_are_refused(spark: Any, store: Any) -> None:
    frame = spark.createDataFrame([(1.0, 2.0, 3.0, 4.0)], ["a.b", "A.B", "y", "y"])
    with pytest.raises(UsageError, match=r"'a\.b' and 'A\.B' differ only in upper and lower case"):
        small("torch", store, feature_cols=["a.b"], label_cols=["A.B"]).fit(frame)
    with pytest.raises(UsageError, match="there are 2 columns 'y'"):
        small("torch", store, feature_cols=["a.b"], label_cols=["y"]).fit(frame)
    with pytest.raises(UsageError, match="there are 2 columns 'y'"):
        predicting(feature_columns=["y"]).transform(frame)
    # Each of them alone is no problem.
    assert predicting(feature_columns=["A.B"]).transform(frame).first()[-1] == 4.0
    assert not store.exists(store.prefix_path)


def test_losses_that_cannot_be_weighed_are_refused_before_data_is_written(
    spark: Any, store: Any
) -> None:
    frame = spark.createDataFrame([(1.0, 2.0, 3.0)], ["x", "y", "w"])
    for kind in installed():
        if kind == "keras":
            continue
        estimator = small(kind, store, feature_cols=["x"], label_cols=["y"], sample_weight_col="w")
        with pytest.raises(UsageError, match="has no reduction"):
            estimator.fit(frame, {estimator.loss: lambda output, label: (output - label).mean()})
    assert not store.exists(store.prefix_path)


def predicting(model: Any = None, width: int = 1, **more: Any) -> TorchModel:
    """A model that doubles its features."""
    if model is None:
        model = torch.nn.Linear(width, width, bias=False)
        torch.nn.init.eye_(model.weight).data.mul_(2)
    options: dict[str, Any] = {"feature_columns": ["x"], "input_shapes": [[-1, width]], **more}
    return TorchModel(model=model, label_columns=["l.l"], outputCols=["p.p"], **options)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (T.ByteType(), [3, None, None, None]),
        (T.LongType(), [3, 300, None, None]),
        (T.BooleanType(), [True, True, False, None]),
        (T.DecimalType(4, 2), [2.5, None, None, None]),
        (T.FloatType(), [2.5, 300.0, float("-inf"), float("nan")]),
    ],
)
def test_what_the_type_of_a_label_cannot_hold_is_null(
    spark: Any, kind: Any, values: list[Any]
) -> None:
    rows = [(value,) for value in (1.26, 150.0, float("-inf"), float("nan"))]
    frame = spark.createDataFrame(rows, ["x"]).coalesce(1)
    model = predicting(torch.nn.Linear(1, 1, bias=False), _metadata={"l.l": column_of_file(kind)})
    model.getModel().weight.data.fill_(2.0)
    found = [row["p.p"] for row in model.transform(frame).collect()]
    numbers = [np.array(each, dtype=float) for each in (found, values)]  # None is NaN
    np.testing.assert_allclose(*numbers, atol=0.03)
    assert [each is None for each in found] == [each is None for each in values]


def test_a_sparse_label_has_sparse_predictions(spark: Any) -> None:
    frame = spark.createDataFrame([(Vectors.dense([0.0, 3.0]),)], ["x"])
    model = predicting(width=2, _metadata={"l.l": {"spark_data_type": SparseVector}})
    predictions = model.transform(frame)
    assert predictions.schema["p.p"].dataType == VectorUDT()
    assert predictions.first()["p.p"] == Vectors.sparse(2, {1: 6.0})
    assert isinstance(predictions.first()["p.p"], SparseVector)


def test_predictions_need_features_that_are_numbers(spark: Any) -> None:
    model = predicting(width=2)
    text = spark.createDataFrame([("a",)], ["x"])
    with pytest.raises(UsageError, match="transform: feature column 'x' is of type string"):
        model.transform(text)
    # Without shapes of inputs, a row is looked at before Spark begins.
    model = predicting(torch.nn.Identity(), input_shapes=None)
    for row, problem in (
        ([1.0, None], "column 'x' has rows without a value, or arrays with nulls"),
        (None, "column 'x' has rows without a value"),
    ):
        with pytest.raises(UsageError, match=problem):
            model.transform(spark.createDataFrame([(row,)], "x array<float>"))


def test_an_empty_frame_has_no_predictions(spark: Any) -> None:
    model = predicting(torch.nn.Identity(), input_shapes=None)
    assert model.transform(spark.createDataFrame([], "x int, y string")).collect() == []
    with pytest.raises(UsageError, match="is empty, and the shapes of features are unknown"):
        model.transform(spark.createDataFrame([], "x array<int>"))


def test_the_transformation_of_the_training_is_applied(
    spark: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def transformation(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": [float(len(row["x"])), row["z"]], "y": row["y"] + 1}

    known = {name: column_of_file(T.DoubleType()) for name in ("x", "z", "y")}
    model = predicting(width=2, transformation_fn=transformation, _metadata=known)
    frame = spark.createDataFrame([("abc", 1.0, "b")], ["x", "z", "other"])
    model.setParams(outputCols=["p"], label_columns=["y"])
    assert model.transform(frame).first()["p"] == Vectors.dense(6.0, 2.0)
    assert "applies the transformation_fn of the training" in caplog.text
    model.setTransformationFn(None)
    with pytest.raises(UsageError, match="'x' is of type string"):
        model.transform(frame)
