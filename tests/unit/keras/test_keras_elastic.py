"""The elastic state and its callbacks in ``model.fit`` of both generations, as one rank."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import horovod.keras as hvd
import horovod.tensorflow.keras as tf_hvd
from horovod.errors import PeerLostError, UsageError
from horovod.keras.elastic import (
    CommitStateCallback,
    KerasState,
    UpdateBatchStateCallback,
    UpdateEpochStateCallback,
    run,
)

tf_keras = pytest.importorskip("tf_keras")

STEPS, EPOCHS = 4, 3
X = np.ones((STEPS, 1), np.float32)

pytestmark = [
    pytest.mark.filterwarnings("error:Your input ran out of data"),
    pytest.mark.usefixtures("alone"),
]


@pytest.fixture(params=[keras, tf_keras], ids=["3", "2"])
def any_keras(request: pytest.FixtureRequest) -> Any:
    return request.param


def counting_model(of: Any) -> Any:
    """Its one weight is the number of batches that it was trained with."""
    layer = of.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = of.Sequential([of.Input((1,)), layer])
    model.compile(of.optimizers.SGD(1.0, momentum=0.5), lambda _, y: -y, run_eagerly=True)
    model.optimizer.momentum = 0.0
    return model


def batches_of(model: Any) -> int:
    return int(model.get_weights()[0].item())


def callbacks(state: Any, order: str, *others: Any) -> list[Any]:
    commit = CommitStateCallback(state)
    update = [UpdateBatchStateCallback(state), UpdateEpochStateCallback(state)]
    return [*others, commit, *update] if order == "commit first" else [*others, *update, commit]


class At(tf.keras.callbacks.Callback):
    """Does something once, when the model has been trained with some batches."""

    def __init__(self, batches: int, act: Any) -> None:
        super().__init__()
        self.batches = batches
        self.act = act
        self.lengths: list[int] = []
        self.num_fits = 0

    # Keras 2 asks for these.
    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False

    def on_train_begin(self, logs: Any = None) -> None:
        self.num_fits += 1

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.lengths.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.lengths[-1] += 1
        if batches_of(self.model) == self.batches and self.act is not None:
            act, self.act = self.act, None
            act()


def train_through(model: Any, order: str, at: int, act: Any = None, **data: Any) -> tuple[Any, At]:
    """Trains for EPOCHS epochs, with a change of the job in between."""
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    state = KerasState(model, epoch=0, batch=0)
    watcher = At(at, act or (lambda: state.on_hosts_updated(0.0, 1)))

    @run
    def train(state: Any) -> None:
        state.model.fit(
            **data,
            epochs=EPOCHS - state.epoch,
            shuffle=False,
            verbose=0,
            callbacks=callbacks(state, order, watcher),
        )

    train(state)
    return state, watcher


def kinds_of_data(of: Any) -> dict[str, Any]:
    dataset = tf.data.Dataset.from_tensor_slices((X, X)).batch(1)
    arrays = {"x": X, "y": X, "batch_size": 1}
    kinds = {
        "arrays": arrays,
        "arrays and steps": {**arrays, "steps_per_epoch": STEPS},
        "dataset": {"x": dataset},
        "endless": {"x": dataset.repeat(), "steps_per_epoch": STEPS},
    }
    if of is keras:
        kinds["PyDataset"] = {"x": Rows(workers=2)}
    return kinds


class Rows(keras.utils.PyDataset):
    """The rows of X."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> Any:
        return X[index : index + 1], X[index : index + 1]


@pytest.mark.parametrize("order", ["commit first", "commit last"])
def test_no_batch_is_trained_twice_or_left_out(any_keras: Any, order: str) -> None:
    model = counting_model(any_keras)
    for at in (STEPS - 1, STEPS, STEPS + 1, STEPS * EPOCHS):
        state, watcher = train_through(model, order, at, x=X, y=X, batch_size=1)
        assert batches_of(model) == STEPS * EPOCHS, f"changed after batch {at}"
        assert (state.epoch, state.batch) == (EPOCHS, 0)
        inside = at % STEPS
        interrupted = [inside, STEPS - inside] if inside else [STEPS]
        before, after = (at - 1) // STEPS, EPOCHS - 1 - (at - 1) // STEPS
        expected = [STEPS] * before + interrupted + [STEPS] * after
        assert watcher.lengths == expected
        assert watcher.num_fits == (1 if at == STEPS * EPOCHS else 2)


