"""What ranks that are processes do in tests; each function runs in one of them."""

from __future__ import annotations

import gc
import os
import re
import signal
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import horovod.torch as hvd
import horovod.torch.distributed
from horovod.errors import HorovodInternalError, UsageError

RANK = int(os.environ.get("HOROVOD_RANK", "0"))
SIZE = int(os.environ.get("HOROVOD_SIZE", "1"))


def begin(folder: str, backend: str = "horovod", name: str = "store", **options: Any) -> None:
    """Make the default group of all ranks through a file."""
    store = f"file://{folder}/{name}"
    dist.init_process_group(backend, init_method=store, rank=RANK, world_size=SIZE, **options)


def total(group: Any = None, value: float = 1.0) -> float:
    tensor = torch.full((3000,), value)
    dist.all_reduce(tensor, group=group)
    return tensor[0].item()


def groups_of_some_ranks(folder: str) -> list[float]:
    """Three ranks: pairs that overlap, used in different orders, and a group of one."""
    begin(folder)
    pairs = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (1, 2), (0, 2))}
    mine = [group for ranks, group in pairs.items() if RANK in ranks]
    tensors = [torch.full((3000,), 10.0**RANK) for _ in mine]
    order = reversed(range(2)) if RANK == 1 else range(2)
    works = [dist.all_reduce(tensors[i], group=mine[i], async_op=True) for i in order]
    for work in works:
        work.wait()
    alone = dist.new_group([RANK], use_local_synchronization=True)
    sums = [tensor[0].item() for tensor in tensors] + [total(alone), total()]
    if RANK != 0:
        inner = pairs[1, 2]
        listed = [torch.zeros(1)]
        dist.broadcast(listed[0] if RANK == 1 else listed[0].fill_(7.0), src=2, group=inner)
        sums.append(listed[0].item())
        dist.barrier(group=inner)
    dist.destroy_process_group()
    return sums


def many_groups(folder: str) -> bool:
    """A thousand groups that are made, used and destroyed, by each rank when it likes."""
    begin(folder)
    before: dict[str, int] = {}
    for number in range(1050):
        if number == 50:
            before = resources()
        group = dist.new_group([0, 1] if number % 2 else [1, 2])
        if isinstance(group, dist.ProcessGroup):
            future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
            assert number % 10 or future.wait()[0][0].item() == 2.0
            dist.destroy_process_group(group)
    assert total() == SIZE
    after = resources()
    # A thousand times as much would be left; the system, and reports, may need some for a while.
    allowed = {"threads": 0, "descriptors": 5, "shared bytes": 0, "private kB": 3000}
    grown = {name: after[name] - before[name] for name in before}
    assert all(grown[name] <= most for name, most in allowed.items()), (before, grown)
    statistics = dist.group.WORLD.engine_group.engine.statistics()
    assert statistics["process_sets"] <= 4  # this rank may not have heard of the last ends
    dist.destroy_process_group()
    return True


