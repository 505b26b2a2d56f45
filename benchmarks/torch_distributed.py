"""Our backend of ``torch.distributed`` beside gloo: training steps, and single operations.

    python benchmarks/torch_distributed.py
    python benchmarks/torch_distributed.py --np 4 --rounds 5 --only allreduce
    python benchmarks/torch_distributed.py --hosts 2 --rate-mbit 1000

Both backends have a group of all ranks in the same processes and take turns, round after round, so
that whatever disturbs the machine hits both. The table has the medians, and the median of the
ratios of each round; the processor time of a rank changes less when other programs disturb the
measurement. The rows of DDP with hooks have DDP without a hook on the side of gloo; a hook that
moves nothing shows what DDP costs alone. Every rank computes with one thread. With ``--hosts``,
each rank is on a host of its own that is a network namespace of this machine (root and iproute2
are needed).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
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
WARMUP_CALLS = 5  # the first steps find out the order of gradients, and share memory
Call = Callable[[], object] if TYPE_CHECKING else Any
Rows = list[tuple[str, list[list[float]]]]


def calls_of(group: Any, num_bytes: int) -> dict[str, Call]:
    """Return the operations on float32 tensors; the larger one has ``num_bytes``."""
    size = group.size()
    whole = torch.ones(num_bytes // 4 // size * size)
    part = torch.ones(len(whole) // size)
    parts = [torch.ones(len(part)) for _ in range(size)]
    received = torch.ones(len(whole))
    return {
        "allreduce": lambda: dist.all_reduce(whole, group=group),
        "allgather": lambda: dist.all_gather_single(whole, part, group=group),
        "gather into list": lambda: dist.all_gather(parts, part, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_single(part, whole, group=group),
        "alltoall": lambda: dist.all_to_all_single(received, whole, group=group),
    }


def move_nothing(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Leave a bucket as it is, to show what DDP costs without communication."""
    del state
    moved: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    moved.set_result(bucket.buffer())
    return moved


# PyTorch compares them with its classes; here they are strings.
move_nothing.__annotations__.clear()


def wrapped_mlp(group: Any, hook: str, views: bool) -> DistributedDataParallel:
    """Return the MLP in DDP with a hook; with gloo always as DDP is without options."""
    from horovod.torch.distributed import SharedMemoryState, shared_memory_hook

    torch.manual_seed(0)
    if group.name() == "gloo":
        return DistributedDataParallel(mlp(2048), process_group=group)
    model = DistributedDataParallel(mlp(2048), process_group=group, gradient_as_bucket_view=views)
    if hook == "nothing moved":
        model.register_comm_hook(None, move_nothing)
    elif hook == "shared memory":
        model.register_comm_hook(SharedMemoryState(model), shared_memory_hook)
    return model


def steps_of(group: Any) -> dict[str, Call]:
    """Return a training step of each client."""
    torch.manual_seed(0)
    batch = torch.randn(16, 2048)
    models: dict[str, tuple[torch.nn.Module, torch.Tensor]] = {}
    for views in (False, True):
        for hook in ("", "shared memory", "nothing moved"):
            name = ", ".join(filter(None, ["DDP, MLP of 25 M", "bucket views" * views, hook]))
            models[name] = wrapped_mlp(group, hook, views), batch
    images = torch.randn(4, 3, 32, 32)
    models["DDP, CNN of 11 M"] = DistributedDataParallel(cnn(64), process_group=group), images
    sharded = mlp(2048)
    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in sharded:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    models["FSDP2, MLP of 25 M"] = fully_shard(sharded, mesh=mesh), batch
    return {
        name: step_of(model, torch.optim.SGD(model.parameters(), lr=1e-3), batch)
        for name, (model, batch) in models.items()
    }


def seconds_of(call: Call, group: Any, count: int) -> tuple[float, float]:
    """Return the time of one of ``count`` calls and its processor time, both in seconds.

    The former is the longest of all ranks, the latter their mean.
    """
    dist.barrier(group=group)
    began_s, used_s = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    took = torch.tensor([(time.perf_counter() - began_s) / count], dtype=torch.float64)
    used = torch.tensor([(time.process_time() - used_s) / count], dtype=torch.float64)
    dist.all_reduce(took, op=dist.ReduceOp.MAX, group=group)
    dist.all_reduce(used, group=group)
    return took.item(), used.item() / group.size()


