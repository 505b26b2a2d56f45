"""Trains a small network on handwritten digits on a Ray cluster while its nodes come and go.

    python examples/ray/digits_elastic.py --min-workers 1 --max-workers 4

Without a cluster (RAY_ADDRESS, or `ray start`), Ray starts one on this machine.
"""

from __future__ import annotations

import argparse

import ray

from horovod.ray import RayExecutor, ray_logger


def train(epochs: int, batch_size: int, lr: float) -> float:
    """What each rank does; returns the accuracy on the test images."""
    import torch
    import torch.nn.functional as F
    from sklearn.datasets import load_digits
    from torch.utils.data import TensorDataset

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, test = order[360:], order[:360]

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    training = hvd.elastic.Training(model=model, optimizer=optimizer)
    data = TensorDataset(images[train], labels[train])
    for epoch in training.epochs(epochs):
        for batch, targets in training.batches(data, batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0:
            ray_logger.log({"epoch": epoch, "ranks": hvd.size(), "loss": loss.item()})
    right = (model(images[test]).argmax(1) == labels[test]).float().mean()
    return float(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--min-workers", type=int, default=1)
    parser.add_argument("--max-workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.04)
    args = parser.parse_args()

    ray.init()
    with RayExecutor(
        RayExecutor.create_settings(),
        min_workers=args.min_workers,
        max_workers=args.max_workers,
    ) as executor:
        kwargs = {"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr}
        accuracies = executor.run(train, kwargs=kwargs, callbacks=[print])
    print(f"test accuracy: {accuracies[0]:.2%} on {len(accuracies)} rank(s)")


if __name__ == "__main__":
    main()
