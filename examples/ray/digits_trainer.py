"""Trains a small network on handwritten digits with Ray Train, whose workers are ranks of Horovod.

    python examples/ray/digits_trainer.py --workers 2

Without a cluster (RAY_ADDRESS, or `ray start`), Ray starts one on this machine.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig

from horovod.ray import HorovodTrainer


def train(config: dict[str, Any]) -> None:
    """What each rank does; reports after each epoch, and goes on from the last report."""
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
    own = order[360:][hvd.rank() :: hvd.size()][: (len(order) - 360) // hvd.size()]
    test = order[:360]

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    first = 0
    if (checkpoint := ray.train.get_checkpoint()) is not None:  # a worker was lost before
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "model.pt")
        model.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"] * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(first, config["epochs"]):
        for batch in own[torch.randperm(len(own))].split(config["batch_size"]):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
        right = (model(images[test]).argmax(1) == labels[test]).float().mean()
        metrics = {"epoch": epoch, "accuracy": float(hvd.allreduce(right, name="accuracy"))}
        with tempfile.TemporaryDirectory() as folder:
            state = None
            if hvd.rank() == 0:
                torch.save({"model": model.state_dict(), "epoch": epoch}, Path(folder) / "model.pt")
                state = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=state)  # by all ranks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--storage", default=str(Path.home() / "ray_results"))
    args = parser.parse_args()

    ray.init()
    trainer = HorovodTrainer(
        train,
        train_loop_config={"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr},
        scaling_config=ScalingConfig(num_workers=args.workers),
        run_config=RunConfig(
            storage_path=args.storage, failure_config=FailureConfig(max_failures=2)
        ),
    )
    result = trainer.fit()
    print(f"test accuracy: {result.metrics['accuracy']:.2%} on {args.workers} rank(s)")


if __name__ == "__main__":
    main()
