"""Trains a small network on handwritten digits in the tasks of a Spark application.

    python examples/spark/digits_run.py --num-proc 2

`spark-submit --master …` runs it on a cluster; without it, tasks run on this machine.
"""

from __future__ import annotations

import argparse

from pyspark.sql import SparkSession

import horovod.spark


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
            print(f"epoch {epoch}: loss {loss:.4f}")
    right = (model(images[test]).argmax(1) == labels[test]).float().mean()
    return float(hvd.allreduce(right, name="accuracy"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="of Spark, such as local[2]; None as configured")
    parser.add_argument("--num-proc", type=int, default=2, help="number of ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    builder = SparkSession.builder.appName("digits")
    spark = (builder.master(args.master) if args.master else builder).getOrCreate()
    kwargs = {"epochs": args.epochs, "batch_size": args.batch_size, "lr": args.lr}
    accuracies = horovod.spark.run(train, kwargs=kwargs, num_proc=args.num_proc)
    print(f"test accuracy: {accuracies[0]:.2%} on {len(accuracies)} rank(s)")
    spark.stop()


if __name__ == "__main__":
    main()
