"""Whole training loops as scripts have them, each for a rank of a job or for one process alone.

A scenario is a function ``train(job)`` that returns what it has learnt. It takes the data of the
ranks that the job names, and only asks the job for its optimizers, so that the same loop serves a
rank with its share and one process with the data of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch_training import F64, batch, loss_of, make_model

import horovod.torch as hvd

Learnt = list[torch.Tensor]


@dataclass(frozen=True)
class Job:
    """What a process trains on.

    Attributes:
        ranks: whose data.
        distributed: whether other processes train on the data of others.
    """

    ranks: Sequence[int]
    distributed: bool = False

    def batch(self, step: int, dtype: torch.dtype = F64) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = zip(*(batch(rank, step, dtype) for rank in self.ranks), strict=True)
        return torch.cat(x), torch.cat(y)

    def optimizer(
        self, plain: torch.optim.Optimizer, model: torch.nn.Module, **options: Any
    ) -> Any:
        if not self.distributed:
            return plain
        return hvd.DistributedOptimizer(plain, model.named_parameters(), **options)


def learnt(*models: torch.nn.Module) -> Learnt:
    return [param.detach() for model in models for param in model.parameters()]


def gan(job: Job) -> Learnt:
    """Two optimizers over equal names; the discriminator is frozen in the generator's step."""
    generator = torch.nn.Linear(3, 5, dtype=F64)
    discriminator = torch.nn.Linear(5, 1, dtype=F64)
    networks = (generator, discriminator)
    for network in networks:
        for index, param in enumerate(network.parameters()):
            torch.nn.init.constant_(param, 0.1 * (index + 1))
    optimizers = [job.optimizer(torch.optim.Adam(net.parameters()), net) for net in networks]
    for step in range(4):
        data = job.batch(step)[0]
        discriminator.requires_grad_(True)
        optimizers[1].zero_grad()
        fake = generator(data[:, :3])
        (discriminator(data).mean() - discriminator(fake.detach()).mean()).backward()
        optimizers[1].step()
        # With and without the toggle: without it, gradients of the discriminator are in flight
        # when its next zero_grad() drops them.
        discriminator.requires_grad_(step % 2 == 0)
        optimizers[0].zero_grad()
        discriminator(generator(data[:, :3])).pow(2).mean().backward()
        optimizers[0].step()
    return learnt(*networks)


def scaled(job: Job, style: str = "plain", fused: bool = False) -> Learnt:
    """Gradient scaling; rank 1 overflows once, and all must skip that step."""
    model = make_model(0, torch.float32)
    plain = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    optimizer = job.optimizer(plain, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(6):
        optimizer.zero_grad()
        loss = loss_of(model, *job.batch(step, torch.float32))
        if step == 3 and 1 in job.ranks:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if style == "documented" and job.distributed:
            optimizer.synchronize()
        if style != "plain":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if style == "documented" and job.distributed:
            with optimizer.skip_synchronize():
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 2.0**9
    return learnt(model)


def autocast(job: Job) -> Learnt:
    """bfloat16 in the forward pass, a scaler, and two backward passes in each step."""
    model = make_model(0, torch.float32)
    optimizer = job.optimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), model, backward_passes_per_step=2
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for step in range(4):
        optimizer.zero_grad()
        for index in range(2):
            x, y = job.batch(2 * step + index, torch.float32)
            with torch.autocast("cpu", torch.bfloat16):
                output = model(x)
            loss = torch.nn.functional.mse_loss(output.float(), y) / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return learnt(model)


def accumulated_and_clipped(job: Job) -> Learnt:
    model = make_model(0, F64)
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = job.optimizer(plain, model, backward_passes_per_step=3, groups=2)
    for step in range(4):
        optimizer.zero_grad()
        for index in range(3):
            (loss_of(model, *job.batch(3 * step + index)) / 3).backward()
        if job.distributed:
            optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if job.distributed:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
    return learnt(model)


