"""Searches a learning rate with Ray Tune; each trial trains on several ranks of Horovod.

    python examples/ray/tune.py --workers 2

Without a cluster (RAY_ADDRESS, or `ray start`), Ray starts one on this machine.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import tune

from horovod.ray.tune import DistributedTrainableCreator, get_checkpoint, report


def train(config: dict[str, Any], epochs: int) -> None:
    """What each rank of a trial does; goes on from the last report if a worker was lost."""
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
    if (checkpoint := get_checkpoint()) is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "model.pt")
        model.load_state_dict(saved["model"])
        first = saved["epoch"] + 1
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"] * hvd.size(), momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    for epoch in range(first, epochs):
        for batch in own[torch.randperm(len(own))].split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
        right = (model(images[test]).argmax(1) == labels[test]).float().mean()
        accuracy = float(hvd.allreduce(right, name="accuracy"))
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"model": model.state_dict(), "epoch": epoch}, Path(folder) / "model.pt")
            report({"accuracy": accuracy}, checkpoint=tune.Checkpoint.from_directory(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2, help="ranks of each trial")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.0001, 0.002, 0.02])
    parser.add_argument("--storage", default=str(Path.home() / "ray_results"))
    args = parser.parse_args()

    ray.init()
    trainable = DistributedTrainableCreator(
        partial(train, epochs=args.epochs), num_workers=args.workers
    )
    tuner = tune.Tuner(
        trainable,
        param_space={"lr": tune.grid_search(args.lr)},
        tune_config=tune.TuneConfig(metric="accuracy", mode="max"),
        run_config=tune.RunConfig(
            storage_path=args.storage, failure_config=tune.FailureConfig(max_failures=1)
        ),
    )
    best = tuner.fit().get_best_result()
    print(
        f"test accuracy: {best.metrics['accuracy']:.2%} on {args.workers} rank(s), "
        f"with a learning rate of {best.config['lr']:g}"
    )


if __name__ == "__main__":
    main()
