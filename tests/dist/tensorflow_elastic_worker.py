"""A worker of an elastic job that trains with TensorFlow; run by test_tensorflow_elastic.py.

Arguments of main: its environment, what it does, and a pipe, through which it tells what happens.
It does "fit", "local", which is the same with local steps, "function" or "session". Further words:
"dies", in the reset callback of the third generation; "wrong", an allreduce with another shape on
each rank; a number, that of the generation in which it ends after some batches, by default the
third one.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import horovod.tensorflow.keras as hvd
from horovod.tensorflow import DistributedGradientTape, DistributedOptimizer
from horovod.tensorflow.elastic import TensorFlowState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing.connection import Connection

v1 = tf.compat.v1

STEPS = 20
SAYS_THAT_IT_TRAINS = 3
MOST_EPOCHS = 100_000

PIPE: list[Connection] = []
WORDS: list[str] = []


def is_last() -> bool:
    """Whether this generation is the one in which the training ends."""
    last = next((int(word) for word in WORDS if word.isdigit()), 2)
    return hvd.elastic.generation() >= last


def die_if_told() -> None:
    """In a reset callback, as the kernel does when memory runs out."""
    if "dies" in WORDS and hvd.elastic.generation() == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def tell(**report: Any) -> None:
    place = {"rank": hvd.rank(), "size": hvd.size(), "generation": hvd.elastic.generation()}
    PIPE[0].send(report | place)


def digest(state: Any) -> str:
    """Tells variables apart that differ in one bit."""
    if isinstance(state, TensorFlowState):
        values = state.session.run(state.variables)
    elif hasattr(state.optimizer, "outer_variables"):  # the rest of it is the rank's own
        shared = [*state.model.trainable_variables, *state.optimizer.outer_variables]
        values = [each.numpy() for each in shared]
    else:
        values = [each.numpy() for each in [*state.model.weights, *state.optimizer.variables]]
    hashed = hashlib.sha256()
    for value in values:
        hashed.update(np.asarray(value).tobytes())
    return hashed.hexdigest()[:16]


def make_state(mode: str) -> Any:
    """Of a rank that knows nothing of others: its own random numbers, an optimizer not yet used."""
    keras.utils.set_random_seed(os.getpid() % 1000)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    )
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    if mode == "fit":
        optimizer = hvd.DistributedOptimizer(optimizer)
    if mode == "local":
        optimizer = hvd.LocalSGD(optimizer, every=3)
    model.compile(optimizer, "mse")
    return hvd.elastic.KerasState(model, epoch=0, batch=0)


class Teller(keras.callbacks.Callback):
    """Tells how long epochs are, and ends the training in the last generation."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.state = state
        self.batches = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.before, self.batches = self.state.batch, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches += 1
        if self.batches == SAYS_THAT_IT_TRAINS and not is_last():
            tell(trains=self.state.epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        assert self.before + self.batches == STEPS, (self.before, self.batches)
        if is_last():
            self.model.stop_training = True


def fit(state: Any) -> None:
    """Trains with ``model.fit``."""
    is_local = hasattr(state.optimizer, "outer_variables")
    x = np.random.default_rng(hvd.rank()).normal(size=(STEPS * 2, 4)).astype(np.float32)
    state.model.fit(
        x,
        x.sum(1, keepdims=True),
        batch_size=2,
        epochs=MOST_EPOCHS - state.epoch,
        verbose=0,
        callbacks=[
            *([hvd.callbacks.LocalStepsCallback()] if is_local else []),
            Teller(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.UpdateEpochStateCallback(state),
        ],
    )


class Loop:
    """A loop of one's own, whose compiled step is the same in all generations."""

    def __init__(self, state: Any) -> None:
        model, optimizer = state.model, state.optimizer

        @tf.function
        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x) - tf.reduce_sum(x, 1, keepdims=True)))
            tape = DistributedGradientTape(tape)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        self.step = step

    def train(self, state: Any) -> None:
        """Trains until the last generation has taken some steps."""
        generator = np.random.default_rng(hvd.rank())
        for done in range(MOST_EPOCHS):
            self.step(generator.normal(size=(2, 4)).astype(np.float32))
            state.batch += 1
            if done == SAYS_THAT_IT_TRAINS and not is_last():
                tell(trains=state.batch)
            if done == STEPS and is_last():
                return
            state.commit()


class SessionLoop(Loop):
    """The same in a graph of version 1, which is finalized."""

    def __init__(self) -> None:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, (2, 4))
            weights = v1.get_variable("weights", (4, 1), initializer=v1.random_normal_initializer())
            loss = tf.reduce_mean(tf.square(x @ weights - tf.reduce_sum(x, 1, keepdims=True)))
            optimizer = DistributedOptimizer(v1.train.MomentumOptimizer(0.01, 0.9))
            step = optimizer.minimize(loss)
            start = v1.global_variables_initializer()
            graph.finalize()
            session = v1.Session(graph=graph)
            session.run(start)
            self.state = TensorFlowState(session=session, epoch=0, batch=0)
        self.step = lambda value: session.run(step, {x: value})


def work(mode: str) -> None:
    """What a script does."""
    hvd.init()
    if mode == "session":
        loop = SessionLoop()
        state, train_on = loop.state, loop.train
    else:
        state = make_state(mode)
        train_on = fit if mode in ("fit", "local") else Loop(state).train

    state.register_reset_callbacks([die_if_told])

    @hvd.elastic.run
    def train(state: Any) -> None:
        tell(begins=(state.epoch, state.batch), digest=digest(state))
        if "wrong" in WORDS:
            hvd.allreduce(tf.ones(1 + hvd.rank()), name="wrong")
        train_on(state)

    try:
        train(state)
    except Exception as error:
        tell(error=str(error)[:500])
        sys.exit(3)
    tell(ends=(state.epoch, state.batch), digest=digest(state))


def main(environ: Mapping[str, str], mode: str, pipe: Connection) -> None:
    """The whole process, which is forked with all modules that it needs."""
    os.environ.update(environ)
    PIPE.append(pipe)
    mode, *words = mode.split()
    WORDS.extend(words)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    try:
        work(mode)
    finally:
        atexit._run_exitfuncs()  # processes of multiprocessing end without them