class Words(torch.nn.Module):
    """Two tables, of which the large one has few rows in a batch, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Embedding(500, 4, sparse=True, dtype=F64)
        self.small = torch.nn.Embedding(3, 4, sparse=True, dtype=F64)
        self.unused = torch.nn.Embedding(5, 4, sparse=True, dtype=F64)
        self.last = torch.nn.Linear(4, 1, dtype=F64)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for param in self.parameters():
                param.copy_(torch.randn(param.shape, generator=generator, dtype=F64))

    def forward(self, large: torch.Tensor, small: torch.Tensor | None) -> torch.Tensor:
        hidden = self.large(large)
        if small is not None:
            hidden = hidden + self.small(small)
        output: torch.Tensor = self.last(hidden.tanh())
        return output


def embeddings(job: Job, **options: Any) -> Learnt:
    """Sparse gradients; rank 1 has none for the small table in the first steps."""
    model = Words()
    tables = [model.large.weight, model.small.weight, model.unused.weight]
    optimizers = [
        job.optimizer(torch.optim.SparseAdam(tables, lr=0.1), model, **options),
        job.optimizer(torch.optim.SGD(model.last.parameters(), lr=0.1), model, **options),
    ]
    for step in range(5):
        for optimizer in optimizers:
            optimizer.zero_grad()
        losses = []
        for rank in job.ranks:
            generator = torch.Generator().manual_seed(100 * step + rank)
            large = torch.randint(0, 500, (6,), generator=generator)
            small = None if rank == 1 and step < 2 else torch.arange(6) % 3
            losses.append(model(large, small).square().mean())
        torch.stack(losses).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return learnt(model)


def compiled(job: Job) -> Learnt:
    """A compiled model, with a layer that has to leave the graph."""
    model = make_model(0, F64)
    model.insert(1, torch.nn.BatchNorm1d(7, dtype=F64))
    if job.distributed:
        model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    fast = torch.compile(model, backend="aot_eager")
    for step in range(4):
        optimizer.zero_grad()
        loss_of(fast, *job.batch(step)).backward()
        optimizer.step()
    return [*learnt(model), *model.buffers()]


def batch_norm(job: Job) -> Learnt:
    """Batches of different size, so each rank divides its loss by what all have on average."""
    model = make_model(0, F64)
    model.insert(1, torch.nn.BatchNorm1d(7, dtype=F64))
    if job.distributed:
        model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    size = hvd.global_process_set.size() if job.distributed else len(job.ranks)
    optimizer = job.optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    for step in range(4):
        parts = [[part[: 1 + rank] for part in batch(rank, step, F64)] for rank in job.ranks]
        x, y = (torch.cat(part) for part in zip(*parts, strict=True))
        num_samples = size * (size + 1) / 2
        share = num_samples / size if job.distributed else num_samples
        optimizer.zero_grad()
        ((model(x) - y).square().sum() / share).backward()
        optimizer.step()
    return [*learnt(model), *model.buffers()]


def weighted(job: Job) -> Learnt:
    """Batches of different size in each step, averaged by their samples."""

    def num_samples(rank: int) -> int:
        return 1 + (2 * rank + step // 2) % 5

    def weight() -> float:
        return float(sum(map(num_samples, job.ranks)))

    step = 0
    model = make_model(0, F64)
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = job.optimizer(plain, model, weight=weight(), groups=2)
    for step in range(6):
        if step == 2 and job.distributed:
            optimizer.set_weight(weight)
        parts = [[part[: num_samples(r)] for part in batch(r, step, F64)] for r in job.ranks]
        optimizer.zero_grad()
        loss_of(model, *(torch.cat(part) for part in zip(*parts, strict=True))).backward()
        optimizer.step()
    return learnt(model)


Scenario = Callable[[Job], Learnt]

SCENARIOS: dict[str, tuple[Scenario, float]] = {
    # The second number is the tolerance relative to the largest value.
    "gan": (gan, 1e-9),
    "scaled": (scaled, 1e-4),
    "scaled_clipped": (lambda job: scaled(job, "clipped"), 1e-4),
    "scaled_documented": (lambda job: scaled(job, "documented"), 1e-4),
    "scaled_fused": (lambda job: scaled(job, "plain", fused=True), 1e-4),
    "autocast": (autocast, 2e-2),
    "accumulated_and_clipped": (accumulated_and_clipped, 1e-9),
    "embeddings": (embeddings, 1e-9),
    "embeddings_as_dense": (lambda job: embeddings(job, sparse_as_dense=True), 1e-9),
    "embeddings_fp16": (lambda job: embeddings(job, compression=hvd.Compression.fp16), 1e-2),
    "batch_norm": (batch_norm, 1e-9),
    "compiled": (compiled, 1e-9),
    "weighted": (weighted, 1e-12),
}


def train_scenarios(names: Sequence[str]) -> dict[str, Learnt]:
    """Joins the job and runs several scenarios; for each rank of a job of processes."""
    torch.set_num_threads(1)
    hvd.init()
    trained = {name: SCENARIOS[name][0](Job([hvd.rank()], True)) for name in names}
    hvd.shutdown()
    return trained
