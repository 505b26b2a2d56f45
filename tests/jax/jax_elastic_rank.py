"""Rank 1 dies once, in the middle of a step; all go on from the last commit."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import horovod.jax as hvd

EPOCHS = 6


@hvd.elastic.run
def train(state: hvd.elastic.JaxState) -> None:
    while state.epoch < EPOCHS:
        if state.epoch == 3 and hvd.rank() == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        state.params, state.opt_state, size = step(state.params, state.opt_state)
        print(f"epoch {state.epoch} on {hvd.size()}: {int(size)}", flush=True)
        state.epoch += 1
        state.commit()


if __name__ == "__main__":
    died = Path(sys.argv[1])
    hvd.init()
    tx = hvd.DistributedOptimizer(optax.sgd(0.1, 0.9), shard_state="shares" in sys.argv)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, opt_state: Any) -> Any:
        grads = jax.grad(lambda p: (p["w"] * (1 + hvd.rank())).sum())(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        size = hvd.allgather(jnp.ones(1)).shape[0]
        return optax.apply_updates(params, updates), opt_state, size

    params = {"w": jnp.ones(7)}
    state = hvd.elastic.JaxState(params=params, opt_state=tx.init(params), epoch=0)
    train(state)
    hvd.check_in_sync((state.params, state.opt_state))
    weight = float(state.params["w"][0])
    print(f"done with {weight:.5f}, generation {hvd.elastic.generation()}", flush=True)
