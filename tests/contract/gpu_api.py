"""The contract suite's view of horovod.torch, with tensors on a GPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from checks import CHECKS
from gpu_ranks import in_this_process, variables
from torch_api import TorchApi

import horovod.torch as hvd
from horovod._rank import context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpu_ranks import Way


class GpuApi(TorchApi):
    """See :class:`collectives.Api`; tensors are on the current device."""

    scales_before_the_sum = True

    def tensor(self, values: Any, dtype: str) -> torch.Tensor:
        return super().tensor(values, dtype).to("cuda")

    def values(self, tensor: torch.Tensor) -> Any:
        # Row counts of alltoall are where the caller's splits were.
        return super().values(tensor.detach().cpu())

    def gradient(
        self, function: Callable[[Any], Any], values: Any, weight: Callable[[Any], Any]
    ) -> Any:
        x = torch.tensor(values, dtype=torch.float32).to("cuda").requires_grad_()
        y = function(x)
        (y * torch.from_numpy(weight(self.values(y))).to("cuda")).sum().backward()
        assert x.grad is not None
        assert x.grad.is_cuda
        return x.grad.cpu().numpy()


def run_all_checks(ways: Sequence[Way]) -> list[tuple[list[str], bool]]:
    """Runs every check on each way, with a job of its own.

    Runs on each rank. PyTorch is loaded once for all ways: that takes as long as the checks.

    Returns:
        For each way the names of the checks, and whether NCCL was used.
    """
    torch.set_num_threads(1)
    return [_run_checks_on(way) for way in ways]


def _run_checks_on(way: Way) -> tuple[list[str], bool]:
    os.environ.update(variables(way))
    with in_this_process():
        hvd.init()
        done = []
        for check in CHECKS:
            check(GpuApi(), hvd.rank(), hvd.size())
            done.append(check.__name__)
        statistics = context.global_group().engine.statistics()
        assert statistics["gpu_batches"] > 100
        hvd.shutdown()
    return done, statistics["nccl_batches"] > 0
