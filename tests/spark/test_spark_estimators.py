"""Estimators in a Spark cluster: fit, transform, pipelines, saving, loading, going on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.sql.functions import col
from pyspark.sql.types import DoubleType, LongType
from tests.spark.spark_estimators import (
    LEAST_ACCURACY,
    accuracy,
    keras_for_digits,
    torch_for_digits,
    torch_for_lines,
    with_features,
)

from horovod.errors import UsageError
from horovod.spark.keras import KerasEstimator, KerasModel
from horovod.spark.torch import TorchEstimator, TorchModel

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def test_torch_learns_the_digits(digits: Any, store: Any) -> None:
    estimator = torch_for_digits(store, validation="is_test", epochs=60)
    before = [param.clone() for param in estimator.getModel().parameters()]
    model = estimator.fit(digits)
    predictions = model.transform(digits.where("is_test"))
    assert predictions.columns == ["pixels", "digit", "is_test", "digit__output"]
    assert predictions.count() == digits.where("is_test").count()
    assert accuracy(predictions) >= LEAST_ACCURACY
    assert [each["epoch"] for each in model.getHistory()] == list(range(60))
    assert {"train", "validation"} < set(model.getHistory()[0])
    for param, value in zip(estimator.getModel().parameters(), before, strict=True):
        assert torch.equal(param, value)
    assert model.getOptimizer().param_groups[0]["lr"] == 0.002
    assert not model.getModel().training


def test_keras_learns_the_digits(digits: Any, store: Any) -> None:
    estimator = keras_for_digits(store, validation="is_test")
    before = estimator.getModel().get_weights()
    model = estimator.fit(digits)
    predictions = model.transform(digits.where("is_test"))
    assert predictions.count() == digits.where("is_test").count()
    assert accuracy(predictions) >= LEAST_ACCURACY
    assert [len(values) for values in model.getHistory().values()] == [25, 25]
    for value, kept in zip(estimator.getModel().get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, kept)
    assert not estimator.getModel().compiled
    assert float(model.getModel().optimizer.learning_rate) == pytest.approx(0.002)


def test_a_pipeline_is_fitted_saved_and_loaded(line: Any, store: Any, tmp_path: Path) -> None:
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="raw")
    scaler = StandardScaler(inputCol="raw", outputCol="features")
    pipeline = Pipeline(stages=[assembler, scaler, torch_for_lines(store)])
    model = pipeline.fit(line)
    predictions = rows_of(model.transform(line))
    model.write().overwrite().save(str(tmp_path / "model"))
    again = PipelineModel.load(str(tmp_path / "model"))
    assert rows_of(again.transform(line)) == predictions
    assert isinstance(again.stages[-1], TorchModel)


def rows_of(predictions: Any) -> list[float]:
    return [row.y__output for row in predictions.select("y__output").collect()]


def test_a_loaded_estimator_takes_a_store_and_a_backend(
    line: Any, store: Any, tmp_path: Path
) -> None:
    frame = with_features(line)
    estimator = torch_for_lines(None, num_proc=None)
    estimator.save(str(tmp_path / "estimator"))
    again = TorchEstimator.load(str(tmp_path / "estimator"))
    model = again.fit(frame, {again.num_proc: 2, again.store: store, again.epochs: 1})
    assert len(model.getHistory()) == 1
    with pytest.raises(UsageError, match="give store"):
        again.fit(frame)


def test_an_estimator_with_a_store_is_saved_through_it(store: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    estimator = torch_for_lines(store)
    estimator.save(path)
    assert (tmp_path / "estimator/metadata").is_file()
    with pytest.raises(UsageError, match="exists"):
        estimator.save(path)
    estimator.setEpochs(9).write().overwrite().save(path)


def test_a_run_goes_on_where_it_ended(line: Any, store: Any) -> None:
    frame = with_features(line)
    first = torch_for_lines(store, run_id="r", epochs=1, shuffle=False).fit(frame)
    assert store.exists(store.get_run_path("r") + "/checkpoint")
    both = torch_for_lines(store, run_id="r", epochs=3, shuffle=False).fit(frame)
    whole = torch_for_lines(store, run_id="other", epochs=3, shuffle=False).fit(frame)
    assert both.getHistory()[0] == first.getHistory()[0]
    assert both.getHistory() == whole.getHistory()
    torch.testing.assert_close(both.getModel().state_dict(), whole.getModel().state_dict())
    assert both.getOptimizer().param_groups[0]["lr"] == 0.05


def test_files_that_are_there_are_trained_on(spark: Any, line: Any, store: Any) -> None:
    estimator = torch_for_lines(store, feature_cols=["a", "b"], input_shapes=[[-1, 1]] * 2)

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 1)

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.linear(torch.cat([a, b], 1))

    model = Sum()
    changes = {
        estimator.model: model,
        estimator.optimizer: torch.optim.SGD(model.parameters(), lr=0.05),
    }
    with pytest.raises(UsageError, match="there is no"):
        estimator.fit_on_parquet(changes)
    line.write.parquet(store.get_train_data_path())
    trained = estimator.fit_on_parquet(changes)
    assert len(trained.getHistory()) == 3
    assert trained.transform(line).count() == line.count()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": None}, "give model"),
        ({"feature_cols": []}, "give feature_cols"),
        ({"feature_cols": ["nothing"]}, "no column 'nothing'"),
        ({"loss": None}, "either loss or loss_constructors"),
        ({"loss_constructors": [1]}, "either loss or loss_constructors"),
        ({"loss_weights": [1.0, 2.0]}, "loss_weights has 2 entries for 1 label"),
        ({"backend": object()}, "either backend or num_proc"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    line: Any, store: Any, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        torch_for_lines(store, **changes).fit(with_features(line))


def predicting(outputs: Sequence[str], kind: Any, width: int = 1) -> TorchModel:
    return TorchModel(
        model=torch.nn.Linear(2, width),
        feature_columns=["features"],
        label_columns=["y"],
        input_shapes=[[-1, 2]],
        outputCols=list(outputs),
        _metadata={"y": {"spark_data_type": kind}},
    )


@pytest.mark.parametrize(
    ("kind", "width", "expected"),
    [
        (DoubleType, 1, DoubleType()),
        (LongType, 1, LongType()),
        (LongType, 3, VectorUDT()),
        (DenseVector, 2, VectorUDT()),
    ],
)
def test_predictions_have_the_type_of_the_label(
    line: Any, kind: Any, width: int, expected: Any
) -> None:
    frame = with_features(line).withColumn("text", col("a").cast("string"))
    predictions = predicting(["p"], kind, width).transform(frame)
    assert predictions.schema["p"].dataType == expected
    assert predictions.schema.fields[:-1] == frame.schema.fields
    kept = [row.asDict() for row in predictions.drop("p").collect()]
    assert kept == [row.asDict() for row in frame.collect()]


def test_a_prediction_does_not_replace_a_column(line: Any) -> None:
    with pytest.raises(UsageError, match="column 'a' already"):
        predicting(["a"], DoubleType).transform(with_features(line))
    with pytest.raises(UsageError, match="1 labels need as many outputCols, not 2"):
        predicting(["p", "q"], DoubleType).transform(with_features(line))


def test_a_keras_model_is_saved_and_loaded(line: Any, store: Any, tmp_path: Path) -> None:
    frame = with_features(line)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    estimator = KerasEstimator(
        num_proc=2,
        store=store,
        model=model,
        optimizer=keras.optimizers.SGD(0.05),
        loss="mse",
        metrics=["mae"],
        feature_cols=["features"],
        label_cols=["y"],
        batch_size=8,
        epochs=1,
        run_id="k",
        partitions_per_process=2,
        verbose=0,
    )
    first = estimator.fit(frame)
    second = estimator.setEpochs(2).fit(frame)
    assert second.getHistory()["loss"][0] == first.getHistory()["loss"][0]
    assert [len(values) for values in second.getHistory().values()] == [2, 2]
    second.save(str(tmp_path / "model"))
    again = KerasModel.load(str(tmp_path / "model"))
    assert rows_of(again.transform(frame)) == rows_of(second.transform(frame))
    assert again.getModel().compiled
