"""Estimators that train on a backend of the caller, without Spark."""

from __future__ import annotations

import shutil
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("pyspark")
keras = pytest.importorskip("keras")
torch = pytest.importorskip("torch")
from spark_files import NUM_ROWS, write_rows  # noqa: E402

from horovod.errors import UsageError  # noqa: E402
from horovod.spark.common import runs, training  # noqa: E402
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


def torch_estimator(store: Any, **more: Any) -> TorchEstimator:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    chosen = {
        "backend": OneProcess(),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.05),
        "loss": torch.nn.functional.mse_loss,
        "input_shapes": [[-1, 4]],
    }
    return TorchEstimator(**{**options(store), **chosen, **more})


def test_columns_that_are_names_of_folders_are_refused(tmp_path: Path) -> None:
    write_rows(tmp_path / "train" / "year=2020")
    store = FilesystemStore(str(tmp_path / "s"), train_path=str(tmp_path / "train"))
    assert torch_estimator(store).fit_on_parquet() is not None
    with pytest.raises(
        UsageError, match=r"column 'year' is in the names of folders only, such as year=2020"
    ):
        torch_estimator(store, feature_cols=["year"]).fit_on_parquet()


def test_fits_of_the_same_second_are_runs_of_their_own(
    store: FilesystemStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.time, "time", lambda: 1000.0)
    models = [torch_estimator(store, batch_size=size).fit_on_parquet() for size in (32, 8)]
    assert len({model.getRunId() for model in models}) == 2
    assert not torch.equal(*(model.getModel().weight for model in models))


class Meeting(OneProcess):
    """Goes on when as many fits as there are have come to their ranks."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier

    def run(self, *args: Any, **kwargs: Any) -> list[Any]:
        self._barrier.wait(60)
        return super().run(*args, **kwargs)


def test_fits_at_once_need_runs_of_their_own(store: FilesystemStore) -> None:
    barrier = threading.Barrier(2)
    found: list[Any] = []

    def fit(size: int, name: str | None) -> None:
        estimator = torch_estimator(store, backend=Meeting(barrier), batch_size=size, run_id=name)
        try:
            found.append(estimator.fit_on_parquet().getHistory())
        except (UsageError, threading.BrokenBarrierError) as error:
            found.append(error)
            barrier.abort()

    for name in (None, "r"):
        threads = [threading.Thread(target=fit, args=(size, name)) for size in (8, 32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert [len(each) for each in found[:2]] == [2, 2]
    assert found[0] != found[1]
    assert any("another fit of this process trains it now" in str(each) for each in found[2:])


def test_a_run_of_ones_own_name_goes_on_or_is_refused(
    store: FilesystemStore, capsys: pytest.CaptureFixture[str]
) -> None:
    first = torch_estimator(store, run_id="r").fit_on_parquet()
    again = torch_estimator(store, run_id="r").fit_on_parquet()
    assert "run 'r' has all of its 2 epochs: nothing is trained" in capsys.readouterr().err
    assert again.getHistory() == first.getHistory()
    more = torch_estimator(store, run_id="r", epochs=3).fit_on_parquet()
    assert more.getHistory()[:2] == first.getHistory()
    other = torch.nn.Sequential(torch.nn.Linear(4, 1))
    rate = torch.optim.SGD(other.parameters(), lr=0.05)
    for changes, problem in (
        ({"batch_size": 8}, "batch_size was 32, and is 8"),
        ({"loss": torch.nn.functional.l1_loss}, r"loss was .*mse_loss.*, and is .*l1_loss"),
        (
            {"optimizer": torch.optim.SGD(other.parameters(), lr=0.1)},
            r"optimizer\.groups\[0\]\.lr was 0\.05",
        ),
        ({"model": other, "optimizer": rate}, r"model\.module\.class was "),
    ):
        with pytest.raises(UsageError, match=f"trains something else: {problem}"):
            torch_estimator(store, run_id="r", **changes).fit_on_parquet()
    path = store.get_localized_path(store.get_train_data_path())
    shutil.copy(f"{path}/0.parquet", f"{path}/2.parquet")
    with pytest.raises(UsageError, match=r"data\.rows was \[64\], and is \[96\]"):
        torch_estimator(store, run_id="r").fit_on_parquet()


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
