"""A step of an MLP with Adam, with the state of the optimizer whole and in shares.

    python benchmarks/shard_state_step.py --np 1 2 4
    python benchmarks/shard_state_step.py --ways keras-torch --width 512

It needs the environments of `make test-jax` and `make test-keras-backends`. Each way is a job; in
it, both kinds of steps take turns, so that a busy machine slows both. What is shown is the median
of each, and the bytes of the optimizer's state on a rank.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = ("jax", "keras-jax", "keras-torch", "keras-tensorflow")
LAYERS, BATCH, WARMUP = 6, 16, 3
TIMEOUT_S = 600.0
SETTINGS = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
}

Step = tuple["Callable[[], None]", "Callable[[], int]"]


def jax_step(width: int, shard_state: bool) -> Step:
    """A jitted step, and how many bytes its optimizer's state has."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax

    import horovod.jax as hvd

    sizes = [*[width] * (LAYERS + 1), 10]
    numbers = np.random.default_rng(0)
    params: Any = [
        {"w": jnp.asarray(numbers.normal(size=(m, n)) / m**0.5, jnp.float32), "b": jnp.zeros(n)}
        for m, n in itertools.pairwise(sizes)
    ]
    images = jnp.asarray(numbers.normal(size=(BATCH, width)), jnp.float32)
    tx = hvd.DistributedOptimizer(optax.adam(1e-3), shard_state=shard_state)

    def loss(params: Any) -> Any:
        x = images
        for layer in params[:-1]:
            x = jax.nn.relu(x @ layer["w"] + layer["b"])
        return ((x @ params[-1]["w"] + params[-1]["b"]) ** 2).mean()

    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    program = jax.jit(step, donate_argnums=(0, 1))
    reached = [params, tx.init(params)]

    def call() -> None:
        reached[:] = jax.block_until_ready(program(*reached))

    return call, lambda: sum(leaf.nbytes for leaf in jax.tree.leaves(reached[1]))


def keras_step(width: int, shard_state: bool) -> Step:
    """The same with ``train_on_batch``."""
    import keras
    import numpy as np

    import horovod.keras as hvd

    layers: list[Any] = [keras.Input((width,))]
    layers += [keras.layers.Dense(width, activation="relu") for _ in range(LAYERS)]
    model = keras.Sequential([*layers, keras.layers.Dense(10)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3), shard_state=shard_state)
    model.compile(optimizer, "mse", jit_compile=keras.backend.backend() == "jax")
    images = np.random.default_rng(0).normal(size=(BATCH, width)).astype(np.float32)
    targets = np.zeros((BATCH, 10), np.float32)

    def bytes_of_state() -> int:
        return sum(4 * int(np.prod(each.shape)) for each in optimizer.variables)

    return lambda: model.train_on_batch(images, targets), bytes_of_state


def be_a_rank(args: argparse.Namespace) -> None:
    """Measures both kinds; rank 0 writes what it found."""
    if args.way == "jax":
        import horovod.jax as hvd

        make = jax_step
    else:
        import horovod.keras as hvd

        make = keras_step
    from horovod._rank import context

    hvd.init()
    steps = {kind: make(args.width, kind == "parts") for kind in ("whole", "parts")}
    times_s: dict[str, list[float]] = {kind: [] for kind in steps}
    for number in range(WARMUP + args.steps):
        for kind, (call, _) in steps.items():
            context.global_group().barrier(call_site="shard_state_step.py").wait()
            began_s = time.perf_counter()
            call()
            if number >= WARMUP:
                times_s[kind].append(time.perf_counter() - began_s)
    found = {
        kind: {"ms": 1e3 * statistics.median(times_s[kind]), "bytes": count()}
        for kind, (_, count) in steps.items()
    }
    if hvd.rank() == 0:
        args.result.write_text(json.dumps(found))


def run_way(way: str, num_ranks: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """A job of one way."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "found.json"
        words = ["--way", way, "--result", str(result), "--width", str(args.width)]
        words += ["--steps", str(args.steps)]
        backend = way.partition("-")[2] or "jax"
        command = [sys.executable, "-m", "horovod.runner.cli", "-np", str(num_ranks)]
        environment = "jax" if way == "jax" else "keras_backends"
        command += [str(Path(sys.prefix) / environment / "bin" / "python"), __file__, *words]
        env = {**os.environ, **SETTINGS, "KERAS_BACKEND": backend}
        subprocess.run(command, env=env, check=True, timeout=TIMEOUT_S, stdout=sys.stderr)
        found: dict[str, dict[str, float]] = json.loads(result.read_text())
        return found


def main() -> None:
    """Starts one job after the other, or is a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--np", type=int, nargs="+", default=[2])
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    for given_to_ranks, kind in (("--way", str), ("--result", Path)):
        parser.add_argument(given_to_ranks, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        be_a_rank(args)
        return
    print("way | ranks | whole: ms, MB of state | parts: ms, MB of state")
    for way, num_ranks in itertools.product(args.ways, args.np):
        found = run_way(way, num_ranks, args)
        cells = [f"{each['ms']:.1f}, {each['bytes'] / 1e6:.2f}" for each in found.values()]
        print(" | ".join([way, str(num_ranks), *cells]), flush=True)


if __name__ == "__main__":
    main()
