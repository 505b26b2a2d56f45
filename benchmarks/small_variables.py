"""What Horovod adds to a step of a model with many small variables, in each framework.

    python benchmarks/small_variables.py
    python benchmarks/small_variables.py --ways torch ddp --rounds 100

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax_step

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], object]

WAYS = {
    "torch": "PyTorch",
    "ddp": "PyTorch, DDP over gloo",
    "eager": "TensorFlow, eager",
    "graph": "TensorFlow, `tf.function`",
    "keras": "Keras 3 on TensorFlow",
    "jax": "JAX, jitted",
}
NUM_VARIABLES = 100
WIDTH = 16  # of square variables
LEARNING_RATE = 1e-3
WARMUP_STEPS = 20
PATIENCE_S = 600.0


def torch_steps(with_ddp: bool) -> tuple[Step, Step]:
    """Gradients of a sum of squares, and a step of SGD."""
    import torch

    import horovod.torch as hvd

    class SumOfSquares(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            ones = torch.ones(WIDTH, WIDTH)
            self.variables = torch.nn.ParameterList([ones.clone() for _ in range(NUM_VARIABLES)])

        def forward(self) -> torch.Tensor:
            return torch.stack([(one * one).sum() for one in self.variables]).sum()

    def make(distributed: bool) -> Step:
        model: torch.nn.Module = SumOfSquares()
        optimizer: Any = torch.optim.SGD(model.parameters(), LEARNING_RATE)
        if distributed and with_ddp:
            model = torch.nn.parallel.DistributedDataParallel(model)
        elif distributed:
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

        def step() -> None:
            optimizer.zero_grad()
            model().backward()
            optimizer.step()

        return step

    torch.set_num_threads(1)
    if with_ddp:
        torch.distributed.init_process_group("gloo")
    else:
        hvd.init()
    return make(False), make(True)


def tensorflow_steps(in_graph: bool) -> tuple[Step, Step]:
    """The same with a tape, in a graph or not."""
    import tensorflow as tf

    import horovod.tensorflow as hvd

    def make(distributed: bool) -> Step:
        variables = [tf.Variable(tf.ones((WIDTH, WIDTH))) for _ in range(NUM_VARIABLES)]

        def step() -> None:
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(one * one) for one in variables])
            if distributed:
                tape = hvd.DistributedGradientTape(tape)
            for one, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
                one.assign_sub(LEARNING_RATE * gradient)

        return tf.function(step) if in_graph else step

    compute_with_one_thread()
    hvd.init()
    return make(False), make(True)


def compute_with_one_thread() -> None:
    """Of TensorFlow; before it computes anything."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def keras_steps() -> tuple[Step, Step]:
    """Dense layers, each with a kernel and a bias, trained by ``train_on_batch``."""
    compute_with_one_thread()
    import keras
    import numpy as np

    import horovod.keras as hvd

    images = np.ones((4, WIDTH), np.float32)

    def make(distributed: bool) -> Step:
        layers = [keras.layers.Dense(WIDTH) for _ in range(NUM_VARIABLES // 2)]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        optimizer: Any = keras.optimizers.SGD(LEARNING_RATE)
        if distributed:
            optimizer = hvd.DistributedOptimizer(optimizer)
        # XLA of TensorFlow cannot hold Horovod's operations, so both do without.
        model.compile(optimizer, "mse", jit_compile=False)
        return lambda: model.train_on_batch(images, images)

    hvd.init()
    return make(False), make(True)


def jax_steps() -> tuple[Step, Step]:
    """The sum of squares, jitted as a whole, with donated variables."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    import horovod.jax as hvd

    hvd.init()
    import jax

    def make(distributed: bool) -> Step:
        variables = [jax.numpy.ones((WIDTH, WIDTH)) for _ in range(NUM_VARIABLES)]

        def update(variables: list[Any]) -> list[Any]:
            gradients = jax.grad(lambda some: sum((one * one).sum() for one in some))(variables)
            if distributed:
                gradients = hvd.reduce_gradients(gradients)
            return [
                one - LEARNING_RATE * gradient
                for one, gradient in zip(variables, gradients, strict=True)
            ]

        jitted = jax.jit(update, donate_argnums=0)

        def step() -> None:
            nonlocal variables
            variables = jax.block_until_ready(jitted(variables))

        return step

    return make(False), make(True)


STEPS: dict[str, Callable[[], tuple[Step, Step]]] = {
    "torch": lambda: torch_steps(with_ddp=False),
    "ddp": lambda: torch_steps(with_ddp=True),
    "eager": lambda: tensorflow_steps(in_graph=False),
    "graph": lambda: tensorflow_steps(in_graph=True),
    "keras": keras_steps,
    "jax": jax_steps,
}


def burst(step: Step, num_steps: int) -> float:
    """Seconds of a step."""
    began_s = time.perf_counter()
    for _ in range(num_steps):
        step()
    return (time.perf_counter() - began_s) / num_steps


def run_rank(way: str, rounds: int, answer: Path) -> None:
    """What each rank does: bursts of both steps in turn; rank 0 writes the seconds of each."""
    from horovod._settings.config import Config

    alone, together = STEPS[way]()
    for step in (alone, together):
        burst(step, WARMUP_STEPS)
    # As many on each rank, which therefore cannot measure it.
    num_steps = {"torch": 20, "ddp": 20, "eager": 3, "graph": 20, "keras": 10, "jax": 50}[way]
    times = []
    for _ in range(rounds):
        together()  # the ranks begin together
        alone_s = burst(alone, num_steps)
        together()
        times.append((alone_s, burst(together, num_steps)))
    if Config.from_env().rank == 0:
        answer.write_text(json.dumps(times))


def row_of(way: str, rounds: int) -> str:
    """A row of the table: medians with quartiles."""
    python, env = Path(sys.executable), os.environ.copy()
    with tempfile.TemporaryDirectory() as folder:
        if way == "jax":  # whose environment has no Horovod of its own
            python = jax_step.python_of(way)
            Path(folder, "horovod").symlink_to(jax_step.package())
            env["PYTHONPATH"] = folder
        answer = Path(folder, "times.json")
        own = [str(python), __file__, "--way", way, "--rounds", str(rounds)]
        launcher = [sys.executable, "-m", "horovod.runner.cli", "-np", "2"]
        command = [*launcher, *own, "--answer", str(answer)]
        subprocess.run(command, check=True, timeout=PATIENCE_S, stdout=sys.stderr, env=env)
        times = json.loads(answer.read_text())
    added = [1e6 * (together - alone) for alone, together in times]
    columns = ([1e6 * time[index] for time in times] for index in (0, 1))
    cells = []
    for values in (*columns, added):
        low, middle, high = statistics.quantiles(values, n=4)
        cells.append(f"{middle:,.0f} ({low:,.0f} to {high:,.0f})")
    return f"| {WAYS[way]} | " + " | ".join(cells) + " |"


def main() -> None:
    """Starts one job after the other, or is a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=tuple(WAYS))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--answer", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        run_rank(args.way, args.rounds, args.answer)
        return
    rows = [row_of(way, args.rounds) for way in args.ways]
    print(f"2 ranks, load average before: {os.getloadavg()[0]:.1f}; µs\n")
    print("| | alone | with Horovod | added |\n| --- | ---: | ---: | ---: |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
