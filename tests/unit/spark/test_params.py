"""The Params of estimators and models: attributes, accessors, defaults, checks."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("torch")
from horovod.spark.common.params import EstimatorParams
from horovod.spark.torch import TorchEstimator, TorchModel


@pytest.fixture
def estimator() -> Any:
    return TorchEstimator()


@pytest.mark.parametrize("name", sorted(TorchEstimator.param_rows))
def test_each_param_is_an_attribute_with_accessors(estimator: Any, name: str) -> None:
    param = getattr(estimator, name)
    assert param.name == name
    assert param.parent == estimator.uid
    assert estimator.hasParam(name)
    assert param in estimator.params
    stem = "".join(part.capitalize() for part in name.split("_"))
    assert getattr(estimator, f"get{stem}")() == estimator.getOrDefault(name)
    assert callable(getattr(estimator, f"set{stem}"))


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("batch_size", 32),
        ("val_batch_size", None),
        ("epochs", 1),
        ("metrics", []),
        ("callbacks", []),
        ("shuffle", True),
        ("verbose", 1),
        ("partitions_per_process", 10),
        ("compress_sparse_cols", False),
        ("train_reader_num_workers", 2),
        ("val_reader_num_workers", 2),
        ("reader_pool_type", "thread"),
        ("inmemory_cache_all", False),
        ("use_gpu", True),
        ("backward_passes_per_step", 1),
        ("num_proc", None),
        ("validation", None),
    ],
)
def test_defaults(estimator: Any, name: str, default: Any) -> None:
    assert estimator.getOrDefault(name) == default


@pytest.mark.parametrize(
    ("stem", "value"),
    [
        ("BatchSize", 64),
        ("ValBatchSize", 16),
        ("TrainReaderNumWorker", 3),
        ("ValReaderNumWorker", 3),
        ("TrainReaderNumWorkers", 4),
        ("InMemoryCacheAll", True),
        ("UseGpu", False),
        ("MpStartMethod", "spawn"),
        ("BackwardPassesPerStep", 2),
        ("SampleWeightCol", "w"),
        ("CompressSparseCols", True),
        ("LossWeights", [0.5, 0.5]),
        ("Validation", 0.25),
        ("Validation", "is_val"),
    ],
)
def test_setters_return_the_estimator(estimator: Any, stem: str, value: Any) -> None:
    assert getattr(estimator, f"set{stem}")(value) is estimator
    assert getattr(estimator, f"get{stem}")() == value


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"batch_size": "many"}, TypeError),
        ({"batch_size": 0}, ValueError),
        ({"epochs": -1}, ValueError),
        ({"feature_cols": 3}, TypeError),
        ({"shuffle": "yes"}, TypeError),
        ({"sample_weight_col": 3}, TypeError),
        ({"loss_weights": "all"}, TypeError),
        ({"validation": 1.0}, ValueError),
        ({"validation": True}, ValueError),
        ({"validation": [0.5]}, ValueError),
        ({"backward_passes_per_step": 0}, ValueError),
        ({"reader_pool_type": "fibre"}, ValueError),
        ({"mp_start_method": "fly"}, ValueError),
        ({"bach_size": 1}, TypeError),
    ],
)
def test_wrong_values_are_refused(wrong: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        TorchEstimator(**wrong)


def test_arguments_have_names() -> None:
    with pytest.raises(TypeError):
        TorchEstimator(2)  # type: ignore[misc]
    assert "batch_size" in inspect.signature(TorchEstimator).parameters


def test_none_stands_for_the_default() -> None:
    assert TorchEstimator(epochs=None, callbacks=None).getEpochs() == 1
    assert TorchEstimator(epochs=5).setEpochs(None).getEpochs() == 1


def test_maps_of_params_count_for_a_copy(estimator: Any) -> None:
    changed = estimator.copy({estimator.batch_size: 64, estimator.epochs: 3})
    assert (changed.getBatchSize(), changed.getEpochs()) == (64, 3)
    assert (estimator.getBatchSize(), estimator.getEpochs()) == (32, 1)


def test_defaults_are_not_shared() -> None:
    TorchEstimator().getMetrics().append("something")
    assert TorchEstimator().getMetrics() == []


def test_the_buffer_of_the_shuffle_is_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="shuffle_buffer_size has no effect") as caught:
        assert TorchEstimator(shuffle_buffer_size=7).getShufflingBufferSize() == 7
    assert caught[0].filename == __file__


def test_a_model_has_accessors_too() -> None:
    model = TorchModel(label_columns=["a"], feature_columns=["x"], run_id="r", history=[1])
    assert model.setOutputCols(["p"]) is model
    assert (model.getOutputCols(), model.getRunId(), model.getHistory()) == (["p"], "r", [1])
    assert model.setLabelColoumns(["b"]).getLabelColumns() == ["b"]
    assert model.getFeatureColumns() == ["x"]


def test_the_common_params_are_those_of_every_estimator() -> None:
    assert set(EstimatorParams.param_rows) < set(TorchEstimator.param_rows)
