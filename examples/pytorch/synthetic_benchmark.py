"""Measures how many images per second the ranks train, on random data.

    horovodrun -np 2 python examples/pytorch/synthetic_benchmark.py --model resnet

Each rank times ``--num-iters`` iterations of ``--num-batches-per-iter`` batches after a warm-up.
Compare the total with that of one rank to see what the communication costs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

import horovod.torch as hvd

IMAGE_SIZE = 32
NUM_CLASSES = 10


class ResidualBlock(nn.Module):
    """Two convolutions that the input bypasses: (batch, in, h, w) to (batch, out, h/s, w/s)."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(num_in, num_out, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_out, num_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_out),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or num_in != num_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def make_resnet() -> nn.Module:
    """In the manner of ResNet-18 for small images; 11.2 million parameters in many tensors."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
    ]
    num_in = 64
    for num_out, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(num_in, num_out, stride), ResidualBlock(num_out, num_out, 1)]
        num_in = num_out
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(num_in, NUM_CLASSES)]
    return nn.Sequential(*layers, *head)


def make_vgg() -> nn.Module:
    """In the manner of VGG; most of its 7.5 million parameters are in one linear layer."""
    layers: list[nn.Module] = []
    num_in = 3
    for num_out in (32, 64, 128, 256):
        layers += [nn.Conv2d(num_in, num_out, 3, padding=1), nn.ReLU(inplace=True)]
        layers += [nn.Conv2d(num_out, num_out, 3, padding=1), nn.ReLU(inplace=True)]
        layers.append(nn.MaxPool2d(2))
        num_in = num_out
    layers += [nn.Flatten(), nn.Linear(256 * 2 * 2, 2048), nn.ReLU(inplace=True)]
    layers += [nn.Linear(2048, 2048), nn.ReLU(inplace=True), nn.Linear(2048, NUM_CLASSES)]
    return nn.Sequential(*layers)


def make_mlp() -> nn.Module:
    """Three linear layers; 5.3 million parameters, little arithmetic for each of them."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * IMAGE_SIZE * IMAGE_SIZE, 1024),
        nn.ReLU(inplace=True),
        nn.Linear(1024, 2048),
        nn.ReLU(inplace=True),
        nn.Linear(2048, NUM_CLASSES),
    )


MODELS = {"resnet": make_resnet, "vgg": make_vgg, "mlp": make_mlp}


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="resnet")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument("--num-warmup-batches", type=int, default=5)
    parser.add_argument("--num-batches-per-iter", type=int, default=5)
    parser.add_argument("--num-iters", type=int, default=5)
    parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in 16 bits")
    parser.add_argument("--smoke", action="store_true", help="a few tiny batches, to see it runs")
    args = parser.parse_args()
    if args.smoke:
        args.batch_size, args.num_warmup_batches = 4, 1
        args.num_batches_per_iter, args.num_iters = 1, 2
    return args


def say(text: str) -> None:
    if hvd.rank() == 0:
        print(text, flush=True)


def spread(values: list[float]) -> str:
    """Mean and the interval that holds 95 % of normally distributed values."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1f} +- {1.96 * deviation:.1f}"


def main() -> None:
    args = parse_args()
    hvd.init()
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))
    torch.manual_seed(1)

    model = MODELS[args.model]()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size()),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)

    images = torch.randn(args.batch_size, 3, IMAGE_SIZE, IMAGE_SIZE)
    labels = torch.randint(NUM_CLASSES, (args.batch_size,))

    def train_batches(num_batches: int) -> None:
        for _ in range(num_batches):
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    say(f"{args.model}: {num_parameters / 1e6:.1f} million parameters, {hvd.size()} rank(s)")
    train_batches(args.num_warmup_batches)
    rates: list[float] = []
    for iteration in range(args.num_iters):
        began = time.perf_counter()
        train_batches(args.num_batches_per_iter)
        seconds = time.perf_counter() - began
        rates.append(args.batch_size * args.num_batches_per_iter / seconds)
        say(f"iteration {iteration}: {rates[-1]:.1f} img/s per rank")

    # Every rank has its own clock: the total is the sum of what each of them measured.
    totals = hvd.allreduce(torch.tensor(rates), op=hvd.Sum, name="rates").tolist()
    say(f"img/s per rank: {spread(rates)}")
    say(f"total img/s on {hvd.size()} rank(s): {spread(totals)}")


if __name__ == "__main__":
    main()
