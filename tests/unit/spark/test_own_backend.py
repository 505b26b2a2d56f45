"""Estimators that train on a backend of the caller, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark")
keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch")
from spark_files import NUM_ROWS, write_rows  # noqa: E402

from horovod.errors import UsageError  # noqa: E402
from horovod.spark.common import training  # noqa: E402
from horovod.spark.common.backend import Backend  # noqa: E402
from horovod.spark.common.store import FilesystemStore  # noqa: E402
from horovod.spark.keras import KerasEstimator  # noqa: E402
from horovod.spark.running import start_timeout_s  # noqa: E402
from horovod.spark.torch import TorchEstimator  # noqa: E402
from horovod.testing import run_ranks  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path


class OneProcess(Backend):
    """Its only rank is this process."""

    env: Any = None

    def run(self, fn: Any, args: Any = (), kwargs: Any = None, env: Any = None) -> list[Any]:
        self.env = env
        return list(run_ranks(1, fn, *args))

    def num_processes(self) -> int:
        return 1


@keras.saving.register_keras_serializable("tests")  # type: ignore[untyped-decorator]
class Doubled(keras.layers.Layer):  # type: ignore[misc]
    """A layer that Keras does not know."""

    def call(self, rows: Any) -> Any:
        return 2 * rows


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStore:
    return FilesystemStore(str(tmp_path), train_path=str(write_rows(tmp_path / "train")))


def options(store: Any, **more: Any) -> dict[str, Any]:
    columns = {"feature_cols": ["x"], "label_cols": ["y"]}
    return {"store": store, **columns, "epochs": 2, "verbose": 0, "use_gpu": False, **more}


def test_pytorch_trains_on_files(store: FilesystemStore) -> None:
    model = torch.nn.Linear(4, 1)
    trained = TorchEstimator(
        backend=OneProcess(),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.05),
        loss=torch.nn.functional.mse_loss,
        input_shapes=[[-1, 4]],
        **options(store, run_id="r"),
    ).fit_on_parquet()
    losses = [each["train"]["loss"] for each in trained.getHistory()]
    assert losses[1] < losses[0]
    assert trained.getModel()(torch.ones(1, 4)).dtype == torch.float32
    assert trained.getRunId() == "r"
    assert store.exists(f"{store.get_run_path('r')}/checkpoint")


def test_keras_trains_a_compiled_model_with_classes_of_ones_own(store: FilesystemStore) -> None:
    backend = OneProcess()
    model = keras.Sequential([keras.Input((4,)), Doubled(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    trained = KerasEstimator(
        backend=backend,
        model=model,
        loss="mse",
        custom_objects={"Doubled": Doubled},
        backend_env={"GIVEN": "x"},
        **options(store),
    ).fit_on_parquet()
    history = trained.getHistory()
    assert history["loss"][1] < history["loss"][0]
    assert backend.env == {"GIVEN": "x"}
    assert isinstance(trained.getModel().layers[0], Doubled)
    assert trained.getModel().predict(np.ones((NUM_ROWS, 4)), verbose=0).dtype == np.float32


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"model": torch.nn.Linear(1, 1)}, "model is a Linear, not a model of Keras 3"),
        ({}, "give loss"),
        ({"loss": "mse"}, "give optimizer, or compile the model"),
    ],
)
def test_what_keras_needs(given: dict[str, Any], problem: str) -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    estimator = KerasEstimator(**{"model": model, **options(object()), **given})
    with pytest.raises(UsageError, match=problem):
        estimator.fit_on_parquet()


def test_a_rank_takes_the_gpu_that_spark_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", raising=False)
    assert training.gpu_index(1) == 1
    monkeypatch.setattr(training, "get_available_devices", lambda: ["3", "4"])
    assert training.gpu_index(1) == 3
    monkeypatch.setenv("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX", "1")
    assert training.gpu_index(1) == 1


def test_the_environment_tells_for_how_long_tasks_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("HOROVOD_SPARK_START_TIMEOUT", raising=False)
    assert start_timeout_s(None, "run") == 600
    monkeypatch.setenv("HOROVOD_SPARK_START_TIMEOUT", "20")
    assert start_timeout_s(None, "run") == 20
    assert start_timeout_s(3, "run") == 3
