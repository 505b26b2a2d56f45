"""What else tapes and Keras optimizers do between ranks; each function runs on every rank."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras_training import FITS, TAPES, fit_on_a_rank, tape_on_a_rank

import horovod.keras as keras_hvd
import horovod.tensorflow as hvd
from horovod.errors import HorovodInternalError


def everything_of_two_ranks() -> dict[str, Any]:
    """All cases of a job of two ranks, by name."""
    hvd.init()
    results: dict[str, Any] = {f"tape: {n}": tape_on_a_rank(r) for n, r in TAPES.items()}
    results |= {f"fit: {name}": fit_on_a_rank(recipe) for name, recipe in FITS.items()}
    return results | {case.__name__: case() for case in CASES}


def everything_of_three_ranks() -> dict[str, Any]:
    """All cases of a job of three ranks, by name."""
    hvd.init()
    ends = hvd.add_process_set([0, 2])
    return {
        "tape": tape_of_a_process_set(ends),
        "optimizer": optimizer_of_a_process_set(ends),
    }


def gradient_of(rank: int) -> float:
    return 10.0**rank


def tape_of_a_process_set(ends: hvd.ProcessSet) -> float:
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = gradient_of(hvd.rank()) * variable
    wrapped = hvd.DistributedGradientTape(tape, process_set=ends)
    return float(wrapped.gradient(loss, [variable])[0])


def optimizer_of_a_process_set(ends: hvd.ProcessSet) -> float:
    variable = tf.Variable(0.0)
    plain = keras.optimizers.SGD(1.0)
    optimizer = hvd.DistributedOptimizer(plain, process_set=ends)
    optimizer.apply([tf.constant(gradient_of(hvd.rank()))], [variable])
    return -float(variable)


def adasum_of_equal_gradients() -> float:
    variable = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        loss = variable * variable
    return float(hvd.DistributedGradientTape(tape, op=hvd.Adasum).gradient(loss, [variable])[0])


def generic_names_of_ranks_with_other_variables() -> float:
    variable = tf.Variable(3.0, name=f"of_rank_{hvd.rank()}")
    with tf.GradientTape():
        variable * variable

    @tf.function
    def gradient() -> Any:
        with tf.name_scope(f"scope_of_rank_{hvd.rank()}"), tf.GradientTape() as tape:
            loss = gradient_of(hvd.rank()) * variable
        wrapped = hvd.DistributedGradientTape(tape)
        return wrapped.gradient(loss, [variable], use_generic_names=True)

    return float(gradient()[0])


def layers_of_a_rank() -> list[list[float]]:
    """By tape and by optimizer: a shared weight and one of this rank after a step."""
    moved = []
    for _ in range(2):
        shared, local = (tf.keras.layers.Dense(1, use_bias=False) for _ in range(2))
        for layer in (shared, local):
            layer.build((1, 1))
            layer.kernel.assign([[0.0]])
        weights = [shared.kernel, local.kernel]
        with tf.GradientTape() as tape:
            loss = gradient_of(hvd.rank()) * tf.reduce_sum(weights[0] + weights[1])
        if not moved:
            partial = hvd.PartialDistributedGradientTape(tape, local_layers=local)
            keras.optimizers.SGD(1.0).apply(partial.gradient(loss, weights), weights)
        else:
            plain = keras.optimizers.SGD(1.0)
            optimizer = keras_hvd.PartialDistributedOptimizer(plain, local_layers=[local])
            optimizer.apply(tape.gradient(loss, weights), weights)
        moved.append([float(weight[0, 0]) for weight in weights])
    return moved


def two_optimizers_in_one_step() -> list[float]:
    """As a generator and a discriminator have them; both are in flight at once."""
    variables = [tf.Variable(0.0), tf.Variable(0.0)]
    optimizers = [hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)) for _ in variables]
    for optimizer, variable in zip(optimizers, variables, strict=True):
        optimizer.build([variable])

    @tf.function
    def step() -> None:
        for place, optimizer in enumerate(optimizers):
            gradient = tf.constant(gradient_of(hvd.rank()) * (1.0 + place))
            optimizer.apply([gradient], [variables[place]])

    step()
    return [float(variable) for variable in variables]


def numbers_of_layers_differ() -> float:
    """Rank 1 has made layers before, so Keras numbers its others in another way."""
    for _ in range(hvd.rank()):
        keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1.0)), "mse")
    model.fit(
        np.ones((2, 1)),
        np.ones((2, 1)) * hvd.rank(),
        verbose=0,
        callbacks=[keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    return float(model.get_weights()[0][0, 0])


def one_rank_loads_the_model() -> tuple[list[Any], str, int]:
    """The root goes on from a file; the others, whose model is not even built, follow."""
    layers = [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)), "mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(8, 2))
    if hvd.rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            saved = keras.Sequential([keras.Input((2,)), *layers])
            saved.compile(keras.optimizers.Adam(0.1), keras.losses.MeanSquaredError())
            saved.fit(x, x[:, :1], verbose=0)
            saved.save(Path(folder) / "model.keras")
            model = keras_hvd.load_model(Path(folder) / "model.keras")
    callback = keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=[callback])
    state = [variable.numpy() for variable in model.optimizer.variables]
    return [*model.get_weights(), *state], type(model.optimizer).__module__, len(state)


def variables_of_a_rank_stay() -> list[float]:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.set_weights([np.full((1, 1), 1.0 + hvd.rank()), np.full(1, 3.0 + hvd.rank())])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    callback = keras_hvd.callbacks.BroadcastGlobalVariablesCallback(
        1, local_variables=[model.layers[0].bias]
    )
    model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0, callbacks=[callback])
    return [float(weight.ravel()[0]) for weight in model.get_weights()]


def an_infinite_gradient_of_one_rank() -> tuple[float, float]:
    """Both ranks skip the step and halve the scale."""
    scaler = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    optimizer = keras_hvd.DistributedOptimizer(scaler)
    variable = tf.Variable(0.0)
    for gradient in (np.inf if hvd.rank() == 1 else 1.0, 4.0 * hvd.rank()):
        optimizer.apply([tf.constant(gradient, tf.float32)], [variable])
    return float(variable), float(optimizer.dynamic_scale)


def metrics_that_differ() -> str:
    logs = {"loss": 1.0} if hvd.rank() == 0 else {"loss": 1.0, "val_loss": 2.0}
    try:
        keras_hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
    except HorovodInternalError as error:
        return str(error)
    return ""


def learning_rates() -> list[float]:
    """Warm-up, then a staircase, with averaged logs."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.8, momentum=0.9)), "mse")
    callbacks = [
        keras_hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        keras_hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2),
        keras_hvd.callbacks.LearningRateScheduleCallback(0.8, 0.5, start_epoch=2),
        keras_hvd.callbacks.MetricAverageCallback(),
    ]
    x = np.zeros((8, 1))
    history = model.fit(x, x, batch_size=4, epochs=4, verbose=0, callbacks=callbacks).history
    rates: list[float] = history["lr"]
    return rates


def values() -> tuple[float, list[int], float]:
    return (
        float(keras_hvd.allreduce(float(hvd.rank()), name="value")),
        keras_hvd.allgather([hvd.rank()] * (1 + hvd.rank()), name="values").numpy().tolist(),
        float(keras_hvd.broadcast(float(hvd.rank()), 1, name="root")),
    )


CASES = (
    adasum_of_equal_gradients,
    generic_names_of_ranks_with_other_variables,
    layers_of_a_rank,
    two_optimizers_in_one_step,
    numbers_of_layers_differ,
    one_rank_loads_the_model,
    variables_of_a_rank_stay,
    an_infinite_gradient_of_one_rank,
    metrics_that_differ,
    learning_rates,
    values,
)