def compare(calls: dict[str, Call], groups: dict[str, Any], rounds: int) -> list[list[float]]:
    """Return times and processor times: the medians of the backends, and that of the ratios."""
    first = groups["gloo"]
    counts = {}
    for backend, call in calls.items():
        for _ in range(WARMUP_CALLS):
            call()
        count = torch.tensor([BURST_S / max(1e-6, seconds_of(call, first, 2)[0])])
        dist.all_reduce(count, op=dist.ReduceOp.MAX, group=first)
        counts[backend] = max(1, min(500, int(count.item())))
    times: dict[str, list[tuple[float, float]]] = {backend: [] for backend in calls}
    for number in range(rounds):
        order = BACKENDS if number % 2 == 0 else BACKENDS[::-1]
        for backend in order:
            times[backend].append(seconds_of(calls[backend], first, counts[backend]))
    return [
        medians_of([[each[kind] for each in times[backend]] for backend in BACKENDS])
        for kind in (0, 1)
    ]


def medians_of(times: list[list[float]]) -> list[float]:
    """Return the median of the times of each of two backends, and that of their ratios."""
    ratios = [ours / gloo for ours, gloo in zip(*times, strict=True)]
    return [*map(statistics.median, times), statistics.median(ratios)]


def measure(folder: str, rounds: int, only: str) -> Rows:
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
    if not only or not rows:
        steps = {backend: steps_of(group) for backend, group in groups.items()}
        for name in steps["gloo"]:
            if "step".startswith(only) or only in name:
                calls = {backend: made[name] for backend, made in steps.items()}
                rows.append((name, compare(calls, groups, rounds)))
    dist.destroy_process_group()
    return rows


def measure_on_hosts(args: argparse.Namespace) -> Rows:
    """Return the rows of a job with one rank on each of several emulated hosts."""
    import emulated

    emulated.check_possible()
    shape = emulated.Shape(args.hosts, 1, args.rate_mbit or None)
    print(f"{shape}; ", end="")
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--rounds", str(args.rounds), "--only", args.only, "--folder", folder]
        rows: Rows = emulated.run_on_hosts(__file__, arguments, shape)
    return rows


def measure_here(args: argparse.Namespace) -> None:
    """Run as a rank that ``measure_on_hosts`` has started; rank 0 writes the rows."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # of each emulated host
    rows = measure(args.folder, args.rounds, args.only)
    if os.environ["HOROVOD_RANK"] == "0":
        Path(args.result).write_text(json.dumps(rows))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--np", type=int, default=2, help="ranks, without --hosts")
    parser.add_argument("--hosts", type=int, default=0, help="emulated hosts of a rank each")
    parser.add_argument(
        "--rate-mbit", type=float, default=1000.0, help="of each host; 0 for no limit"
    )
    parser.add_argument("--result", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=9, help="turns of each backend")
    parser.add_argument(
        "--only", default="", help="an operation, step for all steps, or part of the name of a step"
    )
    args = parser.parse_args()
    if args.hosts == 1:
        parser.error("--hosts: give 2 or more; without it, all ranks are on this host")
    return args


def main() -> None:
    """Print the table."""
    args = parse_args()
    if args.result:
        measure_here(args)
        return
    if args.hosts:
        rows = measure_on_hosts(args)
    else:
        with tempfile.TemporaryDirectory() as folder:
            rows = horovod.run(measure, (folder, args.rounds, args.only), num_proc=args.np)[0]
    print(f"{args.hosts or args.np} ranks, {args.rounds} rounds, PyTorch {torch.__version__}")
    print("| | horovod | gloo | ratio | processor time: horovod | gloo | ratio |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, kinds in rows:
        cells = [
            f"{ours * 1e3:.3f} ms | {gloo * 1e3:.3f} ms | {ratio:.2f}"
            for ours, gloo, ratio in kinds
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
