"""Our backend of ``torch.distributed`` beside gloo: training steps, and single operations.

    python benchmarks/torch_distributed.py
    python benchmarks/torch_distributed.py --np 4 --rounds 5 --only allreduce

Both backends have a group of all ranks in the same processes and take turns, round after round, so
that whatever disturbs the machine hits both. The table has the medians, and the median of the
ratios of each round. Every rank computes with one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from training_step import cnn, mlp, step_of

import horovod

BACKENDS = ("horovod", "gloo")
SIZES = (4096, 65536, 1 << 20, 16 << 20, 64 << 20)
BURST_S = 0.05
Call = Callable[[], object] if TYPE_CHECKING else Any


def calls_of(group: Any, num_bytes: int) -> dict[str, Call]:
    """Return the operations on float32 tensors; the larger one has ``num_bytes``."""
    size = group.size()
    whole = torch.ones(num_bytes // 4 // size * size)
    part = torch.ones(len(whole) // size)
    return {
        "allreduce": lambda: dist.all_reduce(whole, group=group),
        "allgather": lambda: dist.all_gather_single(whole, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, whole, group=group),
    }


def steps_of(group: Any) -> dict[str, Call]:
    """Return a training step of each client."""
    torch.manual_seed(0)
    steps: dict[str, Call] = {}
    for name, model, batch in (
        ("DDP, MLP of 25 M", mlp(2048), torch.randn(16, 2048)),
        ("DDP, CNN of 11 M", cnn(64), torch.randn(4, 3, 32, 32)),
    ):
        wrapped = DistributedDataParallel(model, process_group=group)
        steps[name] = step_of(wrapped, torch.optim.SGD(wrapped.parameters(), lr=1e-3), batch)
    sharded = mlp(2048)
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in sharded:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    optimizer = torch.optim.SGD(sharded.parameters(), lr=1e-3)
    steps["FSDP2, MLP of 25 M"] = step_of(sharded, optimizer, torch.randn(16, 2048))
    return steps


def seconds_of(call: Call, group: Any, count: int) -> float:
    """Return the seconds of one of ``count`` calls, the longest of all ranks."""
    dist.barrier(group=group)
    began_s = time.perf_counter()
    for _ in range(count):
        call()
    took = torch.tensor([(time.perf_counter() - began_s) / count], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX, group=group)
    return took.item()


def compare(calls: dict[str, Call], groups: dict[str, Any], rounds: int) -> list[float]:
    """Return the medians of the backends in seconds, and the median of the ratios."""
    first = groups["gloo"]
    counts = {}
    for backend, call in calls.items():
        call()
        count = torch.tensor([BURST_S / max(1e-6, seconds_of(call, first, 2))])
        dist.all_reduce(count, op=dist.ReduceOp.MAX, group=first)
        counts[backend] = max(1, min(500, int(count.item())))
    times: dict[str, list[float]] = {backend: [] for backend in calls}
    for number in range(rounds):
        order = BACKENDS if number % 2 == 0 else BACKENDS[::-1]
        for backend in order:
            times[backend].append(seconds_of(calls[backend], first, counts[backend]))
    ratios = [ours / gloo for ours, gloo in zip(*(times[b] for b in BACKENDS), strict=True)]
    return [*(statistics.median(times[backend]) for backend in BACKENDS), statistics.median(ratios)]


def measure(folder: str, rounds: int, only: str) -> list[tuple[str, list[float]]]:
    """Return the rows of the table; runs on every rank."""
    import horovod.torch.distributed

    assert horovod.torch.distributed.BACKEND in BACKENDS
    torch.set_num_threads(1)
    rank, size = int(os.environ["HOROVOD_RANK"]), int(os.environ["HOROVOD_SIZE"])
    store = f"file://{folder}/store"
    dist.init_process_group("horovod", init_method=store, rank=rank, world_size=size)
    groups: dict[str, Any] = {"horovod": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    rows = []
    for num_bytes in SIZES:
        of_backend = {backend: calls_of(group, num_bytes) for backend, group in groups.items()}
        for name in of_backend["gloo"]:
            if only in name:
                calls = {backend: made[name] for backend, made in of_backend.items()}
                label = f"{name}, {num_bytes // 1024} KiB"
                rows.append((label, compare(calls, groups, rounds)))
    if not only or "step".startswith(only):
        steps = {backend: steps_of(group) for backend, group in groups.items()}
        for name in steps["gloo"]:
            calls = {backend: made[name] for backend, made in steps.items()}
            rows.append((name, compare(calls, groups, rounds)))
    dist.destroy_process_group()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--np", type=int, default=2, help="ranks")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each backend")
    parser.add_argument("--only", default="", help="an operation, or step")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = horovod.run(measure, (folder, args.rounds, args.only), num_proc=args.np)[0]
    print(f"{args.np} ranks, {args.rounds} rounds, PyTorch {torch.__version__}")
    print("| | horovod | gloo | ratio |\n|---|---:|---:|---:|")
    for name, (ours, gloo, ratio) in rows:
        print(f"| {name} | {ours * 1e3:.3f} ms | {gloo * 1e3:.3f} ms | {ratio:.2f} |")


if __name__ == "__main__":
    main()
