"""A training step as a newcomer gets it: nothing is set, neither threads nor anything else.

    python benchmarks/threads.py
    python benchmarks/threads.py --rounds 3 --ways plain horovod torchrun

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

WAYS = {
    "plain": "one plain process",
    "horovod": "horovodrun, nothing set",
    "undivided": "horovodrun, as many threads as cores",
    "torchrun": "torchrun with DDP, nothing set",
}
WORKLOADS = {
    "readme": "README's script",
    "linear": "8 x Linear(512)",
    "keras": "Keras, 8 x Dense(512)",
    "tensorflow": "TensorFlow, 8 x 512 x 512",
}
WIDTH = 512
NUM_LAYERS = 8
WARMUP_STEPS = 8
# What a user may have set; removed, because that is what is measured.
POOLS = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"),
)


def torch_step(workload: str, way: str, batch: int) -> Callable[[], object]:
    """A step of README's script, or of the larger model."""
    import torch
    from torch import nn

    small = workload == "readme"
    layers = [each for _ in range(NUM_LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model: nn.Module = nn.Linear(10, 1) if small else nn.Sequential(*layers, nn.Linear(WIDTH, 1))
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    if way in ("horovod", "undivided"):
        import horovod.torch as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    elif way == "torchrun":
        if not torch.distributed.is_initialized():
            torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)

    def step() -> None:
        inputs = torch.randn(32, 10) if small else torch.randn(batch, WIDTH)
        loss = (model(inputs).squeeze() - inputs.sum(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def keras_step(way: str, batch: int) -> Callable[[], object]:
    """A step of the larger model in Keras."""
    import keras
    import numpy as np

    layers: list[Any] = [keras.Input((WIDTH,))]
    layers += [keras.layers.Dense(WIDTH, activation="relu") for _ in range(NUM_LAYERS)]
    model = keras.Sequential([*layers, keras.layers.Dense(1)])
    optimizer: Any = keras.optimizers.SGD(0.001)
    if way != "plain":
        import horovod.keras as hvd

        hvd.init()
        optimizer = hvd.DistributedOptimizer(optimizer)
    # XLA cannot hold Horovod's operations, so all do without.
    model.compile(optimizer, "mse", jit_compile=False)
    inputs = np.random.default_rng(0).normal(size=(batch, WIDTH)).astype(np.float32)
    targets = inputs.sum(1)
    return lambda: model.train_on_batch(inputs, targets)


def tensorflow_step(way: str, batch: int) -> Callable[[], object]:
    """A step of the same model in plain TensorFlow, as a function that is traced once."""
    import tensorflow as tf

    weights = [tf.Variable(tf.random.normal((WIDTH, WIDTH)) * 0.05) for _ in range(NUM_LAYERS)]
    inputs = tf.random.normal((batch, WIDTH))
    targets = tf.reduce_sum(inputs, 1, keepdims=True)
    hvd = None
    if way != "plain":
        import horovod.tensorflow as hvd

        hvd.init()

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            outputs = inputs
            for weight in weights:
                outputs = tf.nn.relu(outputs @ weight)
            loss = tf.reduce_mean(tf.square(outputs - targets))
        distributed: Any = hvd.DistributedGradientTape(tape) if hvd else tape
        gradients = distributed.gradient(loss, weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.assign_sub(0.001 * gradient)

    return step


STEPS = {"keras": keras_step, "tensorflow": tensorflow_step}


def run_rank(args: argparse.Namespace) -> None:
    """What each process does: many steps of each workload; writes the seconds of one."""
    times_s = {}
    for workload in args.workloads:
        if workload in STEPS:
            step = STEPS[workload](args.way, args.batch)
        else:
            step = torch_step(workload, args.way, args.batch)
        num_steps = args.steps * 10 if workload == "readme" else args.steps
        for _ in range(WARMUP_STEPS):
            step()
        began = time.perf_counter()
        for _ in range(num_steps):
            step()
        times_s[workload] = (time.perf_counter() - began) / num_steps
    (args.result / str(os.getpid())).write_text(json.dumps(times_s))


def command_of(way: str, num_ranks: int) -> list[str]:
    """What starts the processes of one way, up to their script."""
    python = sys.executable
    if way == "plain":
        return [python]
    if way == "torchrun":
        words = ["--standalone", "--nproc-per-node", str(num_ranks)]
        return [python, "-m", "torch.distributed.run", *words]
    return [python, "-m", "horovod.runner.cli", "-np", str(num_ranks), python]


def run_job(
    args: argparse.Namespace, workloads: Sequence[str], way: str, num_ranks: int
) -> dict[str, float]:
    """By workload the seconds of a step on the slowest rank."""
    environ = {name: value for name, value in os.environ.items() if name not in POOLS}
    steps = args.steps
    if way == "undivided":
        environ |= dict.fromkeys(POOLS, str(os.cpu_count()))
        steps = max(5, steps // 5)  # each takes so long
    with tempfile.TemporaryDirectory(prefix="horovod-benchmark-") as folder:
        words = ["--way", way, "--result", folder, "--workloads", *workloads]
        words += ["--batch", str(args.batch), "--steps", str(steps)]
        command = [*command_of(way, num_ranks), __file__, *words]
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            text=True,
            timeout=measure.JOB_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
        of_ranks = [json.loads(each.read_text()) for each in Path(folder).iterdir()]
        return {workload: max(rank[workload] for rank in of_ranks) for workload in workloads}


def run_workloads(
    args: argparse.Namespace, workloads: Sequence[str], num_ranks: int
) -> list[dict[str, Any]]:
    """The rounds of the workloads of one framework, all ways in turn."""
    ways = [way for way in args.ways if way != "torchrun" or not set(workloads) & set(STEPS)]
    times_s: dict[str, dict[str, list[float]]] = {
        workload: {way: [] for way in ways} for workload in workloads
    }
    for index in range(args.rounds):
        # Nobody always comes first, or always after the same one.
        shift = index % len(ways)
        for way in (*ways[shift:], *ways[:shift]):
            for workload, time_s in run_job(args, workloads, way, num_ranks).items():
                times_s[workload][way].append(time_s)
        print(f"{workloads}: round {index + 1} of {args.rounds}", file=sys.stderr, flush=True)
    return [
        {
            "workload": workload,
            **measure.summarize(measure.Rounds(args.rounds, dict.fromkeys(ways, 1), of_ways)),
        }
        for workload, of_ways in times_s.items()
    ]


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    rows = []
    for row in run["workloads"]:
        for way, numbers in row["contestants"].items():
            rows.append([WORKLOADS[row["workload"]], WAYS[way], measure.show_times(numbers)])
    title = (
        f"{run['np']} ranks on {run['cores']} cores, batch of {run['batch']}; "
        f"load average before: {run['load_average']:.1f}"
    )
    return f"{title}\n\n{measure.table(['model', 'way', 'step: p10 / median / p90'], rows)}\n"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, default=2, help="number of ranks")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    # Given to the processes that are measured.
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main(args: argparse.Namespace) -> None:
    """Starts one job after the other, or is a process of one."""
    if args.way:
        run_rank(args)
        return
    load_average = os.getloadavg()[0]
    rows = []
    of_torch = [workload for workload in args.workloads if workload not in STEPS]
    others = [[workload] for workload in args.workloads if workload in STEPS]
    for workloads in (of_torch, *others):
        rows += run_workloads(args, workloads, args.np) if workloads else []
    run = {
        "np": args.np,
        "cores": os.cpu_count(),
        "batch": args.batch,
        "load_average": load_average,
        "workloads": rows,
    }
    print(show_run(run), flush=True)
    measure.write_report(__file__, args.json, [run])


if __name__ == "__main__":
    main(parse_args())
