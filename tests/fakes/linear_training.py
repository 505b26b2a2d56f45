"""A training that ranks of clusters do, in a module that loads PyTorch when it runs."""

from __future__ import annotations


def train_linear(rate: float, steps: int) -> list[float]:
    """Steps on numbers of each rank's own; the weights are those of all ranks."""
    import torch

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), rate)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    return [each.item() for each in model.weight.flatten()]
