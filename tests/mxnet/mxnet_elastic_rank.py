"""Rank 1 dies once, in the middle of a step; all go on from the last commit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mxnet as mx

import horovod.mxnet as hvd

EPOCHS = 6


@hvd.elastic.run
def train(state: hvd.elastic.MXNetState) -> None:
    while state.epoch < EPOCHS:
        with mx.autograd.record():
            loss = state.model(mx.nd.ones((4, 3)) * (1 + hvd.rank())).sum()
        loss.backward()
        if state.epoch == 3 and hvd.rank() == 1 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        state.trainer.step(4)
        print(f"epoch {state.epoch} on {hvd.size()}: {loss.asscalar():.4f}", flush=True)
        state.epoch += 1
        state.commit()


if __name__ == "__main__":
    died = Path(sys.argv[1])
    hvd.init()
    net = mx.gluon.nn.Dense(1, in_units=3, prefix="net_")
    net.initialize(mx.init.Constant(1.0))
    trainer = hvd.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}
    )
    state = hvd.elastic.MXNetState(net, trainer, epoch=0)
    train(state)
    hvd.check_in_sync(net)
    weight = float(net.weight.data().asnumpy()[0, 0])
    print(f"done with {weight:.5f}, generation {hvd.elastic.generation()}", flush=True)
