"""What trains through torch.distributed, each program with the backend that the caller names.

Run as ``torchrun --nproc-per-node N torch_programs.py BACKEND FOLDER PROGRAM...``. Each program
returns tensors that must not depend on the backend; rank R saves those of all programs in
``FOLDER/BACKEND.R.pt``.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Tensors = dict[str, torch.Tensor]
STEPS = 4
PROGRAMS: dict[str, Callable[..., Tensors]] = {}


def program(function: Callable[..., Tensors]) -> Callable[..., Tensors]:
    PROGRAMS[function.__name__] = function
    return function


def make_model() -> nn.Module:
    """Return the same layers on all ranks; the last bucket of DDP has several of them."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 8),
    )  # fmt: skip


def batches(steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield inputs of shape (12, 16) and targets of shape (12, 8), other ones on each rank."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        yield (
            torch.randn(12, 16, generator=generator),
            torch.randn(12, 8, generator=generator),
        )


def train(
    model: nn.Module, steps: int = STEPS, optimizer: torch.optim.Optimizer | None = None
) -> Tensors:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.zeros(())
    for inputs, targets in batches(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    return {**weights_of(model), "loss": loss.detach()}


def weights_of(model: nn.Module) -> Tensors:
    """Return copies of whole weights, also of a model that is sharded."""
    found: Tensors = {}
    for name, tensor in model.state_dict().items():
        value = tensor.detach()
        found[name] = (value.full_tensor() if isinstance(value, DTensor) else value).clone()
    return found


@program
def ddp() -> Tensors:
    return train(DistributedDataParallel(make_model(), bucket_cap_mb=0.01))


@program
def ddp_bucket_views() -> Tensors:
    return train(DistributedDataParallel(make_model(), gradient_as_bucket_view=True))


@program
def ddp_static_graph() -> Tensors:
    return train(DistributedDataParallel(make_model(), static_graph=True))


class _Unused(nn.Module):
    """Ranks use a branch each in turns, so that each step leaves parameters unused."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.branches = nn.ModuleList([nn.Linear(16, 8) for _ in range(3)])
        self.calls = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        output: torch.Tensor = self.branches[(self.calls + dist.get_rank()) % 3](inputs)
        return output


@program
def ddp_unused_parameters() -> Tensors:
    return train(DistributedDataParallel(_Unused(), find_unused_parameters=True))


@program
def ddp_no_sync() -> Tensors:
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (inputs, targets) in enumerate(batches(2 * STEPS)):
        with model.no_sync() if step % 2 == 0 else nullcontext():
            nn.functional.mse_loss(model(inputs), targets).backward()
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    return weights_of(model)


@program
def ddp_join() -> Tensors:
    return join()


@program
def ddp_join_by_effective_size() -> Tensors:
    return join(divide_by_initial_world_size=False)


def join(**options: bool) -> Tensors:
    """Train on more batches on later ranks."""
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Linear(16, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with Join([model], **options):
        for inputs, targets in batches(STEPS + dist.get_rank()):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    return weights_of(model)


@program
def ddp_fp16_hook() -> Tensors:
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return train(model)


@program
def ddp_bf16_hook() -> Tensors:
    """The same in bfloat16; ``bf16_compress_hook`` of PyTorch refuses to run without CUDA."""

    def reduce_in_bf16(
        group: dist.ProcessGroup, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        sent = buffer.to(torch.bfloat16).div_(group.size())
        future = dist.all_reduce(sent, group=group, async_op=True).get_future()
        return future.then(lambda done: buffer.copy_(done.value()[0]))

    reduce_in_bf16.__annotations__.clear()  # they are strings here, which PyTorch refuses
    model = DistributedDataParallel(make_model())
    model.register_comm_hook(dist.group.WORLD, reduce_in_bf16)
    return train(model)


@program
def ddp_power_sgd() -> Tensors:
    model = DistributedDataParallel(make_model())
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    return train(model)


@program
def zero_redundancy_optimizer() -> Tensors:
    model = DistributedDataParallel(make_model())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01
    )
    found = train(model, optimizer=optimizer)
    optimizer.consolidate_state_dict(to=0)
    return found


def sharded() -> nn.Module:
    """Return a model whose layers FSDP2 shards over all ranks; without batch statistics."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)
    )
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    return fully_shard(model)


