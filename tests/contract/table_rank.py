"""A rank for the table of docs/failures.md: see what_you_see.py.

Arguments: the framework and what is to happen. Each error is printed with the row that it is of.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TOO_LATE_S = 5.0


def told(row: str, run: Callable[[], object]) -> None:
    """Prints the error that comes, on one line."""
    began_s = time.monotonic()
    try:
        run()
    except Exception as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        text = str(error).replace("\n", " | ")
        after_s = time.monotonic() - began_s
        print(f"{row} after {after_s:.1f} s: {' '.join(names)}: {text}", flush=True)
    else:
        print(f"{row}: nothing", flush=True)


class Torch:
    """PyTorch, and what the other frameworks do in the same way."""

    def __init__(self, name: str) -> None:
        self.hvd: Any = importlib.import_module(f"horovod.{name}")

    def ones(self, value: float = 1.0) -> Any:
        import torch

        return torch.full((3,), value)

    def drifted(self, value: float) -> Any:
        return {"weight": self.ones(value)}

    def reduce(self, name: str) -> None:
        self.hvd.allreduce(self.ones(), name=name)

    def train(self) -> None:
        """What only one rank does, in the way that programs of the framework do it."""
        self.reduce("train")


class TensorFlow(Torch):
    """In a graph, as trainings are."""

    def ones(self, value: float = 1.0) -> Any:
        import tensorflow as tf

        return tf.fill((3,), value)

    def drifted(self, value: float) -> Any:
        import tensorflow as tf

        return [tf.Variable(self.ones(value), name="weight")]

    def reduce(self, name: str) -> None:
        import tensorflow as tf

        tf.function(lambda: self.hvd.allreduce(self.ones(), name=name))()


class Keras(TensorFlow):
    """In fit()."""

    reduce = Torch.reduce  # its functions take values, not tensors of a graph

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tensorflow: Any = importlib.import_module("horovod.tensorflow")

    def train(self) -> None:
        import keras
        import numpy as np

        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(self.hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
        model.fit(np.ones((8, 3)), np.ones((8, 1)), verbose=0)


class Jax(Torch):
    """In a jitted program."""

    def ones(self, value: float = 1.0) -> Any:
        import jax.numpy as jnp

        return jnp.full((3,), value)

    def reduce(self, name: str) -> None:
        self.hvd.allreduce(self.ones(), name=name).block_until_ready()

    def train(self) -> None:
        import jax

        jax.jit(lambda x: self.hvd.allreduce(x, name="train") + 1)(self.ones()).block_until_ready()


class MxNet(Torch):
    """What is pushed is waited for."""

    def ones(self, value: float = 1.0) -> Any:
        import mxnet as mx

        return mx.nd.full((3,), value)

    def reduce(self, name: str) -> None:
        self.hvd.allreduce(self.ones(), name=name).asnumpy()


FRAMEWORKS = {"torch": Torch, "tensorflow": TensorFlow, "keras": Keras, "jax": Jax, "mxnet": MxNet}


def come_late() -> None:
    """Where the missing rank is."""
    time.sleep(TOO_LATE_S)


def play_on(framework: Any) -> None:
    """Row after row in one job, to the end of a rank."""
    hvd = framework.hvd
    rank = hvd.rank()
    framework.reduce("begin")
    if rank == 1:
        told("wrong", lambda: hvd.allreduce(framework.ones(), op=99, name="wrong"))
    check = getattr(hvd, "check_in_sync", None) or framework.tensorflow.check_in_sync
    told("drift", lambda: check(framework.drifted(float(rank))))
    if rank == 1:
        come_late()
    framework.reduce("late")
    print(f"crossing at {time.time()}", flush=True)
    told("crossed", framework.train if rank == 0 else lambda: framework.reduce("other"))
    hvd.shutdown()
    hvd.init()
    framework.reduce("again")
    if rank == 1:
        framework.reduce("next")  # rank 0 has the result of "again"
        os.kill(os.getpid(), signal.SIGKILL)
    told("killed", lambda: [framework.reduce(name) for name in ("next", "late")])


def raise_one(framework: Any) -> None:
    framework.reduce("begin")
    if framework.hvd.rank() == 1:
        raise RuntimeError("planted")
    told("raised", lambda: framework.reduce("late"))


def main(name: str, what: str) -> None:
    if what == "no start":
        os.environ["HOROVOD_START_TIMEOUT"] = "2"  # not that of the launcher, which may be slow
    framework = FRAMEWORKS[name](name)
    if what == "no start":
        if os.environ["HOROVOD_RANK"] == "0":
            told("no start", framework.hvd.init)
            sys.exit(3)  # ends the job
        time.sleep(60.0)
    framework.hvd.init()
    {"play on": play_on, "raise": raise_one}[what](framework)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
