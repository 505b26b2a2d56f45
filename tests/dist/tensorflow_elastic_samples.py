"""A worker that counts in its weights how often each sample was trained, with TensorFlow.

Its mode: "loops", and with "dies" after it one that kills itself in the first generation. Run by
test_tensorflow_elastic.py.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import horovod.tensorflow as hvd
from horovod import context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

LENGTH, BATCH_SIZE, EPOCHS = 96, 4, 3
PATIENCE_S = 60.0

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


STYLES = {"loops": loops}


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
