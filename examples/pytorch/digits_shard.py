"""Trains on a stream of digits in 3 shards, each digit once per epoch, at any number of ranks.

    horovodrun -np 4 python examples/pytorch/digits_shard.py --checkpoint digits.pt --stop-after 20
    horovodrun -np 3 python examples/pytorch/digits_shard.py --checkpoint digits.pt

The second job continues in the middle of the epoch, with the digits that the first one has left.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import IterableDataset

import horovod.torch as hvd

if TYPE_CHECKING:
    from collections.abc import Iterator


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32, help="digits per rank and step")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--checkpoint", type=Path, help="where to continue, and what to write")
    parser.add_argument("--stop-after", type=int, default=0, help="steps; 0 for all epochs")
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
    return args


class Digits(IterableDataset[tuple[torch.Tensor, int]]):
    """Digits in shards of different lengths, without every tenth one, which is for the test.

    hvd.shard asks for num_shards and shard(); streams of Hugging Face have them as well.
    """

    def __init__(self, rows: range = range(1797), bounds: tuple[int, ...] = (300, 1100)) -> None:
        self.rows = rows
        self.bounds = (0, *bounds, len(rows))
        self.num_shards = len(bounds) + 1

    def shard(self, num_shards: int, index: int) -> Digits:
        return Digits(self.rows[self.bounds[index] : self.bounds[index + 1]], ())

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        digits = load_digits()
        for row in self.rows:
            if row % 10:
                yield torch.tensor(digits.data[row], dtype=torch.float32) / 16, digits.target[row]


def accuracy_of(model: nn.Module) -> float:
    digits = load_digits()
    images = torch.tensor(digits.data[::10], dtype=torch.float32) / 16
    with torch.no_grad():
        right = model(images).argmax(1) == torch.tensor(digits.target[::10])
    return right.float().mean().item()


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    shard = hvd.shard(Digits(), args.batch_size, shuffle=True, seed=1)
    if args.checkpoint and args.checkpoint.exists():
        saved = torch.load(args.checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        shard.load_state_dict(saved["shard"])
        if hvd.rank() == 0:
            print(f"continuing in epoch {shard.epoch} after {shard.samples_done} samples")

    steps = 0
    for _ in shard.epochs(args.epochs):
        for images, labels in shard:
            optimizer.zero_grad()
            # In some steps ranks have different numbers of samples: the weight makes up for it.
            (F.cross_entropy(model(images), labels) * shard.weight).backward()
            optimizer.step()
            steps += 1
            if steps == args.stop_after:
                break
        if steps == args.stop_after:
            break

    if hvd.rank() == 0:
        if args.checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "shard": shard.state_dict()}, args.checkpoint)
        print(f"{shard.samples_done} samples in {steps} steps on {hvd.size()} ranks")
        print(f"test accuracy: {100 * accuracy_of(model):.1f}%")


if __name__ == "__main__":
    main()
