"""Rank 1 dies once in the middle of ``fit``; the others go on from the last commit.

All batches are the same on all ranks, so the weights are those of a process that was never
disturbed, if each step was taken exactly once.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

import horovod.keras as hvd

EPOCHS = 4
STEPS = 6


class Death(keras.callbacks.Callback):
    """Kills this rank in the middle of the second epoch."""

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if state.epoch == 1 and batch == 3 and hvd.rank() == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def make_model() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="tanh"),
                              keras.layers.Dense(1)])  # fmt: skip
    for index, weight in enumerate(model.weights):
        values = np.random.default_rng(index).normal(size=weight.shape)
        weight.assign(values * 0.5)
    return model


def rows() -> tuple[np.ndarray, np.ndarray]:
    inputs = np.tile(np.random.default_rng(7).normal(size=(4, 4)), (STEPS, 1)).astype(np.float32)
    return inputs, inputs.sum(axis=1, keepdims=True)


@hvd.elastic.run
def train(state: hvd.elastic.KerasState) -> None:
    if state.epoch == EPOCHS:
        return
    state.model.fit(
        *rows(), batch_size=4, epochs=EPOCHS - state.epoch, shuffle=False, verbose=0,
        callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=2),
            hvd.callbacks.MetricAverageCallback(),
            Death(),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    died = Path(sys.argv[1])
    hvd.init()
    model = make_model()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.02, momentum=0.5), shard_state="shares" in sys.argv
    )
    model.compile(optimizer, "mse")
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    train(state)
    alone = make_model()
    alone.compile(keras.optimizers.SGD(0.02, momentum=0.5), "mse")
    alone.fit(*rows(), batch_size=4, epochs=EPOCHS, shuffle=False, verbose=0)
    for mine, theirs in zip(model.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    steps = int(model.optimizer.iterations.numpy())
    print(f"done: {state.epoch} epochs, {steps} steps on {hvd.size()} ranks", flush=True)
