"""What ranks on real GPUs do; imported by the processes that ``horovod.run`` starts."""

from __future__ import annotations

import ctypes

import torch
from checks import CHECKS
from gpu_api import GpuApi

import horovod.torch as hvd
from horovod._rank import context
from horovod._rank.libraries import gpu

_ACTIVE = 1
_LARGE = 64 * 1024 * 1024
_MORE_MEMORY_BYTES = 512 * 1024 * 1024


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