def resources() -> dict[str, int]:
    """Return what this process holds, when the threads of groups that have gone have ended."""
    limit_s = time.monotonic() + 20
    while sum(t.name.startswith("horovod ") for t in threading.enumerate()):
        gc.collect()
        assert time.monotonic() < limit_s, threading.enumerate()
        time.sleep(0.01)
    maps = Path("/proc/self/maps").read_text()
    shared = re.findall(r"^(\w+)-(\w+) \S{3}s", maps, re.MULTILINE)
    private = re.search(r"Private_Dirty:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
    return {
        "threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shared bytes": sum(int(end, 16) - int(begin, 16) for begin, end in shared),
        "private kB": int(private[1]) if private else 0,
    }


def leave_a_group(folder: str) -> bool:
    """Rank 0 destroys a group in which rank 1 calls an operation; both go on."""
    begin(folder)
    for _ in range(20):
        left = dist.new_group([0, 1])
        if RANK == 0:
            dist.destroy_process_group(left)
        elif RANK == 1:
            where = r"rank 0 .*has left the process set at .*process_ranks.py:\d+"
            with pytest.raises(HorovodInternalError, match=where):
                total(left)
            dist.destroy_process_group(left)
        assert total() == SIZE
    dist.destroy_process_group()
    return True


def one_engine(folder: str) -> bool:
    """Both orders of init of hvd and torch.distributed; the engine ends with the last of both."""
    hvd.init()
    begin(folder, name="first")
    ours = torch.full((10,), float(RANK))
    handle = hvd.allreduce_async(ours, op=hvd.Sum, name="mine")
    assert total() == SIZE
    assert hvd.synchronize(handle)[0].item() == sum(range(SIZE))
    dist.destroy_process_group()
    assert hvd.is_initialized()
    assert hvd.allreduce(ours, op=hvd.Sum)[0].item() == sum(range(SIZE))
    begin(folder, name="second")
    part = dist.new_group([0, 1])
    assert RANK > 1 or total(part) == 2
    assert total() == SIZE
    dist.destroy_process_group()
    hvd.shutdown()
    begin(folder, name="third")
    hvd.init()
    assert hvd.size() == SIZE
    assert hvd.allreduce(ours, op=hvd.Sum)[0].item() == sum(range(SIZE))
    dist.destroy_process_group()
    assert hvd.allreduce(ours, op=hvd.Sum)[0].item() == sum(range(SIZE))
    hvd.shutdown()
    assert not hvd.is_initialized()
    begin(folder, "cpu:horovod", name="fourth")
    assert total() == SIZE
    dist.destroy_process_group()
    return True


def other_devices(folder: str) -> bool:
    """A device whose backend is not ours; the tensor is on no device that could compute."""
    begin(folder, "cpu:horovod,cuda:gloo")
    assert total() == SIZE
    gloo = dist.group.WORLD._get_backend(torch.device("cuda"))
    assert isinstance(gloo, dist.ProcessGroupGloo)
    with pytest.raises(UsageError, match="tensor on meta"):
        dist.all_reduce(torch.zeros(3, device="meta"))
    dist.destroy_process_group()
    return True


def beside_gloo(folder: str) -> list[float]:
    """A group of this backend where the group of all ranks is gloo's: an engine of its own."""
    begin(folder, "gloo")
    pair = dist.new_group([1, 2], backend="horovod")
    sums = [total(), total(pair) if RANK else 0.0]
    dist.destroy_process_group()
    return sums


def other_place(folder: str) -> int:
    """A rank that the launcher did not give: the ranks meet by PyTorch's store."""
    rank = SIZE - 1 - RANK
    store = f"file://{folder}/store"
    dist.init_process_group("horovod", init_method=store, rank=rank, world_size=SIZE)
    listed = [torch.zeros(1) for _ in range(SIZE)]
    dist.all_gather(listed, torch.tensor([float(RANK)]))
    dist.destroy_process_group()
    return int(listed[rank].item()) if listed[0].item() == SIZE - 1 else -1


def note_error(folder: str, error: BaseException) -> None:
    Path(folder, f"error.{RANK}").write_text(f"{type(error).__name__}: {error}")


def lose_a_rank(folder: str) -> None:
    """Rank 1 dies between two operations; the others wait for it."""
    begin(folder)
    total()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        total()
    except HorovodInternalError as error:
        note_error(folder, error)
        raise


def lose_a_rank_in_backward(folder: str) -> None:
    """Rank 1 dies before DDP reduces its gradients."""
    begin(folder)
    module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300))
    loss = module(torch.ones(2, 300)).sum()
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        loss.backward()
    except RuntimeError as error:
        note_error(folder, error)
        raise


def stall(folder: str) -> None:
    """Rank 1 is late by more than the timeout of the group."""
    begin(folder, timeout=timedelta(seconds=5))
    total()
    try:
        if RANK == 1:
            limit_s = time.monotonic() + 60
            while time.monotonic() < limit_s and not Path(folder, "error.0").exists():
                time.sleep(0.05)  # busy with something else
        total()
    except HorovodInternalError as error:
        note_error(folder, error)
        raise


assert horovod.torch.distributed.BACKEND == "horovod"