@program
def fsdp2() -> Tensors:
    return train(sharded())


@program
def fsdp2_bf16() -> Tensors:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 8))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return train(fully_shard(model, mp_policy=policy))


def whole_mesh(name: str) -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=(name,))


@program
def dtensor() -> Tensors:
    """Redistribute between all placements."""
    mesh = whole_mesh("x")
    torch.manual_seed(4)
    whole = torch.randn(12, 24)
    by_rows = distribute_tensor(whole, mesh, [Shard(0)])
    by_columns = by_rows.redistribute(mesh, [Shard(1)])
    summed = DTensor.from_local(torch.full((3,), float(dist.get_rank())), mesh, [Replicate()])
    product = by_rows @ by_columns.T.redistribute(mesh, [Shard(1)])
    return {
        "columns": by_columns.to_local().clone(),
        "whole": by_columns.full_tensor(),
        "product": product.full_tensor(),
        "replicated": summed.to_local(),
    }


class _Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up, self.down = nn.Linear(16, 48), nn.Linear(48, 8)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.down(torch.relu(self.up(inputs)))
        return output


@program
def tensor_parallel() -> Tensors:
    model = parallelize_module(
        _Mlp(), whole_mesh("tp"), {"up": ColwiseParallel(), "down": RowwiseParallel()}
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(6)  # the same batches on all ranks
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.randn(12, 16, generator=generator)
        model(inputs).pow(2).mean().backward()
        optimizer.step()
    return weights_of(model)


@program
def pipeline() -> Tensors:
    """Each rank has a stage; activations and gradients travel by send and recv."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7 + rank)
    stage_module = nn.Linear(16, 16)
    stage = PipelineStage(stage_module, rank, size, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.SGD(stage_module.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(8)
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs, targets = (torch.randn(8, 16, generator=generator) for _ in range(2))
        if rank == 0:
            schedule.step(inputs)
        elif rank == size - 1:
            schedule.step(target=targets)
        else:
            schedule.step()
        optimizer.step()
    return weights_of(stage_module)


@program
def compiled_ddp() -> Tensors:
    """TorchInductor compiles the model; DDP reduces its gradients between compiled pieces."""
    model = DistributedDataParallel(make_model())
    return train(cast("nn.Module", torch.compile(model)))


@program
def compiled_collectives() -> Tensors:
    """One graph with collectives in it, and the same operations without a compiler."""

    def reduced(inputs: torch.Tensor) -> torch.Tensor:
        world = dist.group.WORLD
        total = functional.all_reduce(inputs * 2, "sum", world)
        gathered = functional.all_gather_tensor(total + 1, 0, world)
        share = functional.reduce_scatter_tensor(gathered.cos(), "sum", 0, world)
        return functional.all_to_all_single(share * 3, None, None, world).relu()

    inputs = torch.arange(8.0) + dist.get_rank()
    found: torch.Tensor = torch.compile(reduced, fullgraph=True)(inputs)
    return {"compiled": found, "eager": torch.as_tensor(reduced(inputs)).clone()}


@program
def save_checkpoint(folder: Path) -> Tensors:
    model = sharded()
    train(model)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder / "checkpoint")
    return weights_of(model)


@program
def load_checkpoint(folder: Path) -> Tensors:
    """Load what another number of ranks saved."""
    model = sharded()
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder / "checkpoint")
    return weights_of(model)


def main() -> None:
    backend, folder, *names = sys.argv[1:]
    if backend == "horovod":
        import horovod.torch.distributed  # noqa: F401  # PyTorch 2.13 finds no backends by itself
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    found = {}
    for name in names:
        given = (Path(folder),) if name.endswith("checkpoint") else ()
        found[name] = PROGRAMS[name](*given)
        dist.barrier()
    torch.save(found, Path(folder) / f"{backend}.{dist.get_rank()}.pt")
    if backend == "gloo":  # its end can hang: it joins a thread that waits for the interpreter
        os._exit(0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
