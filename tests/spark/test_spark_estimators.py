"""Estimators in a Spark cluster: fit, transform, pipelines, saving, loading, going on."""

from __future__ import annotations

import re
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel, tuning
from pyspark.ml.evaluation import RegressionEvaluator
from pyspark.ml.feature import MaxAbsScaler
from pyspark.ml.linalg import DenseVector, VectorUDT
from pyspark.ml.tuning import CrossValidator
from pyspark.sql.functions import col
from pyspark.sql.types import DoubleType, LongType
from tests.spark.spark_models import (
    BROKEN_OFF,
    ESTIMATORS,
    KINDS,
    LEAST_ACCURACY,
    MODELS,
    NUM_LINES,
    RATE,
    breaking,
    for_digits,
    for_lines,
    keras_in_float64,
    last_epoch,
    predictions_of_one_process,
    with_features,
)

from horovod.errors import RankFailedError, UsageError
from horovod.spark.torch import TorchModel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def images(frame: Any) -> tuple[np.ndarray, np.ndarray]:
    """Digits, and what was predicted for each of them."""
    rows = frame.select("digit", "digit__output").collect()
    outputs = np.array([row.digit__output.toArray() for row in rows])
    return np.array([row.digit for row in rows]), outputs


def weights_of(model: Any) -> list[np.ndarray]:
    if isinstance(model, keras.Model):
        return list(model.get_weights())
    return [param.detach().numpy().copy() for param in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipeline_learns_the_digits(kind: str, digits: Any, store: Any, tmp_path: Path) -> None:
    if kind == "lightning":
        pytest.importorskip("lightning")
    estimator = for_digits(kind, store, validation="is_test")
    before = weights_of(estimator.getModel())
    scaler = MaxAbsScaler(inputCol="image", outputCol="pixels")
    model = Pipeline(stages=[scaler, estimator]).fit(digits)
    model.write().overwrite().save(str(tmp_path / "model"))
    again = PipelineModel.load(str(tmp_path / "model"))
    assert isinstance(again.stages[-1], MODELS[kind])
    tests = digits.where("is_test")
    predictions = again.transform(tests)
    assert predictions.columns == ["image", "digit", "is_test", "pixels", "digit__output"]
    wanted, outputs = images(predictions)
    assert len(wanted) == tests.count()
    assert np.mean(outputs.argmax(1) == wanted) >= LEAST_ACCURACY
    np.testing.assert_array_equal(outputs, images(model.transform(tests))[1])
    for value, kept in zip(weights_of(estimator.getModel()), before, strict=True):
        np.testing.assert_array_equal(value, kept)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_broke_off_goes_on_as_one_process_would(
    kind: str, line: Any, store: Any, tmp_path: Path
) -> None:
    if kind == "lightning":
        pytest.importorskip("lightning")
    frame = with_features(line)
    with keras_in_float64():
        broken = tmp_path / "breaks"
        broken.touch()
        estimator = for_lines(kind, None, num_proc=None, **breaking(kind, broken))
        estimator.save(str(tmp_path / "estimator"))
        estimator = ESTIMATORS[kind].load(str(tmp_path / "estimator"))
        with pytest.raises(UsageError, match="give store"):
            estimator.fit(frame)
        given = {estimator.num_proc: 2, estimator.store: store, estimator.run_id: "r"}
        with pytest.raises(RankFailedError, match=BROKEN_OFF) as caught:
            estimator.fit(frame, given)
        assert re.search(r"-task[01]\.executor-[\w.-]+-\d+$", caught.value.host)
        assert last_epoch(kind, store.read(store.get_run_path("r") + "/checkpoint")) == 0
        broken.unlink()
        with pytest.raises(UsageError, match="trains something else: batch_size was 8, and is 4"):
            estimator.fit(frame, {**given, estimator.batch_size: 4})
        model = estimator.fit(frame, given)
        rows = np.array([[row.a, row.b] for row in frame.collect()])
        path = store.get_train_data_path(0)
        wanted = predictions_of_one_process(kind, path, 2, rows)
        with pytest.raises(
            UsageError, match=r"trains something else: data\.rows was \[64\], and is"
        ):
            estimator.fit(frame.limit(NUM_LINES - 1), given)
    found = rows_of(model.transform(frame))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-9)
    model.save(str(tmp_path / "model"))
    assert rows_of(MODELS[kind].load(str(tmp_path / "model")).transform(frame)) == found
    check_history_and_rate(kind, model)


