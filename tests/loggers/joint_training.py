"""A regression whose ranks have batches of different sizes, or one process with all of them."""

from __future__ import annotations

import math
import sys

import torch

import horovod.torch as hvd

STEPS = 12
ROWS = (3, 5, 8, 1)


def batch(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    x = torch.randn(ROWS[rank], 40, generator=generator)
    return x, x.sum(dim=1, keepdim=True) + torch.randn(ROWS[rank], 1, generator=generator)


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    return torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))


def train_distributed() -> None:
    hvd.init()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    weight = ROWS[hvd.rank()]
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), weight=weight)
    for step in range(STEPS):
        x, y = batch(hvd.rank(), step)
        optimizer.zero_grad()
        output = model(x)
        loss = torch.nn.functional.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        near = ((output - y).abs() < 1).float().mean()
        hvd.log({"train/near": near}, loss=loss, weight=weight, step=10 * step)
        # The same on all ranks, so without weight.
        hvd.log(norm=hvd.gradient_norm(optimizer), step=10 * step)
    hvd.log(nothing=math.nan, step=10 * STEPS)


def train_alone() -> dict[str, dict[int, float]]:
    """Return what one process logs that has the data of all ranks, by name and step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found: dict[str, dict[int, float]] = {"train/near": {}, "loss": {}, "norm": {}}
    for step in range(STEPS):
        batches = [batch(rank, step) for rank in range(len(ROWS))]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        optimizer.zero_grad()
        output = model(x)
        loss = torch.nn.functional.mse_loss(output, y)
        loss.backward()
        squares = [param.grad.double().square().sum() for param in model.parameters()]
        optimizer.step()
        found["train/near"][10 * step] = float(((output - y).abs() < 1).double().mean())
        found["loss"][10 * step] = loss.item()
        found["norm"][10 * step] = math.sqrt(float(sum(squares)))
    return found


if __name__ == "__main__":
    sys.exit(train_distributed())