def test_data_of_all_kinds_go_on_after_a_short_epoch(any_keras: Any) -> None:
    model = counting_model(any_keras)
    for kind, data in kinds_of_data(any_keras).items():
        _, watcher = train_through(model, "commit last", 2, **data)
        assert watcher.lengths == [2, 2, STEPS, STEPS], kind


@pytest.mark.parametrize("order", ["commit first", "commit last"])
def test_after_a_loss_training_goes_back_to_the_commit(any_keras: Any, order: str) -> None:
    def lose() -> None:
        raise PeerLostError("rank 1 is gone")

    model = counting_model(any_keras)
    # It raises before the commit of the sixth batch, the second one of the second epoch.
    state, watcher = train_through(model, order, 6, lose, x=X, y=X, batch_size=1)
    assert watcher.lengths == [4, 2, 3, 4]
    assert batches_of(model) == STEPS * EPOCHS
    assert (state.epoch, state.batch) == (EPOCHS, 0)


def test_early_stopping_inside_a_short_epoch_still_stops(any_keras: Any) -> None:
    model = counting_model(any_keras)

    def stop(epoch: int, logs: Any) -> None:
        model.stop_training = True

    for place in (0, 9):
        state = KerasState(model, epoch=0, batch=2)
        listed = callbacks(state, "commit last")
        listed.insert(place, any_keras.callbacks.LambdaCallback(on_epoch_end=stop))
        model.fit(X, X, batch_size=1, epochs=EPOCHS, verbose=0, callbacks=listed)
        assert state.epoch == 1


def test_commits_come_every_few_batches_and_at_the_end() -> None:
    calls = []

    class Counted(CommitStateCallback):
        def commit(self) -> None:
            calls.append(self.state.batch)

    model = counting_model(keras)
    for every, batches in ((1, [1, 2, 3, 4, 0]), (3, [3, 0]), (5, [0])):
        state = KerasState(model, batch=0)
        listed = [Counted(state, every), UpdateBatchStateCallback(state)]
        model.fit(X, X, batch_size=1, verbose=0, callbacks=listed)
        assert calls == batches
        calls.clear()


def test_epochs_are_counted_from_where_keras_begins() -> None:
    model = counting_model(keras)
    state = KerasState(model, epoch=5)
    update = UpdateEpochStateCallback(state)
    model.fit(X, X, epochs=2, verbose=0, callbacks=[update])
    assert state.epoch == 7
    model.fit(X, X, initial_epoch=7, epochs=8, verbose=0, callbacks=[update])
    assert state.epoch == 8


def test_a_model_without_weights_is_refused(any_keras: Any) -> None:
    model = any_keras.Sequential([any_keras.layers.Dense(1)])
    with pytest.raises(UsageError, match=r"model\.build"):
        KerasState(model)


@pytest.mark.parametrize("legacy", [False, True])
def test_an_optimizer_gets_its_variables_before_its_first_step(
    any_keras: Any, legacy: bool
) -> None:
    if legacy and any_keras is keras:
        pytest.skip("Keras 3 has none")
    optimizers = any_keras.optimizers.legacy if legacy else any_keras.optimizers
    model = any_keras.Sequential([any_keras.Input((2,)), any_keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(optimizers.Adam(0.1))
    model.compile(optimizer, "mse")
    state = tf_hvd.elastic.KerasState(model)
    before = [np.array(weight) for weight in model.get_weights()]
    state.sync()
    variables = optimizer.variables
    num_made = len(variables() if callable(variables) else variables)
    model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    state.restore()
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    made = variables() if callable(variables) else optimizer.variables
    assert len(made) == num_made
    assert all(not np.any(v.numpy()) for v in made if "/m" in v.name or "momentum" in v.name)