def check_history_and_rate(kind: str, model: Any) -> None:
    """Both epochs are told of, and the learning rate is that for one rank again."""
    history = model.getHistory()
    if kind == "torch":
        assert [each["epoch"] for each in history] == [0, 1]
        assert history[1]["train"]["loss"] < history[0]["train"]["loss"]
        assert model.getOptimizer().param_groups[0]["lr"] == RATE
        assert not model.getModel().training
    elif kind == "keras":
        assert history["loss"][1] < history["loss"][0]
        assert float(model.getModel().optimizer.learning_rate) == pytest.approx(RATE)
    else:
        assert list(history) == ["loss"]


def rows_of(predictions: Any) -> list[float]:
    return [row.y__output for row in predictions.select("y__output").collect()]


def test_candidates_that_train_at_once_are_chosen_by_what_they_have_learned(
    line: Any, store: Any, pools: None
) -> None:
    frame = with_features(line)
    estimator = for_lines("torch", store, num_proc=1)
    search = CrossValidator(
        estimator=estimator,
        estimatorParamMaps=[{estimator.epochs: 1}, {estimator.epochs: 20}],
        evaluator=RegressionEvaluator(predictionCol="y__output", labelCol="y"),
        numFolds=2,
        parallelism=2,
        seed=0,
        collectSubModels=True,
    )
    found = search.fit(frame)
    for models in found.subModels:
        assert [len(model.getHistory()) for model in models] == [1, 20]
    worse, better = found.avgMetrics
    assert better < worse / 2
    assert len(found.bestModel.getHistory()) == 20
    # The second one would go on with the first one's model, or train at the same time.
    named = search.copy({estimator.run_id: "r"})
    named.setEstimatorParamMaps([{estimator.batch_size: 4}, {estimator.batch_size: 8}])
    with pytest.raises(UsageError, match=r"run 'r'"):
        named.fit(frame)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close the pools of threads that PySpark leaves open, each with a warning."""
    opened: list[ThreadPool] = []

    def open_pool(processes: int) -> ThreadPool:
        opened.append(ThreadPool(processes))
        return opened[-1]

    monkeypatch.setattr(tuning, "ThreadPool", open_pool)
    yield
    for pool in opened:
        pool.close()
        pool.join()


def test_an_estimator_with_a_store_is_saved_through_it(store: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "estimator")
    estimator = for_lines("torch", store)
    estimator.save(path)
    assert (tmp_path / "estimator/metadata").is_file()
    with pytest.raises(UsageError, match="exists"):
        estimator.save(path)
    estimator.setEpochs(9).write().overwrite().save(path)


def test_files_that_are_there_are_trained_on(spark: Any, line: Any, store: Any) -> None:
    estimator = for_lines("torch", store, feature_cols=["a", "b"], input_shapes=[[-1, 1]] * 2)

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
    assert len(trained.getHistory()) == 2
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
        for_lines("torch", store, **changes).fit(with_features(line))


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
    twice = TorchModel(
        model=torch.nn.Linear(2, 1),
        feature_columns=["features"],
        label_columns=["y", "z"],
        outputCols=["p", "p"],
    )
    with pytest.raises(UsageError, match="several outputs 'p'"):
        twice.transform(with_features(line))
    with pytest.raises(UsageError, match="1 labels need as many outputCols, not 2"):
        predicting(["p", "q"], DoubleType).transform(with_features(line))
