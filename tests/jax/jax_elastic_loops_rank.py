"""Rank 1 dies in the middle of an epoch; each sample is trained once per epoch all the same."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import horovod.jax as hvd
from horovod.errors import UsageError

EPOCHS, LENGTH, BATCH_SIZE = 3, 50, 4


class DataLoader:
    """Named as that of PyTorch."""

    def __iter__(self) -> Any:
        return iter(range(LENGTH))


if __name__ == "__main__":
    died = Path(sys.argv[1])
    hvd.init()
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
    refusal = ""
    try:
        next(training.batches(DataLoader(), BATCH_SIZE))
    except UsageError as error:
        refusal = str(error)
    assert "give its data set" in refusal
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
