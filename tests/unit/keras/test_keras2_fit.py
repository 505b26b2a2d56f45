"""Callbacks and saved models of Keras 2 beside Keras 3, in a job of one rank."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras

import horovod.keras as hvd
from horovod._rank import context
from horovod.errors import UsageError
from horovod.tensorflow.keras import callbacks as implementation
from horovod.tensorflow.keras.loading import _keras_for

if TYPE_CHECKING:
    from pathlib import Path

NEW, LEGACY = keras.optimizers, keras.optimizers.legacy
X = np.ones((8, 1), np.float32)

pytestmark = pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5")


class Halving(NEW.SGD):
    """An optimizer that Keras does not know."""


@pytest.fixture(autouse=True)
def initialized() -> Any:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(params=[NEW, LEGACY], ids=["new", "legacy"])
def kinds(request: pytest.FixtureRequest) -> Any:
    """The module of optimizers."""
    return request.param


def linear(optimizer: Any, **options: Any) -> Any:
    """One weight of 0; the gradient of its loss is 1."""
    layer = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    model.compile(optimizer, lambda _, y: y, **options)
    return model


def trained(optimizer: Any) -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    go_on(model)
    return model


def go_on(model: Any) -> None:
    model.fit(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32), verbose=0)


def state_of(model: Any) -> list[Any]:
    held = model.optimizer.variables
    return [v.numpy().tolist() for v in [*model.weights, *(held() if callable(held) else held)]]


def test_warmup_and_schedule(monkeypatch: pytest.MonkeyPatch, kinds: Any) -> None:
    monkeypatch.setattr(context, "size", lambda: 4)
    callbacks = [
        hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=1),
        hvd.callbacks.LearningRateScheduleCallback(0.8, 0.5, start_epoch=1),
        hvd.callbacks.MetricAverageCallback(),
    ]
    rates: list[float] = []
    model = linear(hvd.DistributedOptimizer(kinds.SGD(0.8)))
    watch = keras.callbacks.LambdaCallback(
        on_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
    )
    logs = model.fit(X, X, batch_size=2, epochs=3, verbose=0, callbacks=[*callbacks, watch])
    warmup = [0.8 / 4 * ((batch + 1) / 4 * 3 + 1) for batch in range(4)]
    assert rates == pytest.approx([*warmup, *[0.8] * 4, *[0.4] * 4])
    assert logs.history["lr"] == pytest.approx([0.8, 0.8, 0.4])


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.parametrize("corrects", [True, False])
def test_momentum_follows_the_rate(corrects: bool, scales: bool, kinds: Any) -> None:
    # Batches of gradient 1 with rates 1 and 10: v = 1, then v = 0.5 * v * 10 + 10.
    optimizer = kinds.SGD(1.0, momentum=0.5)
    if scales:
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer)
    model = linear(hvd.DistributedOptimizer(optimizer))
    change = hvd.callbacks.LearningRateScheduleCallback(
        1.0, lambda epoch: 10.0**epoch, momentum_correction=corrects
    )
    model.fit(X[:2], X[:2], batch_size=2, epochs=2, verbose=0, callbacks=[change])
    by_hand = -1 - (0.5 * (10.0 if corrects else 1.0) + 10.0)
    assert float(model.weights[0][0, 0]) == pytest.approx(by_hand)


def test_optimizers_without_momentum_have_none_to_correct(kinds: Any) -> None:
    change = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    for optimizer in (kinds.Adam(0.1), kinds.RMSprop(0.1, momentum=0.5)):
        logs = linear(optimizer).fit(X, X, epochs=2, verbose=0, callbacks=[change]).history
        assert logs["lr"] == pytest.approx([0.1, 0.05])


def test_a_rate_that_follows_a_schedule_is_refused(kinds: Any) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    model = linear(hvd.DistributedOptimizer(kinds.SGD(schedule)))
    with pytest.raises(UsageError, match="follows a schedule of its own"):
        model.fit(X, X, callbacks=[hvd.callbacks.LearningRateWarmupCallback(0.1)])


def test_broadcast_before_the_first_batch(monkeypatch: pytest.MonkeyPatch, kinds: Any) -> None:
    sent: list[list[str]] = []
    monkeypatch.setattr(
        implementation, "broadcast_variables", lambda vs, root: sent.append([v.name for v in vs])
    )
    optimizer = keras.mixed_precision.LossScaleOptimizer(kinds.SGD(1.0, momentum=0.5))
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dropout(0.5), keras.layers.Dense(1, name="d")]
    )
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0, "", model.layers[-1].bias)
    model.fit(X, X, verbose=0, callbacks=[callback])
    (names,) = sent
    assert names[0] == "d/kernel:0"
    assert any("iter" in name for name in names)
    assert any("learning_rate" in name for name in names)
    assert {"current_loss_scale:0", "good_steps:0"} <= set(names)
    assert len(names) == len(set(names)) == 7


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    best = hvd.callbacks.BestModelCheckpoint("loss", 0, "max")
    best.filepath = str(tmp_path / "best.h5")
    model = linear(hvd.DistributedOptimizer(NEW.SGD(1.0)))
    model.fit(X, X, batch_size=2, epochs=2, verbose=0, callbacks=[best])
    kept = keras.models.load_model(best.filepath, compile=False)
    assert float(kept.weights[0][0, 0]) == -4.0, "losses fall, so the first epoch is the best"


@pytest.mark.parametrize("ending", [".keras", ".h5", ""])
def test_load_model_keeps_what_keras_does(tmp_path: Path, ending: str, kinds: Any) -> None:
    path = tmp_path / f"model{ending}"
    model = trained(hvd.DistributedOptimizer(kinds.Adam(0.25, clipnorm=2.0)))
    model.save(path)
    known = {} if ending else {"custom_objects": {"Unused": Halving}}
    loaded, plain = hvd.load_model(path, **known), keras.models.load_model(path)
    assert type(loaded.optimizer).__module__ == "horovod._keras"
    assert isinstance(loaded.optimizer, kinds.Adam)
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    assert state_of(loaded) == state_of(plain)
    # Keras itself loads no state of optimizers from folders, and of legacy ones from .keras.
    if ending == ".h5" or (kinds is NEW and ending):
        assert state_of(loaded) == state_of(model)
    go_on(plain)
    go_on(loaded)
    np.testing.assert_allclose(loaded.get_weights()[0], plain.get_weights()[0], rtol=1e-6)


def test_optimizers_that_keras_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "model.h5"
    trained(hvd.DistributedOptimizer(Halving(0.5))).save(path)
    loaded = hvd.load_model(path, custom_optimizers=[Halving])
    assert isinstance(loaded.optimizer, Halving)
    assert type(loaded.optimizer).__module__ == "horovod._keras"


def test_the_file_says_what_is_legacy(tmp_path: Path, kinds: Any) -> None:
    path = tmp_path / "model.h5"
    trained(kinds.Adam(0.25)).save(path)
    assert isinstance(hvd.load_model(path, legacy_opts=True).optimizer, kinds.Adam)


def test_the_file_says_which_keras_loads_it(tmp_path: Path) -> None:
    models = {
        keras: keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)]),
        keras3: keras3.Sequential([keras3.Input((1,)), keras3.layers.Dense(1)]),
    }
    for number, (module, model) in enumerate(models.items()):
        for ending in ("h5", "keras"):
            path = tmp_path / f"{number}.{ending}"
            model.save(path)
            assert _keras_for(path, []) is module
            assert _keras_for(path, [Halving]) is keras, "what is given counts more"


WITHOUT_HOROVOD = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "horovod":
            raise ImportError("there is no horovod")

sys.meta_path.insert(0, Blocker())
import tf_keras as keras
kinds = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}
for name, path in zip(kinds, sys.argv[1:]):
    model = keras.models.load_model(path)
    assert type(model.optimizer) is kinds[name].Adam, type(model.optimizer)
    print([v.numpy().tolist() for v in model.weights])
"""


def test_a_saved_model_loads_without_horovod(tmp_path: Path) -> None:
    paths, expected = [], []
    for number, kinds in enumerate((NEW, LEGACY)):
        model = trained(hvd.DistributedOptimizer(kinds.Adam(0.25)))
        paths.append(tmp_path / f"{number}.keras")
        model.save(paths[-1])
        expected.append([w.tolist() for w in model.get_weights()])
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOROVOD, *paths],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert [json.loads(line) for line in ended.stdout.splitlines()] == expected


def test_xla_is_refused() -> None:
    model = linear(hvd.DistributedOptimizer(NEW.SGD(1.0)), jit_compile=True)
    with pytest.raises(UsageError, match="use jit_compile=False"):
        model.fit(X, X, verbose=0)


def test_what_old_tutorials_told_everybody_to_write() -> None:
    model = linear(hvd.DistributedOptimizer(NEW.SGD(1.0)), experimental_run_tf_function=False)
    model.fit(X[:2], X[:2], verbose=0)
    assert float(tf.reduce_sum(model.weights[0])) == -1.0
