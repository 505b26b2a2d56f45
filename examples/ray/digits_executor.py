"""Trains a small network on handwritten digits on a Ray cluster, or on this machine.

    python examples/ray/digits_executor.py --workers 2

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

    import horovod.torch as hvd

    hvd.init()
    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels))
    train, test = order[360:], order[:360]

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    # Equally many on all ranks.
    own = train[hvd.rank() :: hvd.size()][: len(train) // hvd.size()]
    for epoch in range(epochs):
        for batch in own[torch.randperm(len(own))].split(batch_size):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        if hvd.rank() == 0:
            ray_logger.log({"epoch": epoch, "loss": loss.item()})
    right = (model(images[test]).argmax(1) == labels[test]).float().mean()
    return float(hvd.allreduce(right, name="accuracy"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    ray.init()
    with RayExecutor(RayExecutor.create_settings(), num_workers=args.workers) as executor:
        kwargs = {"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr}
        accuracies = executor.run(train, kwargs=kwargs, callbacks=[print])
    print(f"test accuracy: {accuracies[0]:.2%} on {len(accuracies)} rank(s)")


if __name__ == "__main__":
    main()
