"""Ranks with GPUs of their own, or with one for all, on a machine that has none."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch_cuda
from fake_gpu import environment, library
from thread_ranks import ThreadRanks

from horovod import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Way(NamedTuple):
    """How tensors on GPUs travel.

    Attributes:
        operations: as of HOROVOD_GPU_OPERATIONS.
        shared: whether all ranks use the first GPU.
    """

    operations: str
    shared: bool = False

    def device_of(self, rank: int) -> int:
        """Index of the GPU of a rank."""
        return 0 if self.shared else rank

    @property
    def uses_nccl(self) -> bool:
        """Whether NCCL serves."""
        return self.operations != "staged" and not self.shared


NCCL = Way("nccl")
STAGED = Way("staged")
SHARED = Way("auto", shared=True)
WAYS = {"nccl": NCCL, "staged": STAGED, "shared": SHARED}


def variables(way: Way, **asked: Any) -> dict[str, str]:
    """What ranks that are processes need in their environment.

    Args:
        way: how their tensors travel.
        asked: as of :func:`fake_gpu.environment`.
    """
    return {
        **environment(**asked),
        "HOROVOD_GPU_OPERATIONS": way.operations,
        "FAKE_GPU_SHARED": str(int(way.shared)),
    }


@contextmanager
def fake_cuda() -> Iterator[torch_cuda.FakeDriver]:
    """``torch.cuda`` over the fake driver; nothing must have been misused."""
    with torch_cuda.installed() as driver:
        try:
            yield driver
            assert driver.wrong_uses() == []
        finally:
            driver.reset()


@contextmanager
def on_device(index: int) -> Iterator[None]:
    """This thread works on a GPU, as a script does after ``torch.cuda.set_device``."""
    torch.cuda.set_device(index)
    with torch_cuda.CudaMode():
        yield


def _do_without_distributed_tensors() -> None:
    """Spare the process the import of torch.distributed.tensor, which takes 0.9 s.

    PyTorch looks for its class when an operation first gets a tensor of any subclass. These ranks
    make none of that class.
    """
    name = "torch.distributed.tensor"
    if name not in sys.modules:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].DTensor = type("DTensor", (), {})  # type: ignore[attr-defined]


@contextmanager
def in_this_process() -> Iterator[tuple[torch_cuda.FakeDriver, Way]]:
    """A rank that is a process, with :func:`variables` in its environment."""
    _do_without_distributed_tensors()
    shared = os.environ["FAKE_GPU_SHARED"] == "1"
    way = Way(os.environ["HOROVOD_GPU_OPERATIONS"], shared)
    index = way.device_of(int(os.environ["HOROVOD_LOCAL_RANK"]))
    with fake_cuda() as driver, on_device(index):
        yield driver, way


class GpuRanks:
    """Ranks that are threads.

    Args:
        size: the number of ranks.
        way: how their tensors travel.
        options: of all engines, beside those for GPUs.
    """

    def __init__(self, size: int, way: Way, **options: Any) -> None:
        gpu = _native.GpuOptions(
            driver_candidates=[str(library("cuda"))],
            nccl_candidates=[str(library("nccl"))],
            operations=way.operations,
        )
        options.setdefault("least_log_level", 2)
        self._way = way
        self.ranks = ThreadRanks(size, _native.EngineOptions(gpu=gpu, **options))

    def __enter__(self) -> GpuRanks:
        self.ranks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.ranks.__exit__()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls ``function(rank, *args)`` on every rank, each with its GPU."""

        def body(rank: int) -> Any:
            with on_device(self._way.device_of(rank)):
                return function(rank, *args)

        return self.ranks.run(body)

    def batches(self) -> list[tuple[int, int]]:
        """How many batches of each rank were on GPUs, and how many of them NCCL was given."""
        statistics = [engine.statistics() for engine in self.ranks.engines]
        return [(each["gpu_batches"], each["nccl_batches"]) for each in statistics]
