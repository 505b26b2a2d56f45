"""Callbacks and functions of the Keras interface, in a job of one rank."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_kinds import KINDS, NEWEST, Kind, output

import horovod.keras as hvd
import horovod.tensorflow.keras
import horovod.tensorflow.keras as tf_hvd
from horovod._keras import learning_rate
from horovod._rank import context
from horovod.errors import UsageError
from horovod.tensorflow.keras import seam as implementation

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("alone")


X = np.ones((8, 1), np.float32)


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def fit(model: Any, *callbacks: Any, **options: Any) -> dict[str, list[float]]:
    history = model.fit(X, X, batch_size=2, verbose=0, callbacks=list(callbacks), **options)
    logs: dict[str, list[float]] = history.history
    return logs


def rates_of(kind: Kind, *callbacks: Any, epochs: int) -> tuple[list[float], list[float]]:
    """The rates of all batches, and those that the history has of the epochs."""
    model = kind.linear(hvd.DistributedOptimizer(kind.optimizers.SGD(0.8)))
    rates: list[float] = []
    watch = kind.of.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    logs = fit(model, *callbacks, watch, epochs=epochs)
    return rates, logs["lr"]


def test_warmup_reaches_the_rate_in_its_last_batch(
    kind: Kind, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "size", lambda: 4)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2, verbose=1)
    metrics = hvd.callbacks.MetricAverageCallback()
    rates, of_epochs = rates_of(kind, warmup, metrics, epochs=3)
    steps = [(batch + 1) / 4 for batch in range(8)]
    expected = [0.8 / 4 * (step * 3 / 2 + 1) for step in steps] + [0.8] * 4
    assert rates == pytest.approx(expected)
    assert of_epochs == pytest.approx([expected[3], 0.8, 0.8])
    assert "Epoch 2: finished gradual learning rate warmup to 0.8." in capsys.readouterr().out


def test_schedules_one_after_the_other(kind: Kind) -> None:
    make = hvd.callbacks.LearningRateScheduleCallback
    first = make(1.0, lambda epoch: 2.0 + epoch, end_epoch=2)
    second = make(1.0, 0.5, start_epoch=2, end_epoch=4)
    _, of_epochs = rates_of(kind, first, second, epochs=5)
    assert of_epochs == pytest.approx([2.0, 3.0, 1.0, 0.5, 0.5])


def test_a_schedule_with_fractions(kind: Kind) -> None:
    smooth = tf_hvd.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: 1.0 + epoch, staircase=False
    )
    rates, _ = rates_of(kind, smooth, epochs=2)
    assert rates == pytest.approx([1 + i / 4 for i in range(8)])


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("corrects", [True, False])
def test_momentum_follows_the_rate(kind: Kind, corrects: bool, scales: bool) -> None:
    # Batches of gradient 1 with rates 1 and 10: v = 1, then v = 0.5 * v * 10 + 10.
    optimizer = kind.optimizers.SGD(1.0, momentum=0.5)
    optimizer = hvd.DistributedOptimizer(kind.scaling(optimizer) if scales else optimizer)
    model = kind.linear(optimizer)
    change = learning_rate.LearningRateScheduleCallback(
        1.0, lambda epoch: 10.0**epoch, momentum_correction=corrects
    )
    model.fit(X[:2], X[:2], batch_size=2, epochs=2, verbose=0, callbacks=[change])
    by_hand = -1 - (0.5 * (10.0 if corrects else 1.0) + 10.0)
    assert float(model.weights[0][0, 0]) == pytest.approx(by_hand)
    assert float(getattr(optimizer, "inner_optimizer", optimizer).momentum) == 0.5


def test_a_rate_that_follows_a_schedule_is_refused(kind: Kind) -> None:
    schedule = kind.of.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = kind.linear(hvd.DistributedOptimizer(kind.optimizers.SGD(schedule)))
    for callback in (
        hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5),
        hvd.callbacks.LearningRateWarmupCallback(0.1),
    ):
        with pytest.raises(UsageError, match="follows a schedule of its own"):
            fit(model, callback)


def test_other_wrong_schedules() -> None:
    with pytest.raises(UsageError, match="initial_lr=None"):
        hvd.callbacks.LearningRateScheduleCallback(None, 0.5)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.1)
    warmup.set_params({"steps": None})
    warmup.set_model(NEWEST.linear(keras.optimizers.SGD(1.0)))
    warmup.on_train_begin()  # an elastic training would know it
    with pytest.raises(UsageError, match="give it steps_per_epoch"):
        warmup.on_batch_begin(0)


def test_metrics_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {"loss": 2, "accuracy": np.float32(0.5), "odd": [1, 2]}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    assert logs == {"loss": 2.0, "accuracy": 0.5, "odd": [1, 2]}
    hvd.callbacks.MetricAverageCallback().on_epoch_end(0, None)


class Sent:
    """Stands for the broadcast."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[list[str], int]] = []
        monkeypatch.setattr(implementation, "broadcast_variables", self._send)

    def _send(self, variables: Any, root_rank: int) -> None:
        self.calls.append(([v.path for v in variables], root_rank))


