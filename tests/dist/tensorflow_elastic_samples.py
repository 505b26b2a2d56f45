"""A worker that counts in its weights how often each sample was trained, with TensorFlow.

Its mode: "loops" or "fit", and with "dies" after it one that kills itself in the first generation.
Run by test_tensorflow_elastic.py.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import horovod.keras
import horovod.tensorflow as hvd
from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

LENGTH, BATCH_SIZE, EPOCHS = 96, 4, 3
PATIENCE_S = 240.0

PIPE: list[Connection] = []


def happens(epoch: int, batch: int, dies: bool) -> None:
    """A loss in the first generation, a newcomer in the second one."""
    generation = hvd.elastic.generation()
    if dies and (generation, epoch, batch) == (0, 0, 4):
        os.kill(os.getpid(), signal.SIGKILL)
    if (generation, epoch, batch) == (1, 1, 2):
        PIPE[0].send({"waits": generation})
        worker = context.elastic_worker()
        assert worker is not None
        deadline = time.monotonic() + PATIENCE_S
        while worker.newest == generation:
            assert time.monotonic() < deadline, "there was no next generation"
            time.sleep(0.002)


def loops(happens: Callable[[int, int], None]) -> dict[str, Any]:
    """Trains with a compiled step; says what it counted, and how often the step was traced."""
    times = tf.Variable(tf.zeros(LENGTH))
    training = hvd.elastic.Training(times=times, commit_every_s=0.02)
    values = training.track(sizes=[])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def step(places: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = -tf.reduce_sum(tf.gather(times, places))
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum, sparse_as_dense=True)
        times.assign_sub(tape.gradient(loss, times))

    data = hvd.elastic.MappedIndices(LENGTH, lambda place: place)
    for epoch in training.epochs(EPOCHS):
        for number, places in enumerate(training.batches(data, BATCH_SIZE)):
            happens(epoch, number)
            with training.guard():
                step(places)
            values.sizes.append(hvd.size())
    traces = step.experimental_get_tracing_count()
    return {"times": np.ravel(times.numpy()).tolist(), "sizes": values.sizes, "traces": traces}


def fit(happens: Callable[[int, int], None]) -> dict[str, Any]:
    """The same with ``model.fit``."""
    layer = keras.layers.Embedding(LENGTH, 1, embeddings_initializer="zeros")
    model = keras.Sequential([keras.Input((1,), dtype="int64"), layer])
    plain = keras.optimizers.SGD(1.0)
    optimizer = horovod.keras.DistributedOptimizer(plain, op=hvd.Sum, sparse_as_dense=True)
    traces: list[int] = []

    class Minus(keras.losses.Loss):
        def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
            traces.append(1)  # called in Python only when the step is traced
            return -y_pred[:, 0]

    model.compile(optimizer, Minus(reduction="sum"))
    training = horovod.keras.elastic.Training(model, commit_every_s=0.02)
    values = training.track(sizes=[])

    class Callback(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.epoch = epoch

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            happens(self.epoch, batch)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            values.sizes.append(hvd.size())

    places = hvd.elastic.MappedIndices(LENGTH, lambda place: (place[None], tf.zeros(1)))
    model.fit(
        training.dataset(places, BATCH_SIZE),
        initial_epoch=training.epoch,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[Callback(), training],
    )
    times = model.get_weights()[0].ravel().tolist()
    return {"times": times, "sizes": values.sizes, "traces": len(traces)}


STYLES = {"loops": loops, "fit": fit}


def main(environ: Mapping[str, str], mode: str, pipe: Connection) -> None:
    """The whole process, which is forked with all modules that it needs."""
    os.environ.update(environ)
    PIPE.append(pipe)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    style, *dies = mode.split()
    try:
        hvd.init()
        report = STYLES[style](lambda epoch, batch: happens(epoch, batch, bool(dies)))
        PIPE[0].send(report | {"rank": hvd.rank()})
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them
