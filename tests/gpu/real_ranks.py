"""What ranks on real GPUs do; imported by the processes that ``horovod.run`` starts."""

from __future__ import annotations

import ctypes
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from checks import CHECKS
from gpu_api import GpuApi

import horovod.torch as hvd
import horovod.torch.distributed
from horovod._rank import context
from horovod._rank.libraries import gpu

_ACTIVE = 1
_LARGE = 64 * 1024 * 1024
_MORE_MEMORY_BYTES = 512 * 1024 * 1024
_STEPS = 40


def contexts_elsewhere() -> list[int]:
    """The other devices on which this process has a context."""
    driver = gpu.find_driver().found
    assert driver is not None
    library = ctypes.CDLL(driver.path)
    flags, active = ctypes.c_uint(), ctypes.c_int()
    found = []
    for index in range(driver.num_devices):
        handle = ctypes.c_int()
        assert library.cuDeviceGet(ctypes.byref(handle), index) == 0
        state = library.cuDevicePrimaryCtxGetState
        assert state(handle, ctypes.byref(flags), ctypes.byref(active)) == 0
        if active.value == _ACTIVE and index != torch.cuda.current_device():
            found.append(index)
    return found


def run_contract() -> tuple[list[str], list[int]]:
    """Runs every check on the first GPU; returns their names, and contexts on other GPUs."""
    torch.set_num_threads(1)
    torch.cuda.set_device(0)
    hvd.init()
    done = []
    for check in CHECKS:
        check(GpuApi(), hvd.rank(), hvd.size())
        done.append(check.__name__)
    assert context.global_group().engine.statistics()["gpu_batches"] > 0
    elsewhere = contexts_elsewhere()
    hvd.shutdown()
    return done, elsewhere


def reduce_much() -> int:
    """Bytes of GPU memory that a large sum takes beside its tensor."""
    torch.cuda.set_device(0)
    hvd.init()
    tensor = torch.ones(_LARGE, device="cuda")
    hvd.allreduce_(tensor[:1], op=hvd.Sum)
    torch.cuda.synchronize()
    hvd.barrier()
    before = torch.cuda.mem_get_info()[0]
    hvd.allreduce_(tensor, op=hvd.Sum)
    torch.cuda.synchronize()
    hvd.barrier()
    taken = before - torch.cuda.mem_get_info()[0]
    expected = torch.full_like(tensor, hvd.size())
    expected[0] = hvd.size() ** 2
    assert torch.equal(tensor, expected)
    hvd.shutdown()
    return taken


def reduce_on_both_devices() -> list[list[float]]:
    """Sums and gathers in one group of torch.distributed, on the CPU and by NCCL, on one rank."""
    horovod.torch.distributed.register()
    torch.cuda.set_device(0)
    found = []
    with tempfile.NamedTemporaryFile() as file:
        dist.init_process_group(
            "cpu:horovod,cuda:nccl", init_method=f"file://{file.name}.store", rank=0, world_size=1
        )
        for device in ("cpu", "cuda"):
            summed = torch.arange(3.0, device=device)
            dist.all_reduce(summed)
            gathered = [torch.zeros(3, device=device)]
            dist.all_gather(gathered, summed)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1).to(device))
            model(gathered[0]).sum().backward()
            weight = model.module.weight.grad
            assert weight is not None
            assert weight.device.type == device
            found += [summed.tolist(), weight[0].tolist()]
        dist.destroy_process_group()
    return found


def train_with_fewer_bytes(way: str) -> tuple[float, float, bool]:
    """Trains on this rank's samples; returns its first and last loss, and if ranks are equal."""
    torch.cuda.set_device(0)
    hvd.init()
    torch.manual_seed(0)
    layers = torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 2)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = _sending_less(way, torch.optim.SGD(model.parameters(), 0.1), model)
    generator = torch.Generator().manual_seed(hvd.rank())
    losses = []
    for _ in range(_STEPS):
        inputs = torch.randn(64, 256, generator=generator).cuda()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), (inputs[:, 0] > 0).long())
        loss.backward()
        optimizer.step()
        losses.append(hvd.allreduce(loss.detach()).item())
    optimizer.synchronize()
    flat = torch.cat([param.detach().flatten() for param in model.parameters()])
    everyones = hvd.allgather(flat[None])
    hvd.shutdown()
    return losses[0], losses[-1], all(torch.equal(each, flat) for each in everyones)


def _sending_less(way: str, plain: torch.optim.Optimizer, model: torch.nn.Module) -> Any:
    if way == "LocalSGD":
        return hvd.LocalSGD(plain, every=4)
    if way == "DiLoCo":
        return hvd.DiLoCo(plain, every=4)
    powersgd = hvd.Compression.powersgd(2)
    compression = powersgd if way == "powersgd" else getattr(hvd.Compression, way)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), compression=compression)
