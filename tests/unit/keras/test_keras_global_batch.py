"""A constant global batch in TensorFlow and Keras, with workers that are threads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from elastic_threads import PATIENCE_S, Died, elastic_threads

import horovod.keras as hvd
import horovod.tensorflow as hvd_tf
from horovod._train.elastic.ledger import order_of
from horovod.errors import UsageError
from horovod.keras.elastic import Training

if TYPE_CHECKING:
    from collections.abc import Callable

tf_keras = pytest.importorskip("tf_keras")

ROWS, BATCH_SIZE, GLOBAL_BATCH, EPOCHS, SEED = 23, 2, 7, 3, 4
STEPS = [7, 7, 7, 2]
# The row of a sample has a weight of its own, so the weights say in which steps it was.
INPUTS, TARGETS = np.eye(ROWS, dtype=np.float32), np.zeros((ROWS, 1), np.float32)
RATES = [1.0, 0.5]


@pytest.fixture(params=[keras, tf_keras], ids=["3", "2"])
def any_keras(request: pytest.FixtureRequest) -> Any:
    return request.param


def new_model(of: Any, **options: Any) -> Any:
    model = of.Sequential([of.Input((ROWS,)), of.layers.Dense(1, use_bias=False)])
    model.layers[-1].kernel.assign(np.zeros((ROWS, 1)))
    # By the number of steps, which is not that of batches.
    rate = of.optimizers.schedules.PiecewiseConstantDecay([5], RATES)
    optimizer = hvd.DistributedOptimizer(of.optimizers.SGD(rate), **options)
    model.compile(optimizer, lambda _, y: tf.reduce_mean(-y, axis=-1))
    return model


def expected() -> np.ndarray:
    weights, number = np.zeros(ROWS), 0
    for epoch in range(EPOCHS):
        order, first = np.array(order_of(ROWS, SEED + epoch)), 0
        for rows in STEPS:
            weights[order[first : first + rows]] += RATES[number > 5] / rows
            first, number = first + rows, number + 1
    return weights


def fit(of: Any, happens: Callable[[int, int], None], **options: Any) -> tuple[Any, int]:
    model = new_model(of)
    training = Training(model, commit_every_s=0.0)

    class Happens(of.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            happens(training.epoch, batch)

    model.fit(
        training.dataset((INPUTS, TARGETS), BATCH_SIZE, seed=SEED, global_batch=GLOBAL_BATCH),
        initial_epoch=training.epoch,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[Happens(), training],
    )
    return model.get_weights()[0][:, 0], int(model.optimizer.iterations.numpy())


def nothing(epoch: int, batch: int) -> None:
    """Happens."""


def check(results: list[tuple[Any, int]]) -> None:
    for weights, steps in results:
        assert weights == pytest.approx(expected(), rel=1e-5)
        assert steps == len(STEPS) * EPOCHS


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_step_of_fit_has_all_samples(any_keras: Any, size: int) -> None:
    with elastic_threads() as fleet:
        workers = fleet.start(lambda: fit(any_keras, nothing), size)
        fleet.begin(list(range(size)))
        check([worker.result(PATIENCE_S) for worker in workers])


def test_fit_goes_on_with_fewer_and_with_more_ranks(
    any_keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def happens(epoch: int, batch: int) -> None:
        generation = hvd.elastic.generation()
        if generation == 0 and (epoch, batch) == (0, 3) and hvd.rank() == 0:
            raise Died  # in the middle of a step of two passes
        if generation == 1 and (epoch, batch) == (1, 2):
            fleet.await_generation(2)

    caplog.set_level(logging.WARNING, "horovod")
    with elastic_threads() as fleet:
        workers = fleet.start(lambda: fit(any_keras, happens), 3)
        fleet.begin([0, 1, 2])
        with pytest.raises(Died):
            workers[0].result(PATIENCE_S)
        fleet.begin([1, 2])
        fleet.await_waiting(2)
        workers += fleet.start(lambda: fit(any_keras, happens))
        fleet.begin([1, 2, 3])
        check([worker.result(PATIENCE_S) for worker in workers[1:]])
    lines = [record.getMessage() for record in caplog.records if "global batch" in record.message]
    assert lines == [
        "3 to 2 ranks: the global batch stays 7 samples: 2 ranks take 4 and 3, in 2 passes",
        "2 to 3 ranks: the global batch stays 7 samples: 3 ranks take 3, 2 and 2, in 2 passes",
    ]


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("size", [1, 3])
def test_a_loop_of_ones_own(any_keras: Any, size: int, is_compiled: bool) -> None:
    def train() -> tuple[Any, int]:
        model = new_model(any_keras)
        optimizer = model.optimizer
        training = hvd_tf.elastic.Training(model, optimizer)

        def step(inputs: Any) -> None:
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(model(inputs))
            variables = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

        take_step = tf.function(step, reduce_retracing=True) if is_compiled else step
        of_step = 0
        for _ in training.epochs(EPOCHS):
            batches = training.batches(
                (INPUTS, TARGETS), BATCH_SIZE, seed=SEED, global_batch=GLOBAL_BATCH
            )
            for inputs, _targets in batches:
                with training.guard():
                    take_step(inputs)
                of_step += int(training.ends_step)
        assert of_step == len(STEPS) * EPOCHS
        return model.get_weights()[0][:, 0], int(optimizer.iterations.numpy())

    with elastic_threads() as fleet:
        workers = fleet.start(train, size)
        fleet.begin(list(range(size)))
        check([worker.result(PATIENCE_S) for worker in workers])


@pytest.fixture
def alone() -> Any:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"op": hvd.Sum}, "needs op=Average"),
        ({"backward_passes_per_step": 2}, "backward_passes_per_step"),
    ],
)
def test_an_optimizer_that_cannot_is_refused(
    any_keras: Any, alone: None, options: Any, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        Training(new_model(any_keras, **options)).dataset((INPUTS, TARGETS), 2, global_batch=4)


def test_what_cannot_be_honored_is_refused(any_keras: Any, alone: None) -> None:
    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return INPUTS[:2], TARGETS[:2]

    training = Training(new_model(any_keras))
    with pytest.raises(UsageError, match="makes batches of its own"):
        training.dataset(Batches(), global_batch=4)
    with pytest.raises(UsageError, match="global_batch=0"):
        training.dataset((INPUTS, TARGETS), 2, global_batch=0)
    training = hvd_tf.elastic.Training(w=tf.Variable(0.0))
    with pytest.raises(UsageError, match=r"without a hvd\.DistributedOptimizer"):
        next(training.batches((INPUTS, TARGETS), 2, global_batch=4))
    training.weigh(hvd_tf.DistributedGradientTape(tf.GradientTape()))
    with pytest.raises(UsageError, match="with a DistributedGradientTape"):
        next(training.batches((INPUTS, TARGETS), 2, global_batch=4))


def test_a_function_that_was_compiled_before_is_refused(any_keras: Any, alone: None) -> None:
    model = new_model(any_keras)
    training = hvd_tf.elastic.Training(model)

    @tf.function(reduce_retracing=True)
    def step(inputs: Any) -> None:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(model(inputs))
        variables = model.trainable_variables
        model.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for inputs, _ in training.batches((INPUTS, TARGETS), 2):
        step(inputs)
    batches = training.batches((INPUTS, TARGETS), 2, global_batch=4)
    step(next(batches)[0])
    with pytest.raises(UsageError, match="compiled before"):
        next(batches)
