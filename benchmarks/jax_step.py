"""JAX on two ranks: small and large allreduces under jit, and a step of an MLP.

    python benchmarks/jax_step.py
    python benchmarks/jax_step.py --rounds 3 --ways jax gloo

`make bench-jax` makes the environments; without that of mpi4jax, mpi4jax is left out. Each way is a
job of its own; the ways take turns, round after round, and what is shown is the median over the
rounds. README.md says what is measured.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WAYS = {
    "jax": "horovod.jax, jitted",
    "jax-sync": "the same, JAX_CPU_ENABLE_ASYNC_DISPATCH=0",
    "gloo": "JAX's own psum over gloo",
    "mpi4jax": "mpi4jax over Open MPI",
    "alone": "JAX, no communication",
    "alone-sync": "the same, JAX_CPU_ENABLE_ASYNC_DISPATCH=0",
    "torch": "horovod.torch, in place",
    "torch-alone": "PyTorch, no communication",
}
# How often each is called, by the bytes of the array.
CALLS = {4: 2000, 65536: 800, 1 << 20: 200, 1 << 26: 10}
WIDTHS = {256: 200, 2048: 10}
BATCH, LEARNING_RATE, WARMUP = 16, 1e-3, 5
TIMEOUT_S = 600.0
# One thread for each rank, as PyTorch has in all benchmarks. And memory that was freed stays with
# the process: otherwise large arrays cost their pages each time. That takes the one arena which
# grows without limit: those of threads, where XLA allocates, keep no 100 MB of gradients.
SETTINGS = {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_MMAP_THRESHOLD_": str(2**40),
}


# --------------------------------------------------------------------------- in a rank


def time_of(call: Callable[[], Any], count: int) -> float:
    """The median of so many calls, in seconds."""
    for _ in range(WARMUP):
        call()
    times_s = []
    for _ in range(count):
        began_s = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


def mlp_of(width: int) -> Any:
    """The parameters of ``training_step.mlp``, as a tree of JAX."""
    import jax.numpy as jnp
    import numpy as np

    sizes = [*[width] * 7, 10]
    numbers = np.random.default_rng(0)
    return [
        {"w": jnp.asarray(numbers.normal(size=(m, n)) / m**0.5, jnp.float32), "b": jnp.zeros(n)}
        for m, n in itertools.pairwise(sizes)
    ]


def loss_of(params: Any, images: Any) -> Any:
    """Cross entropy with labels that count up."""
    import jax
    import jax.numpy as jnp
    import optax

    *hidden, last = params
    for layer in hidden:
        images = jax.nn.relu(images @ layer["w"] + layer["b"])
    scores = images @ last["w"] + last["b"]
    labels = jnp.arange(len(images)) % 10
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


class Job:
    """How one way of JAX computes on its ranks; ``alone`` is the program without communication."""

    def __init__(self) -> None:
        import jax

        self.jit = jax.jit

    def reduced(self, tree: Any) -> Any:
        """In a program: the sum over the ranks; without them, something that costs as little."""
        import jax

        return jax.tree.map(lambda leaf: leaf + 1, tree)

    def gradients(self, tree: Any) -> Any:
        """In a program: the average over the ranks."""
        return tree

    def whole(self, mine: Any) -> Any:
        """An argument of a program, of which this rank has a part."""
        import jax.numpy as jnp

        return jnp.asarray(mine)

    def jitted(
        self, function: Callable[..., Any], *, splits_result: bool, **options: Any
    ) -> Callable[..., Any]:
        """A program; each rank has its own last argument, and its own result if that is split."""
        return self.jit(function, **options)


class HorovodJob(Job):
    """With horovod.jax."""

    def __init__(self) -> None:
        import horovod.jax as hvd

        super().__init__()
        hvd.init()
        self.hvd = hvd

    def reduced(self, tree: Any) -> Any:
        return self.hvd.allreduce(tree, op=self.hvd.Sum)

    def gradients(self, tree: Any) -> Any:
        return self.hvd.reduce_gradients(tree)


class GlooJob(Job):
    """As JAX does it: one job of JAX, an array over all of its devices, psum."""

    def __init__(self, coordinator: str) -> None:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        rank = int(os.environ["HOROVOD_RANK"])
        jax.distributed.initialize(coordinator, int(os.environ["HOROVOD_SIZE"]), rank)
        super().__init__()
        self.mesh = jax.make_mesh((jax.device_count(),), ("ranks",))

    def reduced(self, tree: Any) -> Any:
        import jax

        return jax.lax.psum(tree, "ranks")

    def gradients(self, tree: Any) -> Any:
        import jax

        return jax.lax.pmean(tree, "ranks")

    def whole(self, mine: Any) -> Any:
        import jax
        import numpy as np

        sharding = jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec("ranks"))
        return jax.make_array_from_process_local_data(sharding, np.asarray(mine))

    def jitted(
        self, function: Callable[..., Any], *, splits_result: bool, **options: Any
    ) -> Callable[..., Any]:
        import jax

        everywhere, split = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec("ranks")
        count = function.__code__.co_argcount
        specs = (*[everywhere] * (count - 1), split)
        mapped = jax.shard_map(
            function, mesh=self.mesh, in_specs=specs, check_vma=False,
            out_specs=split if splits_result else everywhere,
        )  # fmt: skip
        return self.jit(mapped, **options)


class MpiJob(Job):
    """With mpi4jax: an operation for each array, as it has no other."""

    def __init__(self) -> None:
        import mpi4jax
        from mpi4py import MPI

        super().__init__()
        self.size = MPI.COMM_WORLD.size
        self.allreduce = functools.partial(mpi4jax.allreduce, op=MPI.SUM, comm=MPI.COMM_WORLD)

    def reduced(self, tree: Any) -> Any:
        import jax

        return jax.tree.map(self.allreduce, tree)

    def gradients(self, tree: Any) -> Any:
        import jax

        return jax.tree.map(lambda leaf: self.allreduce(leaf) / self.size, tree)


def measure_jax(job: Job) -> dict[str, float]:
    """Allreduces, then steps."""
    import jax
    import numpy as np
    import optax

    found = {}
    for num_bytes, count in CALLS.items():
        held = [job.whole(np.ones(num_bytes // 4, np.float32))]
        program = job.jitted(lambda x: job.reduced(x), splits_result=True, donate_argnums=0)

        def reduce() -> None:
            held[:] = [jax.block_until_ready(program(held[0]))]  # noqa: B023

        found[str(num_bytes)] = time_of(reduce, count)
    tx = optax.sgd(LEARNING_RATE)
    for width, count in WIDTHS.items():

        def step(params: Any, state: Any, images: Any) -> Any:
            grads = job.gradients(jax.grad(loss_of)(params, images))
            updates, state = tx.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        program = job.jitted(step, splits_result=False, donate_argnums=(0, 1))
        images = job.whole(np.random.default_rng(1).normal(size=(BATCH, width)).astype(np.float32))
        reached = [mlp_of(width)]
        reached.append(tx.init(reached[0]))

        def call() -> None:
            reached[:] = jax.block_until_ready(program(*reached, images))  # noqa: B023

        found[f"mlp {width}"] = time_of(call, count)
    return found


def measure_torch(way: str) -> dict[str, float]:
    """The same with PyTorch."""
    import torch
    import training_step

    import horovod.torch as hvd

    torch.set_num_threads(1)
    hvd.init()
    found = {}
    for num_bytes, count in CALLS.items():
        array = torch.ones(num_bytes // 4)
        call = (
            (lambda: array.add_(1))  # noqa: B023
            if way == "torch-alone"
            else (lambda: hvd.allreduce_(array, op=hvd.Sum, name="array"))  # noqa: B023
        )
        found[str(num_bytes)] = time_of(call, count)
    for width, count in WIDTHS.items():
        kind = "alone" if way == "torch-alone" else "horovod"
        model, images = training_step.mlp(width), torch.randn(BATCH, width)
        found[f"mlp {width}"] = time_of(training_step.make_step(kind, model, images), count)
    return found


def be_a_rank(args: argparse.Namespace) -> None:
    """Measures one way; rank 0 writes what it found."""
    if args.way.startswith("torch"):
        found = measure_torch(args.way)
    elif args.way == "gloo":
        found = measure_jax(GlooJob(args.coordinator))
    elif args.way == "mpi4jax":
        found = measure_jax(MpiJob())
    else:
        found = measure_jax(Job() if args.way.startswith("alone") else HorovodJob())
    if os.environ.get("HOROVOD_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0":
        args.result.write_text(json.dumps(found))


# --------------------------------------------------------------------------- outside


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def python_of(way: str) -> Path:
    """The interpreter whose environment has what a way needs."""
    names = {"torch": "", "torch-alone": "", "mpi4jax": "mpi4jax"}
    return Path(sys.prefix) / names.get(way, "jax") / "bin" / "python"


def launcher_of(way: str) -> list[str]:
    """What starts two ranks."""
    if way == "mpi4jax":
        import measure

        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [str(measure.find_mpirun()), *root, "--oversubscribe", "--bind-to", "none"]
    return [sys.executable, "-m", "horovod.runner.cli"]


def run_way(way: str, folder: Path) -> dict[str, float]:
    """A job of two ranks of one way."""
    result = folder / f"{way}.json"
    words = ["--way", way, "--result", str(result), "--coordinator", f"127.0.0.1:{free_port()}"]
    env = {**os.environ, **SETTINGS}
    # The environment of JAX has no Horovod of its own.
    (folder / "horovod").is_symlink() or (folder / "horovod").symlink_to(package())
    env["PYTHONPATH"] = str(folder)
    if way.endswith("-sync"):
        env["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "0"
    subprocess.run(
        [*launcher_of(way), "-np", "2", str(python_of(way)), __file__, *words],
        env=env,
        check=True,
        timeout=TIMEOUT_S,
        stdout=sys.stderr,
    )
    found: dict[str, float] = json.loads(result.read_text())
    return found


def package() -> Path:
    """Where the package is that this process imports."""
    import horovod

    return Path(horovod.__file__).parent


def show(found: dict[str, list[dict[str, float]]]) -> str:
    """A line for each way: medians over the rounds, in microseconds."""
    names = [*map(str, CALLS), *(f"mlp {width}" for width in WIDTHS)]
    lines = [" | ".join(["way", *names])]
    for way, rounds in found.items():
        medians = [1e6 * statistics.median(each[name] for each in rounds) for name in names]
        lines.append(" | ".join([WAYS[way], *(f"{value:.1f}" for value in medians)]))
    return "\n".join(lines)


def main() -> None:
    """Starts one job after the other, or is a rank of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    there = [way for way in WAYS if python_of(way).exists()]
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=there)
    for given_to_ranks, kind in (("--way", str), ("--result", Path), ("--coordinator", str)):
        parser.add_argument(given_to_ranks, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.way:
        be_a_rank(args)
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in args.ways}
    with tempfile.TemporaryDirectory() as folder:
        for index in range(args.rounds):
            shift = index % len(args.ways)  # nobody always comes first
            for way in (*args.ways[shift:], *args.ways[:shift]):
                found[way].append(run_way(way, Path(folder)))
            print(f"round {index + 1} of {args.rounds}\n{show(found)}", flush=True)


if __name__ == "__main__":
    main()
