"""Callbacks and saved models of Keras 2 beside Keras 3, in a job of one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras as keras3
import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from keras_kinds import LEGACY as KERAS2_LEGACY
from keras_kinds import NEW as KERAS2

import horovod.keras as hvd
from horovod._keras.loading import _keras_for
from horovod.errors import UsageError
from horovod.tensorflow.keras import seam as implementation

if TYPE_CHECKING:
    from pathlib import Path

NEW, LEGACY = KERAS2.optimizers, KERAS2_LEGACY.optimizers
X = np.ones((8, 1), np.float32)

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5"),
    pytest.mark.usefixtures("alone"),
]


class Halving(NEW.SGD):
    """An optimizer that Keras does not know."""


@pytest.fixture(params=[NEW, LEGACY], ids=["new", "legacy"])
def kinds(request: pytest.FixtureRequest) -> Any:
    """The module of optimizers."""
    return request.param


def trained(optimizer: Any) -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    go_on(model)
    return model


def go_on(model: Any) -> None:
    model.fit(np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32), verbose=0)


def test_optimizers_without_momentum_have_none_to_correct(kinds: Any) -> None:
    change = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5)
    for optimizer in (kinds.Adam(0.1), kinds.RMSprop(0.1, momentum=0.5)):
        logs = KERAS2.linear(optimizer).fit(X, X, epochs=2, verbose=0, callbacks=[change]).history
        assert logs["lr"] == pytest.approx([0.1, 0.05])


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


def test_xla_is_refused() -> None:
    model = KERAS2.linear(hvd.DistributedOptimizer(NEW.SGD(1.0)), jit_compile=True)
    with pytest.raises(UsageError, match="use jit_compile=False"):
        model.fit(X, X, verbose=0)


def test_what_old_tutorials_told_everybody_to_write() -> None:
    model = KERAS2.linear(
        hvd.DistributedOptimizer(NEW.SGD(1.0)), experimental_run_tf_function=False
    )
    model.fit(X[:2], X[:2], verbose=0)
    assert float(tf.reduce_sum(model.weights[0])) == -1.0
