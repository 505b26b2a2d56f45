"""A worker of benchmarks/elastic_chaos.py: trains a tiny model until it is told to end.

It needs no framework, as it is started again and again. What it trains is a linear regression, and
beside it a count of how often each sample was used: whole numbers, so they are exact. Gradients are
added up over the ranks, so the steps grow with their number as those of a scaled learning rate do.

Its arguments: a file that ends the training at the end of an epoch, and a file for the results.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from horovod._native import Buffer
from horovod._rank import context
from horovod._rank.reduction import PLAIN_SUM
from horovod._train import objects
from horovod._train.elastic.ledger import Ledger
from horovod._train.elastic.run import run
from horovod.common.elastic import ObjectState

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH, FEATURES, BATCH_SIZE = 720, 8, 4
RATE, NOISE = 1e-3, 0.1
STEP_S = 0.01
STEPS_PER_COMMIT = 5
# So that a loss in a long training compares with one in a short one.
SEED = 0


class Model:
    """A linear regression, and how often each sample was trained."""

    def __init__(self) -> None:
        dice = np.random.default_rng(SEED)
        self.inputs = dice.normal(size=(LENGTH, FEATURES))
        noise = NOISE * dice.normal(size=LENGTH)
        self.targets = self.inputs @ dice.normal(size=FEATURES) + noise
        self.weights = np.zeros(FEATURES)
        self.times = np.zeros(LENGTH)

    def gradients(self, indices: Sequence[int]) -> np.ndarray[Any, Any]:
        """Of the weights, and what is to be added to the times."""
        inputs = self.inputs[indices]
        gradient = np.zeros(FEATURES + LENGTH)
        gradient[:FEATURES] = (inputs @ self.weights - self.targets[indices]) @ inputs
        gradient[FEATURES + np.asarray(indices)] = 1
        return gradient

    def step(self, gradient: np.ndarray[Any, Any]) -> None:
        """Takes the sum of the gradients of all ranks."""
        self.weights -= RATE * gradient[:FEATURES]
        self.times += gradient[FEATURES:]

    def loss(self) -> float:
        """Over all samples."""
        return float(np.square(self.inputs @ self.weights - self.targets).mean())

    def state_dict(self) -> dict[str, Any]:
        """What is trained."""
        return {"weights": self.weights.copy(), "times": self.times.copy()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what :meth:`state_dict` returned."""
        self.weights, self.times = state_dict["weights"].copy(), state_dict["times"].copy()


def broadcast_object(obj: Any, root_rank: int = 0) -> Any:
    """As that of the adapters."""
    return objects.broadcast_object(context.global_group(), obj, root_rank)


def add_up(numbers: np.ndarray[Any, Any], name: str) -> None:
    """The sum over all ranks, in place."""
    view = Buffer.from_array(numbers)
    group = context.global_group()
    group.allreduce((view,), (view,), PLAIN_SUM, name=name, keep=numbers).wait()


@run
def train(state: ObjectState) -> None:
    """Trains epoch after epoch, until somebody sees the file."""
    model, ledger = state.model, state.ledger
    rank, size = context.rank(), context.size()
    place = f"rank {rank} of {size} in generation {context.generation()}"
    print(f"{place} is {os.getpid()} in epoch {ledger.epoch}", flush=True)
    while True:
        while ledger.left:
            time.sleep(STEP_S)
            share = ledger.share(rank, size, BATCH_SIZE)
            gradient = model.gradients(share.indices if share.samples else [])
            add_up(gradient, "gradient")
            model.step(gradient)
            ledger.consumed = share.consumed
            state.steps += 1
            if state.steps % STEPS_PER_COMMIT == 0:
                state.commit()
        wrong = (model.times != ledger.epoch + 1).nonzero()[0].tolist()
        assert not wrong, f"epoch {ledger.epoch}: {wrong[:9]} trained {model.times[wrong[:9]]}"
        ledger.begin(ledger.epoch + 1)
        ends = np.array([float(os.path.exists(sys.argv[1]))])
        add_up(ends, "ends")
        if ends[0]:
            return
        state.commit()


def main() -> None:
    """What a script does."""
    context.init()
    state = ObjectState(
        broadcast_object, context.rank, model=Model(), ledger=Ledger(LENGTH), steps=0
    )
    train(state)
    if context.rank() == 0:
        report = {
            "epochs": state.ledger.epoch,
            "loss": state.model.loss(),
            "times": sorted(set(state.model.times.tolist())),
            "generation": context.generation(),
        }
        Path(sys.argv[2]).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
