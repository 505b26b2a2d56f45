"""Rank 1 dies in the middle of an epoch; each sample is trained once per epoch all the same.

With a second argument, a step has so many samples, whatever the ranks.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import horovod.jax as hvd
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

EPOCHS, LENGTH, BATCH_SIZE = 3, 50, 4


class DataLoader:
    """Named as that of PyTorch."""

    def __iter__(self) -> Any:
        return iter(range(LENGTH))


def train_with_global_batch(died: Path, global_batch: int) -> None:
    """Each sample has a parameter, whose gradient is one over the samples of its step."""
    tx = hvd.DistributedOptimizer(optax.sgd(1.0))

    @jax.jit
    def gradients_of(times: Any, samples: Any) -> Any:
        return jax.grad(lambda t: -t[samples].mean())(times)

    @jax.jit
    def apply(times: Any, opt_state: Any, grads: Any, weight: Any) -> Any:
        updates, opt_state = tx.update(grads, opt_state, times, weight=weight)
        return optax.apply_updates(times, updates), opt_state

    times = jnp.zeros(LENGTH)
    training = hvd.elastic.Training(times=times, opt_state=tx.init(times), commit_every_s=0.05)
    state, values = training.state, training.track(steps=0)
    data = np.arange(LENGTH)
    assert "outside of a loop" in refusal(lambda: training.accumulate(times))
    for epoch in training.epochs(EPOCHS):
        batches = training.batches(data, BATCH_SIZE, global_batch=global_batch)
        for number, samples in enumerate(batches):
            if (epoch, number) == (1, 3) and hvd.rank() == 1 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            with training.guard():
                mean = training.accumulate(gradients_of(state.times, samples))
                if training.ends_step:
                    state.times, state.opt_state = apply(
                        state.times, state.opt_state, mean, training.samples_of_step
                    )
                    values.steps += 1
    hvd.check_in_sync(state.times)
    np.testing.assert_allclose(state.times, EPOCHS / global_batch, rtol=1e-5)
    print(f"done: {values.steps} steps on {hvd.size()} ranks", flush=True)
    batches = hvd.elastic.Training(times=times).batches(data, BATCH_SIZE, global_batch=global_batch)
    next(batches)
    assert "without training.accumulate(gradients)" in refusal(lambda: next(batches))


def refusal(call: Callable[[], Any]) -> str:
    """Return why something is refused."""
    try:
        call()
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    died = Path(sys.argv[1])
    hvd.init()
    if len(sys.argv) > 2:
        train_with_global_batch(died, int(sys.argv[2]))
        sys.exit()
    tx = hvd.DistributedOptimizer(optax.sgd(1.0), op=hvd.Sum)

    @jax.jit
    def step(times: Any, opt_state: Any, samples: Any, count: Any) -> Any:
        # The gradient of each sample is -1, unless it stands in for one of another rank.
        grads = jax.grad(lambda t: -(t[samples] * (count > 0)).sum())(times)
        updates, opt_state = tx.update(grads, opt_state, times)
        return optax.apply_updates(times, updates), opt_state

    times = jnp.zeros(LENGTH)
    training = hvd.elastic.Training(
        times=times, opt_state=tx.init(times), pid=os.getpid(), commit_every_s=0.05
    )
    state = training.state
    assert "give its data set" in refusal(lambda: next(training.batches(DataLoader(), BATCH_SIZE)))
    for epoch in training.epochs(EPOCHS):
        data = {"sample": np.arange(LENGTH)} if epoch else [*range(LENGTH)]
        for number, batch in enumerate(training.batches(data, BATCH_SIZE)):
            if (epoch, number) == (1, 2) and hvd.rank() == 1 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            samples = batch["sample"] if epoch else batch
            with training.guard():
                state.times, state.opt_state = step(
                    state.times, state.opt_state, samples, training.samples
                )
    hvd.check_in_sync(state.times)
    counts = sorted({int(each) for each in state.times})
    print(f"done: each sample {counts} times on {hvd.size()} ranks", flush=True)
