"""Rank 1 dies in the middle of ``fit`` with ``hvd.elastic.Training``; each sample counts once.

Usage: keras_training_rank.py FILE PLACE [GLOBAL_BATCH]. The file exists when the rank has died, in
its callback at the ``begin`` or the ``end`` of a batch. Each row has a weight of its own, whose
gradient is one over the rows of the step: so the weights say how often, and in which steps, a row
was trained on.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

import horovod.keras as hvd
from horovod._train.elastic.ledger import order_of

ROWS = 26
SEED = 3
# The rows of each step, of 4 per rank: three ranks, of which one dies in the second step of the
# second epoch, and then two. The rank without a row in a last step has no weight there.
STEPS = ([12, 12, 2], [12, 8, 6], [8, 8, 8, 2])


class Death(keras.callbacks.Callback):
    """Kills this rank in the middle of the second epoch, before the commit of that batch."""

    def on_train_batch_begin(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if place == "begin":
            self.die(batch)

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        if place == "end":
            self.die(batch)

    def die(self, batch: int) -> None:
        if training.epoch == 1 and batch == 1 and hvd.rank() == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Seen(keras.callbacks.Callback):
    """Notes the epochs that have ended, and their losses."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[int] = []

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        self.epochs.append(epoch)


def make_model() -> keras.Model:
    model = keras.Sequential([keras.Input((ROWS,)), keras.layers.Dense(1, use_bias=False)])
    model.layers[-1].kernel.assign(np.zeros((ROWS, 1)))
    return model


def expected() -> np.ndarray:
    """Return minus the weights that the steps give."""
    weights = np.zeros(ROWS)
    for epoch, steps in enumerate(STEPS):
        order = np.array(order_of(ROWS, SEED + epoch))
        for rows, end in zip(steps, np.cumsum(steps), strict=True):
            weights[order[end - rows : end]] += 1 / rows
    return weights


if __name__ == "__main__":
    died, place = Path(sys.argv[1]), sys.argv[2]
    global_batch = int(sys.argv[3]) if len(sys.argv) > 3 else None
    if global_batch is not None:
        full, rest = divmod(ROWS, global_batch)
        STEPS = ([*[global_batch] * full, rest],) * 3
    hvd.init()
    model = make_model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    model.compile(optimizer, lambda targets, outputs: keras.ops.mean(outputs, axis=-1))
    training = hvd.elastic.Training(model, commit_every_s=0.0)
    seen = Seen()
    data = (np.eye(ROWS, dtype=np.float32), np.zeros((ROWS, 1), np.float32))
    model.fit(
        training.dataset(data, batch_size=4, seed=SEED, global_batch=global_batch),
        initial_epoch=training.epoch, epochs=len(STEPS), shuffle=False, verbose=0,
        callbacks=[hvd.callbacks.MetricAverageCallback(), Death(), seen, training],
    )  # fmt: skip
    np.testing.assert_allclose(-model.get_weights()[0][:, 0], expected(), rtol=1e-5)
    assert seen.epochs == [*range(len(STEPS))]
    steps = int(model.optimizer.iterations.numpy())
    print(f"done: {steps} steps on {hvd.size()} ranks", flush=True)
