"""Trains a small network on handwritten digits while ranks come and go, in one of two ways.

    horovodrun -np 2 --min-np 1 python examples/pytorch/digits_elastic.py
    horovodrun -np 2 --min-np 1 python examples/pytorch/digits_elastic.py --style function

"loops" is the simple way: two loops that go on where the job is after a change. "function" is that
of Horovod since 0.20: a function that begins anew, and a state that says where it goes on.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import horovod.torch as hvd


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--style", choices=["loops", "function"], default="loops")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
    return args


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def make_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(16 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()


def report(epoch: int) -> None:
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1:2d} on {hvd.size()} rank(s)")


def train_in_loops(
    args: argparse.Namespace,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    data: TensorDataset,
) -> None:
    """Horovod: what has a state is given to the training; batches() has what is left."""
    training = hvd.elastic.Training(model=model, optimizer=optimizer, schedule=schedule)
    for epoch in training.epochs(args.epochs):
        for images, labels in training.batches(data, args.batch_size, seed=args.seed):
            step(model, optimizer, images, labels)
        schedule.step()
        report(epoch)


def train_in_function(
    args: argparse.Namespace,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
    data: TensorDataset,
) -> None:
    """Horovod: the function begins anew after a change; the state says where."""
    sampler = hvd.elastic.ElasticSampler(data, seed=args.seed)
    loader = DataLoader(data, args.batch_size, sampler=sampler)

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> None:
        while state.epoch < args.epochs:
            for number, (images, labels) in enumerate(loader):
                step(state.model, state.optimizer, images, labels)
                state.sampler.record_batch(number, args.batch_size)
                if number % 10 == 9:
                    state.commit()
            state.schedule.step()
            report(state.epoch)
            state.epoch += 1
            state.sampler.set_epoch(state.epoch)
            state.commit()

    train(hvd.elastic.TorchState(model, optimizer, schedule=schedule, sampler=sampler, epoch=0))


@torch.no_grad()
def test(model: nn.Module, data: TensorDataset) -> float:
    """The accuracy on the test images; each rank looks at its share of them."""
    images, labels = data[hvd.rank() :: hvd.size()]
    num_right = (model(images).argmax(1) == labels).sum()
    return hvd.allreduce(num_right, op=hvd.Sum, name="right").item() / len(data)


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.manual_seed(args.seed)
    train_data, test_data = load_data(args.seed)
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    train = train_in_loops if args.style == "loops" else train_in_function
    train(args, model, optimizer, schedule, train_data)
    accuracy = test(model, test_data)
    if hvd.rank() == 0:
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