def test_broadcast_before_the_first_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Sent(monkeypatch)
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dropout(0.5), keras.layers.Dense(1, name="d")]
    )
    model.compile(keras.optimizers.SGD(1.0, momentum=0.5, name="s"), output)
    local = model.layers[-1].bias
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(1, "cpu:0", local)
    began: list[float] = []
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: began.append(len(sent.calls))
    )
    fit(model, callback, watch, epochs=2)
    ((paths, root),) = sent.calls
    assert began[0] == 1
    assert root == 1
    assert [path.split("/")[-2] for path in paths] == ["d", "s", "s", "s", "s"]
    assert paths[0].endswith("d/kernel"), "neither the bias nor the seed of the dropout"


def test_broadcast_after_the_first_batch_if_nothing_was_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Sent(monkeypatch)
    layer = keras.layers.Dense(1, name="lazy", use_bias=False)
    model = keras.Sequential([layer])
    model.compile(keras.optimizers.SGD(1.0, name="s"), output)
    fit(model, hvd.callbacks.BroadcastGlobalVariablesCallback(0), epochs=2)
    ((paths, _),) = sent.calls
    assert [path.rpartition("/")[2] for path in paths] == ["kernel", "iteration", "learning_rate"]


def test_local_variables_are_variables() -> None:
    for wrong in ("kernel", [3]):
        with pytest.raises(UsageError, match="is no variable"):
            hvd.callbacks.BroadcastGlobalVariablesCallback(0, local_variables=wrong)


@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")
def test_the_best_model_is_kept(kind: Kind, tmp_path: Path) -> None:
    best = hvd.callbacks.BestModelCheckpoint("loss", 0, "max")
    model = kind.linear(hvd.DistributedOptimizer(kind.optimizers.SGD(1.0)))
    with pytest.raises(UsageError, match="set its filepath"):
        fit(model, best)
    best.filepath = str(tmp_path / ("best.keras" if kind.of is keras else "best.h5"))
    fit(model, best, epochs=2)
    kept = kind.of.models.load_model(best.filepath, compile=False)
    assert float(kept.weights[0][0, 0]) == -4.0, "losses fall, so the first epoch is the best"
    weights = tf_hvd.callbacks.BestModelCheckpoint("loss", 0, True, "max")
    weights.filepath = str(tmp_path / "best.weights.h5")
    fit(model, weights)
    assert (tmp_path / "best.weights.h5").stat().st_size > 0


def test_values() -> None:
    assert hvd.allreduce([1.0, 2.0], "mine", op=hvd.Sum).numpy().tolist() == [1.0, 2.0]
    assert tf_hvd.allgather([[3]]).numpy().tolist() == [[3]]
    assert tf_hvd.broadcast(4, 0).numpy() == 4
    assert tf_hvd.reducescatter([5.0]).numpy().tolist() == [5.0]
    with pytest.raises(UsageError, match="both given"):
        hvd.allreduce(1.0, average=True, op=hvd.Sum)
    with pytest.raises(RuntimeError, match="eager"):
        hvd.broadcast_global_variables(0)


def test_values_in_a_graph() -> None:
    with tf.Graph().as_default():
        assert hvd.allreduce([1.0, 2.0], "graph").tolist() == [1.0, 2.0]
        with tf.compat.v1.Session():
            assert hvd.allgather([3], "session").tolist() == [3]


def test_the_interfaces_are_complete() -> None:
    for interface in (hvd, tf_hvd):
        missing = [name for name in interface.__all__ if not hasattr(interface, name)]
        assert missing == []
        assert interface.size() == 1


def test_keras_on_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    # A script that has loaded it may mean it.
    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)
    with pytest.raises(ImportError, match=r"Keras runs on jax: import horovod\.keras"):
        importlib.reload(horovod.tensorflow.keras)
