"""Trains a small network on handwritten digits: alone, or on several ranks with a few more lines.

    python examples/pytorch/digits.py
    horovodrun -np 2 python examples/pytorch/digits.py

The lines that make it distributed are marked with "Horovod:". The data is the set of 1797 images
of 8 x 8 pixels that scikit-learn brings along, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import horovod
import horovod.torch as hvd


def parse_args() -> argparse.Namespace:
    default_checkpoint = Path(tempfile.gettempdir()) / "checkpoints" / "digits.pt"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05, help="learning rate of one rank")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoint", type=Path, default=default_checkpoint)
    parser.add_argument("--smoke", action="store_true", help="two epochs, to see that it runs")
    args = parser.parse_args()
    if args.smoke:
        args.epochs = min(args.epochs, 2)
    return args


class Network(nn.Module):
    """Two convolutions and two linear layers: images (batch, 1, 8, 8) to scores (batch, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(images))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        x = F.dropout(x, 0.5, training=self.training)
        return self.fc2(F.relu(self.fc1(x)))


def load_data(seed: int) -> tuple[TensorDataset, TensorDataset]:
    """The same 80/20 split on all ranks, because the seed is the same."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    train, test = order[len(order) // 5 :], order[: len(order) // 5]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def average(value: float) -> float:
    """Horovod: a number of this rank becomes its average over all ranks."""
    return hvd.allreduce(torch.tensor(value), name="metric").item()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader
) -> tuple[float, float]:
    """Goes once through this rank's share of the data; returns loss and accuracy of all ranks."""
    model.train()
    total_loss, num_right, num_images = 0.0, 0, 0
    for images, labels in loader:
        optimizer.zero_grad()
        scores = model(images)
        loss = F.cross_entropy(scores, labels)
        loss.backward()  # Horovod: the gradients are averaged meanwhile, layer by layer ...
        optimizer.step()  # ... and this waits for the last of them.
        total_loss += loss.item() * len(labels)
        num_right += (scores.argmax(1) == labels).sum().item()
        num_images += len(labels)
    return average(total_loss / num_images), average(num_right / num_images)


@torch.no_grad()
def test(model: nn.Module, data: TensorDataset) -> float:
    """The accuracy on the test images; each rank looks at its share of them."""
    model.eval()
    images, labels = data[hvd.rank() :: hvd.size()]
    num_right = (model(images).argmax(1) == labels).sum()
    # Horovod: shares may differ by one image, so sum the counts instead of averaging accuracies.
    return hvd.allreduce(num_right, op=hvd.Sum, name="right").item() / len(data)


def main() -> None:
    args = parse_args()

    # Horovod: join the job. Without horovodrun this is a job of one rank.
    hvd.init()

    # Horovod: the ranks of a host share its cores, and only one of them talks.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    is_first = hvd.rank() == 0

    torch.manual_seed(args.seed + hvd.rank())  # dropout differs between the ranks
    train_data, test_data = load_data(args.seed)

    # Horovod: each rank draws its own share of the images.
    sampler = DistributedSampler(train_data, hvd.size(), hvd.rank(), seed=args.seed)
    loader = DataLoader(train_data, args.batch_size, sampler=sampler)

    # Horovod: a step sees size() times as many images, so it may go as much further.
    model = Network()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.9)

    # Horovod: average the gradients over the ranks, and start everywhere as rank 0 does.
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # another order in each epoch
        loss, accuracy = train(model, optimizer, loader)
        schedule.step()
        if is_first:
            print(f"epoch {epoch + 1:2d}: loss {loss:.4f}, training accuracy {accuracy:.2%}")
            # Horovod: in the run of a job file, for the table of its runs.
            horovod.report_result(accuracy=accuracy, loss=loss)
            # Horovod: all ranks hold the same weights, so one of them saves them.
            args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"epoch": epoch, "model": model.state_dict()}, args.checkpoint)

    accuracy = test(model, test_data)
    if is_first:
        print(f"test accuracy: {accuracy:.2%} on {hvd.size()} rank(s)")


if __name__ == "__main__":
    main()
