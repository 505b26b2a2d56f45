"""A step of a Keras MLP, on each backend, and of the same in PyTorch: what Horovod adds to each.

    python benchmarks/keras_step.py
    .venv/keras_backends/bin/python benchmarks/keras_step.py --ways keras-jax-alone keras-jax
    python benchmarks/keras_step.py --widths 2048 --rounds 3

README.md in this folder says what is measured and how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from typing import TYPE_CHECKING, Any

import measure
import torch
import training_step

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = {
    "torch-alone": "PyTorch, no communication",
    "torch": "PyTorch with Horovod",
    "torch-private": "PyTorch with Horovod, without gradient buckets",
    "torch-ddp": "PyTorch with DDP over gloo",
    "keras-alone": "Keras on TensorFlow, no communication",
    "keras": "Keras on TensorFlow with Horovod",
    "keras-torch-alone": "Keras on PyTorch, no communication",
    "keras-torch": "Keras on PyTorch with Horovod",
    "keras-jax-alone": "Keras on JAX, no communication",
    "keras-jax": "Keras on JAX with Horovod",
}
COMPARED_WITH = {
    "torch": "torch-alone",
    "torch-private": "torch-alone",
    "torch-ddp": "torch-alone",
    "keras": "keras-alone",
    "keras-torch": "keras-torch-alone",
    "keras-jax": "keras-jax-alone",
}
TORCH_WAYS = {
    "torch-alone": "alone", "torch": "horovod", "torch-private": "private", "torch-ddp": "ddp",
}  # fmt: skip
# What runs unless ways are asked for; the others need what not every environment has.
USUAL = ["torch-alone", "torch", "torch-private", "keras-alone", "keras"]

# Of the C library: memory that was freed stays with the process. Otherwise it goes back to the
# system after some steps and not after others, by what happens to lie behind it, and a step costs
# the pages of all its gradients: up to 30 ms more of 75 ms, with Horovod or without. One arena: of
# the others, which threads of XLA have, blocks above 64 MB always go back.
KEPT_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
}


def keras_step(way: str, width: int, batch: int) -> Callable[[], None]:
    """A step of the model that ``training_step.mlp`` is in PyTorch."""
    import keras
    import numpy as np

    layers: list[Any] = [keras.Input((width,))]
    layers += [keras.layers.Dense(width, activation="relu") for _ in range(6)]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    optimizer: Any = keras.optimizers.SGD(training_step.LEARNING_RATE)
    if not way.endswith("-alone"):
        import horovod.keras as hvd

        optimizer = hvd.DistributedOptimizer(optimizer)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # XLA of TensorFlow cannot hold Horovod's operations, so both do without.
    model.compile(optimizer, loss, jit_compile=backend_of(way) == "jax")
    images = np.random.default_rng(0).normal(size=(batch, width)).astype(np.float32)
    labels = np.arange(batch) % 10

    def step() -> None:
        model.train_on_batch(images, labels)

    return step


def torch_step(way: str, width: int, batch: int) -> Callable[[], None]:
    """The step of ``training_step.py``."""
    return training_step.make_step(
        TORCH_WAYS[way], training_step.mlp(width), torch.randn(batch, width)
    )


def backend_of(way: str) -> str:
    """The backend of Keras that a way asks for."""
    backend = way.removeprefix("keras").removesuffix("-alone").removeprefix("-")
    return backend or "tensorflow"


def compute_with_one_thread(backend: str) -> None:
    """As PyTorch does in all benchmarks; before TensorFlow or JAX compute anything."""
    if backend == "jax":
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    if backend != "tensorflow":
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def run_rank(args: argparse.Namespace) -> None:
    """What each rank of one job does: one way, all widths."""
    seat = measure.Seat()
    is_keras = args.way.startswith("keras")
    if is_keras:
        os.environ["KERAS_BACKEND"] = backend_of(args.way)
        compute_with_one_thread(backend_of(args.way))
    needed = [] if args.way.endswith("-alone") else ["horovod"]
    if args.way == "torch-ddp":
        needed = ["gloo"]
    libraries = measure.open_libraries(needed, seat)
    make_step = keras_step if is_keras else torch_step
    times_s = {
        str(width): training_step.measure_step(
            seat, make_step(args.way, width, args.batch), args.seconds
        )
        for width in args.widths
    }
    measure.close_libraries(seat, libraries)
    if seat.rank == 0:
        args.result.write_text(json.dumps(times_s))


def run_ways(args: argparse.Namespace, num_ranks: int) -> dict[str, Any]:
    """The rounds of one number of ranks."""
    load_average = os.getloadavg()[0]
    times_s: dict[str, dict[str, list[float]]] = {}
    for index in range(args.rounds):
        # Nobody always comes first, or always after the same one.
        shift = index % len(args.ways)
        for way in (*args.ways[shift:], *args.ways[:shift]):
            arguments = [*sys.argv[1:], "--way", way]
            of_way = measure.run_ranks(__file__, arguments, num_ranks, False)
            for width, time_s in of_way.items():
                times_s.setdefault(width, {}).setdefault(way, []).append(time_s)
        print(f"{num_ranks} ranks: round {index + 1} of {args.rounds}", file=sys.stderr, flush=True)
    rows = [
        {
            "width": int(width),
            "parameters": sum(p.numel() for p in training_step.mlp(int(width)).parameters()),
            "added_us": {
                way: median_difference_us(of[way], of[alone])
                for way, alone in COMPARED_WITH.items()
                if {way, alone} <= set(of)
            },
            **measure.summarize(
                measure.Rounds(
                    args.rounds, dict.fromkeys(args.ways, 1), {way: of[way] for way in args.ways}
                )
            ),
        }
        for width, of in times_s.items()
    ]
    return {"np": num_ranks, "load_average": load_average, "batch": args.batch, "workloads": rows}


def median_difference_us(times_s: list[float], alone_s: list[float]) -> float:
    """What a way adds to a step: the median over the rounds."""
    return statistics.median(
        1e6 * (time_s - base_s) for time_s, base_s in zip(times_s, alone_s, strict=True)
    )


def show_run(run: dict[str, Any]) -> str:
    """The table of one number of ranks."""
    rows = []
    for row in run["workloads"]:
        what = f"MLP of width {row['width']} ({row['parameters'] / 1e6:.1f} M)"
        for name, numbers in row["contestants"].items():
            added_us = row["added_us"].get(name)
            added = "" if added_us is None else f"{added_us / 1e3:+.2f} ms"
            rows.append([what, WAYS[name], measure.show_times(numbers), added])
    title = (
        f"{run['np']} rank(s), batches of {run['batch']}; "
        f"load average before: {run['load_average']:.1f}"
    )
    header = ["model", "way", "step: p10 / median / p90", "added by Horovod"]
    return f"{title}\n\n{measure.table(header, rows)}\n"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=USUAL)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)  # given to the ranks
    measure.add_common_arguments(parser, "workload", 5.0)
    parser.set_defaults(np=[2], libraries=["horovod"])
    return parser.parse_args()


def main(args: argparse.Namespace) -> None:
    """Starts one job after the other, or is a rank of one."""
    if args.way:
        run_rank(args)
        return
    os.environ.update(KEPT_MEMORY)
    runs = []
    for num_ranks in args.np:
        runs.append(run_ways(args, num_ranks))
        print(show_run(runs[-1]), flush=True)
        measure.write_report(__file__, args.json, runs)


if __name__ == "__main__":
    main(parse_args())
