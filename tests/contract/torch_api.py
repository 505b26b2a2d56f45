"""The contract suite's view of horovod.torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from checks import CHECKS
from collectives import UNSIGNED

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Callable


class TorchApi:
    """See :class:`collectives.Api`."""

    interface = hvd
    abilities = ("complex", "passes", "weights", "weights of passes")
    # PyTorch before 2.3 has one unsigned dtype.
    lacking_dtypes = tuple(name for name in UNSIGNED if not hasattr(torch, name))

    def tensor(self, values: Any, dtype: str) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values)).to(getattr(torch, dtype))

    def values(self, tensor: torch.Tensor) -> Any:
        kind = torch.float64 if tensor.is_floating_point() else torch.int64
        return tensor.detach().to(kind).numpy()

    def dtype(self, tensor: torch.Tensor) -> str:
        return str(tensor.dtype).removeprefix("torch.")

    def call(self, function: str, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(hvd, function)(*args, **kwargs)

    def start(self, function: str, /, *args: Any, **kwargs: Any) -> int:
        in_place = "_" if function.endswith("_") else ""
        handle = getattr(hvd, f"{function.rstrip('_')}_async{in_place}")(*args, **kwargs)
        assert type(handle) is int
        return handle

    def finish(self, handle: int) -> Any:
        return hvd.synchronize(handle)

    def gradient(
        self, function: Callable[[Any], Any], values: Any, weight: Callable[[Any], Any]
    ) -> Any:
        x = torch.tensor(values, dtype=torch.float32, requires_grad=True)
        y = function(x)
        (y * torch.from_numpy(weight(self.values(y)))).sum().backward()
        assert x.grad is not None
        return x.grad.numpy()

    def reduced(
        self, passes: list[dict[str, Any]], weights: list[float] | None, is_mean: bool
    ) -> dict[str, Any]:
        params = {
            name: torch.nn.Parameter(torch.zeros_like(torch.from_numpy(values)))
            for name, values in passes[0].items()
        }
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(params.values(), lr=1.0),
            named_parameters=params.items(),
            backward_passes_per_step=len(passes),
        )
        for number, tree in enumerate(passes):
            if weights is not None:
                optimizer.set_weight(weights[number])
            loss = [(params[name] * torch.from_numpy(tree[name]).conj()).sum() for name in params]
            torch.stack([each.real.double() for each in loss]).sum().backward()
        optimizer.step()
        return {name: -param.detach().numpy() for name, param in params.items()}


def run_all_checks() -> list[str]:
    """Joins the job and runs every check; returns their names. Runs on each rank of a job."""
    torch.set_num_threads(1)
    hvd.init()
    done = []
    for check in CHECKS:
        check(TorchApi(), hvd.rank(), hvd.size())
        done.append(check.__name__)
    hvd.shutdown()
    return done
